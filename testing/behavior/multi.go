package behavior

// This file has the tests of LockAll, HoldAtLeast and local turns.

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var multiTests = []test{
	{"TakesEachNameOnce", lockAllTakesEachNameOnce, nil},
	{"AllOrNone", lockAllTakesAllOrNone, nil},
	{"InAnyOrder", lockAllInAnyOrder, nil},
	{"Do", multiLockDo, nil},
	{"WaitAtMost", waitAtMostBoundsTheWholeLockAll, nil},
	{"Options", optionsOfLockAll, nil},
	{"Plain", lockAllOfPlainLocks, plainLocker},
	{"Loss", lossOfOneOfSeveralLocks, []string{"Breaker"}},
	{"ReleaseFindsTheLoss", multiLockFindsTheLoss, []string{"Breaker"}},
	{"Revoked", multiLockIsRevokedWithAnyOfItsLocks, []string{"Revoker"}},
	{"GivesUpWhatItHas", lockAllGivesUp, []string{"Revoker", "Breaker"}},
	{"LeavesAHeldLockAsItWas", failedLockAllLeavesAHeldLock, []string{"Revoker"}},
}

func lockAllTakesEachNameOnce(b *bench) {
	p, a, c, d := b.pool(), b.name("a"), b.name("c"), b.name("d")
	all := b.lockAll(p, []string{d, a, c, a})
	for _, name := range []string{a, c, d} {
		b.isHeld(name)
		require.Equal(b, 1, all[name].Depth())
	}
	require.Len(b, all, 3)
	require.NoError(b, all.Verify(b.ctx))
	ctx := all.Context(b.ctx)
	inner, err := p.LockAll(ctx, []string{c, b.name("e")}) // the same holder
	require.NoError(b, err)
	require.NoError(b, inner.Unlock(b.ctx))
	require.NoError(b, ctx.Err())
	require.NoError(b, all.Unlock(b.ctx))
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrNotHeld)
	require.ErrorIs(b, all.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.Zero(b, p.Stats().InUse)
}

func lockAllTakesAllOrNone(b *bench) {
	p, a, c, d := b.pool(), b.name("a"), b.name("c"), b.name("d")
	held := b.lock(b.pool(), c)
	w := do(b, func(ctx context.Context) error { _, err := p.LockAll(ctx, []string{d, c, a}); return err })
	b.queued(c, 2)
	w.cancel()
	err := w.returned()
	var culprit *lockpool.LockError
	require.ErrorAs(b, err, &culprit)
	require.Equal(b, []string{c, "lock all"}, []string{culprit.Name, culprit.Op})
	require.ErrorIs(b, err, context.Canceled)
	b.queued(a, 0)
	b.queued(d, 0)
	b.unlock(held)
	require.Zero(b, p.Stats().InUse)

	_, err = p.LockAll(b.ctx, []string{a, "/b"})
	require.ErrorIs(b, err, lockpool.ErrInvalidName)
	require.ErrorAs(b, err, &culprit)
	require.Equal(b, "/b", culprit.Name)
	_, err = p.LockAll(b.ctx, nil)
	require.ErrorContains(b, err, "no names were given")
}

func lockAllInAnyOrder(b *bench) {
	a, c, d := b.name("a"), b.name("c"), b.name("d")
	orders, pools := [][]string{{a, c, d}, {d, c, a}, {c, d}, {d, a}}, b.pools(4)
	plays.Together(b, 4, func(i int) error {
		for range 15 {
			all, err := pools[i].LockAll(b.ctx, orders[i])
			if err == nil {
				err = all.Unlock(b.ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func multiLockDo(b *bench) {
	p, names := b.pool(), []string{b.name("a"), b.name("c")}
	unlocked := func() {
		b.Helper()
		for _, name := range names {
			b.isFree(name)
		}
		require.Zero(b, p.Stats().InUse)
	}
	var kept context.Context
	require.NoError(b, b.lockAll(p, names).Do(b.ctx, func(ctx context.Context) error {
		kept = ctx
		for _, name := range names { // the context carries the holder
			l, err := p.TryLock(ctx, name)
			require.NoError(b, err)
			require.Equal(b, 2, l.Depth())
			b.unlock(l)
		}
		return ctx.Err()
	}))
	require.ErrorIs(b, context.Cause(kept), lockpool.ErrNotHeld)
	unlocked()
	require.Equal(b, errWork, b.lockAll(p, names).Do(b.ctx, func(context.Context) error { return errWork }))
	unlocked()
	require.PanicsWithValue(b, "oops", func() {
		_ = b.lockAll(p, names).Do(b.ctx, func(context.Context) error { panic("oops") })
	})
	unlocked()
	for _, none := range []lockpool.MultiLock{nil, {}} {
		require.ErrorIs(b, none.Unlock(b.ctx), lockpool.ErrNotHeld)
		require.ErrorIs(b, none.Verify(b.ctx), lockpool.ErrNotHeld)
		require.ErrorIs(b, context.Cause(none.Context(b.ctx)), lockpool.ErrNotHeld)
		require.ErrorIs(b, none.Do(b.ctx, func(context.Context) error { panic("called without a lock") }), lockpool.ErrNotHeld)
	}
	all := b.lockAll(p, names)
	require.ErrorContains(b, all.Do(b.ctx, nil), "function is nil")
	unlocked()
	require.ErrorIs(b, all.Do(b.ctx, nothing), lockpool.ErrNotHeld)
}

func waitAtMostBoundsTheWholeLockAll(b *bench) {
	p, others, a, c := b.pool(), b.pool(), b.name("a"), b.name("c")
	first, second := b.lock(others, a), b.lock(others, c)
	require.NoError(b, p.Ping(b.ctx))
	unlocks := do(b, func(ctx context.Context) error {
		time.Sleep(300 * time.Millisecond) // a part of the wait
		return first.Unlock(ctx)
	})
	const wait = 600 * time.Millisecond
	began := time.Now()
	_, err := p.LockAll(b.ctx, []string{a, c}, lockpool.WaitAtMost(wait))
	b.took(wait, began)
	require.NoError(b, unlocks.returned())
	require.ErrorIs(b, err, context.DeadlineExceeded)
	var culprit *lockpool.LockError
	require.ErrorAs(b, err, &culprit)
	require.True(b, culprit.Name == c || !b.bubble, "a busy machine unlocks late")
	b.queued(a, 0)
	b.unlock(second)
}

func optionsOfLockAll(b *bench) {
	p, others, names := b.pool(), b.pool(), []string{b.name("a"), b.name("c")}
	now := lockpool.WaitAtMost(0)
	held := b.lock(others, names[1])
	_, err := p.LockAll(b.ctx, names, now)
	require.ErrorIs(b, err, lockpool.ErrLocked)
	require.NotErrorIs(b, err, context.DeadlineExceeded)
	var lockErr *lockpool.LockError
	require.ErrorAs(b, err, &lockErr)
	require.Equal(b, names[1], lockErr.Name)
	b.queued(names[0], 0)
	b.unlock(held)
	require.NoError(b, b.lockAll(p, names, now).Unlock(b.ctx))

	first, second := b.lockAll(p, names, lockpool.Shared()), b.lockAll(others, names, lockpool.Shared(), now)
	for _, name := range names {
		b.isHeld(name)
	}
	require.NoError(b, first.Unlock(b.ctx))
	require.NoError(b, second.Unlock(b.ctx))
	for _, opts := range [][]lockpool.LockOption{{lockpool.Plain(), lockpool.Shared()}, {nil}} {
		_, err := p.LockAll(b.ctx, names, opts...)
		require.ErrorAs(b, err, &lockErr)
	}
	require.Zero(b, p.Stats().InUse)
}

func lockAllOfPlainLocks(b *bench) {
	p, names := b.pool(), []string{b.name("a"), b.name("c")}
	all := b.lockAll(p, names, lockpool.Plain())
	for _, name := range names {
		require.Equal(b, "plain", b.contenders(name)[0].Kind)
	}
	require.NoError(b, all.Unlock(b.ctx))
}

func lossOfOneOfSeveralLocks(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	for _, report := range []func(lockpool.MultiLock) error{
		func(all lockpool.MultiLock) error {
			ctx := all.Context(b.ctx)
			b.breakHolder(c)
			b.await(ctx.Done(), "the end of the context")
			require.ErrorIs(b, context.Cause(ctx), lockpool.ErrLockLost)
			require.ErrorIs(b, all.Verify(b.ctx), lockpool.ErrLockLost)
			return all.Unlock(b.ctx)
		},
		func(all lockpool.MultiLock) error {
			err := all.Do(b.ctx, func(ctx context.Context) error {
				b.breakHolder(c)
				<-ctx.Done()
				return ctx.Err()
			})
			require.ErrorIs(b, err, context.Canceled)
			return err
		},
	} {
		err := report(b.lockAll(p, []string{a, c}))
		require.ErrorIs(b, err, lockpool.ErrLockLost)
		var culprit *lockpool.LockError
		require.ErrorAs(b, err, &culprit)
		require.Equal(b, c, culprit.Name)
		b.isFree(a)
	}
}

func multiLockFindsTheLoss(b *bench) {
	a, c := b.name("a"), b.name("c")
	all := b.lockAll(b.pool(), []string{a, c})
	b.breakHolder(a)
	require.ErrorIs(b, all.Unlock(b.ctx), lockpool.ErrLockLost)
	b.await(all[a].Lost(), "the loss")
}

func multiLockIsRevokedWithAnyOfItsLocks(b *bench) {
	p, names := b.pool(), []string{b.name("a"), b.name("c"), b.name("d")}
	for _, name := range names {
		all := b.lockAll(p, names)
		b.notYet(all[name].Revoked(), "a revocation")
		require.NoError(b, b.looker.Revoke(b.ctx, name))
		b.await(all[name].Revoked(), "the revocation")
		require.NoError(b, all.Context(b.ctx).Err(), "locks without Revocable")
		require.NoError(b, all.Verify(b.ctx))
		require.NoError(b, all.Unlock(b.ctx))

		err := b.lockAll(p, names, lockpool.Revocable()).Do(b.ctx, func(ctx context.Context) error {
			require.NoError(b, b.looker.Revoke(b.ctx, name))
			<-ctx.Done()
			require.Equal(b, lockpool.ErrRevoked, context.Cause(ctx))
			return ctx.Err()
		})
		require.ErrorIs(b, err, lockpool.ErrRevoked)
		var revoked *lockpool.LockError
		require.ErrorAs(b, err, &revoked)
		require.Equal(b, name, revoked.Name)
		require.Equal(b, 1, strings.Count(err.Error(), "revoked"), err)
	}
}

func lockAllGivesUp(b *bench) {
	p, others, a, c := b.pool(), b.pool(), b.name("a"), b.name("c")
	for _, end := range []struct {
		do   func()
		want error
	}{
		{func() { require.NoError(b, others.Revoke(b.ctx, a)) }, lockpool.ErrRevoked},
		{func() { b.breakHolder(a) }, lockpool.ErrLockLost},
	} {
		held := b.lock(others, c)
		w := do(b, func(ctx context.Context) error {
			_, err := p.LockAll(ctx, []string{a, c}, lockpool.Revocable())
			return err
		})
		b.queued(c, 2)
		end.do()
		err := w.returned()
		require.ErrorIs(b, err, end.want)
		require.NotErrorIs(b, err, context.Canceled, "its context has not ended")
		var culprit *lockpool.LockError
		require.ErrorAs(b, err, &culprit)
		require.Equal(b, a, culprit.Name)
		b.queued(a, 0)
		b.queued(c, 1)
		b.unlock(held)
	}
}

func failedLockAllLeavesAHeldLock(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	held, h := b.lock(b.pool(), c), b.handle(p)
	l := b.lock(h, a)
	ctx := l.Context(b.ctx)
	_, err := h.LockAll(b.ctx, []string{a, c}, lockpool.Revocable(), lockpool.WaitAtMost(0))
	require.ErrorIs(b, err, lockpool.ErrLocked)
	require.NoError(b, p.Revoke(b.ctx, a))
	b.await(l.Revoked(), "the revocation")
	require.NoError(b, ctx.Err(), "it is not revocable")
	b.unlock(l)
	b.unlock(held)
	b.close(h)
}

var holdAtLeastTests = []test{
	{"KeepsTheLock", holdAtLeastKeepsTheLock, nil},
	{"KeepsPlainLocksAndPermits", holdAtLeastOfEachKind, []string{"PlainLocker", "Limiter"}},
	{"LeavesTheHandleFree", holdAtLeastLeavesTheHandleFree, nil},
	{"CountsFromTheGrant", holdAtLeastCountsFromTheGrant, nil},
	{"CloseKeepsIt", closeKeepsHoldAtLeast, nil},
	{"Readers", readersEndARest, nil},
}

// short is how long locks are kept at least in the tests.
const short = 500 * time.Millisecond

// take takes a lock in some way.
type take func(p *lockpool.Pool, opts ...lockpool.LockOption) (unlock func(context.Context) error, err error)

// rests takes a lock in each of the ways, unlocks it, and requires the lock to come free
// when the time has come.
func (b *bench) rests(ways map[string]take) {
	for way, lock := range ways {
		p, others := b.pool(), b.pool()
		for _, pool := range []*lockpool.Pool{p, others} {
			require.NoError(b, pool.Ping(b.ctx))
		}
		granted := time.Now() // at the earliest
		unlock, err := lock(p, lockpool.HoldAtLeast(short))
		require.NoError(b, err, way)
		require.NoError(b, unlock(b.ctx))
		require.ErrorIs(b, unlock(b.ctx), lockpool.ErrNotHeld)
		stats := p.Stats()
		require.Equal(b, []int{0, 0}, []int{stats.Held, stats.InUse}, way)
		require.True(b, stats.Resting > 0 || time.Since(granted) >= short, way)
		var next []*call[struct{}]
		for _, pool := range []*lockpool.Pool{p, others} {
			for wait, refusal := range map[time.Duration]error{0: lockpool.ErrLocked, short / 5: context.DeadlineExceeded} { // a tenancy is no longer
				unlock, err := lock(pool, lockpool.WaitAtMost(wait))
				if err == nil && time.Since(granted) >= short { // on a busy machine
					require.NoError(b, unlock(b.ctx))
					continue
				}
				require.ErrorIs(b, err, refusal, way)
			}
			next = append(next, do(b, func(context.Context) error {
				unlock, err := lock(pool)
				if early := time.Since(granted) < short; err == nil && early {
					err = errors.New("granted early")
				}
				if err == nil {
					err = unlock(b.ctx)
				}
				return err
			}))
		}
		for _, c := range next {
			require.NoError(b, c.returned(), way)
		}
		b.took(short, granted)
		b.until(func() bool { return p.Stats().Resting == 0 }, "nothing rests")
	}
}

func holdAtLeastKeepsTheLock(b *bench) {
	a, c := b.name("a"), b.name("c")
	one := func(name string) take {
		return func(p *lockpool.Pool, opts ...lockpool.LockOption) (func(context.Context) error, error) {
			l, err := p.Lock(b.ctx, name, opts...)
			return l.Unlock, err
		}
	}
	read := func(p *lockpool.Pool, opts ...lockpool.LockOption) (func(context.Context) error, error) {
		return one(a)(p, append(opts, lockpool.Shared())...)
	}
	all := func(p *lockpool.Pool, opts ...lockpool.LockOption) (func(context.Context) error, error) {
		all, err := p.LockAll(b.ctx, []string{a, c}, opts...)
		return all.Unlock, err
	}
	b.rests(map[string]take{"exclusive": one(a), "all": all, "read": firstAs(read, one(a)), "one of all": firstAs(all, one(c))})
}

// firstAs takes a lock in one way the first time, and then in another.
func firstAs(first, later take) take {
	begun := false
	return func(p *lockpool.Pool, opts ...lockpool.LockOption) (func(context.Context) error, error) {
		if begun {
			return later(p, opts...)
		}
		begun = true
		return first(p, opts...)
	}
}

func holdAtLeastOfEachKind(b *bench) {
	s, a := b.name("s"), b.name("a")
	b.rests(map[string]take{
		"plain": func(p *lockpool.Pool, opts ...lockpool.LockOption) (func(context.Context) error, error) {
			l, err := p.Lock(b.ctx, a, append(opts, lockpool.Plain())...)
			return l.Unlock, err
		},
		"permits": func(p *lockpool.Pool, opts ...lockpool.LockOption) (func(context.Context) error, error) {
			held, err := p.Semaphore(s, 3).Acquire(b.ctx, 2, opts...)
			return held.Unlock, err
		},
	})
}

// For the handle the lock is over: the handle is free for others, and waits if locking
// again.
func holdAtLeastLeavesTheHandleFree(b *bench) {
	p, a := b.pool(lockpool.WithMaxHandles(1)), b.name("a")
	var kept context.Context
	granted := time.Now()
	require.NoError(b, p.Do(b.ctx, a, func(ctx context.Context) error {
		kept = ctx
		return nil
	}, lockpool.HoldAtLeast(short)))
	require.ErrorIs(b, context.Cause(kept), lockpool.ErrNotHeld)
	q, err := p.Queue(b.ctx, a)
	require.NoError(b, err)
	if time.Since(granted) < short {
		require.Len(b, q.Contenders, 1)
		require.True(b, q.Contenders[0].Holds)
		require.False(b, q.Contenders[0].Granted.IsZero(), "it is still known as the pool's")
	}
	h := b.handle(p) // the only one
	b.unlock(b.lock(h, b.name("c")))
	b.isHeldFor(short, granted, h, a)
	first := b.lock(h, a, lockpool.HoldAtLeast(short))
	b.took(short, granted)
	token := b.token(first)
	b.unlock(first)
	second := b.lock(h, a)
	b.took(2*short, granted) // two holds, one after the other
	require.Greater(b, b.token(second), token)
	b.unlock(second)
	b.close(h)
}

func holdAtLeastCountsFromTheGrant(b *bench) {
	p, a := b.pool(), b.name("a")
	h := b.handle(p)
	l := b.lock(h, a, lockpool.HoldAtLeast(20*time.Millisecond))
	time.Sleep(30 * time.Millisecond) // the work
	b.unlock(l)
	b.isFree(a) // held for long enough
	b.unlock(b.lock(h, a, lockpool.HoldAtLeast(0)))
	b.isFree(a)

	outer := b.lock(h, a, lockpool.HoldAtLeast(time.Millisecond))
	time.Sleep(short / 2)
	granted := time.Now()
	b.unlock(b.lock(h, a, lockpool.HoldAtLeast(short))) // the later end applies, by its own grant
	b.unlock(outer)
	b.unlock(b.lock(p, a))
	b.took(short, granted)
	granted = time.Now()
	outer = b.lock(h, a, lockpool.HoldAtLeast(short))
	b.unlock(b.lock(h, a, lockpool.HoldAtLeast(time.Millisecond)))
	b.unlock(outer)
	b.unlock(b.lock(p, a))
	b.took(short, granted)

	// LockAll counts from the last grant, and leaves nothing to rest on failure.
	c := b.name("c")
	blocker := b.lock(b.pool(), c)
	_, err := p.LockAll(b.ctx, []string{a, c}, lockpool.HoldAtLeast(time.Minute), lockpool.WaitAtMost(short/5))
	require.ErrorIs(b, err, context.DeadlineExceeded)
	require.Zero(b, p.Stats().Resting)
	b.queued(a, 0) // the call has waited for the answer for 10 ms only
	b.isFree(a)
	granted = time.Now().Add(short) // at the earliest
	time.AfterFunc(short, func() { _ = blocker.Unlock(context.Background()) })
	both := b.lockAll(p, []string{a, c}, lockpool.HoldAtLeast(short))
	require.NoError(b, both.Unlock(b.ctx))
	b.unlock(b.lock(p, a))
	b.took(short, granted)

	granted = time.Now()
	require.PanicsWithValue(b, "oh", func() {
		_ = p.Do(b.ctx, a, func(context.Context) error { panic("oh") }, lockpool.HoldAtLeast(short))
	})
	b.unlock(b.lock(p, a))
	b.took(short, granted)
	_, err = h.Lock(b.ctx, a, lockpool.HoldAtLeast(-1))
	require.ErrorContains(b, err, "HoldAtLeast(-1ns): negative")
	b.close(h)
}

// The lock stays taken until the time has come, though the handle is closed and the pool
// shuts down. Where this is impossible, Close says so.
func closeKeepsHoldAtLeast(b *bench) {
	p, a := b.pool(), b.name("a")
	h, granted := b.handle(p), time.Now()
	b.unlock(b.lock(h, a, lockpool.HoldAtLeast(short)))
	b.lock(h, b.name("held"), lockpool.HoldAtLeast(short))
	b.close(h)
	b.isHeldFor(short, granted, b.looker, a)
	b.isHeldFor(short, granted, b.looker, b.name("held"))
	require.NoError(b, p.Shutdown(b.ctx))
	b.took(short, granted)
	b.isFree(a)
	b.isFree(b.name("held"))
	for what, end := range map[string]func(p *lockpool.Pool) error{
		"Close":    (*lockpool.Pool).Close,
		"Shutdown": func(p *lockpool.Pool) error { return p.Shutdown(b.timeout(10 * time.Millisecond)) },
	} {
		p, a := b.pool(), b.name(what)
		b.unlock(b.lock(p, a, lockpool.HoldAtLeast(time.Hour)))
		require.ErrorContains(b, end(p), "before its time", what)
		b.isFree(a)
		require.NoError(b, p.Close(), "again")
	}
}

var turnTests = []test{
	{"InOrder", func(b *bench) { b.inOrder(b.pool()) }, nil},
	{"Share", poolsTakeTurns, nil},
	{"WaitersThatGiveUp", localWaitersGiveUp, nil},
	{"ReadersAndWriters", func(b *bench) { p := b.pool(); b.readersAndWriters(p, p) }, nil},
}

// A pool gives the lock back after its turns: a later waiter of another process gets the
// lock in between.
func poolsTakeTurns(b *bench) {
	p, a := b.pool(lockpool.WithLocalTurns(3)), b.name("a")
	holder := b.lock(p, a)
	var waiters []*call[*lockpool.Lock]
	for i := range 6 {
		waiters = append(waiters, b.waiter(p, a, i+1))
	}
	rival := b.startLock(b.pool(), a)
	b.until(func() bool {
		queue := b.contenders(a)
		return slices.ContainsFunc(queue, func(c lockpool.Contender) bool { return c.Session != queue[0].Session })
	}, "the rival is in the queue")
	turns := 0
	granted := map[*call[*lockpool.Lock]]bool{}
	for range 7 {
		b.unlock(holder)
		holder = nil
		next := b.first(append(waiters, rival), granted)
		holder = next.granted()
		if next == rival {
			break
		}
		turns++
	}
	require.True(b, granted[rival])
	require.LessOrEqual(b, turns, 3) // 2 if the pool had queued for them no earlier than the rival
	for range 6 - turns {
		b.unlock(holder)
		holder = b.first(waiters, granted).granted()
	}
	b.unlock(holder)
}

// first waits until one of the calls without a grant is granted, and marks the call.
func (b *bench) first(calls []*call[*lockpool.Lock], granted map[*call[*lockpool.Lock]]bool) (next *call[*lockpool.Lock]) {
	b.Helper()
	b.until(func() bool {
		for _, c := range calls {
			select {
			case <-c.done:
				if !granted[c] {
					granted[c], next = true, c
					return true
				}
			default:
			}
		}
		return false
	}, "one of them is granted")
	return next
}

// Waiters that give up leave nothing, anywhere in the queue, and lose no turn of others.
func localWaitersGiveUp(b *bench) {
	p, a, inside := b.pool(lockpool.WithLocalTurns(50)), b.name("a"), 0
	plays.Together(b, 30, func(i int) error {
		for turn := range 15 {
			wait := time.Duration((i*7+turn*13)%3000) * time.Microsecond
			if (i+turn)%5 == 0 {
				wait = patience // however slow the service is
			}
			ctx, cancel := context.WithTimeout(b.ctx, wait)
			l, err := p.Lock(ctx, a)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				continue
			}
			if err != nil {
				return err
			}
			inside++         // the race detector sees another holder
			if inside == 1 { // even on a fast service, somebody waits
				b.until(func() bool { return p.Stats().Waiting > 0 }, "somebody waits")
			}
			if err := l.Unlock(b.ctx); err != nil {
				return err
			}
		}
		return nil
	})
	require.GreaterOrEqual(b, inside, 30*3)
	require.Positive(b, p.Stats().LocalTurns)
	b.queued(a, 0)
	stats := p.Stats()
	require.Zero(b, stats.Held+stats.Waiting+stats.InUse)
}

// readersEndARest has a reader use a lock that another reader has left to rest.
func readersEndARest(b *bench) {
	p, a := b.pool(), b.name("a")
	began := time.Now()
	b.unlock(b.lock(p, a, lockpool.Shared(), lockpool.HoldAtLeast(short)))
	l := b.read(p, a)
	if time.Since(began) < 100*time.Millisecond { // later, the reader takes a separate node
		require.Zero(b, p.Stats().Resting, "a reader has the lock")
	}
	b.unlock(l)
	require.NoError(b, p.Shutdown(b.ctx))
}
