package lockpool_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
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

// A caller that asks for more permits than the limit allows blocks no other caller:
// it waits for a higher limit first, and then for its turn.
func TestAcquireBeyondTheLimitBlocksNoOthers(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	sem, same := p.Semaphore("s", 0), others.Semaphore("s", 0)
	require.NoError(t, same.SetLimit(b.Ctx, 2))
	defer func() { require.NoError(t, b.Admin.Delete(b.Chroot+"/s/limit", -1)) }()
	many := b.StartAcquire(sem, 3)
	b.AwaitWaiting(p, 1)
	b.Release(b.Acquire(same, 2))
	one, err := same.TryAcquire(b.Ctx, 1)
	require.NoError(t, err, "two permits are free")
	many.StillWaits()

	// The limit suffices now, but there are not enough free permits.
	require.NoError(t, same.SetLimit(b.Ctx, 3))
	b.AwaitQueue("s/leases", 4)
	many.StillWaits()
	few := b.EnqueueForPermits(same, 1, 2)

	// The limit is too low again: its leases go, and a later caller is granted.
	require.NoError(t, same.SetLimit(b.Ctx, 2))
	b.Release(few.Granted())
	many.StillWaits()
	require.NoError(t, same.SetLimit(b.Ctx, 3))
	b.Release(one)
	b.Release(many.Granted())

	require.NoError(t, same.SetLimit(b.Ctx, 0))
	none := b.StartAcquire(sem, 1)
	b.AwaitWaiting(p, 1)
	b.Until(func() bool { return len(b.Contenders("/s")) == 0 }, "the waiter has no place in the queue")
	none.Cancel()
	<-none.Done
	require.ErrorIs(t, none.Err, context.Canceled)
	require.ErrorContains(t, none.Err, "waiting for a limit of at least 1, which is now 0")
}

// Scenario 100. Different limits are no error: the smallest stated by a holder
// counts while it holds its permits.
func TestSmallestStatedLimitCounts(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	full := func(s *lockpool.Semaphore, n int) {
		t.Helper()
		_, err := s.TryAcquire(b.Ctx, n)
		require.ErrorIs(t, err, lockpool.ErrLocked)
	}
	three, five, two := p.Semaphore("s", 3), others.Semaphore("s", 5), others.Semaphore("s", 2)

	// A deployment raises the limit: it is 3 until the last old holder releases.
	old := b.Acquire(three, 1)
	held := b.Acquire(five, 2)
	full(five, 1)
	waiter := b.EnqueueForPermits(five, 1, 1)
	b.Release(old)
	more := waiter.Granted()
	b.Release(b.Acquire(five, 2))
	full(three, 1) // three permits are held
	full(five, 3)

	// It lowers the limit: a caller that states 2 waits until 2 suffice, and then
	// its limit counts for the others.
	lower := b.EnqueueForPermits(two, 1, 1)
	b.Release(more)
	lower.StillWaits()
	full(five, 1) // a caller waits
	b.Release(held)
	low := lower.Granted()
	last := b.Acquire(five, 1)
	full(five, 1)
	b.Release(low)
	b.Release(b.Acquire(five, 4))
	b.Release(last)

	_, err := p.Semaphore("s", 0).Acquire(b.Ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLimit)
	require.ErrorContains(t, err, "none was given, and none is set")
}

// A caller that asks for more than the holders state waits for them without
// blocking others.
func TestAcquireBeyondAStatedLimitBlocksNoOthers(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	first, second := b.Acquire(others.Semaphore("s", 3), 1), b.Acquire(others.Semaphore("s", 2), 1)
	many := b.StartAcquire(p.Semaphore("s", 4), 4)
	b.Until(func() bool { return p.Stats().Waiting == 1 && len(b.Contenders("/s")) == 2 }, "it waits without a place in the queue")
	b.Release(first)
	b.Release(b.Acquire(others.Semaphore("s", 3), 1))
	many.StillWaits()
	b.Release(second)
	b.Release(many.Granted())
}

func TestSetLimitCountsBesideStatedLimits(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	set, stated := p.Semaphore("s", 0), others.Semaphore("s", 2)
	full := func(s *lockpool.Semaphore, n int) {
		t.Helper()
		_, err := s.TryAcquire(b.Ctx, n)
		require.ErrorIs(t, err, lockpool.ErrLocked)
	}
	held := b.Acquire(stated, 1)
	require.NoError(t, set.SetLimit(b.Ctx, 5))
	full(set, 2)
	b.Release(b.Acquire(set, 1))
	b.Release(held)
	full(others.Semaphore("s", 9), 6)
	held = b.Acquire(set, 4)
	full(stated, 1)
	b.Release(held)

	// It also counts for a caller that waits with a limit of its own.
	held = b.Acquire(stated, 2)
	waiter := b.EnqueueForPermits(stated, 1, 1)
	require.NoError(t, set.SetLimit(b.Ctx, 0))
	b.Release(held)
	b.Until(func() bool { return len(b.Contenders("/s")) == 0 }, "it waits without a place in the queue")
	waiter.StillWaits()
	require.NoError(t, set.SetLimit(b.Ctx, 1))
	b.Release(waiter.Granted())
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/limit", -1))
}

// The first SetLimit comes while permits are acquired under a stated limit. It
// counts as soon as it has returned.
func TestLimitSetBeforeTheLeaseIsCreatedCounts(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	p := b.Pool()
	require.NoError(t, own.Create(b.Chroot, nil))
	require.NoError(t, own.Create(b.Chroot+"/s", nil))
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/s/leases", Ops: []zktest.Op{zktest.OpMulti}}, // creates the directory as well
		Do:    zktest.Call(func(zktest.Request) { _ = own.Create(b.Chroot+"/s/limit", []byte{0, 0, 0, 0}) }),
	})
	_, err := p.Semaphore("s", 2).TryAcquire(b.Ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/limit", -1))
}

// Curator's leases state no limit. Neither do names that only resemble ours.
func TestForeignLeasesStateNoLimit(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	sem := b.Pool().Semaphore("s", 4)
	b.Release(b.Acquire(sem, 1))
	for _, name := range []string{"/_c_01234567-89ab-cdef-0123-456789abcdef-lease-", "/_c_01234567-89ab-cdef-0123-456789abcdef-of-1-lease-", "/of1-lease-"} {
		_, err := b.Admin.Create(b.Chroot+"/s/leases"+name, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	held, err := sem.TryAcquire(b.Ctx, 1)
	require.NoError(t, err)
	_, err = sem.TryAcquire(b.Ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.Release(held)
	for _, name := range b.Children("s/leases") {
		require.NoError(t, b.Admin.Delete(b.Chroot+"/s/leases/"+name, -1))
	}
}

// With clients of different limits, at every grant no more permits are held than
// the limit of any holder.
func TestStatedLimitsHoldForEveryHolder(t *testing.T) {
	t.Parallel()
	const clients, turns = 8, 25
	b := locktest.New(t)
	type holding struct{ n, limit int }
	var mu sync.Mutex
	held := map[*holding]bool{}
	check := func(own *holding) string {
		used, limit := 0, own.limit
		for h := range held {
			used, limit = used+h.n, min(limit, h.limit)
		}
		if used > limit {
			return fmt.Sprintf("%d permits are held where %d is a limit", used, limit)
		}
		return ""
	}
	var all sync.WaitGroup
	for i := range clients {
		p := b.Pool()
		all.Go(func() {
			for range turns {
				own := &holding{limit: 2 + (i+rand.IntN(2))%4}
				own.n = 1 + rand.IntN(own.limit)
				permits, err := p.Semaphore("s", own.limit).Acquire(b.Ctx, own.n)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				held[own] = true
				if wrong := check(own); wrong != "" {
					t.Error(wrong)
				}
				mu.Unlock()
				time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // the work
				mu.Lock()
				delete(held, own)
				mu.Unlock()
				if err := permits.Release(b.Ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.False(t, slices.ContainsFunc(b.Contenders("/s"), func(path string) bool { return strings.Contains(path, "lease") }))
}

// The limit is lowered before the lease is created, and its event precedes the
// reply. The old limit must not grant the permit.
func TestLimitLoweredBeforeTheGrantCounts(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	over := 0
	const turns = 40
	for i := range turns {
		name := fmt.Sprint("s", i)
		p, others := b.Pool(), b.Pool()
		sem := others.Semaphore(name, 0)
		require.NoError(t, sem.SetLimit(b.Ctx, 2))
		first := b.Acquire(sem, 1)
		var lowered atomic.Bool
		fault := own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/" + name + "/leases/", Ops: zktest.Creates},
			Do: zktest.Call(func(zktest.Request) { // SetLimit of an operator returns before the lease is created
				lowered.Store(own.Set(b.Chroot+"/"+name+"/limit", []byte{0, 0, 0, 1}) == nil)
			}),
		})
		second, err := p.Semaphore(name, 0).TryAcquire(b.Ctx, 1)
		require.NoError(t, fault.Wait(b.Ctx))
		require.True(t, lowered.Load())
		if err == nil {
			over++
			b.Release(second)
		} else {
			require.ErrorIs(t, err, lockpool.ErrLocked)
		}
		b.Release(first)
		require.NoError(t, p.Close())
		require.NoError(t, others.Close())
	}
	require.Zero(t, over, "of %d grants were over the limit when they were made", turns)
}

func TestWaiterForAHigherLimitIsCounted(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	sem := p.Semaphore("s", 0)
	require.NoError(t, sem.SetLimit(b.Ctx, 1))
	w := b.StartAcquire(sem, 2)
	b.AwaitWaiting(p, 1)
	w.Cancel()
	<-w.Done
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/limit", -1))
}

// Scenario 98.
func TestLimitCanBeChangedWhileInUse(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	sem, same := p.Semaphore("s", 0), others.Semaphore("s", 0)
	_, err := sem.Acquire(b.Ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLimit)
	require.ErrorContains(t, err, "none is set")
	require.NoError(t, sem.SetLimit(b.Ctx, 1))
	data, stat, err := b.Admin.Get(b.Chroot + "/s/limit")
	require.NoError(t, err)
	require.Equal(t, binary.BigEndian.AppendUint32(nil, 1), data, "as Curator's SharedCount")
	require.Zero(t, stat.EphemeralOwner)

	first := b.Acquire(sem, 1)
	second := b.EnqueueForPermits(same, 1, 1)
	second.StillWaits()
	require.NoError(t, sem.SetLimit(b.Ctx, 2))
	got := second.Granted()

	three := b.StartAcquire(sem, 3) // more than the limit
	b.AwaitWaiting(p, 1)
	_, err = same.TryAcquire(b.Ctx, 3)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.Release(first)
	b.Release(got)
	three.StillWaits()
	require.NoError(t, same.SetLimit(b.Ctx, 3))
	got = three.Granted()
	require.NoError(t, same.SetLimit(b.Ctx, 1)) // takes no permit from a holder
	require.NoError(t, got.Verify(b.Ctx))
	none := b.EnqueueForPermits(sem, 1, 1)
	b.Release(got)
	b.Release(none.Granted())

	require.NoError(t, same.SetLimit(b.Ctx, 0))
	paused := b.StartAcquire(sem, 1)
	b.AwaitWaiting(p, 1)
	paused.Cancel()
	<-paused.Done
	require.ErrorIs(t, paused.Err, context.Canceled)
	require.ErrorContains(t, paused.Err, "waiting for a limit of at least 1, which is now 0")
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/limit", -1))
}
