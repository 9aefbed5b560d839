package lockpool_test

// This file tests what bounded queues cost.

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// One answer of the server refuses all calls of a pool that came meanwhile, and no node is
// created; calls behind a waiter of the pool are refused without a request.
func TestRefusedCallsSendLittle(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		holder, p := b.Pool(), b.Pool()
		l := b.Lock(holder, "a")
		waiter := b.Enqueue(b.Pool(), "a", 2)
		require.NoError(t, p.Ping(b.Ctx))
		time.Sleep(time.Second) // the nodes are watched
		slow := s.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpExists, zktest.OpGetChildren2, zktest.OpGetData}}, Times: 1000, Do: zktest.DelayReply(100 * time.Millisecond)})
		created := s.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Creates}, Times: 1000, Do: zktest.DelayReply(0)})
		began := time.Now()
		refuse := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					_, err := p.Lock(b.Ctx, "a", lockpool.MaxWaiters(1))
					require.ErrorIs(t, err, lockpool.ErrQueueFull)
				})
			}
			all.Wait()
		}
		refuse(100)
		require.LessOrEqual(t, time.Since(began), 350*time.Millisecond)
		require.Equal(t, 3, slow.Fired())
		require.Zero(t, created.Fired())
		first := b.StartLock(p, "a")
		b.AwaitWaiting(p, 1)
		before := slow.Fired()
		refuse(100)
		require.Equal(t, before, slow.Fired())
		slow.Remove()
		b.Unlock(l)
		b.Unlock(waiter.Granted())
		b.Unlock(first.Granted())
	})
}

// Of calls that ask together, as many wait as of calls that come one after the other: those of
// several processes leave again if they are too many, and those of one process count the first.
func TestCallsThatAskTogetherLeaveAgain(t *testing.T) {
	const most = 3
	for name, test := range map[string]struct {
		pools, calls int
		slow         []zktest.Op
		times        int
	}{
		"several processes": {8, 8, []zktest.Op{zktest.OpExists}, 1000},
		"one process":       {1, 20, zktest.Creates, 1},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
				l := b.Lock(b.Pool(), "a")
				var pools []*lockpool.Pool
				for i := range test.pools {
					pools = append(pools, b.Pool())
					require.NoError(t, pools[i].Ping(b.Ctx))
				}
				s.Inject(zktest.Rule{Match: zktest.Match{Ops: test.slow}, Times: test.times, Do: zktest.DelayReply(time.Second)})
				var refused atomic.Int32
				var all sync.WaitGroup
				for i := range test.calls {
					all.Go(func() {
						err := pools[i%test.pools].Do(b.Ctx, "a", func(context.Context) error { return nil }, lockpool.MaxWaiters(most))
						if errors.Is(err, lockpool.ErrQueueFull) {
							refused.Add(1)
						} else {
							require.NoError(t, err)
						}
					})
				}
				b.Until(func() bool { return int(refused.Load()) == test.calls-most }, "the calls that are too many are refused")
				time.Sleep(time.Second)
				require.EqualValues(t, test.calls-most, refused.Load(), "the others wait")
				require.Len(t, b.Children("a"), 1+min(most, test.pools))
				b.Unlock(l)
				all.Wait()
			})
		})
	}
}
