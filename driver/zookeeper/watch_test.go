package zookeeper

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A watch that was answered before a holder's node was created says nothing about that
// node, even if the clock has not advanced since.
func TestAnOlderWatchDoesNotDisownAPlainNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		connector, err := NewConnector(Config{Servers: server.Members(), Dial: server.Dial})
		require.NoError(t, err)
		session, err := connector.Connect(t.Context())
		require.NoError(t, err)
		s := session.(*Session)
		older := &watch{Watch: driver.NewWatch(), began: time.Now(), paths: []string{s.path("a")}, armed: make(chan struct{})}
		older.Fire(driver.Missing)
		close(older.armed)
		node, created, err := s.TryCreate(t.Context(), "a", nil)
		require.NoError(t, err)
		require.True(t, created)
		s.watches.byPath[s.path("a")] = older // its goroutine has not removed it yet
		_, err = s.Watch(t.Context(), "a", node)
		require.NoError(t, err)
		require.NoError(t, s.Leave(t.Context(), "a", node))
		exists, _, err := s.requests.Exists(s.path("a"))
		require.NoError(t, err)
		require.False(t, exists)
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, connector.Close())
	})
}
