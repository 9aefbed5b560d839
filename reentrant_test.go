package lockpool_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// Scenarios 19 and 26.
func TestLockIsHeldUntilTheLastUnlock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	var locks []*lockpool.Lock
	for depth := range 3 {
		l := b.Lock(h, "a")
		require.Equal(t, depth+1, l.Depth())
		locks = append(locks, l)
	}
	for _, i := range []int{0, 2} { // the order does not matter
		b.Unlock(locks[i])
		require.Len(t, b.Children("a"), 1)
	}
	require.Equal(t, 1, locks[1].Depth())
	b.Unlock(locks[1])
	require.Empty(t, b.Children("a"))
	require.NoError(t, h.Close(b.Ctx))
}

// Scenario 21. (Package tracing tests that no span is recorded.)
func TestReentrySendsNothing(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t) // counts only this test's packets
	b := locktest.NewOn(t, own)
	p := b.PoolWithTimeout(10 * time.Second)
	h := b.Handle(p)
	outer := b.Lock(h, "a")
	ctx := outer.Context(b.Ctx)

	received := func() int { return b.Stat(own, "zk_packets_received") }
	const rounds = 10_000
	before := received()
	for range rounds {
		l := b.Lock(h, "a")
		l2, err := h.TryLock(b.Ctx, "a")
		require.NoError(t, err)
		l3, err := p.Lock(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, p.Do(ctx, "a", func(context.Context) error { return nil }))
		b.Unlock(l3)
		b.Unlock(l2)
		b.Unlock(l)
	}
	// Asking for the figure is a packet, and two clients ping now and then.
	require.Less(t, received()-before, 100)
	b.Unlock(outer)
	require.NoError(t, h.Close(b.Ctx))
}

// Scenario 6.
func TestContextInAnotherGoroutineIsAnotherHolder(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	outer := b.Lock(p, "a")
	ctx := context.WithoutCancel(outer.Context(b.Ctx))
	done := make(chan *lockpool.Lock)
	go func() {
		l, err := p.Lock(ctx, "a")
		if err != nil {
			t.Error(err)
		}
		done <- l
	}()
	b.AwaitQueue("a", 2) // it waits like any other holder
	require.Equal(t, 1, outer.Depth())
	b.Unlock(outer)
	b.Unlock(<-done)
}

func TestContextCarriesTheHolder(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, other := b.Pool(), b.Pool()
	err := p.Do(b.Ctx, "a", func(ctx context.Context) error {
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
		b.Unlock(l)
		_, err = other.TryLock(ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked, "another pool's holder is another holder")
		return nil
	})
	require.NoError(t, err)
	require.Zero(t, p.Stats().InUse)
	require.Zero(t, p.Stats().Held)
}

// A lock taken through a context outlives the lock that the context came from.
func TestInnerLockOutlivesTheOuterLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	outer := b.Lock(p, "a")
	inner, err := p.Lock(outer.Context(b.Ctx), "b")
	require.NoError(t, err)
	b.Unlock(outer)
	require.Empty(t, b.Children("a"))
	require.Len(t, b.Children("b"), 1)
	require.Equal(t, 1, p.Stats().InUse)
	b.Unlock(inner)
	require.Empty(t, b.Children("b"))
	require.Zero(t, p.Stats().InUse)
}

func TestContextOfAReleasedLockCarriesNoHolder(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	ctx := l.Context(context.WithoutCancel(b.Ctx))
	b.Unlock(l)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrNotHeld)
	l = b.Lock(p, "a")
	_, err := p.TryLock(context.WithoutCancel(ctx), "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.Unlock(l)
}

// Scenario 127.
func TestSecondUnlockChangesNoCount(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	outer := b.Lock(h, "a")
	inner := b.Lock(h, "a")
	twin, ok := lockpool.LockFromContext(inner.Context(b.Ctx)) // another value for the same entry
	require.True(t, ok)
	b.Unlock(inner)
	require.ErrorIs(t, inner.Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.ErrorIs(t, twin.Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.Equal(t, 1, outer.Depth())
	require.Len(t, b.Children("a"), 1)
	b.Unlock(outer)
	require.ErrorIs(t, outer.Unlock(b.Ctx), lockpool.ErrNotHeld)
	again := b.Lock(h, "a")
	require.ErrorIs(t, outer.Unlock(b.Ctx), lockpool.ErrNotHeld, "it belongs to an earlier hold")
	require.Len(t, b.Children("a"), 1)
	b.Unlock(again)
	require.ErrorIs(t, new(lockpool.Lock).Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.ErrorIs(t, (*lockpool.Lock)(nil).Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.NoError(t, h.Close(b.Ctx))
}

func TestDoUnlocksWhenItsFunctionPanicsOrFails(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	require.PanicsWithValue(t, "oops", func() {
		_ = p.Do(b.Ctx, "a", func(context.Context) error { panic("oops") })
	})
	require.Empty(t, b.Children("a"))
	failure := errors.New("failure")
	require.Equal(t, failure, p.Do(b.Ctx, "a", func(context.Context) error { return failure }))
	require.Empty(t, b.Children("a"))
	require.Zero(t, p.Stats().InUse)
}

func TestDoContextEndsWithDo(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	var kept context.Context
	require.NoError(t, p.Do(b.Ctx, "a", func(ctx context.Context) error {
		kept = ctx
		return ctx.Err()
	}))
	require.ErrorIs(t, context.Cause(kept), lockpool.ErrNotHeld)
}

func TestWaitAtMostBoundsTheWaitOnly(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	require.NoError(t, p.Do(b.Ctx, "a", func(ctx context.Context) error {
		err := p.Do(b.Ctx, "a", func(context.Context) error { return nil }, lockpool.WaitAtMost(50*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return nil
	}))
	deadline, ok := b.Ctx.Deadline()
	require.True(t, ok)
	require.NoError(t, p.Do(b.Ctx, "a", func(ctx context.Context) error {
		inner, ok := ctx.Deadline()
		require.True(t, ok)
		require.Equal(t, deadline, inner)
		return nil
	}, lockpool.WaitAtMost(time.Second)))
}

func BenchmarkReentry(b *testing.B) {
	h := locktest.New(b)
	handle := h.Handle(h.Pool())
	outer, err := handle.Lock(h.Ctx, "a")
	require.NoError(b, err)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := handle.Lock(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(ctx); err != nil {
			b.Fatal(err)
		}
	}
	h.Unlock(outer)
	require.NoError(b, handle.Close(h.Ctx))
}
