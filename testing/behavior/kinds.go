package behavior

// This file has the tests of readers, writers and semaphores.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var readerTests = []test{
	{"WritersExcludeAndReadersShare", writersExcludeAndReadersShare, nil},
	{"QueueTogether", func(b *bench) { b.readersAndWriters(b.pool(atService), b.pool(atService)) }, nil},
	{"EnterAgainWhileAWriterWaits", readerEntersAgainWhileAWriterWaits, nil},
	{"Upgrade", upgradeIsAnError, nil},
	{"Downgrade", downgradeKeepsItsPlace, []string{"Downgrader"}},
	{"UnlockOfTheReadLeavesTheWrite", unlockOfTheReadLeavesTheWrite, []string{"Downgrader"}},
	{"WaitForTheWriterOfTheirPool", readersWaitForTheWriterOfTheirPool, nil},
}

func writersExcludeAndReadersShare(b *bench) {
	pools, a := b.pools(2), b.name("a")
	written := 0 // the race detector sees a reader beside a writer
	var readers, most atomic.Int32
	plays.Together(b, 8, func(i int) error {
		for turn := range 20 {
			var err error
			if (i+turn)%8 == 0 {
				err = pools[i%2].Do(b.ctx, a, func(context.Context) error {
					if readers.Load() != 0 {
						return errors.New("a reader beside a writer")
					}
					written++
					return nil
				})
			} else {
				err = pools[i%2].Do(b.ctx, a, func(context.Context) error {
					n, before := readers.Add(1), written
					defer readers.Add(-1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(time.Millisecond) // the work
					if written != before {
						return errors.New("a writer beside a reader")
					}
					return nil
				}, lockpool.Shared())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	require.Equal(b, 20, written)
	require.Greater(b, most.Load(), int32(1))
}

// readersAndWriters has readers and writers of two pools or, in memory, of one queue together:
// first come, first served, so no contender starves.
func (b *bench) readersAndWriters(p, others *lockpool.Pool) {
	a, shared := b.name("a"), lockpool.Shared()
	first, second := b.read(p, a), b.read(others, a)
	if p == others && b.bubble { // where it has taken no time
		require.Len(b, b.contenders(a), 1, "readers share a node")
	}
	b.isHeld(a)
	also, err := others.TryLock(b.ctx, a, shared)
	require.NoError(b, err)
	b.unlock(also)

	wait := func(by *lockpool.Pool, nth int, opts ...lockpool.LockOption) *call[*lockpool.Lock] {
		if p == others {
			return b.waiter(by, a, nth, opts...)
		}
		return b.enqueue(by, a, nth+2, opts...)
	}
	w1 := wait(others, 1)
	r1, r2 := wait(p, 2, shared), wait(others, 3, shared)
	w2 := wait(p, 4)
	r3 := wait(p, 5, shared)
	_, err = p.TryLock(b.ctx, a, shared)
	require.ErrorIs(b, err, lockpool.ErrLocked)

	b.unlock(first)
	w1.waits()
	b.unlock(second)
	held := w1.granted()
	for _, w := range []*call[*lockpool.Lock]{r1, r2, w2, r3} {
		w.waits()
	}
	b.unlock(held)
	one, two := r1.granted(), r2.granted() // both precede the later writer
	b.unlock(one)
	w2.waits()
	b.unlock(two)
	held = w2.granted()
	r3.waits()
	b.unlock(held)
	b.unlock(r3.granted())
}

func readerEntersAgainWhileAWriterWaits(b *bench) {
	h, a := b.handle(b.pool()), b.name("a")
	outer := b.read(h, a)
	w := b.enqueue(b.pool(), a, 2)
	inner := b.read(h, a)
	require.Equal(b, 2, outer.Depth())
	b.unlock(outer)
	w.waits()
	b.unlock(inner)
	b.unlock(w.granted())
	b.close(h)
}

func upgradeIsAnError(b *bench) {
	p, a := b.pool(), b.name("a")
	h, other := b.handle(p), b.handle(p)
	for _, reader := range []*lockpool.Handle{h, other} { // also with two readers at a time
		b.read(reader, a)
	}
	for _, reader := range []*lockpool.Handle{h, other} {
		_, err := reader.Lock(b.ctx, a)
		require.ErrorIs(b, err, lockpool.ErrUpgrade)
		_, err = reader.TryLock(b.ctx, a)
		require.ErrorIs(b, err, lockpool.ErrUpgrade)
		again, err := reader.Lock(b.ctx, a, lockpool.Shared())
		require.NoError(b, err, "the reader keeps its lock")
		b.unlock(again)
		b.close(reader)
	}
	b.isFree(a)
}

func downgradeKeepsItsPlace(b *bench) {
	h, a := b.handle(b.pool(atService)), b.name("a")
	others, more := b.pool(atService), b.pool(atService)
	write := b.lock(h, a)
	token := b.contenders(a)[0].Token // the lock itself is asked after the downgrade
	r1 := b.enqueue(others, a, 2, lockpool.Shared())
	w := b.enqueue(more, a, 3)
	r2 := b.enqueue(more, a, 4, lockpool.Shared())
	read := b.read(h, a)
	again := b.lock(h, a) // still exclusive
	require.Equal(b, 3, read.Depth())
	b.unlock(write)
	r1.waits()
	b.unlock(again)
	one := r1.granted()
	w.waits()
	r2.waits()
	require.Equal(b, 1, read.Depth())
	require.NoError(b, read.Verify(b.ctx))
	require.Equal(b, token, b.token(read))
	require.Equal(b, token, b.contenders(a)[0].Token)
	require.Equal(b, "read", b.contenders(a)[0].Kind)
	_, err := h.Lock(b.ctx, a)
	require.ErrorIs(b, err, lockpool.ErrUpgrade)
	require.ErrorIs(b, write.Unlock(b.ctx), lockpool.ErrNotHeld)
	b.unlock(one)
	w.waits()
	b.unlock(read)
	next := w.granted()
	require.Greater(b, b.token(next), token)
	b.unlock(next)
	b.unlock(r2.granted())
	b.close(h)
}

// The entries may be unlocked in any order.
func unlockOfTheReadLeavesTheWrite(b *bench) {
	h, a := b.handle(b.pool()), b.name("a")
	write, read := b.lock(h, a), b.read(h, a)
	b.unlock(read)
	b.isHeld(a, lockpool.Shared())
	b.unlock(b.lock(h, a))
	b.unlock(write)
	b.isFree(a)
	b.close(h)
}

func readersWaitForTheWriterOfTheirPool(b *bench) {
	p, a := b.pool(), b.name("a")
	l := b.lock(p, a)
	_, err := p.TryLock(b.ctx, a, lockpool.Shared())
	require.ErrorIs(b, err, lockpool.ErrLocked)
	w := b.waiter(p, a, 1, lockpool.Shared())
	w.waits()
	b.unlock(l)
	l = w.granted()
	b.unlock(b.read(b.looker, a)) // a reader may hold the lock for long, so other processes share the lock
	b.unlock(l)
}

var limiter = []string{"Limiter"}

var semaphoreTests = []test{
	{"GrantsUpToItsLimit", semaphoreGrantsUpToItsLimit, limiter},
	{"NeverExceedsItsLimit", semaphoreNeverExceedsItsLimit, limiter},
	{"LargeIsNotOvertakenBySmall", largeAcquireIsNotOvertaken, limiter},
	{"EntersAgain", permitsAreReentrant, limiter},
	{"Tokens", tokensOfPermitsGrow, limiter},
	{"CanceledAcquire", canceledAcquireLeaves, limiter},
	{"CloseFreesPermits", closeFreesPermits, limiter},
	{"InvalidAcquire", invalidAcquireIsRefused, limiter},
	{"SmallestStatedLimitCounts", smallestStatedLimitCounts, limiter},
	{"SetLimit", limitCanBeSetWhileInUse, limiter},
	{"SetLimitBesideStatedLimits", setLimitCountsBesideStatedLimits, limiter},
	{"BeyondTheLimitBlocksNoOthers", acquireBeyondTheLimitBlocksNoOthers, limiter},
	{"BeyondAStatedLimitBlocksNoOthers", acquireBeyondAStatedLimit, limiter},
	{"Options", optionsOfAcquire, limiter},
	{"BrokenHolder", brokenPermitsAreLost, []string{"Limiter", "Breaker"}},
}

func semaphoreGrantsUpToItsLimit(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	var held []*lockpool.Lock
	for i := range 3 {
		held = append(held, b.acquire([]*lockpool.Pool{p, others}[i%2].Semaphore(s, 3), 1))
	}
	b.isFull(others.Semaphore(s, 3), 1)
	fourth := b.startAcquire(p.Semaphore(s, 3), 1)
	b.queued(s, 4)
	b.isFull(others.Semaphore(s, 3), 1) // a caller waits
	fourth.waits()
	plays.Together(b, 1, func(int) error { return held[1].Unlock(b.ctx) }) // on another goroutine
	b.unlock(fourth.granted())
	one, err := others.Semaphore(s, 3).Acquire(b.ctx, 1, lockpool.WaitAtMost(0))
	require.NoError(b, err)
	b.unlock(one)
	b.unlock(held[0])
	b.unlock(held[2])
	require.ErrorIs(b, held[2].Unlock(b.ctx), lockpool.ErrNotHeld)
}

// No more permits are held than the limit stated by any of the holders.
func semaphoreNeverExceedsItsLimit(b *bench) {
	type holding struct{ n, limit int }
	var mu sync.Mutex
	held := map[*holding]bool{}
	check := func(own *holding) error {
		mu.Lock()
		defer mu.Unlock()
		held[own] = true
		used, limit := 0, own.limit
		for h := range held {
			used, limit = used+h.n, min(limit, h.limit)
		}
		if used > limit {
			return fmt.Errorf("%d permits are held where %d is a limit", used, limit)
		}
		return nil
	}
	pools, s := b.pools(4), b.name("s")
	plays.Together(b, 8, func(i int) error {
		for turn := range 12 {
			own := &holding{limit: 2 + (i+turn)%4}
			own.n = 1 + (i*turn)%own.limit
			ctx, cancel := context.WithCancel(b.ctx)
			if turn%4 == 3 { // gives up, or is just in time
				ctx, cancel = context.WithTimeout(b.ctx, time.Duration(i)*time.Millisecond)
			}
			permits, err := pools[i%4].Semaphore(s, own.limit).Acquire(ctx, own.n)
			cancel()
			if turn%4 == 3 && errors.Is(err, context.DeadlineExceeded) {
				continue
			}
			if err == nil {
				err = check(own)
			}
			if err != nil {
				return err
			}
			time.Sleep(time.Duration(turn%3) * time.Millisecond) // the work
			mu.Lock()
			delete(held, own)
			mu.Unlock()
			if err := permits.Unlock(b.ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func largeAcquireIsNotOvertaken(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	first := b.acquire(p.Semaphore(s, 3), 2)
	many := b.startAcquire(others.Semaphore(s, 3), 3)
	b.queued(s, 2)
	few := b.startAcquire(p.Semaphore(s, 3), 1)
	b.queued(s, 3)
	few.waits()
	b.unlock(first)
	got := many.granted()
	few.waits()
	b.unlock(got)
	b.unlock(few.granted())
}

func permitsAreReentrant(b *bench) {
	p, s := b.pool(), b.name("s")
	sem := p.Semaphore(s, 3)
	held := b.acquire(sem, 2)
	ctx := held.Context(b.ctx)
	inner, err := sem.Acquire(ctx, 1)
	require.NoError(b, err)
	_, err = sem.Acquire(ctx, 3)
	require.ErrorIs(b, err, lockpool.ErrUpgrade)
	_, err = p.Lock(ctx, s)
	require.ErrorIs(b, err, lockpool.ErrKindMismatch)
	own := b.acquire(sem, 1) // the context carries no holder
	b.isFull(sem, 1)
	b.unlock(own)
	b.unlock(held)
	require.NoError(b, inner.Verify(b.ctx))
	b.unlock(inner)
	require.Empty(b, b.contenders(s))

	require.NoError(b, sem.Do(b.ctx, 3, func(ctx context.Context) error {
		require.Equal(b, s, b.lockIn(ctx).Name())
		return sem.Do(ctx, 3, nothing)
	}))
	h := b.handle(p)
	one := b.acquire(h.Semaphore(s, 3), 1)
	same, err := h.Semaphore(s, 3).Acquire(b.ctx, 1, lockpool.WaitAtMost(0))
	require.NoError(b, err)
	require.Len(b, b.contenders(s), 1)
	b.unlock(one)
	b.unlock(same)
	b.close(h)
}

func tokensOfPermitsGrow(b *bench) {
	pools, s, last := b.pools(2), b.name("s"), int64(0)
	for i := range 6 {
		held := b.acquire(pools[i%2].Semaphore(s, 2), 1+i%2)
		token, err := held.Token(b.ctx)
		require.NoError(b, err)
		require.Greater(b, token, last)
		last = token
		b.unlock(held)
	}
}

func canceledAcquireLeaves(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	held := b.acquire(p.Semaphore(s, 2), 1)
	inFront := b.startAcquire(p.Semaphore(s, 2), 2)
	b.queued(s, 2)
	behind := b.startAcquire(others.Semaphore(s, 2), 1)
	b.queued(s, 3)
	inFront.cancel()
	require.ErrorIs(b, inFront.returned(), context.Canceled)
	b.unlock(behind.granted())
	b.unlock(held)
	b.queued(s, 0)
}

func closeFreesPermits(b *bench) {
	p, s := b.pool(), b.name("s")
	held := b.acquire(p.Semaphore(s, 1), 1)
	w := b.startAcquire(b.pool().Semaphore(s, 1), 1)
	b.queued(s, 2)
	require.NoError(b, p.Close())
	b.await(held.Lost(), "the loss")
	require.ErrorIs(b, held.Unlock(b.ctx), lockpool.ErrNotHeld)
	b.unlock(w.granted())
}

func invalidAcquireIsRefused(b *bench) {
	p, s := b.pool(), b.name("s")
	for _, bad := range []struct {
		limit, n int
		text     string
	}{
		{3, 0, "ask for at least one"},
		{3, -1, "ask for at least one"},
		{3, 4, "more than the limit of 3"},
		{-1, 1, "limit -1 is not between"},
	} {
		_, err := p.Semaphore(s, bad.limit).Acquire(b.ctx, bad.n)
		require.ErrorContains(b, err, bad.text)
		_, err = p.Semaphore(s, bad.limit).Acquire(b.ctx, bad.n, lockpool.WaitAtMost(0))
		require.ErrorContains(b, err, bad.text)
	}
	_, err := p.Semaphore(s, 0).Acquire(b.ctx, 1)
	require.ErrorIs(b, err, lockpool.ErrLimit)
	require.ErrorContains(b, err, "none is set")
	require.ErrorContains(b, p.Semaphore(s, 0).SetLimit(b.ctx, -1), "limit -1 is not between")
	require.ErrorContains(b, p.Semaphore(s, 1).Do(b.ctx, 1, nil), "function is nil")
}

// Different limits are no error: the smallest limit stated by a holder counts while the
// permits are held.
func smallestStatedLimitCounts(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	three, five, two := p.Semaphore(s, 3), others.Semaphore(s, 5), others.Semaphore(s, 2)

	// A deployment raises the limit: it is 3 until the last old holder releases.
	old, held := b.acquire(three, 1), b.acquire(five, 2)
	b.isFull(five, 1)
	w := b.startAcquire(five, 1)
	b.queued(s, 3)
	b.unlock(old)
	more := w.granted()
	b.unlock(b.acquire(five, 2))
	b.isFull(three, 1) // three permits are held
	b.isFull(five, 3)

	// A deployment lowers the limit: a caller stating 2 waits until 2 suffice, and then
	// this limit counts for the others.
	lower := b.startAcquire(two, 1)
	b.queued(s, 3)
	b.unlock(more)
	lower.waits()
	b.isFull(five, 1) // a caller waits
	b.unlock(held)
	low := lower.granted()
	last := b.acquire(five, 1)
	b.isFull(five, 1)
	b.unlock(low)
	b.unlock(b.acquire(five, 4))
	b.unlock(last)
}

// A caller asking for more than the holders state waits for them, out of the way of others.
func acquireBeyondAStatedLimit(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	first, second := b.acquire(others.Semaphore(s, 3), 1), b.acquire(others.Semaphore(s, 2), 1)
	many := b.startAcquire(p.Semaphore(s, 4), 4)
	b.waiting(p, 1)
	b.queued(s, 2)
	b.unlock(first)
	b.unlock(b.acquire(others.Semaphore(s, 3), 1))
	many.waits()
	b.unlock(second)
	b.unlock(many.granted())
}

func optionsOfAcquire(b *bench) {
	sem, other := b.pool().Semaphore(b.name("s"), 2), b.pool().Semaphore(b.name("s"), 2)
	for _, opt := range []lockpool.LockOption{lockpool.Plain(), lockpool.Shared()} {
		_, err := sem.Acquire(b.ctx, 1, opt)
		require.ErrorContains(b, err, "neither plain nor shared")
		require.ErrorContains(b, sem.Do(b.ctx, 1, nothing, opt), "neither plain nor shared")
	}
	_, err := sem.Acquire(b.ctx, 1, nil)
	require.ErrorContains(b, err, "nil LockOption")

	held := b.acquire(other, 2)
	_, err = sem.Acquire(b.ctx, 1, lockpool.WaitAtMost(50*time.Millisecond))
	require.ErrorIs(b, err, context.DeadlineExceeded)
	require.ErrorIs(b, sem.Do(b.ctx, 1, nothing, lockpool.WaitAtMost(50*time.Millisecond)), context.DeadlineExceeded)
	for _, now := range []lockpool.LockOption{lockpool.WaitAtMost(0), lockpool.WaitAtMost(-time.Second)} {
		_, err = sem.Acquire(b.ctx, 1, now)
		require.ErrorIs(b, err, lockpool.ErrLocked)
		require.NotErrorIs(b, err, context.DeadlineExceeded)
		require.ErrorIs(b, sem.Do(b.ctx, 1, nothing, now), lockpool.ErrLocked)
	}
	b.unlock(held)
}

func limitCanBeSetWhileInUse(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	sem, same := p.Semaphore(s, 0), others.Semaphore(s, 0)
	require.NoError(b, sem.SetLimit(b.ctx, 1))
	first := b.acquire(sem, 1)
	second := b.startAcquire(same, 1)
	b.queued(s, 2)
	second.waits()
	require.NoError(b, sem.SetLimit(b.ctx, 2))
	got := second.granted()

	three := b.startAcquire(sem, 3) // more than the limit
	b.waiting(p, 1)
	b.isFull(same, 3)
	b.unlock(first)
	b.unlock(got)
	three.waits()
	require.NoError(b, same.SetLimit(b.ctx, 3))
	got = three.granted()
	require.NoError(b, same.SetLimit(b.ctx, 1)) // takes no permit from a holder
	require.NoError(b, got.Verify(b.ctx))
	w := b.startAcquire(sem, 1)
	b.queued(s, 2)
	b.unlock(got)
	b.unlock(w.granted())

	require.NoError(b, same.SetLimit(b.ctx, 0))
	none := b.startAcquire(sem, 1)
	b.waiting(p, 1)
	none.cancel()
	require.ErrorIs(b, none.returned(), context.Canceled)
	require.ErrorContains(b, none.err, "waiting for a limit of at least 1, which is now 0")
}

func setLimitCountsBesideStatedLimits(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	set, stated := p.Semaphore(s, 0), others.Semaphore(s, 2)
	held := b.acquire(stated, 1)
	require.NoError(b, set.SetLimit(b.ctx, 5))
	b.isFull(set, 2)
	b.unlock(b.acquire(set, 1))
	b.unlock(held)
	b.isFull(others.Semaphore(s, 9), 6)
	held = b.acquire(set, 4)
	b.isFull(stated, 1)
	b.unlock(held)

	// The limit also counts for a waiting caller with another limit.
	held = b.acquire(stated, 2)
	w := b.startAcquire(stated, 1)
	b.queued(s, 2)
	require.NoError(b, set.SetLimit(b.ctx, 0))
	b.unlock(held)
	b.queued(s, 0) // waits without a place in the queue
	w.waits()
	require.NoError(b, set.SetLimit(b.ctx, 1))
	b.unlock(w.granted())
}

// A caller asking for more permits than the limit waits for a higher limit first, and then
// for a turn.
func acquireBeyondTheLimitBlocksNoOthers(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	sem, same := p.Semaphore(s, 0), others.Semaphore(s, 0)
	require.NoError(b, same.SetLimit(b.ctx, 2))
	many := b.startAcquire(sem, 3)
	b.waiting(p, 1)
	b.unlock(b.acquire(same, 2))
	one, err := same.Acquire(b.ctx, 1, lockpool.WaitAtMost(0))
	require.NoError(b, err, "two permits are free")
	many.waits()

	// The limit suffices now, but there are not enough free permits.
	require.NoError(b, same.SetLimit(b.ctx, 3))
	b.queued(s, 2)
	many.waits()
	few := b.startAcquire(same, 1)
	b.queued(s, 3)

	// The limit is too low again: a later caller is granted.
	require.NoError(b, same.SetLimit(b.ctx, 2))
	b.unlock(few.granted())
	many.waits()
	require.NoError(b, same.SetLimit(b.ctx, 3))
	b.unlock(one)
	b.unlock(many.granted())
}

func brokenPermitsAreLost(b *bench) {
	p, s := b.pool(), b.name("s")
	held := b.acquire(p.Semaphore(s, 3), 2)
	ctx := held.Context(b.ctx)
	w := b.startAcquire(b.pool().Semaphore(s, 3), 3)
	b.queued(s, 2)
	b.breakHolder(s)
	b.await(held.Lost(), "the loss")
	b.await(ctx.Done(), "the end of the context")
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrLockLost)
	require.ErrorIs(b, held.Unlock(b.ctx), lockpool.ErrLockLost)
	b.unlock(w.granted())
}

var plainLocker = []string{"PlainLocker"}

var plainTests = []test{
	{"ManyCount", func(b *bench) { b.manyCount(lockpool.Plain()) }, plainLocker},
	{"WaiterThatGivesUp", plainWaiterGivesUp, plainLocker},
	{"CannotBeShared", plainCannotBeShared, plainLocker},
	{"Broken", plainHolderLearnsOfItsLoss, []string{"PlainLocker", "Breaker"}},
	{"TryLock", plainTryLock, plainLocker},
}

func plainWaiterGivesUp(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	l := b.lock(p, a, lockpool.Plain())
	require.NoError(b, others.Ping(b.ctx)) // the wait is for the lock, not for a session
	began := time.Now()
	_, err := others.Lock(b.ctx, a, lockpool.Plain(), lockpool.WaitAtMost(short))
	b.took(short, began)
	require.ErrorIs(b, err, context.DeadlineExceeded)
	if b.bubble { // the server may be slow to tell
		require.ErrorContains(b, err, "waiting behind")
	}
	b.unlock(l)
	b.isFree(a, lockpool.Plain())
}

func plainCannotBeShared(b *bench) {
	p, a := b.pool(), b.name("a")
	for _, lock := range []func() error{
		func() error { _, err := p.Lock(b.ctx, a, lockpool.Shared(), lockpool.Plain()); return err },
		func() error { _, err := p.Lock(b.ctx, a, lockpool.Plain(), lockpool.Shared()); return err },
		func() error { return p.Do(b.ctx, a, nothing, lockpool.Shared(), lockpool.Plain()) },
		func() error {
			_, err := p.LockAll(b.ctx, []string{a}, lockpool.Plain(), lockpool.Shared())
			return err
		},
	} {
		var lockErr *lockpool.LockError
		err := lock()
		require.ErrorAs(b, err, &lockErr)
		require.ErrorContains(b, err, "cannot be shared")
	}
}

func plainHolderLearnsOfItsLoss(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	for range 2 {
		l := b.lock(p, a, lockpool.Plain())
		node := b.nodes(a)[0]
		b.breakHolder(a)
		// Another holder's node must not be taken for the broken one.
		next, err := others.TryLock(b.ctx, a, lockpool.Plain())
		require.NoError(b, err)
		require.ErrorIs(b, l.Verify(b.ctx), lockpool.ErrLockLost)
		b.isLost(l)
		require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
		require.ErrorIs(b, others.Break(b.ctx, a, node), lockpool.ErrNotHeld)
		require.NoError(b, next.Verify(b.ctx))
		b.unlock(next)
	}
}

func plainTryLock(b *bench) {
	p, a := b.pool(), b.name("a")
	l, err := p.TryLock(b.ctx, a, lockpool.Plain())
	require.NoError(b, err)
	require.Equal(b, "plain", b.contenders(a)[0].Kind)
	require.True(b, b.contenders(a)[0].Holds)
	require.Equal(b, b.token(l), b.contenders(a)[0].Token)
	b.isHeld(a, lockpool.Plain())
	_, err = p.Lock(b.ctx, a, lockpool.Plain(), lockpool.WaitAtMost(0))
	require.ErrorIs(b, err, lockpool.ErrLocked)
	b.unlock(l)
	require.NoError(b, p.Do(b.ctx, a, nothing, lockpool.Plain(), lockpool.WaitAtMost(0)))
}

var mixTests = []test{
	{"ExcludeEachOther", kindsExcludeEachOther, []string{"PlainLocker", "Limiter"}},
	{"EnterAgain", enterAgainWithAnotherKind, []string{"PlainLocker", "Limiter"}},
}

func kindsExcludeEachOther(b *bench) {
	p, others, s := b.pool(), b.pool(), b.name("s")
	type take = func(p *lockpool.Pool) (release func(context.Context) error, err error)
	kinds := []struct {
		take take
		says string // of the error
	}{
		{func(p *lockpool.Pool) (func(context.Context) error, error) {
			l, err := p.TryLock(b.ctx, s)
			return l.Unlock, err
		}, "a queue"},
		{func(p *lockpool.Pool) (func(context.Context) error, error) {
			l, err := p.TryLock(b.ctx, s, lockpool.Plain())
			return l.Unlock, err
		}, "a plain lock"},
		{func(p *lockpool.Pool) (func(context.Context) error, error) {
			l, err := p.Semaphore(s, 2).Acquire(b.ctx, 1, lockpool.WaitAtMost(0))
			return l.Unlock, err
		}, "a semaphore"},
	}
	for i, first := range kinds {
		for j, second := range kinds {
			if i == j {
				continue
			}
			s = b.name(fmt.Sprint("s", i, j)) // the service may know for a moment what a name was used for
			release, err := first.take(p)
			require.NoError(b, err)
			for range 2 {
				_, err = second.take(others)
				require.ErrorIs(b, err, lockpool.ErrKindMismatch)
				require.ErrorContains(b, err, first.says)
			}
			if i < 2 {
				require.ErrorIs(b, others.Semaphore(s, 0).SetLimit(b.ctx, 1), lockpool.ErrKindMismatch)
			}
			require.NoError(b, release(b.ctx))
		}
	}
}

func enterAgainWithAnotherKind(b *bench) {
	h, s, a := b.handle(b.pool()), b.name("s"), b.name("a")
	b.lock(h, s)
	_, err := h.Lock(b.ctx, s, lockpool.Plain())
	require.ErrorIs(b, err, lockpool.ErrKindMismatch)
	require.ErrorContains(b, err, "holds it as mutex")
	_, err = h.Semaphore(s, 1).Acquire(b.ctx, 1)
	require.ErrorIs(b, err, lockpool.ErrKindMismatch)
	b.lock(h, a, lockpool.Plain())
	_, err = h.Lock(b.ctx, a)
	require.ErrorIs(b, err, lockpool.ErrKindMismatch)
	_, err = h.Lock(b.ctx, a, lockpool.Shared())
	require.ErrorIs(b, err, lockpool.ErrKindMismatch)
	b.close(h)
}
