package lockpool_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// Scenario 1.
func TestLockIsOneNodeWhileHeld(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	for range 2 {
		l := b.Lock(p, "a")
		require.Len(t, b.Children("a"), 1)
		b.Unlock(l)
		require.Empty(t, b.Children("a"))
	}
}

// Scenario 2.
func TestSecondHolderWaitsUntilTheFirstUnlocks(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	first, second := b.Pool(), b.Pool()
	a := b.Lock(first, "a")
	w := b.Enqueue(second, "a", 2)
	w.StillWaits()
	b.Unlock(a)
	require.Zero(t, a.Depth())
	b.Unlock(w.Granted())
}

// Scenario 3.
func TestGrantsFollowTheQueue(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p, other := b.Pool(), b.Pool()
	holder := b.Lock(p, "a")
	var waiters []*locktest.LockWaiter
	for i := range 5 {
		pool := p
		if i%2 == 1 {
			pool = other
		}
		waiters = append(waiters, b.Enqueue(pool, "a", i+2))
	}
	queue := b.Children("a")
	for i, w := range waiters {
		b.Unlock(holder)
		holder = w.Granted()
		require.Equal(t, queue[i+1:], b.Children("a"), "the queue shrinks from the front")
		for _, later := range waiters[i+1:] {
			later.StillWaits()
		}
	}
	b.Unlock(holder)
}

// Scenario 4.
func TestLockIsExclusiveAmongGoroutines(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	var inside, entered atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := p.Do(b.Ctx, "a", func(context.Context) error {
				if inside.Add(1) != 1 {
					return errors.New("two holders")
				}
				time.Sleep(10 * time.Millisecond) // the work
				inside.Add(-1)
				entered.Add(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 20, entered.Load())
}

// Scenario 5.
func TestOneOfManyTryLocksSucceeds(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	var got atomic.Pointer[lockpool.Lock]
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			l, err := p.TryLock(b.Ctx, "a")
			if err == nil && got.Swap(l) != nil {
				t.Error("two calls got the lock")
			}
			if err != nil && !errors.Is(err, lockpool.ErrLocked) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NotNil(t, got.Load(), "no call got the lock")
	require.Len(t, b.Children("a"), 1, "the other calls left their nodes")
	b.Unlock(got.Load())
}

// Scenario 7.
func TestChrootIsInvisibleInNamesAndErrors(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "orders/42")
	require.Equal(t, "orders/42", l.Name())
	exists, _, err := b.Admin.Exists(b.Chroot + "/orders/42")
	require.NoError(t, err)
	require.True(t, exists)
	_, err = p.TryLock(b.Ctx, "orders/42")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NotContains(t, err.Error(), b.Chroot)
	b.Unlock(l)
}

// Scenario 8.
func TestLockWithoutAChroot(t *testing.T) {
	t.Parallel()
	b := locktest.NewOn(t, locktest.StartServer(t))
	b.Chroot = ""
	p := b.Pool()
	for range 2 {
		l := b.Lock(p, "a")
		require.Len(t, b.Children("a"), 1)
		b.Unlock(l)
		require.NoError(t, b.Admin.Delete("/a", -1))
	}
	b.Unlock(b.Lock(p, "b/c"))
}

func TestMissingParentsAreCreatedAndExistingOnesKept(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	world := zk.WorldACL(zk.PermAll)
	_, err := b.Admin.Create(b.Chroot, nil, 0, world)
	require.NoError(t, err)
	_, err = b.Admin.Create(b.Chroot+"/one", []byte("keep me"), 0, world)
	require.NoError(t, err)
	b.Unlock(b.Lock(b.Pool(), "one/two/three"))
	data, _, err := b.Admin.Get(b.Chroot + "/one")
	require.NoError(t, err)
	require.Equal(t, "keep me", string(data))
}

// Scenario 130, and the other half of 132.
func TestForeignChildrenAreIgnoredAndForeignContendersAwaited(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	b.Unlock(b.Lock(p, "a"))
	world := zk.WorldACL(zk.PermAll)
	for _, name := range []string{"0", "-x", "config", "lease_holder", "_c_!", "lock-", "x-lock-12"} {
		_, err := b.Admin.Create(b.Chroot+"/a/"+name, nil, 0, world)
		require.NoError(t, err)
	}
	b.Unlock(b.Lock(p, "a/0")) // a lock below a lock
	b.Unlock(b.Lock(p, "a"))
	for _, name := range []string{"note__lock__0000000000", "zz-lock-0000000000"} {
		_, err := b.Admin.Create(b.Chroot+"/a/"+name, nil, 0, world)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(b.Ctx)
		done := make(chan error)
		go func() {
			_, err := p.Lock(ctx, "a")
			done <- err
		}()
		b.Until(func() bool {
			watched, err := locktest.Shared().Command(b.Ctx, "wchp")
			require.NoError(t, err)
			return strings.Contains(watched, b.Chroot+"/a/"+name+"\n")
		}, "a waiter behind %s", name)
		cancel()
		err = <-done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, name, "the error names the blocking node")
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+name, -1))
	}
	b.Unlock(b.Lock(p, "a"))
}

// Scenario 132.
func TestQueueRemovedByHandIsCreatedAgain(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	h := b.Handle(p)
	for range 3 {
		l := b.Lock(h, "a/b")
		b.Unlock(l)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/b", -1))
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
		require.NoError(t, b.Admin.Delete(b.Chroot, -1))
	}
	require.NoError(t, h.Close(b.Ctx))
}
