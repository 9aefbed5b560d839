package lockpool_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Scenario 78.
func TestWritersExcludeAndReadersShare(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	pools := []*lockpool.Pool{b.Pool(), b.Pool()}
	var readers, writers, most atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			for range 50 {
				var err error
				if r.IntN(10) == 0 {
					err = pools[i%2].Do(b.Ctx, "a", func(context.Context) error {
						if w, r := writers.Add(1), readers.Load(); w != 1 || r != 0 {
							return fmt.Errorf("%d writers, %d readers", w, r)
						}
						defer writers.Add(-1)
						return nil
					})
				} else {
					err = pools[i%2].Do(b.Ctx, "a", func(context.Context) error {
						n := readers.Add(1)
						defer readers.Add(-1)
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						if w := writers.Load(); w != 0 {
							return fmt.Errorf("%d writers beside a reader", w)
						}
						time.Sleep(time.Millisecond) // the work
						return nil
					}, lockpool.Shared())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.Greater(t, most.Load(), int32(1))
}

// Scenarios 79 to 81: first come, first served, so no contender starves.
func TestReadersAndWritersQueueTogether(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p, others := b.Pool(), b.Pool()
	first, second := b.RLock(p, "a"), b.RLock(others, "a")
	_, err := others.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	also, err := others.TryRLock(b.Ctx, "a")
	require.NoError(t, err)
	b.Unlock(also)

	w1 := b.Enqueue(others, "a", 3)
	_, err = p.TryRLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked, "behind a waiting writer")
	r1, r2 := b.EnqueueRead(p, "a", 4), b.EnqueueRead(others, "a", 5)
	w2 := b.Enqueue(p, "a", 6)
	r3 := b.EnqueueRead(p, "a", 7)

	b.Unlock(first)
	w1.StillWaits()
	b.Unlock(second)
	held := w1.Granted()
	for _, w := range []*locktest.LockWaiter{r1, r2, w2, r3} {
		w.StillWaits()
	}
	b.Unlock(held)
	one, two := r1.Granted(), r2.Granted() // both precede the later writer
	w2.StillWaits()
	r3.StillWaits()
	b.Unlock(one)
	w2.StillWaits()
	b.Unlock(two)
	held = w2.Granted()
	r3.StillWaits()
	b.Unlock(held)
	b.Unlock(r3.Granted())
}

// Scenario 82.
func TestReaderReentersWhileAWriterWaits(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	outer := b.RLock(h, "a")
	w := b.Enqueue(b.Pool(), "a", 2)
	inner := b.RLock(h, "a")
	require.Equal(t, 2, outer.Depth())
	b.Unlock(outer)
	w.StillWaits()
	b.Unlock(inner)
	b.Unlock(w.Granted())
	require.NoError(t, h.Close(b.Ctx))
}

// Scenario 83. (Curator hangs.)
func TestUpgradeIsAnError(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	h, other := b.Handle(p), b.Handle(p)
	for _, reader := range []*lockpool.Handle{h, other} { // also with two readers at a time
		b.RLock(reader, "a")
	}
	for _, reader := range []*lockpool.Handle{h, other} {
		_, err := reader.Lock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrUpgrade)
		_, err = reader.TryLock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrUpgrade)
		again, err := reader.RLock(b.Ctx, "a")
		require.NoError(t, err, "the reader keeps its lock")
		b.Unlock(again)
		require.NoError(t, reader.Close(b.Ctx))
	}
	b.Unlock(b.Lock(p, "a"))
}

// Scenario 85.
func TestDowngradeKeepsThePlaceInTheQueue(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	h := b.Handle(b.Pool())
	others, more := b.Pool(), b.Pool()
	write := b.Lock(h, "a")
	token := b.Token(write)
	r1 := b.EnqueueRead(others, "a", 2)
	w := b.Enqueue(more, "a", 3)
	r2 := b.EnqueueRead(more, "a", 4)
	read := b.RLock(h, "a")
	again, err := h.Lock(b.Ctx, "a") // still exclusive
	require.NoError(t, err)
	require.Equal(t, 3, read.Depth())
	b.Unlock(write)
	r1.StillWaits()
	b.Unlock(again)
	one := r1.Granted()
	w.StillWaits()
	r2.StillWaits()
	require.Equal(t, 1, read.Depth())
	require.NoError(t, read.Verify(b.Ctx))
	require.Equal(t, token, b.Token(read))
	_, err = h.Lock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrUpgrade)
	require.ErrorIs(t, write.Unlock(b.Ctx), lockpool.ErrNotHeld)
	b.Unlock(one)
	w.StillWaits()
	b.Unlock(read)
	b.Unlock(w.Granted())
	b.Unlock(r2.Granted())
	require.NoError(t, h.Close(b.Ctx))
}

// The entries may be unlocked in any order.
func TestUnlockOfTheReadLeavesTheWriteExclusive(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	write := b.Lock(h, "a")
	read := b.RLock(h, "a")
	b.Unlock(read)
	_, err := b.Pool().TryRLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	again := b.Lock(h, "a")
	b.Unlock(again)
	b.Unlock(write)
	require.NoError(t, h.Close(b.Ctx))
}

// The node of a downgraded lock is watched as well.
func TestDowngradedHolderLearnsThatItsNodeWasRemoved(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	write := b.Lock(h, "a")
	b.Token(write)
	read := b.RLock(h, "a")
	b.Unlock(write)
	require.True(t, strings.Contains(b.Children("a")[0], "-rlock-"), "%v", b.Children("a"))
	require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1))
	b.AwaitLoss(read)
	require.ErrorIs(t, read.Unlock(b.Ctx), lockpool.ErrLockLost)
	require.NoError(t, h.Close(b.Ctx))
}

// Scenario 87.
func TestReaderOfTheWritersPoolWaits(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	_, err := p.TryRLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	inner, err := p.RLock(l.Context(b.Ctx), "a") // the same holder
	require.NoError(t, err)
	b.Unlock(inner)
	b.Unlock(l)
}

// The request or the reply of the downgrade is lost.
func TestDowngradeSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, proxy := locktest.NewBehindProxy(t)
			h := b.Handle(b.Pool())
			write := b.Lock(h, "a")
			read := b.RLock(h, "a")
			r := b.EnqueueRead(b.Pool(), "a", 2)
			f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Prefix: b.Chroot + "/a/"}, Do: cut})
			b.Unlock(write)
			require.Equal(t, 1, f.Fired())
			b.Unlock(r.Granted())
			require.Len(t, b.Children("a"), 1)
			b.Unlock(read)
			require.NoError(t, h.Close(b.Ctx))
		})
	}
}

func TestDowngradeGoesOnWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	h := b.Handle(b.Pool())
	write := b.Lock(h, "a")
	read := b.RLock(h, "a")
	f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Prefix: b.Chroot + "/a/"}, Do: zktest.HoldReply()})
	ctx, cancel := context.WithCancel(b.Ctx)
	unlocked := make(chan error, 1)
	go func() { unlocked <- write.Unlock(ctx) }()
	require.NoError(t, f.Wait(b.Ctx))
	cancel()
	err := <-unlocked
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "not confirmed it yet")
	require.ErrorIs(t, read.Unlock(ctx), context.Canceled)
	f.Release()
	b.AwaitQueue("a", 0)
	b.Unlock(b.Lock(b.Pool(), "a"))
	require.NoError(t, h.Close(b.Ctx))
}

// go-zookeeper's Lock knows no readers, and takes ours for locks like its own.
func TestReadersAndOtherClientsWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	reader := b.RLock(p, "a")
	theirs := zk.NewLock(b.Admin, b.Chroot+"/a", zk.WorldACL(zk.PermAll))
	locked := make(chan error, 1)
	go func() { locked <- theirs.Lock() }() // ends when the reader unlocks
	b.AwaitQueue("a", 2)
	select {
	case err := <-locked:
		require.FailNow(t, "it did not wait", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	b.Unlock(reader)
	require.NoError(t, <-locked)
	_, err := p.TryRLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.EnqueueRead(p, "a", 2)
	w.StillWaits()
	require.NoError(t, theirs.Unlock())
	b.Unlock(w.Granted())
}

func TestDowngradeWithoutPermissionStaysExclusive(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	cfg := b.Config()
	cfg.ACL = zk.WorldACL(zk.PermRead | zk.PermCreate | zk.PermDelete)
	h := b.Handle(b.PoolWith(cfg))
	write := b.Lock(h, "a")
	read := b.RLock(h, "a")
	err := write.Unlock(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.NotErrorIs(t, err, lockpool.ErrLockLost)
	require.ErrorContains(t, err, "WRITE on the node")
	require.Equal(t, 1, read.Depth())
	require.NoError(t, read.Verify(b.Ctx))
	_, err = b.Pool().TryRLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.Unlock(read)
	require.NoError(t, h.Close(b.Ctx))
}

// A downgrade reads its node first, which takes a round trip.
func TestUnlockBesideADowngrade(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		for name, unlock := range map[string]func(b *locktest.Bench, h *lockpool.Handle, read *lockpool.Lock) error{
			"unlock": func(b *locktest.Bench, _ *lockpool.Handle, read *lockpool.Lock) error { return read.Unlock(b.Ctx) },
			"close":  func(b *locktest.Bench, h *lockpool.Handle, _ *lockpool.Lock) error { return h.Close(b.Ctx) },
		} {
			b, proxy := locktest.NewBehindProxy(t)
			h := b.Handle(b.Pool())
			look := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.HoldReply()})
			alone := b.Lock(h, "a")
			read := b.RLock(h, "a")
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- alone.Unlock(b.Ctx) }()
			require.NoError(t, look.Wait(b.Ctx))
			go func() { second <- unlock(b, h, read) }()
			require.NoError(t, <-second, name)
			require.NoError(t, <-first, name)
			look.Release()
			require.Empty(t, b.Children("a"), name)
			require.NoError(t, h.Close(b.Ctx))
		}
	})
}

// One failed downgrade must not keep readers out for the rest of the hold.
func TestDowngradeIsRetriedWhenThrottled(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	h, others := b.Handle(b.Pool()), b.Pool()
	const throttled = -127
	proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.FailWith(throttled)})
	alone := b.Lock(h, "a")
	b.RLock(h, "a")
	b.Unlock(alone)
	b.Unlock(b.RLock(others, "a"))
	require.NoError(t, h.Close(b.Ctx))
}
