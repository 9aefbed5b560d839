package zookeeper

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The time of a synctest bubble stands still while a session waits for the network.
// The session's background goroutines must tolerate that.
func TestSessionWorksInASynctestBubble(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	synctest.Test(t, func(t *testing.T) {
		connector, err := NewConnector(Config{Servers: []string{s.Addr()}})
		require.NoError(t, err)
		session, err := connector.Connect(context.Background())
		require.NoError(t, err)
		began := time.Now()
		node, queue, err := session.Join(context.Background(), "a", driver.Mutex, 0, 0, nil)
		require.NoError(t, err)
		require.Equal(t, []driver.Node{node}, queue)
		require.NoError(t, session.Alive(context.Background()))
		require.NoError(t, session.Leave(context.Background(), "a", node))
		require.Zero(t, time.Since(began))
		require.NoError(t, session.Close(context.Background()))
	})
}

// The lease is measured from the moment at which a proof was sent.
func TestProofBeginsWhenItIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, delay = 12 * time.Second, time.Second
		s := zktest.StartBubble(t)
		connector, err := NewConnector(Config{Servers: s.Members(), Dial: s.Dial, SessionTimeout: timeout})
		require.NoError(t, err)
		session, err := connector.Connect(t.Context())
		require.NoError(t, err)
		s.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.DelayReply(delay)})
		time.Sleep(2 * timeout)
		l := &session.(*Session).expiry.lease
		l.mu.Lock()
		proofs := slices.Clone(l.proofs)
		l.mu.Unlock()
		require.NoError(t, session.Close(context.Background()))
		require.NotEmpty(t, proofs)
		for _, p := range proofs {
			require.Equal(t, delay, p.end-p.begin)
		}
	})
}
