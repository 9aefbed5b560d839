package lockpool_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
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
	require.NoError(t, p.Ping(b.Ctx)) // the wait is for the lock, not for a session
	_, err := p.LockAll(locktest.Timeout(t, 500*time.Millisecond), []string{"c", "b", "a"})
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
	require.ErrorContains(t, err, "no names were given")
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

func TestMultiLockDoUnlocksAll(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	names := []string{"a", "b"}
	lockAll := func() *lockpool.MultiLock {
		all, err := p.LockAll(b.Ctx, names)
		require.NoError(t, err)
		return all
	}
	unlocked := func() {
		t.Helper()
		require.Empty(t, b.Contenders("/"))
		require.Zero(t, p.Stats().InUse)
	}
	var kept context.Context
	require.NoError(t, lockAll().Do(b.Ctx, func(ctx context.Context) error {
		kept = ctx
		for _, name := range names { // the context carries the holder
			l, err := p.TryLock(ctx, name)
			require.NoError(t, err)
			require.Equal(t, 2, l.Depth())
			b.Unlock(l)
		}
		return ctx.Err()
	}))
	require.ErrorIs(t, context.Cause(kept), lockpool.ErrNotHeld)
	unlocked()

	failure := errors.New("failure")
	require.Equal(t, failure, lockAll().Do(b.Ctx, func(context.Context) error { return failure }))
	unlocked()

	require.PanicsWithValue(t, "oops", func() {
		_ = lockAll().Do(b.Ctx, func(context.Context) error { panic("oops") })
	})
	unlocked()

	all := lockAll()
	require.ErrorContains(t, all.Do(b.Ctx, nil), "function is nil")
	unlocked()
	require.ErrorIs(t, all.Do(b.Ctx, func(ctx context.Context) error { return nil }), lockpool.ErrNotHeld)
}

func TestMultiLockDoReportsALoss(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	all, err := b.Pool().LockAll(b.Ctx, []string{"a", "b"})
	require.NoError(t, err)
	err = all.Do(b.Ctx, func(ctx context.Context) error {
		require.NoError(t, b.Admin.Delete(b.Chroot+"/b/"+b.Children("b")[0], -1))
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	var lockError *lockpool.LockError
	require.ErrorAs(t, err, &lockError)
	require.Equal(t, "b", lockError.Name)
}

func TestMultiLockIsRevokedWithAnyOfItsLocks(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	for _, name := range []string{"a", "b"} {
		all, err := p.LockAll(b.Ctx, []string{"a", "b"})
		require.NoError(t, err)
		notRevoked(t, all.Revoked())
		require.NoError(t, others.Revoke(b.Ctx, name))
		awaitRevocation(b, all.Revoked())
		require.NoError(t, all.Context(b.Ctx).Err(), "locks without Revocable")
		require.NoError(t, all.Verify(b.Ctx))
		require.NoError(t, all.Unlock(b.Ctx))

		all, err = p.LockAll(b.Ctx, []string{"a", "b"}, lockpool.Revocable())
		require.NoError(t, err)
		err = all.Do(b.Ctx, func(ctx context.Context) error {
			require.NoError(t, others.Revoke(b.Ctx, name))
			<-ctx.Done()
			require.Equal(t, lockpool.ErrRevoked, context.Cause(ctx))
			return ctx.Err()
		})
		require.ErrorIs(t, err, lockpool.ErrRevoked)
	}
	all, err := p.LockAll(b.Ctx, []string{"a", "b"})
	require.NoError(t, err)
	require.NoError(t, all.Unlock(b.Ctx))
	notRevoked(t, all.Revoked())
}

func TestWaitAtMostBoundsTheWholeLockAll(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		p, others := b.Pool(), b.Pool()
		first, second := b.Lock(others, "a"), b.Lock(others, "b")
		require.NoError(t, p.Ping(b.Ctx))
		go func() { // ends with the wait
			time.Sleep(300 * time.Millisecond) // a part of the wait
			if err := first.Unlock(b.Ctx); err != nil {
				t.Error(err)
			}
		}()
		const wait = 600 * time.Millisecond
		clock := locktest.StartClock()
		_, err := p.LockAll(b.Ctx, []string{"a", "b"}, lockpool.WaitAtMost(wait))
		clock.Took(t, wait-time.Millisecond, wait+200*time.Millisecond, "the wait")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var lockError *lockpool.LockError
		require.ErrorAs(t, err, &lockError)
		require.Equal(t, "b", lockError.Name)
		b.AwaitQueue("a", 0)
		b.Unlock(second)
	})
}

func TestOptionsOfLockAllApplyToEveryLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	names := []string{"a", "b"}
	lockAll := func(by *lockpool.Pool, opts ...lockpool.LockOption) *lockpool.MultiLock {
		t.Helper()
		all, err := by.LockAll(b.Ctx, names, opts...)
		require.NoError(t, err)
		return all
	}
	now := lockpool.WaitAtMost(0)

	held := b.Lock(others, "b")
	_, err := p.LockAll(b.Ctx, names, now)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	var lockError *lockpool.LockError
	require.ErrorAs(t, err, &lockError)
	require.Equal(t, "b", lockError.Name)
	require.Empty(t, b.Children("a"))
	b.Unlock(held)
	require.NoError(t, lockAll(p, now).Unlock(b.Ctx))

	first, second := lockAll(p, lockpool.Shared()), lockAll(others, lockpool.Shared(), now)
	for _, name := range names {
		_, err := others.TryLock(b.Ctx, name)
		require.ErrorIs(t, err, lockpool.ErrLocked)
	}
	require.NoError(t, first.Unlock(b.Ctx))
	require.NoError(t, second.Unlock(b.Ctx))
	require.Empty(t, b.Contenders("/"))

	names = []string{"x/a", "x/b"}
	plain := lockAll(p, lockpool.Plain())
	for _, name := range names {
		_, stat, err := b.Admin.Get(b.Chroot + "/" + name)
		require.NoError(t, err)
		require.NotZero(t, stat.EphemeralOwner)
	}
	require.NoError(t, plain.Unlock(b.Ctx))

	for _, opts := range [][]lockpool.LockOption{{lockpool.Plain(), lockpool.Shared()}, {nil}} {
		_, err := p.LockAll(b.Ctx, names, opts...)
		require.ErrorAs(t, err, &lockError)
	}
	require.Empty(t, b.Contenders("/"))
	require.Zero(t, p.Stats().InUse)
}

func TestMultiLockDoNamesTheLockThatWasRevoked(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	names := []string{"a", "b", "c"}
	for _, name := range names {
		all, err := p.LockAll(b.Ctx, names, lockpool.Revocable())
		require.NoError(t, err)
		err = all.Do(b.Ctx, func(ctx context.Context) error {
			require.NoError(t, p.Revoke(b.Ctx, name))
			<-ctx.Done()
			return ctx.Err()
		})
		var revoked *lockpool.LockError
		require.ErrorAs(t, err, &revoked)
		require.ErrorIs(t, err, lockpool.ErrRevoked)
		require.Equal(t, name, revoked.Name)
		require.Equal(t, 1, strings.Count(err.Error(), "revoked"), err)
	}
}

// The guard has not begun yet, so that the release is the first to see the loss.
func TestMultiLockLostIsClosedByALossThatItsReleaseFinds(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	all, err := p.LockAll(b.Ctx, []string{"a", "b"})
	require.NoError(t, err)
	require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1))
	require.ErrorIs(t, all.Unlock(b.Ctx), lockpool.ErrLockLost)
	<-all.Get("a").Lost()
	<-all.Lost()
}

func TestLockAllGivesUpWhenALockItHasEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(b *locktest.Bench, p *lockpool.Pool) error
		want error
	}{
		{"revoked", func(b *locktest.Bench, p *lockpool.Pool) error { return p.Revoke(b.Ctx, "a") }, lockpool.ErrRevoked},
		{"lost", func(b *locktest.Bench, p *lockpool.Pool) error { return p.Break(b.Ctx, "a", b.Children("a")[0]) }, lockpool.ErrLockLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			p, others := b.Pool(), b.Pool()
			held := b.Lock(others, "b")
			done := make(chan error, 1)
			go func() {
				_, err := p.LockAll(b.Ctx, []string{"a", "b"}, lockpool.Revocable())
				done <- err
			}()
			b.AwaitQueue("b", 2)
			require.NoError(t, c.end(b, others))
			err := <-done
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, context.Canceled, "its context has not ended")
			var culprit *lockpool.LockError
			require.ErrorAs(t, err, &culprit)
			require.Equal(t, "a", culprit.Name)
			b.AwaitQueue("a", 0)
			b.AwaitQueue("b", 1)
			b.Unlock(held)
		})
	}
}

// Releasing what it has is part of the wait.
func TestLockAllOnSilentServerEndsWithWaitAtMost(t *testing.T) {
	t.Parallel()
	server := locktest.StartServer(t)
	b := locktest.NewOn(t, server)
	held := b.Lock(b.Pool(), "b")
	p := b.Pool()
	done := make(chan time.Duration, 1)
	go func() {
		began := time.Now()
		_, err := p.LockAll(b.Ctx, []string{"a", "b"}, lockpool.WaitAtMost(500*time.Millisecond))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		done <- time.Since(began)
	}()
	b.AwaitQueue("b", 2)
	require.NoError(t, server.Pause())
	require.Less(t, <-done, 2*time.Second)
	require.NoError(t, server.Resume())
	b.Unlock(held)
}

func TestFailedLockAllLeavesAHeldLockAsItWas(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	held := b.Lock(b.Pool(), "b")
	h := b.Handle(p)
	a := b.Lock(h, "a")
	ctx := a.Context(b.Ctx)
	_, err := h.LockAll(b.Ctx, []string{"a", "b"}, lockpool.Revocable(), lockpool.WaitAtMost(0))
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NoError(t, p.Revoke(b.Ctx, "a"))
	<-a.Revoked()
	require.NoError(t, ctx.Err(), "a is not revocable")
	b.Unlock(a)
	b.Unlock(held)
}
