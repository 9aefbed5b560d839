package lockpool_test

// This file tests the reports of pools.

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// Only long waits in memory cost requests: one write a second at most, and only if something
// has changed. In the end no report is left.
func TestReportsCostLittle(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		pool := bubblePool(t, server)
		writes := server.Inject(zktest.Rule{Match: zktest.Match{Ops: append(zktest.Creates, zktest.OpMulti, zktest.OpSetData, zktest.OpDelete), Prefix: "/" + driver.Reports}, Times: zktest.Always, Do: zktest.Pass()})
		begin := func() { // a call that waits
			go func() {
				l, err := pool.Lock(t.Context(), "a")
				if err == nil {
					err = l.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}()
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
		time.Sleep(time.Minute)
		require.Empty(t, server.State().Nodes["/"+driver.Reports].Children)
	})
}
