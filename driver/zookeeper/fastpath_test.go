package zookeeper

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A queue that a session has had to itself is watched, also when others have
// come.
func TestQueueThatIsWatchedHasNotGone(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	var log bytes.Buffer
	c, err := NewConnector(Config{Servers: []string{server.Addr()}, SessionTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	open := func() *Session {
		s, err := c.Connect(ctx)
		require.NoError(t, err)
		return s.(*Session)
	}
	ours, others := open(), open()
	dir := ours.path("a")
	for range fastpathStreak + 5 {
		node, _, err := ours.Join(ctx, "a", driver.Mutex, 0, 0, nil)
		require.NoError(t, err)
		require.NoError(t, ours.Leave(ctx, "a", node))
	}
	require.True(t, ours.isWatched(dir))
	holder, _, err := others.Join(ctx, "a", driver.Mutex, 0, 0, nil)
	require.NoError(t, err)
	waiter, queue, err := ours.Join(ctx, "a", driver.Mutex, 0, 0, nil)
	require.NoError(t, err)
	require.Equal(t, []driver.Node{holder, waiter}, queue)
	watches, err := ours.Watch(ctx, "a", holder, waiter)
	require.NoError(t, err)
	time.Sleep(5 * recheckInterval)
	require.Zero(t, watches[0].Fired())
	require.Zero(t, watches[1].Fired())
	require.True(t, ours.isWatched(dir), "it stands")
	require.NoError(t, ours.Close(ctx))
	require.NoError(t, others.Close(ctx))
	require.NoError(t, c.Close())
	require.NotContains(t, log.String(), "unnoticed")
}
