package behavior

// This file has the tests of closing, shutting down and losing sessions.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/plays"
)

var closeTests = []test{
	{leaks, closeLeavesNoGoroutine, nil},
	{"ClosedPoolRefuses", closedPoolRefuses, nil},
	{"CloseWakesWaitersAndReleasesHolders", closeWakesWaitersAndReleasesHolders, nil},
	{"CloseBesideManyCalls", closeBesideManyCalls, nil},
	{"DoReportsClose", doReportsClose, nil},
	{"ShutdownWaitsForHolders", shutdownWaitsForHolders, nil},
	{"ShutdownEndsWithItsContext", shutdownEndsWithItsContext, nil},
	{"ShutdownLetsHoldersLockMore", shutdownLetsHoldersLockMore, nil},
	{"ShutdownGrantsNothingAfterTheLastLock", shutdownGrantsNothingAfterTheLastLock, nil},
	{"ShutdownBesideHostileContexts", shutdownBesideHostileContexts, nil},
}

// All kinds of calls end, and nothing of their pools runs afterwards. (Goroutines are
// counted when the test has ended; in a bubble, for each test.)
func closeLeavesNoGoroutine(b *bench) {
	pools, a := b.pools(3), b.name("a")
	held := b.lock(pools[0], a, lockpool.Revocable())
	_ = held.Context(b.ctx)
	_ = held.Expiring(time.Second)
	b.lock(pools[0], plays.LockOfRun(a, "key"))
	b.lock(pools[0], b.name("resting"), lockpool.HoldAtLeast(time.Hour))
	h := b.handle(pools[2])
	b.lock(h, b.name("c"))
	calls := []*call[struct{}]{
		do(b, func(ctx context.Context) error { _, err := pools[0].Lock(ctx, a); return err }),
		do(b, func(ctx context.Context) error { _, err := pools[1].Lock(ctx, a, lockpool.Shared()); return err }),
		do(b, func(ctx context.Context) error { _, err := h.Lock(ctx, a); return err }),
		do(b, func(ctx context.Context) error { return pools[1].Elect(ctx, a, nothing) }),
		do(b, func(ctx context.Context) error { return pools[1].Once(ctx, a, "key", nothing) }),
		do(b, func(ctx context.Context) error {
			for _, err := range pools[1].Observe(ctx, a) {
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
	b.waiting(pools[0], 1)
	b.waiting(pools[1], 3)
	b.waiting(pools[2], 1)
	for i, p := range slices.Backward(pools) { // the holder's last
		require.Equal(b, i == 0, p.Close() != nil, "one lock was to be held for an hour")
	}
	for _, c := range calls {
		require.ErrorIs(b, c.returned(), lockpool.ErrPoolClosed)
	}
}

func closedPoolRefuses(b *bench) {
	p, a := b.pool(), b.name("a")
	h := b.handle(p)
	require.NoError(b, p.Close())
	require.NoError(b, p.Close())
	ctx := b.ctx
	for what, call := range map[string]func() error{
		"Lock":        func() error { _, err := p.Lock(ctx, a); return err },
		"TryLock":     func() error { _, err := p.TryLock(ctx, a); return err },
		"Do":          func() error { return p.Do(ctx, a, func(context.Context) error { panic("called") }) },
		"LockAll":     func() error { _, err := p.LockAll(ctx, []string{a}); return err },
		"Acquire":     func() error { _, err := p.Semaphore(a, 1).Acquire(ctx, 1); return err },
		"Once":        func() error { return p.Once(ctx, a, "key", func(context.Context) error { panic("called") }) },
		"Elect":       func() error { return p.Elect(ctx, a, func(context.Context) error { panic("called") }) },
		"Handle":      func() error { _, err := p.Handle(ctx); return err },
		"Ping":        func() error { return p.Ping(ctx) },
		"Queue":       func() error { _, err := p.Queue(ctx, a); return err },
		"Handle.Lock": func() error { _, err := h.Lock(ctx, a); return err },
	} {
		began := time.Now()
		require.ErrorIs(b, call(), lockpool.ErrPoolClosed, what)
		b.took(0, began)
	}
	b.close(h)
	require.NoError(b, p.Shutdown(b.ctx))
}

func closeWakesWaitersAndReleasesHolders(b *bench) {
	for _, turns := range []int{0, 1000} {
		p, other, a := b.pool(lockpool.WithLocalTurns(turns)), b.pool(), b.name("a")
		held := b.lock(p, a)
		ctx := held.Context(b.ctx)
		h := b.handle(p)
		ofHandle := b.startLock(h, a)
		b.waiting(p, 1)
		waiters := []*call[*lockpool.Lock]{b.waiter(p, a, 2), b.waiter(p, a, 3)}
		b.close(h)
		require.ErrorIs(b, ofHandle.returned(), lockpool.ErrHandleClosed)
		for _, w := range waiters {
			w.waits()
		}
		began, rival := time.Now(), b.waiter(other, a, 1)
		require.NoError(b, p.Close())
		for _, w := range waiters {
			err := w.returned()
			require.ErrorIs(b, err, lockpool.ErrPoolClosed)
			require.NotErrorIs(b, err, context.Canceled, "no context was canceled")
		}
		require.ErrorIs(b, context.Cause(ctx), lockpool.ErrPoolClosed)
		_, err := p.Lock(ctx, b.name("c"))
		require.ErrorIs(b, err, lockpool.ErrPoolClosed, "a context of the holder reports the cause")
		b.await(held.Lost(), "the loss")
		err = held.Unlock(b.ctx)
		require.ErrorIs(b, err, lockpool.ErrNotHeld)
		require.ErrorIs(b, err, lockpool.ErrPoolClosed)
		b.unlock(rival.granted())
		b.took(0, began) // sessions are closed, and not left to expire
	}
}

func closeBesideManyCalls(b *bench) {
	for round := range 3 {
		p := b.pool()
		began := make(chan struct{}, 1000)
		closed := do(b, func(context.Context) error {
			for range 10 {
				<-began
			}
			return p.Close()
		})
		plays.Together(b, 20, func(i int) error {
			for {
				err := p.Do(b.ctx, b.name(fmt.Sprint("a", round, i%3)), func(ctx context.Context) error {
					select {
					case began <- struct{}{}:
					default:
					}
					return p.Do(ctx, b.name("c"), nothing)
				})
				if errors.Is(err, lockpool.ErrPoolClosed) || errors.Is(err, lockpool.ErrNotHeld) ||
					errors.Is(err, driver.ErrSessionLost) { // the release was under way, and is not confirmed
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
		require.NoError(b, closed.returned())
		require.Zero(b, p.Stats().InUse)
		require.Zero(b, p.Stats().Held)
	}
}

func doReportsClose(b *bench) {
	for range 5 {
		p, a := b.pool(), b.name("a")
		var closing *call[struct{}]
		err := p.Do(b.ctx, a, func(ctx context.Context) error {
			closing = do(b, func(context.Context) error { return p.Close() })
			<-ctx.Done()
			require.ErrorIs(b, context.Cause(ctx), lockpool.ErrPoolClosed)
			return nil
		})
		require.ErrorIs(b, err, lockpool.ErrNotHeld)
		require.ErrorIs(b, err, lockpool.ErrPoolClosed)
		require.NoError(b, closing.returned())

		p = b.pool()
		err = p.Do(b.ctx, a, func(ctx context.Context) error {
			require.NoError(b, p.Close())
			require.ErrorIs(b, context.Cause(ctx), lockpool.ErrPoolClosed)
			return nil
		})
		require.ErrorIs(b, err, lockpool.ErrNotHeld)
		require.ErrorIs(b, err, lockpool.ErrPoolClosed)
	}
}

func shutdownWaitsForHolders(b *bench) {
	p, a := b.pool(), b.name("a")
	first, h := b.lock(p, a), b.handle(p)
	turn := b.startLock(h, a) // in memory
	b.waiting(p, 1)
	w := b.waiter(p, a, 2)
	b.unlock(first)
	held := turn.granted()
	down := do(b, p.Shutdown)
	require.ErrorIs(b, w.returned(), lockpool.ErrPoolClosed)
	_, err := p.Lock(b.ctx, b.name("c"))
	require.ErrorIs(b, err, lockpool.ErrPoolClosed)
	again, err := h.Lock(b.ctx, a)
	require.NoError(b, err, "a holder may still enter its lock again")
	b.unlock(again)
	require.Equal(b, 1, held.Depth())
	down.waits()
	b.unlock(held)
	require.NoError(b, down.returned())
}

func shutdownEndsWithItsContext(b *bench) {
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	for range 20 {
		require.NoError(b, b.pool().Shutdown(ended), "nothing is held")
	}
	p, a := b.pool(), b.name("a")
	held := b.lock(p, a)
	require.ErrorIs(b, p.Shutdown(b.timeout(50*time.Millisecond)), context.DeadlineExceeded)
	b.isFree(a)
	require.ErrorIs(b, held.Unlock(b.ctx), lockpool.ErrPoolClosed)
}

// A holder may need another lock to finish its work, or wait for one already.
func shutdownLetsHoldersLockMore(b *bench) {
	p, others, a, c := b.pool(), b.pool(), b.name("a"), b.name("c")
	held := b.lock(others, c)
	began, goOn := make(chan struct{}), make(chan struct{})
	holder := do(b, func(ctx context.Context) error {
		return p.Do(ctx, a, func(ctx context.Context) error {
			close(began)
			<-goOn
			return p.Do(ctx, c, func(ctx context.Context) error { return p.Do(ctx, b.name("d"), nothing) })
		})
	})
	<-began
	waiter := b.handle(p)
	first := b.lock(waiter, b.name("f"))
	second := b.enqueue(waiter, c, 2)
	idle, outsider := b.handle(p), b.enqueue(p, c, 3)
	down := do(b, p.Shutdown)
	require.ErrorIs(b, outsider.returned(), lockpool.ErrPoolClosed)
	_, err := idle.Lock(b.ctx, b.name("e"))
	require.ErrorIs(b, err, lockpool.ErrPoolClosed)
	_, err = p.Handle(b.ctx)
	require.ErrorIs(b, err, lockpool.ErrPoolClosed)
	b.queued(c, 2)
	close(goOn)
	b.queued(c, 3)
	b.unlock(held)
	b.unlock(second.granted())
	b.unlock(first)
	require.NoError(b, holder.returned())
	require.NoError(b, down.returned())
}

// slowContext is a context whose Done blocks until the test answers.
type slowContext struct {
	context.Context
	asked, answer chan struct{}
}

func (c slowContext) Done() <-chan struct{} {
	close(c.asked)
	<-c.answer
	return c.Context.Done()
}

// Once the last lock is released no waiter is granted another one before the pool closes,
// or Shutdown would have to wait again.
func shutdownGrantsNothingAfterTheLastLock(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	h, held := b.handle(p), b.lock(b.pool(), c)
	l := b.lock(h, a)
	w := b.enqueue(h, c, 2)
	ctx := slowContext{b.ctx, make(chan struct{}), make(chan struct{})}
	down := do(b, func(context.Context) error { return p.Shutdown(ctx) })
	<-ctx.asked
	b.unlock(l) // the last one held
	b.unlock(held)
	require.ErrorIs(b, w.returned(), lockpool.ErrPoolClosed)
	require.Zero(b, p.Stats().Held)
	close(ctx.answer)
	require.NoError(b, down.returned())
}

// Methods of a waiting call's context may block or panic, and those of a refused call's panic.
func shutdownBesideHostileContexts(b *bench) {
	p, a := b.pool(), b.name("a")
	b.lock(p, a)
	var blocks atomic.Bool
	goOn := make(chan struct{})
	w := do(b, func(ctx context.Context) error {
		_, err := p.Lock(parent{ctx, func() {
			if blocks.Load() {
				<-goOn
			}
		}}, a)
		return err
	})
	b.waiting(p, 1)
	blocks.Store(true)
	down := do(b, func(context.Context) error { return p.Shutdown(b.timeout(50 * time.Millisecond)) })
	b.unlock(b.lock(b.pool(), a))
	close(goOn)
	require.ErrorIs(b, w.returned(), lockpool.ErrPoolClosed)
	require.ErrorIs(b, down.returned(), context.DeadlineExceeded)

	p = b.pool()
	b.lock(p, a)
	var panics, raised atomic.Bool
	note := func() {
		if recover() != nil {
			raised.Store(true)
		}
	}
	w = do(b, func(ctx context.Context) error {
		defer note()
		_, err := p.Lock(parent{ctx, func() {
			if panics.CompareAndSwap(true, false) {
				panic("user code")
			}
		}}, a)
		return err
	})
	b.waiting(p, 1)
	panics.Store(true)
	b.until(func() bool {
		defer note()
		_ = p.Close()
		return raised.Load()
	}, "the call or Close raises the panic")
	b.unlock(b.lock(b.pool(), a))
	_ = w.returned()

	p = b.pool()
	h, held := b.handle(p), b.lock(p, a)
	down = do(b, p.Shutdown)
	b.until(func() bool { _, err := p.Handle(b.ctx); return err != nil }, "the pool accepts no more")
	for at := range 20 {
		func() {
			defer func() { _ = recover() }()
			var calls atomic.Int64
			_, _ = h.Lock(parent{b.ctx, func() {
				if int(calls.Add(1)) > at {
					panic("user code")
				}
			}}, a)
		}()
		_, err := h.Lock(b.ctx, a)
		require.ErrorIs(b, err, lockpool.ErrPoolClosed, "after a panic of call %d", at)
	}
	b.unlock(held)
	require.NoError(b, down.returned())
}

var lossTests = []test{
	{"Expired", expiredSessionLosesItsLocks, nil},
	{"ExpiredTakesOnlyItsOwn", expiredSessionTakesOnlyItsOwnLocks, nil},
	{"BesideABlockingParent", lossBesideABlockingParent, nil},
	{"ExpiredWaiterQueuesAgain", expiredWaiterQueuesAgain, nil},
	{"Broken", brokenHolderLearnsOfIt, []string{"Breaker"}},
	{"BrokenWaiterQueuesAgain", brokenWaiterQueuesAgain, []string{"Breaker"}},
	{"ReleaseFindsIt", releaseFindsTheLoss, []string{"Breaker"}},
	{"BrokenUnderDo", brokenUnderDo, []string{"Breaker"}},
	{"SilenceConfirmsNoRelease", silenceConfirmsNoRelease, nil},
	{"NeedsNoUnlock", lostLockNeedsNoUnlock, []string{"Breaker"}},
	{"InTheMiddleOfLocalTurns", lossInTheMiddleOfLocalTurns, []string{"Breaker"}},
}

// Locks held on an ended session are lost: contexts end, entering again is refused, and
// Unlock says so.
func expiredSessionLosesItsLocks(b *bench) {
	p, a := b.pool(), b.name("a")
	h := b.handle(p)
	held := b.lock(h, a)
	token := b.token(held)
	rival := b.enqueue(b.pool(), a, 2)
	b.expire(a)
	b.isLost(held)
	_, err := h.Lock(b.ctx, a)
	require.ErrorIs(b, err, lockpool.ErrLockLost)
	require.ErrorIs(b, held.Verify(b.ctx), lockpool.ErrLockLost)
	require.ErrorIs(b, held.Unlock(b.ctx), lockpool.ErrLockLost)
	next := rival.granted()
	require.Greater(b, b.token(next), token)
	b.unlock(next)
	b.unlock(b.lock(h, a)) // on another session
	b.close(h)

	err = p.Do(b.ctx, a, func(ctx context.Context) error {
		b.expire(a)
		<-ctx.Done()
		require.ErrorIs(b, context.Cause(ctx), lockpool.ErrLockLost)
		_, err := p.Lock(context.WithoutCancel(ctx), a)
		require.ErrorIs(b, err, lockpool.ErrLockLost, "until the unlock")
		b.until(func() bool { return p.Stats().InUse == 0 }, "the handle has been returned")
		_, err = p.LockAll(context.WithoutCancel(ctx), []string{b.name("0"), a})
		require.ErrorIs(b, err, lockpool.ErrLockLost, "until the unlock")
		return errWork
	})
	require.ErrorIs(b, err, lockpool.ErrLockLost)
	require.ErrorIs(b, err, errWork)
}

func expiredSessionTakesOnlyItsOwnLocks(b *bench) {
	p := b.pool(lockpool.WithMaxSessions(3))
	var locks []*lockpool.Lock
	var sessions []string
	for i := range 90 {
		if i == 40 { // one session is not enough
			b.until(func() bool { return p.Stats().OpenSessions > 1 }, "another session")
		}
		name := b.name(fmt.Sprint(i))
		locks = append(locks, b.lock(p, name))
		sessions = append(sessions, b.contenders(name)[0].Session)
	}
	require.NotEqual(b, sessions[0], sessions[89])
	b.expire(b.name("0"))
	b.isLost(locks[0])
	for i, l := range locks {
		if sessions[i] == sessions[0] {
			b.isLost(l)
			require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
		} else {
			require.Equal(b, 1, l.Depth())
			b.unlock(l)
		}
	}
}

// A parent whose method blocks delays neither the news of a loss for the other holders nor
// Close.
func lossBesideABlockingParent(b *bench) {
	p, goOn := b.pool(lockpool.WithMaxSessions(1)), make(chan struct{})
	defer close(goOn)
	var blocks atomic.Bool
	blocking := parent{b.ctx, func() {
		if blocks.Load() {
			<-goOn
		}
	}}
	var contexts []context.Context
	for i := range 10 {
		l := b.lock(p, b.name(fmt.Sprint(i)))
		_ = l.Context(blocking)
		contexts = append(contexts, l.Context(b.ctx))
	}
	blocks.Store(true)
	b.expire(b.name("0"))
	for _, ctx := range contexts {
		<-ctx.Done()
	}
	require.NoError(b, p.Close())
}

func expiredWaiterQueuesAgain(b *bench) {
	a := b.name("a")
	held := b.lock(b.pool(), a)
	w := b.enqueue(b.pool(), a, 2)
	waiter := b.contenders(a)[1]
	if b.options.Expire == nil {
		b.Skip("it needs Options.Expire")
	}
	b.options.Expire(b.TB, waiter.Session)
	b.until(func() bool {
		q := b.contenders(a)
		return len(q) == 2 && q[1].Node != waiter.Node
	}, "it has queued again")
	require.NoError(b, held.Verify(b.ctx))
	w.waits()
	b.unlock(held)
	b.unlock(w.granted())
}

func brokenHolderLearnsOfIt(b *bench) {
	h, a := b.handle(b.pool()), b.name("a")
	l := b.lock(h, a)
	w := b.enqueue(b.pool(), a, 2)
	node := b.nodes(a)[0]
	require.NoError(b, b.looker.Break(b.ctx, a, node))
	b.isLost(l)
	_, err := l.Token(b.ctx)
	require.ErrorIs(b, err, lockpool.ErrLockLost)
	require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
	b.unlock(w.granted())
	b.unlock(b.lock(h, a))
	b.close(h)
	err = b.looker.Break(b.ctx, a, node)
	require.ErrorIs(b, err, lockpool.ErrNotHeld)
	require.ErrorContains(b, err, node+" is gone")
	for _, bad := range []string{"", "config", "../" + node} {
		require.ErrorContains(b, b.looker.Break(b.ctx, a, bad), "use one that Queue returns")
	}
}

func brokenWaiterQueuesAgain(b *bench) {
	a := b.name("a")
	held := b.lock(b.pool(), a)
	first, second := b.enqueue(b.pool(), a, 2), b.enqueue(b.pool(), a, 3)
	queue := b.nodes(a)
	require.NoError(b, b.looker.Break(b.ctx, a, queue[1]))
	b.until(func() bool {
		nodes := b.nodes(a)
		return len(nodes) == 3 && nodes[1] == queue[2]
	}, "it has queued again, at the end")
	b.unlock(held)
	l := second.granted()
	first.waits()
	b.unlock(l)
	b.unlock(first.granted())
}

// A nil error from Unlock or Do means that the lock was held until then.
func releaseFindsTheLoss(b *bench) {
	p, a := b.pool(), b.name("a")
	err := p.Do(b.ctx, a, func(ctx context.Context) error {
		b.breakHolder(a)
		return nil
	})
	require.ErrorIs(b, err, lockpool.ErrLockLost)
	for _, opt := range []lockpool.LockOption{lockpool.HoldAtLeast(0), lockpool.HoldAtLeast(5 * time.Millisecond), lockpool.Shared()} {
		l := b.lock(p, a, opt)
		time.Sleep(5 * time.Millisecond) // the lock need not be held any longer
		b.breakHolder(a)
		require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
		b.await(l.Lost(), "the loss")
	}
	b.isFree(a)
}

// Do does not return nil if another holder was granted the lock while the function ran,
// regardless of the node's fate afterward. Only a Do that passes the lock on in memory or lets
// the lock rest depends on the news of the loss, and only if the node is watched.
func brokenUnderDo(b *bench) {
	for what, c := range map[string]struct {
		turn   int // of the pool's, before the function runs
		ended  bool
		waits  bool // another call of the pool does
		option lockpool.LockOption
	}{
		"alone":                 {option: lockpool.HoldAtLeast(0)},
		"with an ended context": {option: lockpool.HoldAtLeast(0), ended: true},
		"at rest":               {option: lockpool.HoldAtLeast(time.Hour)},
		"passed on":             {option: lockpool.HoldAtLeast(0), waits: true},
		"passed on twice":       {option: lockpool.HoldAtLeast(0), waits: true, turn: 1},
		"shared":                {option: lockpool.Shared(), waits: true},
	} {
		p, others, a := b.pool(), b.pool(), b.name(lockpool.Escape(what))
		var before *lockpool.Lock
		if c.turn > 0 {
			before = b.lock(p, a)
		}
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		broken := do(b, func(context.Context) error {
			return p.Do(ctx, a, func(held context.Context) error {
				release := make(chan struct{})
				if c.waits {
					do(b, func(ctx context.Context) error {
						return p.Do(ctx, a, func(context.Context) error { <-release; return nil }, c.option)
					})
					b.settle()
				}
				b.breakHolder(a)
				close(release)
				b.unlock(b.lock(others, a))
				switch {
				case b.bubble:
					b.settle() // the node is not watched yet, so the release asks
				case c.waits || what == "at rest":
					b.await(held.Done(), "the news")
				}
				if c.ended {
					cancel()
				}
				return nil
			}, c.option)
		})
		if before != nil {
			b.waiting(p, 1)
			b.unlock(before)
		}
		if err := broken.returned(); c.ended && !b.bubble && !errors.Is(err, lockpool.ErrLockLost) {
			require.ErrorContains(b, err, "has not confirmed", what) // the answer took longer than the release waits
		} else {
			require.ErrorIs(b, err, lockpool.ErrLockLost, what)
		}
	}
}

// A lost lock keeps neither a handle nor Shutdown, though never unlocked.
func lostLockNeedsNoUnlock(b *bench) {
	p, a := b.pool(lockpool.WithMaxHandles(1)), b.name("a")
	l := b.lock(p, a)
	b.token(l) // to notice the loss
	b.breakHolder(a)
	b.isLost(l)
	b.until(func() bool { s := p.Stats(); return s.Held == 0 && s.InUse == 0 }, "the handle is free")
	b.unlock(b.lock(p, a))
	require.NoError(b, p.Shutdown(b.timeout(time.Second)))
	require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
}

// The holder of the moment loses the lock; the waiters in memory queue again.
func lossInTheMiddleOfLocalTurns(b *bench) {
	b.turnsAreLost("broken", b.breakHolder, 0)
	if b.options.Expire != nil {
		b.turnsAreLost("expired", b.expire, 200*time.Millisecond)
	}
}

// turnsAreLost lets the holders of a lock passed on in memory lose the lock, one after the
// other, each after some time. The waiters queue again, and keep their order.
func (b *bench) turnsAreLost(name string, lose func(name string), holding time.Duration) {
	b.Helper()
	p, a := b.pool(), b.name(name)
	first := b.lock(p, a)
	var waiters []*call[*lockpool.Lock]
	for i := range 4 {
		waiters = append(waiters, b.waiter(p, a, i+1))
	}
	readers := []*call[*lockpool.Lock]{b.waiter(p, a, 5, lockpool.Shared()), b.waiter(p, a, 6, lockpool.Shared())}
	b.unlock(first)
	l := waiters[0].granted()
	q, err := p.Queue(b.ctx, a)
	require.NoError(b, err)
	token := q.Contenders[0].Token // unlike the lock's method, Queue does not look out for a loss
	for i := range 3 {
		began := time.Now()
		lose(a)
		b.isLost(l)
		next := waiters[i+1].granted() // even though the holder has not unlocked
		if b.bubble && i == 0 {
			require.Less(b, time.Since(began), 20*time.Millisecond, "the loss of a turn is noticed at once")
		}
		require.Greater(b, b.token(next), token)
		require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
		l, token = next, b.token(next)
		time.Sleep(holding) // until the next one has queued on the session
		for _, later := range append(waiters[i+2:], readers...) {
			later.waits()
		}
	}
	b.unlock(l)
	one, two := readers[0].granted(), readers[1].granted()
	lose(a)
	b.isLost(one)
	b.isLost(two)
}

// A release not confirmed by a silent service is not nil: others may have broken the lock,
// and the news has not come.
func silenceConfirmsNoRelease(b *bench) {
	if b.options.Pause == nil {
		b.Skip("it needs Options.Pause")
	}
	for what, release := range map[string]func(ctx context.Context, p *lockpool.Pool, a string, pause func()) error{
		"Do": func(ctx context.Context, p *lockpool.Pool, a string, pause func()) error {
			return p.Do(ctx, a, func(context.Context) error { pause(); return nil })
		},
		"MultiLock.Do": func(ctx context.Context, p *lockpool.Pool, a string, pause func()) error {
			all := b.lockAll(p, []string{a})
			pause()
			return all.Do(ctx, nothing)
		},
		"Elect": func(ctx context.Context, p *lockpool.Pool, a string, pause func()) error {
			return p.Elect(b.timeout(time.Second), a, func(context.Context) error { pause(); return nil })
		},
		"Unlock, and the pool is closed": func(ctx context.Context, p *lockpool.Pool, a string, pause func()) error {
			l := b.lock(p, a)
			pause()
			time.AfterFunc(100*time.Millisecond, func() { _ = p.Close() })
			return l.Unlock(b.ctx)
		},
	} {
		p, resume := b.pool(), func() {}
		ctx, cancel := context.WithCancel(b.ctx)
		err := release(ctx, p, b.name("a"), func() {
			time.Sleep(50 * time.Millisecond) // the node is watched
			resume = b.options.Pause(b)
			cancel()
		})
		resume()
		require.ErrorContains(b, err, "has not confirmed", what)
	}
}
