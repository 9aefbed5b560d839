package lockpool_test

// This file tests the reports of pools.

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Only long waits in memory cost requests: one write a second at most, and only if something
// has changed. In the end no report is left.
func TestReportsCostLittle(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pool := bubblePool(t, server)
		writes := server.Inject(zktest.Rule{Match: zktest.Match{Ops: append(zktest.Creates, zktest.OpMulti, zktest.OpSetData, zktest.OpDelete), Prefix: "/" + driver.Reports}, Times: zktest.Always, Do: zktest.Pass()})
		var calls []<-chan error
		begin := func() { // a call that waits
			calls = append(calls, startLock(t.Context(), pool))
			synctest.Wait()
		}
		for range 100 {
			require.NoError(t, pool.Do(t.Context(), "a", func(ctx context.Context) error {
				begin()
				time.Sleep(10 * time.Millisecond)
				return nil
			}))
		}
		require.Zero(t, writes.Fired(), "no wait is long")
		l, err := pool.Lock(t.Context(), "a")
		require.NoError(t, err)
		begin()
		time.Sleep(time.Hour)
		created := writes.Fired()
		require.LessOrEqual(t, created, 4, "the node, and directories")
		for range 60 {
			begin()
			time.Sleep(time.Second / 2)
		}
		require.InDelta(t, created+30, writes.Fired(), 2)
		require.NoError(t, l.Unlock(t.Context()))
		for _, call := range calls {
			require.NoError(t, <-call)
		}
		time.Sleep(time.Minute)
		require.Empty(t, server.State().Nodes["/"+driver.Reports].Children)
	})
}

// A report ends with its session, and comes back on another one as long as calls wait.
func TestReportsSurviveTheirSession(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		holder, pool := bubblePool(t, server), bubblePool(t, server)
		l, err := holder.Lock(t.Context(), "a")
		require.NoError(t, err)
		first, cancel := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{t.Context(), t.Context(), first} {
			startLock(ctx, pool)
		}
		reports := func() (n int) {
			time.Sleep(time.Minute)
			return len(server.State().Nodes["/"+driver.Reports].Children)
		}
		require.Equal(t, 1, reports())
		for _, s := range server.State().Sessions[2:] { // not the bench's and the holder's
			require.NoError(t, server.ExpireSession(s.ID))
		}
		require.Equal(t, 1, reports())
		for _, s := range server.State().Sessions[2:] {
			require.NoError(t, server.ExpireSession(s.ID))
		}
		require.Equal(t, 1, reports())
		removed := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpSetData}, Prefix: "/" + driver.Reports}, Times: 1, Do: zktest.FailWith(zktest.ErrNoNode)})
		cancel()
		time.Sleep(1100 * time.Millisecond)
		require.Equal(t, 1, removed.Fired(), "the pool takes the node for removed")
		require.NoError(t, l.Unlock(t.Context()))
		time.Sleep(time.Minute)
	})
}

// A report that a rewrite did not reach is made again.
func TestReportsAreMadeAgain(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		other, pool := bubblePool(t, server), bubblePool(t, server)
		l, err := pool.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		begin := func(n int) {
			for range n {
				go func() { _, _ = pool.Lock(ctx, "a") }() // ends with ctx
			}
			time.Sleep(time.Minute)
		}
		callers := func() (n int) {
			q, err := other.Queue(t.Context(), "a")
			require.NoError(t, err)
			for _, c := range q.Contenders {
				n += c.Callers
			}
			return n
		}
		begin(3)
		require.Equal(t, 2, callers(), "and one has a node")
		lost := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpSetData}, Prefix: "/" + driver.Reports}, Times: 8, Do: zktest.DropBeforeApply()})
		begin(5)
		require.Positive(t, lost.Fired())
		require.Equal(t, 7, callers())
		cancel()
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// The node of a kept lock names the first call, which is not the present holder.
func TestLineOfAKeptLock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		other, pool := bubblePool(t, server), bubblePool(t, server, lockpool.WithKeptLocks(0, time.Hour))
		for range 5 {
			require.NoError(t, pool.Do(t.Context(), "a", func(context.Context) error {
				time.Sleep(30 * time.Millisecond)
				return nil
			}))
		}
		l, err := pool.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		q, err := other.Queue(t.Context(), "a")
		require.NoError(t, err)
		require.True(t, q.Contenders[0].Kept)
		require.Empty(t, q.Contenders[0].At, "it is not known")
		require.NoError(t, l.Unlock(t.Context()))
	})
}
