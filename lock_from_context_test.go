package lockpool_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

func lockFrom(t testing.TB, ctx context.Context) *lockpool.Lock {
	t.Helper()
	l, ok := lockpool.LockFromContext(ctx)
	require.True(t, ok)
	return l
}

func TestLockFromContextReturnsTheInnermostLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, other := b.Pool(), b.Pool()
	_, ok := lockpool.LockFromContext(b.Ctx)
	require.False(t, ok, "a plain context")
	outer := b.Lock(p, "a")
	ctx := outer.Context(b.Ctx)
	require.Equal(t, "a", lockFrom(t, ctx).Name())
	require.NoError(t, p.Do(ctx, "b", func(ctx context.Context) error {
		require.Equal(t, "b", lockFrom(t, ctx).Name())
		require.NoError(t, other.Do(ctx, "c", func(ctx context.Context) error {
			require.Equal(t, "c", lockFrom(t, ctx).Name(), "of another pool")
			return nil
		}))
		require.NoError(t, p.Semaphore("s", 2).Do(ctx, 1, func(ctx context.Context) error {
			require.Equal(t, "s", lockFrom(t, ctx).Name(), "permits")
			return lockFrom(t, ctx).Verify(ctx)
		}))
		return nil
	}))
	all, err := p.LockAll(b.Ctx, []string{"d", "e"})
	require.NoError(t, err)
	require.Equal(t, "e", lockFrom(t, all.Context(b.Ctx)).Name(), "the last of several locks")
	require.NoError(t, all.Unlock(b.Ctx))
	b.Unlock(outer)
}

func TestLockFromContextIsNoNewEntry(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	outer := b.Lock(h, "a")
	inner := b.Lock(h, "a")
	found := lockFrom(t, inner.Context(b.Ctx))
	require.Equal(t, 2, found.Depth())
	require.Equal(t, b.Token(inner), b.Token(found))
	b.Unlock(outer)
	require.NoError(t, found.Verify(b.Ctx), "the entry that made the context is left")
	b.Unlock(inner)
	require.ErrorIs(t, found.Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.NoError(t, h.Close(b.Ctx))
}

// The holder in a context counts only on its goroutine, its lock on all.
func TestLockFromContextWorksOnEveryGoroutine(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	require.NoError(t, p.Do(b.Ctx, "a", func(ctx context.Context) error {
		want := b.Token(lockFrom(t, ctx))
		type result struct {
			token      int64
			tokenError error
			tryError   error
		}
		got := make(chan result)
		go func() {
			var r result
			if l, ok := lockpool.LockFromContext(ctx); ok {
				r.token, r.tokenError = l.Token(ctx)
			}
			_, r.tryError = p.TryLock(ctx, "a")
			got <- r
		}()
		r := <-got
		require.NoError(t, r.tokenError)
		require.Equal(t, want, r.token)
		require.ErrorIs(t, r.tryError, lockpool.ErrLocked, "the other goroutine is not the holder")
		return nil
	}))
}

func TestLockFromContextAfterUnlockIsNotHeld(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	ctx := l.Context(b.Ctx)
	b.Unlock(l)
	next := b.Lock(p, "a")
	found := lockFrom(t, ctx)
	require.Zero(t, found.Depth())
	_, err := found.Token(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorIs(t, found.Verify(b.Ctx), lockpool.ErrNotHeld)
	require.ErrorIs(t, found.Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.Equal(t, 1, next.Depth())
	b.Unlock(next)
}
