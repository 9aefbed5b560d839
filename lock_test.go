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
)

// Scenario 1.
func TestHeldLockIsOneNodeAndAFreeOneIsNone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	for range 2 {
		l := b.lock(p, "a")
		require.Len(t, b.children("a"), 1)
		b.unlock(l)
		require.Empty(t, b.children("a"))
	}
}

// Scenario 2.
func TestSecondHolderWaitsUntilTheFirstUnlocks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first, second := b.pool(), b.pool()
	a := b.lock(first, "a")
	w := b.wait(second, "a", 2)
	b.stillWaits(w)
	b.unlock(a)
	require.Zero(t, a.Depth())
	b.unlock(b.granted(w))
}

// Scenario 3.
func TestGrantsFollowTheQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, other := b.pool(), b.pool()
	holder := b.lock(p, "a")
	var waiters []*waiter
	for i := range 5 {
		pool := p
		if i%2 == 1 {
			pool = other
		}
		waiters = append(waiters, b.wait(pool, "a", i+2))
	}
	queue := b.children("a")
	for i, w := range waiters {
		b.unlock(holder)
		holder = b.granted(w)
		require.Equal(t, queue[i+1:], b.children("a"), "it shrinks from the front")
		for _, later := range waiters[i+1:] {
			b.stillWaits(later)
		}
	}
	b.unlock(holder)
}

// Scenario 4.
func TestTwentyGoroutinesAreNeverTwoInside(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	var inside, entered atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			err := p.Do(b.ctx, "a", func(context.Context) error {
				if inside.Add(1) != 1 {
					return errors.New("two inside")
				}
				time.Sleep(10 * time.Millisecond) // the work of the scenario
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
func TestOneOfTwentyTriesGetsTheLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	var got atomic.Pointer[lockpool.Lock]
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			l, err := p.TryLock(b.ctx, "a")
			if err == nil && got.Swap(l) != nil {
				t.Error("two got it")
			}
			if err != nil && !errors.Is(err, lockpool.ErrLocked) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NotNil(t, got.Load(), "nobody got it")
	require.Len(t, b.children("a"), 1, "the others left their nodes")
	b.unlock(got.Load())
}

// Scenario 7.
func TestChrootHoldsEverythingAndIsNotSeen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	l := b.lock(p, "orders/42")
	require.Equal(t, "orders/42", l.Name())
	exists, _, err := b.admin.Exists(b.chroot + "/orders/42")
	require.NoError(t, err)
	require.True(t, exists)
	_, err = p.TryLock(b.ctx, "orders/42")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NotContains(t, err.Error(), b.chroot)
	b.unlock(l)
}

// Scenario 8.
func TestLockWithoutAChroot(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, startServer(t).Addr())
	b.chroot = ""
	p := b.pool()
	for range 2 {
		l := b.lock(p, "a")
		require.Len(t, b.children("a"), 1)
		b.unlock(l)
		require.NoError(t, b.admin.Delete("/a", -1))
	}
	b.unlock(b.lock(p, "b/c"))
}

func TestMissingParentsAreMadeAndExistingOnesKept(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	world := zk.WorldACL(zk.PermAll)
	_, err := b.admin.Create(b.chroot, nil, 0, world)
	require.NoError(t, err)
	_, err = b.admin.Create(b.chroot+"/one", []byte("keep me"), 0, world)
	require.NoError(t, err)
	b.unlock(b.lock(b.pool(), "one/two/three"))
	data, _, err := b.admin.Get(b.chroot + "/one")
	require.NoError(t, err)
	require.Equal(t, "keep me", string(data))
}

// Scenario 130, and the other half of 132.
func TestForeignChildrenAreIgnoredAndContendersOfOthersWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	b.unlock(b.lock(p, "a"))
	world := zk.WorldACL(zk.PermAll)
	for _, name := range []string{"0", "-x", "config", "lease_holder", "_c_!", "lock-", "x-lock-12"} {
		_, err := b.admin.Create(b.chroot+"/a/"+name, nil, 0, world)
		require.NoError(t, err)
	}
	b.unlock(b.lock(p, "a/0")) // a lock below a lock
	b.unlock(b.lock(p, "a"))
	for _, name := range []string{"note__lock__0000000000", "zz-lock-0000000000"} {
		_, err := b.admin.Create(b.chroot+"/a/"+name, nil, 0, world)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(b.ctx)
		done := make(chan error)
		go func() {
			_, err := p.Lock(ctx, "a")
			done <- err
		}()
		b.until(func() bool {
			watched, err := server.Command(b.ctx, "wchp")
			require.NoError(t, err)
			return strings.Contains(watched, b.chroot+"/a/"+name+"\n")
		}, "it waits behind %s", name)
		cancel()
		err = <-done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, name, "the error names who is in the way")
		require.NoError(t, b.admin.Delete(b.chroot+"/a/"+name, -1))
	}
	b.unlock(b.lock(p, "a"))
}

// Scenario 132: a queue that was removed is made again.
func TestQueueRemovedByHandIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s := b.session(p)
	for range 3 {
		l, err := s.Lock(b.ctx, "a/b")
		require.NoError(t, err)
		b.unlock(l)
		require.NoError(t, b.admin.Delete(b.chroot+"/a/b", -1))
		require.NoError(t, b.admin.Delete(b.chroot+"/a", -1))
		require.NoError(t, b.admin.Delete(b.chroot, -1))
	}
	require.NoError(t, s.Close(b.ctx))
}

func TestWaiterWhoseNodeIsRemovedQueuesAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	w := b.wait(p, "a", 2)
	mine := b.children("a")[1]
	require.NoError(t, b.admin.Delete(b.chroot+"/a/"+mine, -1))
	b.unlock(holder)
	l := b.granted(w)
	require.NotEqual(t, []string{mine}, b.children("a"))
	require.Len(t, b.children("a"), 1)
	b.unlock(l)
}
