package lockpool_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A caller that asks for more permits than the limit allows holds up nobody: it
// waits for another limit, and then for its turn.
func TestWhoAsksForMoreThanTheLimitHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	sem, same := p.Semaphore("s", 0), others.Semaphore("s", 0)
	require.NoError(t, same.SetLimit(b.ctx, 2))
	defer func() { require.NoError(t, b.admin.Delete(b.chroot+"/s/limit", -1)) }()
	many := b.beginPermits(sem, 3)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it waits")
	b.release(b.acquire(same, 2))
	one, err := same.TryAcquire(b.ctx, 1)
	require.NoError(t, err, "there are two")
	b.noPermits(many)

	// The limit suffices now, the permits that are free do not.
	require.NoError(t, same.SetLimit(b.ctx, 3))
	b.queued("s/leases", 4)
	b.noPermits(many)
	few := b.awaitPermits(same, 1, 2)

	// And now it does not any more. Its leases go, and who came later is let in.
	require.NoError(t, same.SetLimit(b.ctx, 2))
	b.release(b.obtained(few))
	b.noPermits(many)
	require.NoError(t, same.SetLimit(b.ctx, 3))
	b.release(one)
	b.release(b.obtained(many))

	require.NoError(t, same.SetLimit(b.ctx, 0))
	none := b.beginPermits(sem, 1)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it waits")
	b.until(func() bool { return len(b.contenders("/s")) == 0 }, "without a place in the queue")
	none.cancel()
	<-none.done
	require.ErrorIs(t, none.err, context.Canceled)
	require.ErrorContains(t, none.err, "waiting for a limit of 1, which is 0")
}

// Scenario 100. Another limit is no error: the smallest that a holder states
// counts, for as long as it holds.
func TestSmallestStatedLimitCounts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	full := func(s *lockpool.Semaphore, n int) {
		t.Helper()
		_, err := s.TryAcquire(b.ctx, n)
		require.ErrorIs(t, err, lockpool.ErrLocked)
	}
	three, five, two := p.Semaphore("s", 3), others.Semaphore("s", 5), others.Semaphore("s", 2)

	// Raised by a deployment: it is 3 until the last of the old ones has gone.
	old := b.acquire(three, 1)
	held := b.acquire(five, 2)
	full(five, 1)
	waiter := b.awaitPermits(five, 1, 1)
	b.release(old)
	more := b.obtained(waiter)
	b.release(b.acquire(five, 2))
	full(three, 1) // three are held
	full(five, 3)

	// Lowered: who states 2 waits until it fits, and then counts for the others.
	lower := b.awaitPermits(two, 1, 1)
	b.release(more)
	b.noPermits(lower)
	full(five, 1) // somebody waits
	b.release(held)
	low := b.obtained(lower)
	last := b.acquire(five, 1)
	full(five, 1)
	b.release(low)
	b.release(b.acquire(five, 4))
	b.release(last)

	_, err := p.Semaphore("s", 0).Acquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLimit)
	require.ErrorContains(t, err, "none was given, and none is set")
}

// A caller that asks for more than others state waits for them, and holds up
// nobody.
func TestWhoAsksForMoreThanIsStatedHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	first, second := b.acquire(others.Semaphore("s", 3), 1), b.acquire(others.Semaphore("s", 2), 1)
	many := b.beginPermits(p.Semaphore("s", 4), 4)
	b.until(func() bool { return p.Stats().Waiting == 1 && len(b.contenders("/s")) == 2 }, "it waits, without a place")
	b.release(first)
	b.release(b.acquire(others.Semaphore("s", 3), 1))
	b.noPermits(many)
	b.release(second)
	b.release(b.obtained(many))
}

// A limit that is set is one more that counts.
func TestLimitThatIsSetCountsBesideThoseThatAreStated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	set, stated := p.Semaphore("s", 0), others.Semaphore("s", 2)
	full := func(s *lockpool.Semaphore, n int) {
		t.Helper()
		_, err := s.TryAcquire(b.ctx, n)
		require.ErrorIs(t, err, lockpool.ErrLocked)
	}
	held := b.acquire(stated, 1)
	require.NoError(t, set.SetLimit(b.ctx, 5))
	full(set, 2)
	b.release(b.acquire(set, 1))
	b.release(held)
	full(others.Semaphore("s", 9), 6)
	held = b.acquire(set, 4)
	full(stated, 1)
	b.release(held)

	// Also for who waits already with a limit of its own.
	held = b.acquire(stated, 2)
	waiter := b.awaitPermits(stated, 1, 1)
	require.NoError(t, set.SetLimit(b.ctx, 0))
	b.release(held)
	b.until(func() bool { return len(b.contenders("/s")) == 0 }, "it waits, without a place")
	b.noPermits(waiter)
	require.NoError(t, set.SetLimit(b.ctx, 1))
	b.release(b.obtained(waiter))
	require.NoError(t, b.admin.Delete(b.chroot+"/s/limit", -1))
}

// A limit that is set for the first time, while permits are taken under one that
// is stated: as soon as SetLimit has returned it counts.
func TestLimitThatIsSetBeforeTheLeaseIsMadeCounts(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	require.NoError(t, own.Create(b.chroot, nil))
	require.NoError(t, own.Create(b.chroot+"/s", nil))
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/s/leases/", Ops: zktest.Creates},
		Do:    zktest.Call(func(zktest.Request) { _ = own.Create(b.chroot+"/s/limit", []byte{0, 0, 0, 0}) }),
		Skip:  1, // for want of the directory
	})
	_, err := p.Semaphore("s", 2).TryAcquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NoError(t, b.admin.Delete(b.chroot+"/s/limit", -1))
}

// Curator's leases state nothing. Nor does a name that only looks like it.
func TestLeasesOfOthersStateNoLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	sem := b.pool().Semaphore("s", 4)
	b.release(b.acquire(sem, 1))
	for _, name := range []string{"/_c_01234567-89ab-cdef-0123-456789abcdef-lease-", "/_c_01234567-89ab-cdef-0123-456789abcdef-of-1-lease-", "/of1-lease-"} {
		_, err := b.admin.Create(b.chroot+"/s/leases"+name, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	held, err := sem.TryAcquire(b.ctx, 1)
	require.NoError(t, err)
	_, err = sem.TryAcquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.release(held)
	for _, name := range b.children("s/leases") {
		require.NoError(t, b.admin.Delete(b.chroot+"/s/leases/"+name, -1))
	}
}

// Clients with limits of their own: at every grant, no more permits are held than
// any holder's limit.
func TestNoHolderSeesMorePermitsThanItsLimit(t *testing.T) {
	t.Parallel()
	const clients, turns = 8, 25
	b := newBench(t)
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
		p := b.pool()
		all.Go(func() {
			for range turns {
				own := &holding{limit: 2 + (i+rand.IntN(2))%4}
				own.n = 1 + rand.IntN(own.limit)
				permits, err := p.Semaphore("s", own.limit).Acquire(b.ctx, own.n)
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
				if err := permits.Release(b.ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.False(t, slices.ContainsFunc(b.contenders("/s"), func(path string) bool { return strings.Contains(path, "lease") }))
}
