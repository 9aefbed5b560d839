package lockpool_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

func (b *bench) acquire(s *lockpool.Semaphore, n int) *lockpool.Permits {
	b.Helper()
	p, err := s.Acquire(b.ctx, n)
	require.NoError(b, err)
	return p
}

func (b *bench) release(p *lockpool.Permits) {
	b.Helper()
	require.NoError(b, p.Release(b.ctx))
}

// permitWaiter is an Acquire in a goroutine of its own.
type permitWaiter struct {
	permits *lockpool.Permits
	err     error
	done    chan struct{}
	cancel  context.CancelFunc
}

// awaitPermits begins an Acquire and returns when it waits: with the guard, or
// behind who has it.
func (b *bench) awaitPermits(s *lockpool.Semaphore, n int, nth int) *permitWaiter {
	w := b.beginPermits(s, n)
	b.queued("s/locks", nth)
	return w
}

// beginPermits begins an Acquire.
func (b *bench) beginPermits(s *lockpool.Semaphore, n int) *permitWaiter {
	ctx, cancel := context.WithCancel(b.ctx)
	b.Cleanup(cancel)
	w := &permitWaiter{done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(w.done)
		w.permits, w.err = s.Acquire(ctx, n)
	}()
	return w
}

func (b *bench) obtained(w *permitWaiter) *lockpool.Permits {
	b.Helper()
	select {
	case <-w.done:
	case <-b.ctx.Done():
		require.FailNow(b, "no permits")
	}
	require.NoError(b, w.err)
	return w.permits
}

func (b *bench) noPermits(w *permitWaiter) {
	b.Helper()
	select {
	case <-w.done:
		require.FailNow(b, "it does not wait any more", "%v", w.err)
	default:
	}
}

// Scenarios 93, 104.
func TestSemaphoreLetsAsManyInAsItsLimitSays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	var held []*lockpool.Permits
	for i := range 3 {
		pool := []*lockpool.Pool{p, others}[i%2]
		held = append(held, b.acquire(pool.Semaphore("s", 3), 1))
	}
	require.Len(t, b.children("s/leases"), 3)
	require.Empty(t, b.children("s/locks"))
	_, err := others.Semaphore("s", 3).TryAcquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	fourth := b.awaitPermits(p.Semaphore("s", 3), 1, 1)
	_, err = others.Semaphore("s", 3).TryAcquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLocked, "somebody waits")
	b.noPermits(fourth)
	b.release(held[1])
	b.release(b.obtained(fourth))
	one, err := others.Semaphore("s", 3).TryAcquire(b.ctx, 1)
	require.NoError(t, err)
	b.release(one)
	b.release(held[0])
	b.release(held[2])
	require.ErrorIs(t, held[2].Release(b.ctx), lockpool.ErrNotHeld)
	require.Empty(t, b.children("s/leases"))
	require.Empty(t, b.children("s/locks"))
}

// Scenario 94.
func TestPermitsInUseAreNeverMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	const clients, turns, limit = 10, 20, 7
	b := newBench(t)
	var used, most atomic.Int32
	var all sync.WaitGroup
	for range clients {
		sem := b.pool().Semaphore("s", limit)
		all.Go(func() {
			for turn := range turns {
				n := 1 + rand.IntN(limit)
				ctx, cancel := b.ctx, func() {}
				if turn%5 == 4 { // gives up, or is just in time
					ctx, cancel = context.WithTimeout(b.ctx, time.Duration(rand.IntN(20))*time.Millisecond)
				}
				permits, err := sem.Acquire(ctx, n)
				cancel()
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					continue
				}
				now := used.Add(int32(n))
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				}
				if now > limit {
					t.Errorf("%d permits in use", now)
				}
				time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond) // the work
				used.Add(-int32(n))
				if err := permits.Release(b.ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, used.Load())
	require.Greater(t, most.Load(), int32(limit/2))
	b.until(func() bool { return len(b.children("s/leases"))+len(b.children("s/locks")) == 0 }, "nothing is left")
}

// Scenario 95.
func TestPermitsAreGrantedAsAWhole(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	pools := []*lockpool.Pool{b.pool(), b.pool()}
	for range 20 {
		var both sync.WaitGroup
		for _, p := range pools {
			both.Go(func() {
				permits, err := p.Semaphore("s", 2).Acquire(b.ctx, 2)
				if err != nil {
					t.Error(err)
					return
				}
				if n := len(b.children("s/leases")); n > 4 {
					t.Errorf("%d leases", n)
				}
				if err := permits.Release(b.ctx); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
}

func TestWhoAsksForManyIsNotOvertakenByWhoAsksForFew(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	first := b.acquire(p.Semaphore("s", 3), 2)
	many := b.awaitPermits(others.Semaphore("s", 3), 3, 1)
	few := b.awaitPermits(p.Semaphore("s", 3), 1, 2)
	b.noPermits(few)
	b.release(first)
	got := b.obtained(many)
	b.noPermits(few)
	b.release(got)
	b.release(b.obtained(few))
}

// Scenario 96, 115.
func TestImpossiblePermitsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	for _, bad := range []struct {
		name     string
		limit, n int
		text     string
	}{
		{"s", 3, 0, "ask for one at least"},
		{"s", 3, -1, "ask for one at least"},
		{"s", 3, 4, "more than the limit of 3"},
		{"s", -1, 1, "limit -1 is not between"},
		{"/s", 3, 1, "begins with a slash"},
		{"s", 100_000, 50_000, "ask for at most"},
	} {
		_, err := p.Semaphore(bad.name, bad.limit).Acquire(b.ctx, bad.n)
		require.ErrorContains(t, err, bad.text)
		_, err = p.Semaphore(bad.name, bad.limit).TryAcquire(b.ctx, bad.n)
		require.ErrorContains(t, err, bad.text)
	}
	require.ErrorContains(t, p.Semaphore("s", 0).SetLimit(b.ctx, -1), "limit -1 is not between")
	require.ErrorIs(t, p.Semaphore("s/", 0).SetLimit(b.ctx, 1), lockpool.ErrInvalidName)
	require.ErrorContains(t, p.Semaphore("s", 1).Do(b.ctx, 1, nil), "nil function")
	require.Empty(t, b.children("s/leases"))
}

// Scenario 98.
func TestLimitCanBeChangedWhileInUse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	sem, same := p.Semaphore("s", 0), others.Semaphore("s", 0)
	_, err := sem.Acquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLimit)
	require.ErrorContains(t, err, "none is set")
	require.NoError(t, sem.SetLimit(b.ctx, 1))
	data, stat, err := b.admin.Get(b.chroot + "/s/limit")
	require.NoError(t, err)
	require.Equal(t, binary.BigEndian.AppendUint32(nil, 1), data, "as Curator's SharedCount")
	require.Zero(t, stat.EphemeralOwner)

	first := b.acquire(sem, 1)
	second := b.awaitPermits(same, 1, 1)
	b.noPermits(second)
	require.NoError(t, sem.SetLimit(b.ctx, 2))
	got := b.obtained(second)

	three := b.beginPermits(sem, 3) // more than there will be for now
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it waits for another limit")
	_, err = same.TryAcquire(b.ctx, 3)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.release(first)
	b.release(got)
	b.noPermits(three)
	require.NoError(t, same.SetLimit(b.ctx, 3))
	got = b.obtained(three)
	require.NoError(t, same.SetLimit(b.ctx, 1)) // takes from nobody
	require.NoError(t, got.Verify(b.ctx))
	none := b.awaitPermits(sem, 1, 1)
	b.release(got)
	b.release(b.obtained(none))

	require.NoError(t, same.SetLimit(b.ctx, 0))
	paused := b.beginPermits(sem, 1)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it waits for another limit")
	paused.cancel()
	<-paused.done
	require.ErrorIs(t, paused.err, context.Canceled)
	require.ErrorContains(t, paused.err, "waiting for a limit of 1, which is 0")
	require.NoError(t, b.admin.Delete(b.chroot+"/s/limit", -1))
}

// Scenario 102.
func TestWhoGivesUpLeavesNoLeaseAndNoGuard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	held := b.acquire(p.Semaphore("s", 2), 1)
	inFront := b.awaitPermits(p.Semaphore("s", 2), 2, 1)
	behind := b.awaitPermits(others.Semaphore("s", 2), 1, 2)
	inFront.cancel()
	<-inFront.done
	require.ErrorIs(t, inFront.err, context.Canceled)
	b.release(b.obtained(behind))
	b.release(held)
	b.until(func() bool { return len(b.children("s/leases"))+len(b.children("s/locks")) == 0 }, "nothing is left")
}

// Scenario 106.
func TestPermitsOfADeadSessionAreFree(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	held := b.acquire(p.Semaphore("s", 1), 1)
	waiter := b.awaitPermits(others.Semaphore("s", 1), 1, 1)
	require.NoError(t, p.Close())
	<-held.Lost()
	require.ErrorIs(t, held.Release(b.ctx), lockpool.ErrNotHeld)
	b.release(b.obtained(waiter))
}

// Scenario 108.
func TestPermitsAreReleasedFromAnyGoroutine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	held := b.acquire(b.pool().Semaphore("s", 1), 1)
	released := make(chan error)
	go func() { released <- held.Release(b.ctx) }()
	require.NoError(t, <-released)
}

func TestPermitsAreEnteredAgainByTheirHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	sem := p.Semaphore("s", 3)
	held := b.acquire(sem, 2)
	ctx := held.Context(b.ctx)
	inner, err := sem.Acquire(ctx, 1)
	require.NoError(t, err)
	require.Len(t, b.children("s/leases"), 2)
	_, err = sem.Acquire(ctx, 3)
	require.ErrorIs(t, err, lockpool.ErrUpgrade)
	_, err = p.Lock(ctx, "s")
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	own := b.acquire(sem, 1) // with a context that carries nobody
	require.Len(t, b.children("s/leases"), 3)
	b.release(own)
	token, err := held.Token(b.ctx)
	require.NoError(t, err)
	require.Positive(t, token)
	b.release(held)
	require.NoError(t, inner.Verify(b.ctx))
	b.release(inner)
	require.Empty(t, b.children("s/leases"))

	require.NoError(t, sem.Do(b.ctx, 3, func(ctx context.Context) error {
		return sem.Do(ctx, 3, func(context.Context) error { return nil })
	}))
	s := b.session(p)
	one, err := s.Semaphore("s", 3).Acquire(b.ctx, 1)
	require.NoError(t, err)
	same, err := s.Semaphore("s", 3).TryAcquire(b.ctx, 1)
	require.NoError(t, err)
	require.Len(t, b.children("s/leases"), 1)
	b.release(one)
	b.release(same)
	require.NoError(t, s.Close(b.ctx))
}

// Tokens grow from grant to grant.
func TestTokensOfPermitsGrow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	var last int64
	for i := range 6 {
		held := b.acquire([]*lockpool.Pool{p, others}[i%2].Semaphore("s", 2), 1+i%2)
		token, err := held.Token(b.ctx)
		require.NoError(t, err)
		require.Greater(t, token, last)
		last = token
		b.release(held)
	}
}

// Who removes one of a holder's leases takes all of them.
func TestPermitsAreLostWhenALeaseIsRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	held := b.acquire(p.Semaphore("s", 3), 3)
	_, err := held.Token(b.ctx)
	require.NoError(t, err)
	require.NoError(t, b.admin.Delete(b.chroot+"/s/leases/"+b.children("s/leases")[1], -1))
	<-held.Lost()
	require.ErrorIs(t, held.Release(b.ctx), lockpool.ErrLockLost)
	b.until(func() bool { return len(b.children("s/leases")) == 0 }, "the others go, too")
}

// A guard that somebody holds and does nothing is no reason to wait for ever.
func TestTryAcquireGivesUpOnAGuardThatIsStuck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	b.release(b.acquire(p.Semaphore("s", 1), 1))
	guard, err := b.admin.CreateProtectedEphemeralSequential(b.chroot+"/s/locks/lock-", nil, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	began := time.Now()
	_, err = p.Semaphore("s", 1).TryAcquire(b.ctx, 1)
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.Less(t, time.Since(began), 5*time.Second)
	got := make(chan error)
	go func() {
		permits, err := p.Semaphore("s", 1).TryAcquire(b.ctx, 1)
		if err == nil {
			err = permits.Release(b.ctx)
		}
		got <- err
	}()
	b.queued("s/locks", 2)
	require.NoError(t, b.admin.Delete(guard, -1))
	require.NoError(t, <-got, "who lets the guard go soon is waited for")
}

// Scenario 110.
func TestQueueShowsHoldersOfPermitsAndWaitersApart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(lockpool.WithOwner("billing")), b.pool()
	first, second := b.acquire(p.Semaphore("s", 4), 1), b.acquire(others.Semaphore("s", 4), 2)
	w := b.awaitPermits(p.Semaphore("s", 4), 2, 1)
	b.queued("s/leases", 5)
	behind := b.awaitPermits(others.Semaphore("s", 4), 1, 2)
	_, err := b.admin.Create(b.chroot+"/s/note", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	q, err := others.Queue(b.ctx, "s")
	require.NoError(t, err)
	require.Equal(t, []string{"note"}, q.Foreign)
	var got []string
	for _, c := range q.Contenders {
		got = append(got, fmt.Sprint(c.Kind, " ", c.Holds, " ", c.Permits, " ", c.Owner))
	}
	require.Equal(t, []string{"semaphore true 1 billing", "semaphore true 2 lockpool.test", "semaphore false 2 billing", "semaphore false 0 lockpool.test"}, got)
	names, err := p.List(b.ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"s"}, names)

	// A waiter that is broken queues again; a holder has lost.
	require.NoError(t, p.Break(b.ctx, "s", q.Contenders[1].Node))
	<-second.Lost()
	got2 := b.obtained(w)
	b.release(b.obtained(behind))
	b.release(got2)
	b.release(first)
	require.NoError(t, b.admin.Delete(b.chroot+"/s/note", -1))
}

// Requests of a semaphore that is free: the writes are the guard, the leases, and
// the removal of each.
func TestFreePermitsCostFourWrites(t *testing.T) {
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	sem := b.pool().Semaphore("s", 5)
	b.release(b.acquire(sem, 3))
	var writes atomic.Int32
	own.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.Pass(), Match: zktest.Match{Where: func(r zktest.Request) bool {
		if r.Op == zktest.OpCreate || r.Op == zktest.OpDelete || r.Op == zktest.OpMulti && r.Paths[0] != "/" {
			writes.Add(1)
		}
		return true
	}}})
	b.release(b.acquire(sem, 3))
	require.Equal(t, int32(4), writes.Load())
}
