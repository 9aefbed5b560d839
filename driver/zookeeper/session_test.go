package zookeeper

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"syscall"
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

// A session can be closed while its connection breaks. A client that is being closed
// answers each new request at once. If it sends the request nevertheless and the write
// failed, it would answer a second time, and a third time when it has lost the
// connection, for which the request's channel has no room.
func TestSessionClosesAlthoughAWriteFails(t *testing.T) {
	t.Parallel()
	for range 20 { // the client chooses at random whether it sends the request and whether it reads the first answer
		synctest.Test(t, func(t *testing.T) {
			server := zktest.StartBubble(t)
			connector, err := NewConnector(Config{
				Servers: server.Members(), SessionTimeout: 30 * time.Second,
				Dial: func(ctx context.Context, address string) (net.Conn, error) {
					conn, err := server.Dial(ctx, address)
					return &failingConn{Conn: conn}, err
				},
			})
			require.NoError(t, err)
			session, err := connector.Connect(t.Context())
			require.NoError(t, err)
			server.Partition(zktest.Selector{}, zktest.Outbound) // so that the end of the session is not confirmed
			closed := make(chan error, 1)
			go func() { closed <- session.Close(t.Context()) }() // ends when the session is closed
			select {
			case err := <-closed:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				require.FailNow(t, "the session is not closed")
			}
		})
	}
}

// failingConn fails to write a sync after the end of the session has been requested.
type failingConn struct {
	net.Conn
	closing bool
}

func (c *failingConn) Write(p []byte) (int, error) {
	const opClose = -11
	switch int32(binary.BigEndian.Uint32(p[8:])) {
	case opClose:
		c.closing = true
	case opSync:
		if c.closing {
			return 0, syscall.EPIPE
		}
	}
	return c.Conn.Write(p)
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
