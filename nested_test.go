package lockpool_test

// This file tests nested waits and their looks.

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A wait that ends at the moment of its look leaves no goroutine behind.
func TestWaitThatEndsWhenItLooks(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		pool := b.Pool()
		b.Lock(b.Handle(b.Pool()), "busy")
		var all sync.WaitGroup
		for i := range 200 {
			h := b.Handle(pool)
			b.Lock(h, fmt.Sprint("own-", i))
			all.Go(func() {
				ctx, cancel := context.WithTimeout(b.Ctx, 500*time.Millisecond)
				defer cancel()
				_, err := h.Lock(ctx, "busy")
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		all.Wait()
	})
}

// In one pool: A (holds x) wants more permits than H states, and waits without a guard for H
// to go. B (holds y) wants one permit, which another pool's Z can release. H asks for y: no
// deadlock.
func TestNoDeadlockBehindAWaitAboveTheLimit(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		pool := b.Pool()
		h, a, two := &party{Handle: b.Handle(pool)}, &party{Handle: b.Handle(pool)}, &party{Handle: b.Handle(pool)}
		require.NoError(t, permits(1, 2)(b.Ctx, h.Handle, "s"))
		z := b.Acquire(b.Handle(b.Pool()).Semaphore("s", 2), 1)
		require.NoError(t, exclusively(b.Ctx, a.Handle, "x"))
		require.NoError(t, exclusively(b.Ctx, two.Handle, "y"))
		a.WaitFor(b.Ctx, permits(3, 3), "s")
		b.AwaitWaiting(pool, 1)
		time.Sleep(100 * time.Millisecond)
		b.Until(func() bool { return len(b.Children("s/locks")) == 0 }, "it has left the guards")
		two.WaitFor(b.Ctx, permits(1, 2), "s")
		b.AwaitWaiting(pool, 2)
		h.WaitFor(b.Ctx, exclusively, "y")
		time.AfterFunc(5*time.Second, func() { _ = z.Unlock(b.Ctx) })
		<-two.Done
		assert.NoError(t, two.Err)
		require.NoError(t, two.Close(b.Ctx))
		<-h.Done
		assert.NoError(t, h.Err)
		require.NoError(t, h.Close(b.Ctx))
		<-a.Done
		require.NoError(t, a.Err)
		require.NoError(t, a.Close(b.Ctx))
	})
}

// A queue that cannot be read hides no cycle that does not go through it.
func TestDeadlockBesideAQueueThatCannotBeRead(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		one, two := &party{Handle: b.Handle(b.Pool())}, &party{Handle: b.Handle(b.Pool())}
		third := &party{Handle: b.Handle(b.Pool())}
		require.NoError(t, exclusively(b.Ctx, one.Handle, "a"))
		require.NoError(t, exclusively(b.Ctx, two.Handle, "b"))
		require.NoError(t, exclusively(b.Ctx, third.Handle, "secret"))
		// From now on nobody may list the third lock's queue.
		require.NoError(t, b.Admin.AddAuth("digest", []byte("admin:x")))
		_, err := b.Admin.SetACL(b.Chroot+"/secret", append(zk.DigestACL(zk.PermAll, "admin", "x"), zk.WorldACL(zk.PermCreate|zk.PermDelete)...), -1)
		require.NoError(t, err)
		third.WaitFor(b.Ctx, exclusively, "b")
		b.AwaitQueue("b", 2)
		one.WaitFor(b.Ctx, exclusively, "b")
		b.AwaitQueue("b", 3)
		two.WaitFor(b.Ctx, exclusively, "a")
		<-two.Done // at the latest with b.Ctx
		assert.ErrorIs(t, two.Err, lockpool.ErrDeadlock, "a third one holds what cannot be read")
		for _, p := range []*party{two, third, one} {
			_ = p.Close(b.Ctx)
			<-p.Done
		}
	})
}

// A cycle of two is found although many others wait for the same lock, who hold others.
func TestDeadlockBehindManyNestedWaits(t *testing.T) {
	for _, n := range []int{100, 250} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			locktest.Timed(t, func(t *testing.T) {
				b := locktest.New(t)
				many := b.Pool(lockpool.WithMaxHandles(1000))
				var crowd []*party
				hot := &party{Handle: b.Handle(b.Pool())}
				require.NoError(t, exclusively(b.Ctx, hot.Handle, "hot"))
				for i := range n {
					p := &party{Handle: b.Handle(many)}
					require.NoError(t, exclusively(b.Ctx, p.Handle, fmt.Sprint("own-", i)))
					p.WaitFor(b.Ctx, exclusively, "hot")
					b.AwaitWaiting(many, i+1)
					crowd = append(crowd, p)
				}
				hot.WaitFor(b.Ctx, exclusively, fmt.Sprint("own-", n-1))
				<-hot.Done // at the latest with b.Ctx
				assert.ErrorIs(t, hot.Err, lockpool.ErrDeadlock)
				_ = hot.Close(b.Ctx)
				for _, p := range crowd {
					<-p.Done
					_ = p.Close(b.Ctx)
				}
			})
		})
	}
}

// A call whose context ends while it looks at a server that has fallen silent returns within
// milliseconds.
func TestLookDelaysNobody(t *testing.T) {
	t.Run("context", func(t *testing.T) {
		locktest.Timed(t, func(t *testing.T) {
			locktest.Once(t)
			b := locktest.New(t)
			h := b.Handle(b.Pool())
			b.Lock(h, "own")
			b.Lock(b.Handle(b.Pool()), "busy")
			ctx, cancel := context.WithCancel(b.Ctx)
			done := make(chan error)
			go func() { _, err := h.Lock(ctx, "busy"); done <- err }()
			b.AwaitQueue("busy", 2)
			fault := b.Server.(*zktest.Server).Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpSync}}, Do: zktest.HoldReply()})
			require.NoError(t, fault.Wait(b.Ctx))
			began := time.Now()
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
			took := time.Since(began)
			t.Log("took", took)
			assert.Less(t, took, 40*time.Millisecond)
			fault.Release()
		})
	})
	t.Run("grant", func(t *testing.T) { // nor for the node that showed the wait to go
		locktest.Timed(t, func(t *testing.T) {
			locktest.Once(t)
			b := locktest.New(t)
			pool, h := b.Pool(), b.Handle(b.Pool())
			b.Lock(h, "own")
			busy, err := pool.Lock(b.Ctx, "busy", lockpool.Plain())
			require.NoError(t, err)
			done := make(chan error)
			go func() { done <- plainly(b.Ctx, h, "busy") }()
			b.Until(func() bool { return len(b.Children(".waits/busy")) == 1 }, "a node shows the wait")
			fault := b.Server.(*zktest.Server).Inject(zktest.Rule{
				Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}, Prefix: b.Chroot + "/.waits/"}, Do: zktest.HoldReply(),
			})
			began := time.Now()
			b.Unlock(busy)
			require.NoError(t, <-done)
			took := time.Since(began)
			assert.Less(t, took, 5*time.Millisecond)
			require.NoError(t, fault.Wait(b.Ctx))
			require.Empty(t, b.Children(".waits/busy"))
			fault.Release()
		})
	})
}

// What is logged as a deadlock is what the call fails with, whatever happens meanwhile.
func TestDeadlockThatIsLoggedIsTheError(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		var last *lockpool.Handle
		logged := locktest.OnLog(func(r slog.Record) {
			if r.Message == "lockpool: deadlock" {
				_ = last.Close(b.Ctx)
			}
		})
		pool := b.Pool(lockpool.WithLogger(slog.New(logged)))
		first := &party{Handle: b.Handle(pool)}
		last = b.Handle(pool)
		require.NoError(t, exclusively(b.Ctx, first.Handle, "a"))
		require.NoError(t, exclusively(b.Ctx, last, "b"))
		first.WaitFor(b.Ctx, exclusively, "b")
		b.AwaitWaiting(pool, 1)
		require.ErrorIs(t, exclusively(b.Ctx, last, "a"), lockpool.ErrDeadlock)
		<-first.Done
		require.NoError(t, first.Err)
		require.NoError(t, first.Close(b.Ctx))
	})
}

// Finding a cycle in memory does not take long, whatever else waits.
func TestDeadlockInMemoryAmongMany(t *testing.T) {
	const n = 500
	locktest.Once(t)
	b := locktest.New(t)
	pool := b.Pool(lockpool.WithMaxHandles(3*n), lockpool.WithDeadlockCheck(time.Hour))
	hot := &party{Handle: b.Handle(pool)}
	require.NoError(t, exclusively(b.Ctx, hot.Handle, "hot"))
	crowd := make([]*party, n)
	var all sync.WaitGroup
	for i := range crowd {
		crowd[i] = &party{Handle: b.Handle(pool)}
		all.Go(func() {
			assert.NoError(t, exclusively(b.Ctx, crowd[i].Handle, fmt.Sprint("own-", i)))
		})
	}
	all.Wait()
	for _, p := range crowd {
		p.WaitFor(b.Ctx, exclusively, "hot")
	}
	b.AwaitWaiting(pool, n)
	clock := locktest.StartClock()
	hot.WaitFor(b.Ctx, exclusively, fmt.Sprint("own-", n-1))
	<-hot.Done
	clock.Took(t, 0, time.Second, "finding the cycle")
	assert.ErrorIs(t, hot.Err, lockpool.ErrDeadlock)
	require.NoError(t, pool.Close())
	for _, p := range crowd {
		<-p.Done
	}
}

// A call whose context ends as its node no longer says what the handle holds says that its
// context has ended, and nothing else.
func TestContextThatEndsAsTheHoldsChange(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		pool := b.Pool()
		h := b.Handle(pool)
		held := b.Lock(h, "a", lockpool.Shared())
		b.Lock(b.Handle(pool), "a", lockpool.Shared())
		b.Lock(b.Handle(b.Pool()), "busy")
		w := b.Enqueue(h, "busy", 2)
		b.Unlock(held)
		w.Cancel()
		<-w.Done
		require.ErrorIs(t, w.Err, context.Canceled)
		require.NotContains(t, w.Err.Error(), "has changed")
		var lockErr *lockpool.LockError
		require.ErrorAs(t, w.Err, &lockErr)
		require.Equal(t, "canceled", lockErr.ErrorType())
	})
}

// Locks that Pool.Lock gives to one function are held by handles of their own, unless it is
// called with the context of the first.
func TestDeadlockOfCallsThatPassNoContextOn(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		one, two := b.Pool(), b.Pool()
		b.Lock(one, "a")
		b.Lock(two, "b")
		first, second := b.StartLock(one, "b"), b.StartLock(two, "a")
		time.Sleep(5 * time.Second)
		first.StillWaits() // as is documented?
		second.StillWaits()
		first.Cancel()
		second.Cancel()
		<-first.Done
		<-second.Done
	})
}

// A call that waits without a node in the semaphore's queues, because it asks for more than the
// limit, is given up by nobody: a cycle through such a wait ends when the limit is raised.
func TestNoDeadlockWhenTheLimitIsRaised(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		pool := b.Pool(lockpool.WithDeadlockCheck(2 * time.Second)) // long after the limit is raised
		h, a := &party{Handle: b.Handle(pool)}, &party{Handle: b.Handle(pool)}
		s := b.Pool().Semaphore("s", 0)
		require.NoError(t, s.SetLimit(b.Ctx, 2))
		require.NoError(t, permits(2, 0)(b.Ctx, h.Handle, "s"))
		require.NoError(t, exclusively(b.Ctx, a.Handle, "x"))
		a.WaitFor(b.Ctx, permits(2, 0), "s")
		b.AwaitWaiting(pool, 1)
		for _, limit := range []int{1, 2, 3} { // it leaves the guards, and comes back
			require.NoError(t, s.SetLimit(b.Ctx, limit))
			time.Sleep(100 * time.Millisecond)
		}
		time.AfterFunc(300*time.Millisecond, func() { _ = s.SetLimit(b.Ctx, 4) })
		h.WaitFor(b.Ctx, exclusively, "x")
		<-a.Done
		assert.NoError(t, a.Err)
		_ = a.Close(b.Ctx)
		<-h.Done
		assert.NoError(t, h.Err)
		_ = h.Close(b.Ctx)
	})
}
