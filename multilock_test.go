package lockpool_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// Scenarios 111 and 115.
func TestLockAllTakesEachOnceAndGivesAllBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	all, err := p.LockAll(b.ctx, []string{"c", "a", "b", "a"})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, all.Names())
	for _, name := range all.Names() {
		_, err := b.pool().TryLock(b.ctx, name)
		require.ErrorIs(t, err, lockpool.ErrLocked)
		require.Equal(t, 1, all.Get(name).Depth())
	}
	require.Nil(t, all.Get("d"))
	require.NoError(t, all.Verify(b.ctx))
	ctx := all.Context(b.ctx)
	inner, err := p.LockAll(ctx, []string{"b", "d"}) // the same holder
	require.NoError(t, err)
	require.NoError(t, inner.Unlock(b.ctx))
	require.NoError(t, ctx.Err())
	require.NoError(t, all.Unlock(b.ctx))
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrNotHeld)
	select {
	case <-all.Lost():
		require.FailNow(t, "it was not lost")
	default:
	}
	require.ErrorIs(t, all.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.Zero(t, p.Stats().InUse, "its handle is given back")
}

// Scenario 112.
func TestLockAllThatFailsGivesEverythingBackAndNamesTheCulprit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	held := b.lock(b.pool(), "b")
	ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := p.LockAll(ctx, []string{"c", "b", "a"})
	var culprit *lockpool.LockError
	require.ErrorAs(t, err, &culprit)
	require.Equal(t, "b", culprit.Name)
	require.Equal(t, "lock all", culprit.Op)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	b.queued("a", 0)
	require.Empty(t, b.children("c"))
	b.unlock(held)
	require.Zero(t, p.Stats().InUse)

	_, err = p.LockAll(b.ctx, []string{"a", "/b"})
	require.ErrorIs(t, err, lockpool.ErrInvalidName)
	require.ErrorAs(t, err, &culprit)
	require.Equal(t, "/b", culprit.Name)
	_, err = p.LockAll(b.ctx, nil)
	require.ErrorContains(t, err, "no names are given")
}

// Scenario 114.
func TestLockAllInAnyOrderIsNoDeadlock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var all sync.WaitGroup
	for _, names := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b", "c"}, {"c", "a"}} {
		p := b.pool()
		all.Go(func() {
			for range 25 {
				locks, err := p.LockAll(b.ctx, names)
				if err == nil {
					err = locks.Unlock(b.ctx)
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
func TestLosingOneOfAllIsLosingAll(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.session(b.pool())
	all, err := s.LockAll(b.ctx, []string{"a", "b"})
	require.NoError(t, err)
	ctx := all.Context(b.ctx)
	require.NoError(t, b.admin.Delete(b.chroot+"/b/"+b.children("b")[0], -1))
	<-all.Lost()
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrLockLost)
	require.ErrorIs(t, all.Verify(b.ctx), lockpool.ErrLockLost)
	err = all.Unlock(b.ctx)
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	var culprit *lockpool.LockError
	require.ErrorAs(t, err, &culprit)
	require.Equal(t, "b", culprit.Name)
	require.NoError(t, s.Close(b.ctx))
}
