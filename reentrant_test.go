package lockpool_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// Scenarios 19 and 26.
func TestLockIsHeldUntilTheLastUnlock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	var locks []*lockpool.Lock
	for depth := range 3 {
		l, err := s.Lock(b.ctx, "a")
		require.NoError(t, err)
		require.Equal(t, depth+1, l.Depth())
		locks = append(locks, l)
	}
	for _, i := range []int{0, 2} { // the order does not matter
		b.unlock(locks[i])
		require.Len(t, b.children("a"), 1)
	}
	require.Equal(t, 1, locks[1].Depth())
	b.unlock(locks[1])
	require.Empty(t, b.children("a"))
	require.NoError(t, s.Close(b.ctx))
}

// Scenario 21. (That no span is recorded is shown in testing/tracing.)
func TestReentrySendsNothing(t *testing.T) {
	t.Parallel()
	own := startServer(t) // its counters are ours alone
	b := newBenchOn(t, own.Addr())
	cfg := b.config()
	cfg.SessionTimeout = 10 * time.Second
	p := b.poolWith(cfg)
	s := b.session(p)
	outer, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	ctx := outer.Context(b.ctx)

	received := func() int { return b.stat(own, "zk_packets_received") }
	const rounds = 10_000
	before := received()
	for range rounds {
		l, err := s.Lock(b.ctx, "a")
		require.NoError(t, err)
		l2, err := s.TryLock(b.ctx, "a")
		require.NoError(t, err)
		l3, err := p.Lock(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, p.Do(ctx, "a", func(context.Context) error { return nil }))
		b.unlock(l3)
		b.unlock(l2)
		b.unlock(l)
	}
	// The question itself is a packet, and two clients ping now and then.
	require.Less(t, received()-before, 100)
	b.unlock(outer)
	require.NoError(t, s.Close(b.ctx))
}

// Scenario 6: a holder in a context is of no use to another goroutine.
func TestAnotherGoroutineIsAnotherHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	outer := b.lock(p, "a")
	ctx := context.WithoutCancel(outer.Context(b.ctx))
	done := make(chan *lockpool.Lock)
	go func() {
		l, err := p.Lock(ctx, "a")
		if err != nil {
			t.Error(err)
		}
		done <- l
	}()
	b.queued("a", 2) // it waits, and shares nothing
	require.Equal(t, 1, outer.Depth())
	b.unlock(outer)
	b.unlock(<-done)
}

func TestContextCarriesTheHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, other := b.pool(), b.pool()
	err := p.Do(b.ctx, "a", func(ctx context.Context) error {
		l, err := p.Lock(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, 2, l.Depth())
		require.NoError(t, p.Do(ctx, "b", func(ctx context.Context) error {
			require.Equal(t, 1, p.Stats().InUse, "it is the same holder")
			return p.Do(ctx, "a", func(ctx context.Context) error {
				require.Equal(t, 3, l.Depth())
				return nil
			})
		}))
		b.unlock(l)
		_, err = other.TryLock(ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked, "another pool's holder is another holder")
		return nil
	})
	require.NoError(t, err)
	require.Zero(t, p.Stats().InUse)
	require.Zero(t, p.Stats().Held)
}

// A lock taken through the context outlives the frame whose context it was.
func TestInnerLockOutlivesTheOuterOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	outer := b.lock(p, "a")
	inner, err := p.Lock(outer.Context(b.ctx), "b")
	require.NoError(t, err)
	b.unlock(outer)
	require.Empty(t, b.children("a"))
	require.Len(t, b.children("b"), 1)
	require.Equal(t, 1, p.Stats().InUse)
	b.unlock(inner)
	require.Empty(t, b.children("b"))
	require.Zero(t, p.Stats().InUse)
}

// A context that outlived its lock carries nobody.
func TestContextOfAReleasedLockCarriesNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	l := b.lock(p, "a")
	ctx := l.Context(context.WithoutCancel(b.ctx))
	b.unlock(l)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrNotHeld)
	l = b.lock(p, "a")
	_, err := p.TryLock(context.WithoutCancel(ctx), "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.unlock(l)
}

// Scenario 127.
func TestUnlockTwiceTakesNobodysCount(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	outer, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	inner, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	twin, ok := lockpool.LockFromContext(inner.Context(b.ctx)) // another value for the same entry
	require.True(t, ok)
	b.unlock(inner)
	require.ErrorIs(t, inner.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.ErrorIs(t, twin.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.Equal(t, 1, outer.Depth())
	require.Len(t, b.children("a"), 1)
	b.unlock(outer)
	require.ErrorIs(t, outer.Unlock(b.ctx), lockpool.ErrNotHeld)
	again, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	require.ErrorIs(t, outer.Unlock(b.ctx), lockpool.ErrNotHeld, "it is of an earlier hold")
	require.Len(t, b.children("a"), 1)
	b.unlock(again)
	require.ErrorIs(t, new(lockpool.Lock).Unlock(b.ctx), lockpool.ErrNotHeld)
	require.ErrorIs(t, (*lockpool.Lock)(nil).Unlock(b.ctx), lockpool.ErrNotHeld)
	require.NoError(t, s.Close(b.ctx))
}

func TestTwoCallsAtOnceOnASessionAreAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	s := b.session(p)
	mine, err := s.Lock(b.ctx, "mine")
	require.NoError(t, err)
	done := make(chan error)
	go func() {
		l, err := s.Lock(b.ctx, "a")
		if err == nil {
			err = l.Unlock(b.ctx)
		}
		done <- err
	}()
	b.queued("a", 2)
	_, err = s.Lock(b.ctx, "c")
	require.ErrorIs(t, err, lockpool.ErrConcurrentUse)
	_, err = s.TryLock(b.ctx, "mine")
	require.ErrorIs(t, err, lockpool.ErrConcurrentUse)
	b.unlock(holder)
	require.NoError(t, <-done)
	b.unlock(mine)
	require.NoError(t, s.Close(b.ctx))
}

func TestSessionMayMoveBetweenGoroutines(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	var l *lockpool.Lock
	for range 3 {
		var wg sync.WaitGroup
		wg.Go(func() { l, _ = s.Lock(b.ctx, "a") })
		wg.Wait()
		require.NotNil(t, l)
	}
	require.Equal(t, 3, l.Depth())
	require.NoError(t, s.Close(b.ctx))
}

// What is left held when a session is closed is released.
func TestClosingASessionReleasesWhatItHolds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s := b.session(p)
	var locks []*lockpool.Lock
	for _, name := range []string{"a", "a", "b"} {
		l, err := s.Lock(b.ctx, name)
		require.NoError(t, err)
		locks = append(locks, l)
	}
	ctx := locks[0].Context(b.ctx)
	require.NoError(t, s.Close(b.ctx))
	require.NoError(t, s.Close(b.ctx))
	require.Empty(t, b.children("a"))
	require.Empty(t, b.children("b"))
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrHandleClosed)
	for _, l := range locks {
		require.Zero(t, l.Depth())
		err := l.Unlock(b.ctx)
		require.ErrorIs(t, err, lockpool.ErrNotHeld)
		require.ErrorIs(t, err, lockpool.ErrHandleClosed)
	}
	_, err := s.Lock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrHandleClosed)
	require.Zero(t, p.Stats().InUse)
}

func TestDoReleasesWhenItsFunctionPanicsOrFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	require.PanicsWithValue(t, "oops", func() {
		_ = p.Do(b.ctx, "a", func(context.Context) error { panic("oops") })
	})
	require.Empty(t, b.children("a"))
	failure := errors.New("failure")
	require.Equal(t, failure, p.Do(b.ctx, "a", func(context.Context) error { return failure }))
	require.Empty(t, b.children("a"))
	require.Zero(t, p.Stats().InUse)
}

func TestDoContextEndsWithDo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	var kept context.Context
	require.NoError(t, p.Do(b.ctx, "a", func(ctx context.Context) error {
		kept = ctx
		return ctx.Err()
	}))
	require.ErrorIs(t, context.Cause(kept), lockpool.ErrNotHeld)
}

func TestWaitAtMostBoundsTheWaitAndNotTheWork(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	require.NoError(t, p.Do(b.ctx, "a", func(ctx context.Context) error {
		err := p.Do(b.ctx, "a", func(context.Context) error { return nil }, lockpool.WaitAtMost(50*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return nil
	}))
	deadline, ok := b.ctx.Deadline()
	require.True(t, ok)
	require.NoError(t, p.Do(b.ctx, "a", func(ctx context.Context) error {
		inner, ok := ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, deadline, inner)
		return nil
	}, lockpool.WaitAtMost(time.Second)))
}

func BenchmarkNested(b *testing.B) {
	h := newBench(b)
	s := h.session(h.pool())
	outer, err := s.Lock(h.ctx, "a")
	require.NoError(b, err)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := s.Lock(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(ctx); err != nil {
			b.Fatal(err)
		}
	}
	h.unlock(outer)
	require.NoError(b, s.Close(h.ctx))
}
