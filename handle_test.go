package lockpool_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// A holder found in a context may unlock everything while it waits for another
// lock.
func TestImplicitHandleStaysOpenWhileItWaits(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	held := b.Lock(others, "b")
	l := b.Lock(p, "a")
	ctx := context.WithoutCancel(l.Context(b.Ctx))
	var second *lockpool.Lock
	go func() {
		b.AwaitQueue("b", 2)
		if err := errors.Join(l.Unlock(b.Ctx), held.Unlock(b.Ctx)); err != nil {
			t.Error(err)
		}
	}()
	second, err := p.Lock(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, 1, p.Stats().InUse)
	b.Unlock(second)
	require.Zero(t, p.Stats().InUse)
}

func TestHandleCloseEndsItsWait(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	held := b.Lock(others, "b")
	h := b.Handle(p)
	b.Lock(h, "a")
	w := b.Enqueue(h, "b", 2)
	require.NoError(t, h.Close(b.Ctx))
	<-w.Done
	require.ErrorIs(t, w.Err, lockpool.ErrHandleClosed)
	require.Empty(t, b.Children("a"))
	b.AwaitQueue("b", 1)
	require.Zero(t, p.Stats().InUse)
	b.Unlock(held)
}

func TestConcurrentUseOfAHandleIsAnError(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	holder := b.Lock(p, "a")
	h := b.Handle(p)
	mine := b.Lock(h, "mine")
	done := make(chan error)
	go func() {
		l, err := h.Lock(b.Ctx, "a")
		if err == nil {
			err = l.Unlock(b.Ctx)
		}
		done <- err
	}()
	b.AwaitQueue("a", 2)
	_, err := h.Lock(b.Ctx, "c")
	require.ErrorIs(t, err, lockpool.ErrConcurrentUse)
	_, err = h.TryLock(b.Ctx, "mine")
	require.ErrorIs(t, err, lockpool.ErrConcurrentUse)
	b.Unlock(holder)
	require.NoError(t, <-done)
	b.Unlock(mine)
	require.NoError(t, h.Close(b.Ctx))
}

func TestHandleMayMoveBetweenGoroutines(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	var l *lockpool.Lock
	for range 3 {
		var wg sync.WaitGroup
		wg.Go(func() { l, _ = h.Lock(b.Ctx, "a") })
		wg.Wait()
		require.NotNil(t, l)
	}
	require.Equal(t, 3, l.Depth())
	require.NoError(t, h.Close(b.Ctx))
}

func TestHandleCloseReleasesItsLocks(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	h := b.Handle(p)
	var locks []*lockpool.Lock
	for _, name := range []string{"a", "a", "b"} {
		l := b.Lock(h, name)
		locks = append(locks, l)
	}
	ctx := locks[0].Context(b.Ctx)
	require.NoError(t, h.Close(b.Ctx))
	require.NoError(t, h.Close(b.Ctx))
	require.Empty(t, b.Children("a"))
	require.Empty(t, b.Children("b"))
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrHandleClosed)
	for _, l := range locks {
		require.Zero(t, l.Depth())
		err := l.Unlock(b.Ctx)
		require.ErrorIs(t, err, lockpool.ErrNotHeld)
		require.ErrorIs(t, err, lockpool.ErrHandleClosed)
	}
	_, err := h.Lock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrHandleClosed)
	require.Zero(t, p.Stats().InUse)
}

func TestHandlesShareFewSessions(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithMaxSessions(2))
	var handles []*lockpool.Handle
	for range 200 {
		handles = append(handles, b.Handle(p))
	}
	stats := p.Stats()
	require.Equal(t, 200, stats.InUse)
	require.LessOrEqual(t, stats.OpenSessions, 2)
	for _, h := range handles {
		require.NoError(t, h.Close(b.Ctx))
	}
	require.Zero(t, p.Stats().InUse)
}

func TestWaitForAHandleHonorsTheContext(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithMaxHandles(1))
	h := b.Handle(p)
	ctx, cancel := context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer cancel()
	_, err := p.Handle(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = p.Lock(ctx, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer cancel()
	_, err = p.TryLock(ctx, "a")
	require.ErrorContains(t, err, "no free handle, all 1 are in use")

	done := make(chan error)
	go func() { done <- p.Do(b.Ctx, "a", func(context.Context) error { return nil }) }()
	require.NoError(t, h.Close(b.Ctx))
	require.NoError(t, <-done)
	stats := p.Stats()
	require.NotZero(t, stats.WaitCount)
	require.NotZero(t, stats.WaitDuration)
}

func TestHandleDoLocksForItsHandle(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	h := b.Handle(p)
	outer := b.Lock(h, "a")
	require.NoError(t, h.Do(b.Ctx, "a", func(ctx context.Context) error {
		require.Equal(t, 2, outer.Depth())
		return h.Do(ctx, "b", func(ctx context.Context) error {
			require.Equal(t, 1, p.Stats().InUse, "the context carries the same holder")
			return p.Do(ctx, "a", func(context.Context) error {
				require.Equal(t, 3, outer.Depth())
				return nil
			})
		}, lockpool.Shared())
	}))
	require.Equal(t, 1, outer.Depth())
	require.Empty(t, b.Children("b"))

	require.PanicsWithValue(t, "oops", func() {
		_ = h.Do(b.Ctx, "b", func(context.Context) error { panic("oops") })
	})
	require.Empty(t, b.Children("b"))
	failure := errors.New("failure")
	require.Equal(t, failure, h.Do(b.Ctx, "b", func(context.Context) error { return failure }))
	require.ErrorContains(t, h.Do(b.Ctx, "b", nil), "function is nil")
	held := b.Lock(b.Pool(), "c")
	nothing := func(context.Context) error { return nil }
	require.ErrorIs(t, h.Do(b.Ctx, "c", nothing, lockpool.WaitAtMost(0)), lockpool.ErrLocked)
	b.Unlock(held)

	require.NoError(t, h.Close(b.Ctx), "which unlocks a")
	require.ErrorIs(t, h.Do(b.Ctx, "a", nothing), lockpool.ErrHandleClosed)
}
