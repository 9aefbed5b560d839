package zookeeper

import (
	"context"
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
