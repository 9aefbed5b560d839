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

// Calls of several processes that ask at the same time, and find room, leave again if they are
// too many.
func TestCallsThatAskTogetherLeaveAgain(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		const pools, most = 8, 3
		l := b.Lock(b.Pool(), "a")
		s.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpExists}}, Times: 1000, Do: zktest.DelayReply(time.Second)})
		var refused atomic.Int32
		var all sync.WaitGroup
		for range pools {
			p := b.Pool()
			all.Go(func() {
				err := p.Do(b.Ctx, "a", func(context.Context) error { return nil }, lockpool.MaxWaiters(most))
				if errors.Is(err, lockpool.ErrQueueFull) {
					refused.Add(1)
				} else {
					require.NoError(t, err)
				}
			})
		}
		b.Until(func() bool { return refused.Load() == pools-most }, "the calls that are too many are refused")
		require.Len(t, b.Children("a"), 1+most)
		b.Unlock(l)
		all.Wait()
	})
}

// Of calls that come while the first call of their pool asks, no more wait than with calls that
// come one after the other.
func TestCallsBehindACallThatAsksCountTheCall(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		const calls, most = 20, 3
		l := b.Lock(b.Pool(), "a")
		p := b.Pool()
		require.NoError(t, p.Ping(b.Ctx))
		s.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Creates}, Do: zktest.DelayReply(time.Second)})
		var refused atomic.Int32
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				err := p.Do(b.Ctx, "a", func(context.Context) error { return nil }, lockpool.MaxWaiters(most))
				if errors.Is(err, lockpool.ErrQueueFull) {
					refused.Add(1)
				} else {
					require.NoError(t, err)
				}
			})
		}
		b.Until(func() bool { return refused.Load() == calls-most }, "the calls that are too many are refused")
		time.Sleep(time.Second)
		require.Equal(t, most, p.Stats().Waiting)
		b.Unlock(l)
		all.Wait()
	})
}
