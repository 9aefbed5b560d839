package zookeeper

// This file tests the watch on a queue's own node, which stays while contenders come and go.

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The watch on the queue's own node fires neither when others join nor when the
// node is checked.
func TestWatchOnAQueueOutlivesItsFastPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		own, other := open(t, server, Config{}), open(t, server, Config{})
		dir := own.path("a")
		for range fastpathStreak + 5 {
			require.NoError(t, own.Leave(t.Context(), "a", join(t, own, "a").Node))
		}
		onQueue := own.watches.at(dir)
		require.NotNil(t, onQueue)
		holder, waiter := join(t, other, "a"), join(t, own, "a")
		require.Equal(t, []driver.Node{holder.Node, waiter.Node}, waiter.Queue)
		watches, err := own.Watch(t.Context(), "a", holder.Node, waiter.Node)
		require.NoError(t, err)
		time.Sleep(5 * recheckInterval)
		require.Zero(t, watches[0].Fired())
		require.Zero(t, watches[1].Fired())
		require.Same(t, onQueue, own.watches.at(dir), "the queue was not removed")
		require.Zero(t, onQueue.Fired())
	})
}
