package lockpool_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/internal/locktest"
)

// Scenarios 111 and 115.
func TestLockAllTakesEachNameOnce(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	all, err := p.LockAll(b.Ctx, []string{"c", "a", "b", "a"})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, all.Names())
	for _, name := range all.Names() {
		_, err := b.Pool().TryLock(b.Ctx, name)
		require.ErrorIs(t, err, lockpool.ErrLocked)
		require.Equal(t, 1, all.Get(name).Depth())
	}
	require.Nil(t, all.Get("d"))
	require.NoError(t, all.Verify(b.Ctx))
	ctx := all.Context(b.Ctx)
	inner, err := p.LockAll(ctx, []string{"b", "d"}) // the same holder
	require.NoError(t, err)
	require.NoError(t, inner.Unlock(b.Ctx))
	require.NoError(t, ctx.Err())
	require.NoError(t, all.Unlock(b.Ctx))
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrNotHeld)
	select {
	case <-all.Lost():
		require.FailNow(t, "an unlocked lock was reported lost")
	default:
	}
	require.ErrorIs(t, all.Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.Zero(t, p.Stats().InUse, "the handle is returned")
}

// Scenario 112.
func TestFailedLockAllUnlocksAndNamesTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	held := b.Lock(b.Pool(), "b")
	ctx, cancel := context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer cancel()
	_, err := p.LockAll(ctx, []string{"c", "b", "a"})
	var culprit *lockpool.LockError
	require.ErrorAs(t, err, &culprit)
	require.Equal(t, "b", culprit.Name)
	require.Equal(t, "lock all", culprit.Op)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	b.AwaitQueue("a", 0)
	require.Empty(t, b.Children("c"))
	b.Unlock(held)
	require.Zero(t, p.Stats().InUse)

	_, err = p.LockAll(b.Ctx, []string{"a", "/b"})
	require.ErrorIs(t, err, lockpool.ErrInvalidName)
	require.ErrorAs(t, err, &culprit)
	require.Equal(t, "/b", culprit.Name)
	_, err = p.LockAll(b.Ctx, nil)
	require.ErrorContains(t, err, "no names are given")
}

// Scenario 114.
func TestLockAllInAnyOrderNeverDeadlocks(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	var all sync.WaitGroup
	for _, names := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c"}, {"c", "a"}} {
		p := b.Pool()
		all.Go(func() {
			for range 25 {
				locks, err := p.LockAll(b.Ctx, names)
				if err == nil {
					err = locks.Unlock(b.Ctx)
				}
				if err != nil {
					t.Error(names, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// Scenario 117.
func TestLossOfOneLockIsALossOfTheMultiLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	all, err := h.LockAll(b.Ctx, []string{"a", "b"})
	require.NoError(t, err)
	ctx := all.Context(b.Ctx)
	require.NoError(t, b.Admin.Delete(b.Chroot+"/b/"+b.Children("b")[0], -1))
	<-all.Lost()
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrLockLost)
	require.ErrorIs(t, all.Verify(b.Ctx), lockpool.ErrLockLost)
	err = all.Unlock(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	var culprit *lockpool.LockError
	require.ErrorAs(t, err, &culprit)
	require.Equal(t, "b", culprit.Name)
	require.NoError(t, h.Close(b.Ctx))
}
