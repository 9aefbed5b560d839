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

// The watch on the queue's own node fires neither when others join nor when the
// node is checked.
func TestWatchOnAQueueOutlivesItsFastPath(t *testing.T) {
	t.Parallel()
	server := zktest.Start(t)
	var log bytes.Buffer
	c, err := NewConnector(Config{Servers: []string{server.Addr()}, SessionTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	open := func() *session {
		s, err := c.Connect(ctx)
		require.NoError(t, err)
		return s.(*session)
	}
	own, other := open(), open()
	dir := own.path("a")
	for range fastpathStreak + 5 {
		joined, err := own.Join(ctx, "a", driver.Request{Kind: driver.Exclusive})
		require.NoError(t, err)
		require.NoError(t, own.Leave(ctx, "a", joined.Node))
	}
	require.NotNil(t, own.watches.at(dir))
	holder, err := other.Join(ctx, "a", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	waiter, err := own.Join(ctx, "a", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	require.Equal(t, []driver.Node{holder.Node, waiter.Node}, waiter.Queue)
	watches, err := own.Watch(ctx, "a", holder.Node, waiter.Node)
	require.NoError(t, err)
	time.Sleep(5 * recheckInterval)
	require.Zero(t, watches[0].Fired())
	require.Zero(t, watches[1].Fired())
	require.NotNil(t, own.watches.at(dir), "the queue was not removed")
	require.NoError(t, own.Close(ctx))
	require.NoError(t, other.Close(ctx))
	require.NoError(t, c.Close())
	require.NotContains(t, log.String(), "unnoticed")
}
