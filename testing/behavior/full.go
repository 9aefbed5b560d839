package behavior

// This file has the tests of MaxWaiters and InTime.

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var fullQueueTests = []test{
	{"InMemory", fullInMemory, nil},
	{"AtService", fullAtService, nil},
	{"BehindARefusedCall", fullBehindARefusedCall, nil},
	{"AtOnce", fullAtOnce, nil},
	{"Readers", readersAreNotRefused, nil},
	{"InTime", refusedInTime, nil},
	{"AfterAStall", inTimeAfterAStall, nil},
	{"OfThePool", fullByOptionOfThePool, nil},
	{"Options", maxWaitersOptions, nil},
}

// refused requires the error of a call that found a queue with n waiters.
func (b *bench) refused(err error, n int) *lockpool.QueueFullError {
	b.Helper()
	for _, target := range []error{lockpool.ErrQueueFull, lockpool.ErrLocked, lockpool.ErrNotAcquired} {
		require.ErrorIs(b, err, target)
	}
	require.NotErrorIs(b, err, context.DeadlineExceeded)
	var failed *lockpool.LockError
	require.ErrorAs(b, err, &failed)
	require.Equal(b, "queue_full", failed.ErrorType())
	var full *lockpool.QueueFullError
	require.ErrorAs(b, err, &full)
	require.Equal(b, n, full.Waiters, err)
	return full
}

func fullInMemory(b *bench) {
	p, a := b.pool(lockpool.WithOwner("billing")), b.name("a")
	held := b.lock(p, a)
	var calls []*call[*lockpool.Lock]
	for n := range 2 {
		calls = append(calls, b.waiter(p, a, n+1, lockpool.MaxWaiters(2)))
	}
	for range 3 {
		_, err := p.Lock(b.ctx, a, lockpool.MaxWaiters(2))
		full := b.refused(err, 2)
		require.ErrorContains(b, err, "2 waiting, of at most 2 (MaxWaiters)")
		require.Equal(b, b.nodes(a)[0], full.Holder.Node)
		require.Equal(b, "billing", full.Holder.Owner)
		require.True(b, full.Holder.Holds)
	}
	require.Equal(b, 2, p.Stats().Waiting)
	calls = append(calls, b.waiter(p, a, 3, lockpool.MaxWaiters(3)))
	b.unlock(held)
	for _, c := range calls {
		b.unlock(c.granted())
	}
}

func fullAtService(b *bench) {
	holder, waiters, p, a := b.pool(lockpool.WithOwner("billing")), b.pool(atService), b.pool(), b.name("a")
	held := b.lock(holder, a)
	first := b.enqueue(waiters, a, 2)
	second := b.enqueue(p, a, 3, lockpool.MaxWaiters(2))
	before := b.nodes(a)
	for _, by := range []*lockpool.Pool{waiters, b.pool()} {
		_, err := by.Lock(b.ctx, a, lockpool.MaxWaiters(2))
		full := b.refused(err, 2)
		require.Equal(b, []any{before[0], "billing"}, []any{full.Holder.Node, full.Holder.Owner})
		require.Equal(b, before, b.nodes(a))
	}
	b.unlock(held)
	b.unlock(first.granted())
	b.unlock(second.granted())
	b.unlock(b.lock(p, a, lockpool.MaxWaiters(1)))
}

// fullBehindARefusedCall has calls of one pool come while the first of them asks the service.
func fullBehindARefusedCall(b *bench) {
	holder, p, a := b.pool(), b.pool(), b.name("a")
	held := b.lock(holder, a)
	waiter := b.enqueue(holder, a, 2, lockpool.MaxWaiters(1)) // behind the other kind of wait: its pool's
	var refused atomic.Int32
	plays.Together(b, 20, func(int) error {
		_, err := p.Lock(b.ctx, a, lockpool.MaxWaiters(1))
		if errors.Is(err, lockpool.ErrQueueFull) {
			refused.Add(1)
			return nil
		}
		return err
	})
	require.EqualValues(b, 20, refused.Load())
	b.unlock(held)
	b.unlock(waiter.granted())
}

// fullAtOnce has processes ask at once: none waits past the bound.
func fullAtOnce(b *bench) {
	const pools, most = 8, 3
	a := b.name("a")
	held := b.lock(b.looker, a)
	var refused atomic.Int32
	var calls []*call[struct{}]
	for _, p := range b.pools(pools) {
		calls = append(calls, do(b, func(ctx context.Context) error {
			err := p.Do(ctx, a, nothing, lockpool.MaxWaiters(most))
			if errors.Is(err, lockpool.ErrQueueFull) {
				refused.Add(1)
				return nil
			}
			return err
		}))
	}
	b.until(func() bool { return refused.Load() >= pools-most }, "the calls that are too many are refused")
	b.queued(a, 1+pools-int(refused.Load()))
	b.unlock(held)
	for _, c := range calls {
		c.granted()
	}
}

func readersAreNotRefused(b *bench) {
	pools, a := b.pools(4, atService), b.name("a")
	var readers []*lockpool.Lock
	for _, p := range pools {
		readers = append(readers, b.lock(p, a, lockpool.Shared(), lockpool.MaxWaiters(1)))
	}
	writer := b.enqueue(b.pool(), a, 5, lockpool.MaxWaiters(1))
	for _, shared := range []lockpool.LockOption{lockpool.Shared(), lockpool.HoldAtLeast(0)} {
		_, err := pools[0].Lock(b.ctx, a, shared, lockpool.MaxWaiters(1))
		b.refused(err, 1)
	}
	for _, l := range readers {
		b.unlock(l)
	}
	b.unlock(writer.granted())
}

// refusedInTime has waits of some length, and then a call with less time.
func refusedInTime(b *bench) {
	held := 100 * time.Millisecond
	if !b.bubble {
		held = time.Second // a busy machine refuses in less
	}
	for _, opts := range [][]lockpool.Option{nil, {atService}} {
		p, a := b.pool(opts...), b.name("a")
		for range 2 {
			l := b.lock(p, a)
			c := b.waiter(p, a, 1, lockpool.InTime(), lockpool.WaitAtMost(patience))
			time.Sleep(held)
			b.unlock(l)
			b.unlock(c.granted())
		}
		l := b.lock(p, a)
		began := time.Now()
		_, err := p.Lock(b.ctx, a, lockpool.InTime(), lockpool.WaitAtMost(held*9/10))
		full := b.refused(err, 0)
		require.ErrorContains(b, err, "(InTime)")
		require.Greater(b, full.Wait, held*9/10)
		if b.bubble {
			require.Less(b, time.Since(began), held/4, "at once")
		}
		c := b.waiter(p, a, 1, lockpool.InTime()) // has minutes
		b.unlock(l)
		b.unlock(c.granted())
		if b.bubble { // a busy machine takes longer for a free lock
			b.unlock(b.lock(p, a, lockpool.InTime(), lockpool.WaitAtMost(held/2))) // need not wait
			reader := b.read(b.looker, a)
			b.unlock(b.lock(p, a, lockpool.Shared(), lockpool.InTime(), lockpool.WaitAtMost(held/2)))
			b.unlock(reader)
		}
		l = b.lock(p, a)
		time.Sleep(6 * time.Second) // the wait becomes old
		_, err = p.Lock(b.ctx, a, lockpool.InTime(), lockpool.WaitAtMost(held/2))
		require.ErrorIs(b, err, context.DeadlineExceeded)
		require.NotErrorIs(b, err, lockpool.ErrQueueFull)
		b.unlock(l)
	}
}

// inTimeAfterAStall has one long wait, by a call without a deadline, and then calls with
// little time: they are not refused for long.
func inTimeAfterAStall(b *bench) {
	stall := 2 * time.Second
	if b.bubble {
		stall = 30 * time.Second
	}
	p, a := b.pool(lockpool.WithInTime()), b.name("a")
	l := b.lock(p, a)
	c := do(b, func(context.Context) error { return p.Do(context.Background(), a, nothing) })
	b.waiting(p, 1)
	time.Sleep(stall)
	b.unlock(l)
	c.granted()
	l = b.lock(p, a)
	_, err := p.Lock(b.ctx, a, lockpool.WaitAtMost(time.Second))
	b.refused(err, 0)
	b.unlock(l)
	time.Sleep(6 * time.Second)
	l = b.lock(p, a)
	_, err = p.Lock(b.ctx, a, lockpool.WaitAtMost(time.Second))
	require.ErrorIs(b, err, context.DeadlineExceeded)
	b.unlock(l)
}

func fullByOptionOfThePool(b *bench) {
	p, a := b.pool(lockpool.WithMaxWaiters(1)), b.name("a")
	held := b.lock(p, a)
	first := b.waiter(p, a, 1)
	b.refused(p.Do(b.ctx, a, nothing), 1)
	_, err := p.LockAll(b.ctx, []string{a, b.name("b")})
	b.refused(err, 1)
	second := b.waiter(p, a, 2, lockpool.MaxWaiters(math.MaxInt))
	b.unlock(held)
	b.unlock(first.granted())
	b.unlock(second.granted())
	b.isFree(b.name("b"))
}

func maxWaitersOptions(b *bench) {
	p, a := b.pool(lockpool.WithMaxWaiters(1), lockpool.WithInTime()), b.name("a")
	for text, call := range map[string]func() error{
		"must be at least 1":   func() error { return p.Do(b.ctx, a, nothing, lockpool.MaxWaiters(0)) },
		"leave out MaxWaiters": func() error { return p.Do(b.ctx, a, nothing, lockpool.MaxWaiters(1), lockpool.Plain()) },
		"permits have no":      func() error { return p.Semaphore(a, 1).Do(b.ctx, 1, nothing, lockpool.MaxWaiters(1)) },
		"leave out":            func() error { return p.Elect(b.ctx, a, nothing, lockpool.InTime()) },
	} {
		require.ErrorContains(b, call(), text)
	}
	l := b.lock(p, a)
	_, err := p.TryLock(b.ctx, a)
	require.ErrorIs(b, err, lockpool.ErrLocked)
	require.NotErrorIs(b, err, lockpool.ErrQueueFull)
	b.unlock(l)
}
