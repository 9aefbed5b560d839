package behavior

// This file has the tests of a lock: queue, tries, contexts and errors.

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var lockTests = []test{
	{"SecondHolderWaits", secondHolderWaits, nil},
	{"Order", func(b *bench) { b.inOrder(b.pools(2, atService)...) }, nil},
	{"ManyCount", func(b *bench) { b.manyCount() }, nil},
	{"OneOfManyTriesSucceeds", oneOfManyTriesSucceeds, nil},
	{"TryPassesNoWaiter", tryPassesNoWaiter, nil},
	{"Tokens", tokensGrow, nil},
	{"Verify", verifyTells, nil},
	{"InvalidNames", invalidNames, nil},
	{"EscapedNames", escapedNames, nil},
	{"LockFromContext", lockFromContext, nil},
}

func secondHolderWaits(b *bench) {
	first, second, a := b.pool(), b.pool(), b.name("a")
	l := b.lock(first, a)
	require.Equal(b, a, l.Name())
	w := b.enqueue(second, a, 2)
	w.waits()
	b.unlock(l)
	require.Zero(b, l.Depth())
	b.unlock(w.granted())
	b.isFree(a)
}

// inOrder has calls of the pools queue for a lock: the calls get the lock in the order of
// asking, and the tokens grow. A single pool passes the lock on in memory.
func (b *bench) inOrder(pools ...*lockpool.Pool) {
	a, local := b.name("a"), len(pools) == 1
	holder := b.lock(pools[0], a)
	token := b.token(holder)
	var waiters []*call[*lockpool.Lock]
	for i := range 5 {
		if local {
			waiters = append(waiters, b.waiter(pools[0], a, i+1))
		} else {
			waiters = append(waiters, b.enqueue(pools[i%len(pools)], a, i+2))
		}
	}
	queue := b.nodes(a)
	for i, w := range waiters {
		b.unlock(holder)
		holder = w.granted()
		if !local {
			require.Equal(b, queue[i+1:], b.nodes(a), "the queue shrinks from the front")
		}
		for _, later := range waiters[i+1:] {
			later.waits()
		}
		next := b.token(holder)
		require.Greater(b, next, token)
		token = next
	}
	b.unlock(holder)
	if local && b.bubble { // where it has taken no time
		require.EqualValues(b, 5, pools[0].Stats().LocalTurns)
	}
}

// manyCount has many goroutines of several pools hold a lock, one at a time: the count of the
// holders is right, holders enter again, and tokens grow. The race detector sees each holder
// happen before the next.
func (b *bench) manyCount(opts ...lockpool.LockOption) {
	for name, turns := range map[string]int{"local turns": 1000, "few": 3, "at service": 0} {
		counted, newest, a := 0, int64(0), b.name(lockpool.Escape(name))
		pools := b.pools(3, lockpool.WithLocalTurns(turns))
		plays.Together(b, 24, func(i int) error {
			for range 5 {
				err := pools[i%3].Do(b.ctx, a, func(ctx context.Context) error {
					l, _ := lockpool.LockFromContext(ctx)
					token, err := l.Token(ctx)
					if err == nil && token <= newest {
						err = errors.New("a token that has not grown")
					}
					newest = token
					counted++
					return errors.Join(err, pools[i%3].Do(ctx, a, nothing, opts...))
				}, opts...)
				if err != nil {
					return err
				}
			}
			return nil
		})
		require.Equal(b, 24*5, counted, name)
		b.isFree(a, opts...)
	}
}

func oneOfManyTriesSucceeds(b *bench) {
	pools, a := b.pools(2), b.name("a")
	var got atomic.Pointer[lockpool.Lock]
	plays.Together(b, 20, func(i int) error {
		l, err := pools[i%2].TryLock(b.ctx, a)
		if errors.Is(err, lockpool.ErrLocked) {
			return nil
		}
		if err == nil && got.Swap(l) != nil {
			err = errors.New("two calls got the lock")
		}
		return err
	})
	require.NotNil(b, got.Load(), "no call got the lock")
	require.Len(b, b.contenders(a), 1, "the other calls have left")
	b.unlock(got.Load())
}

func tryPassesNoWaiter(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	first := b.read(p, a)
	w := b.enqueue(others, a, 2)
	for _, pool := range []*lockpool.Pool{p, others, b.looker} {
		_, err := pool.TryLock(b.ctx, a, lockpool.Shared())
		require.ErrorIs(b, err, lockpool.ErrLocked, "a writer waits")
	}
	b.unlock(first)
	b.unlock(w.granted())
}

func tokensGrow(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	last := int64(0)
	grows := func(l *lockpool.Lock) {
		b.Helper()
		token := b.token(l)
		require.Greater(b, token, last)
		last = token
	}
	l := b.lock(p, a)
	grows(l)
	again, err := p.Lock(l.Context(b.ctx), a)
	require.NoError(b, err)
	require.Equal(b, last, b.token(again), "the same hold")
	b.unlock(again)
	w := b.enqueue(others, a, 2)
	b.unlock(l)
	l = w.granted()
	grows(l)
	b.unlock(l)
	for i := range 20 { // also without waiters, and without holders in between
		l = b.lock([]*lockpool.Pool{p, others}[i/3%2], a)
		if i%4 == 0 {
			grows(l)
		}
		b.unlock(l)
	}
}

func verifyTells(b *bench) {
	p, a := b.pool(), b.name("a")
	l := b.lock(p, a)
	require.NoError(b, l.Verify(b.ctx))
	b.unlock(l)
	require.ErrorIs(b, l.Verify(b.ctx), lockpool.ErrNotHeld)
	_, err := l.Token(b.ctx)
	require.ErrorIs(b, err, lockpool.ErrNotHeld)
	require.ErrorContains(b, err, `lockpool: token of "`+a+`": not held`)
}

func invalidNames(b *bench) {
	p := b.pool()
	ctx, long := b.ctx, strings.Repeat("x", 513)
	for _, name := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "a\x00", "a\xff", "s/locks", "s/leases", "s/limit", ".done/a", ".waits/a", long} {
		for what, call := range map[string]func() error{
			"Lock":      func() error { _, err := p.Lock(ctx, name); return err },
			"TryLock":   func() error { _, err := p.TryLock(ctx, name); return err },
			"Shared":    func() error { _, err := p.Lock(ctx, name, lockpool.Shared()); return err },
			"Do":        func() error { return p.Do(ctx, name, nothing) },
			"LockAll":   func() error { _, err := p.LockAll(ctx, []string{name}); return err },
			"Semaphore": func() error { _, err := p.Semaphore(name, 1).Acquire(ctx, 1); return err },
			"SetLimit":  func() error { return p.Semaphore(name, 0).SetLimit(ctx, 1) },
			"Once":      func() error { return p.Once(ctx, name, "key", nothing) },
			"Elect":     func() error { return p.Elect(ctx, name, nothing) },
			"Queue":     func() error { _, err := p.Queue(ctx, name); return err },
			"Revoke":    func() error { return p.Revoke(ctx, name) },
		} {
			err := call()
			require.ErrorIs(b, err, lockpool.ErrInvalidName, "%s of %q", what, name)
		}
	}
	require.Zero(b, p.Stats().InUse)
	require.Zero(b, p.Stats().OpenSessions, "nothing was sent")
}

// Any text is a part of a name, and what looks like the name of a node is not taken for one.
func escapedNames(b *bench) {
	p, s := b.pool(), b.name("s")
	texts := []string{"", "/", "..", "%", "__", "a/b", "https://example.com/a?b=c&d=%20#e", "ä/日本", "\x00\n\xff", "locks", "limit", ".done",
		"_c_00000000-0000-0000-0000-000000000000-lock-0000000001", "mutex-1", "lock-0000000001", "0000000001", "694d8c0f3a1b2c3d-x",
		"x__READ__0000000001", "x__WRIT__0000000001", "00000000000000000000000000000000__lock__0000000001", "x-rlock-000000001", "lock--2147483648", "leases", ".waits",
		"~", "%2", "___READ___", "x__rlock__0000000001", "-0000000001", "__lock__-2147483648", "zookeeper", ".sessions"}
	var held []*lockpool.Lock
	for _, text := range texts {
		name := s + "/" + lockpool.Escape(text)
		held = append(held, b.lock(p, name))
		b.isHeld(name)
	}
	b.unlock(b.acquire(p.Semaphore(s, 2), 2)) // above all of them
	b.unlock(b.lock(p, s))
	names := b.list(s)
	require.Len(b, names, len(texts))
	for _, name := range names {
		text, err := lockpool.Unescape(strings.TrimPrefix(name, s+"/"))
		require.NoError(b, err)
		require.Contains(b, texts, text)
	}
	for _, l := range held {
		b.unlock(l)
	}
}

func lockFromContext(b *bench) {
	p, other := b.pool(), b.pool()
	name := func(ctx context.Context) string { return b.lockIn(ctx).Name() }
	_, ok := lockpool.LockFromContext(b.ctx)
	require.False(b, ok, "no lock's context")
	outer := b.lock(p, b.name("a"))
	ctx := outer.Context(b.ctx)
	require.Equal(b, b.name("a"), name(ctx))
	require.NoError(b, p.Do(ctx, b.name("b"), func(ctx context.Context) error {
		require.Equal(b, b.name("b"), name(ctx))
		require.NoError(b, other.Do(ctx, b.name("c"), func(ctx context.Context) error {
			require.Equal(b, b.name("c"), name(ctx), "of another pool")
			return nil
		}))
		return nil
	}))
	all := b.lockAll(p, []string{b.name("d"), b.name("e")})
	require.Equal(b, b.name("e"), name(all.Context(b.ctx)), "the last of several locks")
	require.NoError(b, all.Unlock(b.ctx))

	// Finding the lock is no new entry.
	found := b.lockIn(ctx)
	require.Equal(b, 1, found.Depth())
	require.Equal(b, b.token(outer), b.token(found))

	// The holder in a context counts only on one goroutine, the lock on all.
	plays.Together(b, 1, func(int) error {
		l, ok := lockpool.LockFromContext(ctx)
		if !ok {
			return errors.New("no lock in the context")
		}
		if _, err := p.TryLock(ctx, l.Name()); !errors.Is(err, lockpool.ErrLocked) {
			return errors.New("the other goroutine is the holder")
		}
		return l.Verify(ctx)
	})

	b.unlock(outer)
	next := b.lock(p, b.name("a"))
	require.Zero(b, found.Depth())
	require.ErrorIs(b, found.Verify(b.ctx), lockpool.ErrNotHeld)
	require.ErrorIs(b, found.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.Equal(b, 1, next.Depth())
	b.unlock(next)
}

var contextTests = []test{
	{"DeadlineEndsTheWait", deadlineEndsTheWait, nil},
	{"DeadlineCoversTheWholeWait", deadlineCoversTheWholeWait, nil},
	{"CanceledWaiterLeaves", canceledWaiterLeaves, nil},
	{"CancelAtAnyTime", cancelAtAnyTime, nil},
	{"HandleIsUsableAfterAnEndedWait", handleIsUsableAfterAnEndedWait, nil},
	{"Cause", errorCarriesTheCause, nil},
	{"CauseOfAnyType", causeOfAnyType, nil},
	{"UnlockWithAnEndedContext", unlockWithAnEndedContext, nil},
	{"UnlockWithTheLocksContext", unlockWithTheLocksContext, nil},
	{"EndsWithItsEntry", contextEndsWithItsEntry, nil},
	{"EndsBeforeOthersShare", contextEndsBeforeOthersShare, []string{"Downgrader"}},
	{"OfAnotherLock", contextOfAnotherLock, nil},
	{"UsesTheHandle", contextUsesTheHandle, nil},
	{"ErrorsSayWhetherTheLockWasBusy", errorsSayWhetherTheLockWasBusy, []string{"Limiter"}},
	{"ErrorsOfTheFunctionAreApart", errorsOfTheFunctionAreApart, nil},
	{"ErrorsSayThatTheServiceIsSilent", errorsSayThatTheServiceIsSilent, recorder},
	{"BoundsTheWaitOnly", contextBoundsTheWaitOnly, nil},
	{"WaitAtMost", waitAtMostBoundsTheWaitOnly, nil},
	{"WaitAtMostZeroTries", waitAtMostZeroTries, nil},
}

// The methods of a context may use the handle calling them: the handle does not call them
// while keeping others out.
func contextUsesTheHandle(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	h := b.handle(p)
	held := b.lock(h, a)
	look := func() { held.Depth() }
	ctx, cancel := context.WithCancel(parent{b.ctx, look})
	looking := parent{ctx, look}
	l, err := h.Lock(looking, b.name("b"))
	require.NoError(b, err)
	require.NoError(b, l.Unlock(looking))
	rival := b.lock(b.looker, c)
	waits := do(b, func(context.Context) error { _, err := h.Lock(looking, c); return err })
	b.queued(c, 2)
	require.NoError(b, h.Close(looking))
	require.ErrorIs(b, waits.returned(), lockpool.ErrHandleClosed)
	cancel()
	h = b.handle(p)
	again := b.lock(h, a)
	_, err = h.Lock(parent{ctx, func() { again.Depth() }}, c)
	require.ErrorIs(b, err, context.Canceled)
	b.close(h)
	b.unlock(rival)
}

// The contexts of an entry end when the entry is unlocked, and no others do.
func contextEndsWithItsEntry(b *bench) {
	p, a := b.pool(), b.name("a")
	h := b.handle(p)
	outer, inner := b.lock(h, a), b.lock(h, a)
	outerContext, innerContext := outer.Context(b.ctx), inner.Context(b.ctx)
	var kept context.Context
	require.NoError(b, h.Do(outerContext, a, func(ctx context.Context) error { kept = ctx; return ctx.Err() }))
	require.ErrorIs(b, context.Cause(kept), lockpool.ErrNotHeld)
	b.unlock(inner)
	for _, ctx := range []context.Context{innerContext, inner.Context(b.ctx)} {
		require.ErrorIs(b, context.Cause(ctx), lockpool.ErrNotHeld)
	}
	require.NoError(b, outerContext.Err())
	b.unlock(outer)
	require.ErrorIs(b, context.Cause(outerContext), lockpool.ErrNotHeld)
	b.close(h)
}

// A parent is a context whose methods are the user's code: they may use the lock.
type parent struct {
	context.Context
	call func()
}

func (p parent) Done() <-chan struct{}       { p.call(); return p.Context.Done() }
func (p parent) Value(key any) any           { p.call(); return p.Context.Value(key) }
func (p parent) Err() error                  { p.call(); return p.Context.Err() }
func (p parent) Deadline() (time.Time, bool) { p.call(); return p.Context.Deadline() }

// panicking returns a context whose methods panic once, on the calling goroutine: after as many
// calls as left says.
func panicking(ctx context.Context) (at parent, left *atomic.Int64) {
	goroutine, left := goid.Get(), new(atomic.Int64)
	return parent{ctx, func() {
		if goid.Get() == goroutine && left.Add(-1) == 0 {
			panic("user code")
		}
	}}, left
}

// The context of a writer has ended before readers share the lock with the holder.
func contextEndsBeforeOthersShare(b *bench) {
	p, a := b.pool(), b.name("a")
	h := b.handle(p)
	writer, reader := b.lock(h, a), b.read(h, a)
	var w *call[*lockpool.Lock]
	of := parent{b.ctx, func() { // called at the end as well, with no mutex held
		_ = writer.Depth()
		if w != nil {
			w.waits()
		}
	}}
	writing, reading := writer.Context(of), reader.Context(of)
	w = begin(b, func(ctx context.Context) (*lockpool.Lock, error) { return b.looker.Lock(ctx, a, lockpool.Shared()) })
	b.queued(a, 2)
	require.NoError(b, h.Do(b.ctx, a, nothing))
	require.NoError(b, writing.Err())
	b.unlock(writer)
	require.ErrorIs(b, context.Cause(writing), lockpool.ErrNotHeld)
	shared := w.granted()
	w = nil
	require.NoError(b, reading.Err())
	b.unlock(reader)
	b.unlock(shared)
	b.close(h)
}

// A context ended with a lock names the lock, and the error of a call for another lock is not
// about the former one: not lost, and no pool or handle is closed.
func contextOfAnotherLock(b *bench) {
	p, other, a := b.pool(), b.pool(), b.name("a")
	h := b.handle(other)
	byPool, byHandle := b.lock(other, a).Context(b.ctx), b.lock(h, b.name("c")).Context(b.ctx)
	unlocked := b.lock(other, b.name("d"))
	byUnlock := unlocked.Context(b.ctx)
	b.unlock(unlocked)
	b.close(h)
	require.NoError(b, other.Close())
	mine := b.handle(p)
	for what, ctx := range map[string]context.Context{"pool closed": byPool, "handle closed": byHandle, "not held": byUnlock} {
		for _, call := range []func() error{
			func() error { _, err := p.Lock(ctx, a); return err },
			func() error { _, err := mine.TryLock(ctx, a); return err },
			func() error { return p.Do(ctx, a, nothing) },
			func() error { return p.Ping(ctx) },
			func() error { _, err := p.Handle(ctx); return err },
			func() error { return p.Elect(ctx, a, nothing) },
		} {
			err := call()
			require.ErrorIs(b, err, context.Canceled)
			require.ErrorContains(b, err, what)
			require.ErrorContains(b, err, b.prefix)
			require.NotErrorIs(b, err, lockpool.ErrPoolClosed)
			require.NotErrorIs(b, err, lockpool.ErrHandleClosed)
			require.NotErrorIs(b, err, lockpool.ErrNotHeld)
		}
		_, err := other.Lock(ctx, a)
		require.ErrorIs(b, err, lockpool.ErrPoolClosed)
		_, err = h.Lock(ctx, a)
		require.ErrorIs(b, err, lockpool.ErrHandleClosed)
	}
	b.close(mine)
}

// The error says what ended the wait for another holder's lock, and that the function was
// not called.
func errorsSayWhetherTheLockWasBusy(b *bench) {
	p, a := b.pool(), b.name("a")
	h := b.handle(p)
	full := p.Semaphore(b.name("s"), 1)
	holders := map[string]func(){
		"another pool": func() { b.lock(b.pool(), a); b.acquire(b.pool().Semaphore(b.name("s"), 1), 1) },
		"the same":     func() { b.lock(p, b.name("own")) },
	}
	wait, never := lockpool.WaitAtMost(1100*time.Millisecond), plays.Never(b)
	for who, hold := range holders {
		hold()
		name := map[string]string{"another pool": a, "the same": b.name("own")}[who]
		for _, call := range []func(ctx context.Context, opts ...lockpool.LockOption) error{
			func(ctx context.Context, opts ...lockpool.LockOption) error { return p.Do(ctx, name, never, opts...) },
			func(ctx context.Context, opts ...lockpool.LockOption) error { return h.Do(ctx, name, never, opts...) },
			func(ctx context.Context, opts ...lockpool.LockOption) error {
				_, err := p.Lock(ctx, name, append(opts, lockpool.Shared())...)
				return err
			},
			func(ctx context.Context, opts ...lockpool.LockOption) error {
				_, err := p.LockAll(ctx, []string{b.name("0"), name}, opts...)
				return err
			},
			func(ctx context.Context, opts ...lockpool.LockOption) error {
				if who == "the same" {
					return p.Do(ctx, name, never, opts...)
				}
				return full.Do(ctx, 1, never, opts...)
			},
		} {
			canceled := do(b, func(ctx context.Context) error { return call(ctx) })
			b.waiting(p, 1)
			canceled.cancel()
			errs := []error{canceled.returned(), call(b.ctx, lockpool.WaitAtMost(0))}
			if b.bubble { // elsewhere, the servers may not have answered by then
				errs = append(errs, call(b.ctx, wait), call(b.timeout(20*time.Millisecond)))
			}
			for _, err := range errs {
				require.ErrorIs(b, err, lockpool.ErrNotAcquired)
				require.ErrorIs(b, err, lockpool.ErrLocked)
				require.NotErrorIs(b, err, lockpool.ErrUnavailable)
			}
		}
	}
	b.close(h)
}

// What a function returns is told from what became of the lock, even if the function has used
// locks itself.
func errorsOfTheFunctionAreApart(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	b.lock(b.pool(), c)
	of := []error{lockpool.ErrNotAcquired, lockpool.ErrLocked, lockpool.ErrUnavailable, lockpool.ErrLockLost, lockpool.ErrDone, lockpool.ErrQueueFull}
	for _, work := range []error{context.DeadlineExceeded, errors.Join(append(of, errWork)...), &lockpool.DoneError{}, &lockpool.QueueFullError{}} {
		err := p.Do(b.ctx, a, func(context.Context) error { return work })
		require.EqualError(b, err, work.Error())
		for _, other := range of {
			require.NotErrorIs(b, err, other)
		}
		require.Equal(b, errors.Is(work, errWork), errors.Is(err, errWork))
		require.NotPanics(b, func() { _ = map[error]bool{err: true} }, "errors can be compared")
	}
	err := p.Do(b.ctx, a, func(ctx context.Context) error { return p.Do(ctx, c, nothing, lockpool.WaitAtMost(0)) })
	require.NotErrorIs(b, err, lockpool.ErrLocked)
	require.ErrorAs(b, err, new(*lockpool.LockError))
	require.NotErrorIs(b, p.Do(b.timeout(0), a, nothing), lockpool.ErrLocked)
}

// A call whose context ends while no server answers says so; but if the function was
// called, the error is the function's.
func errorsSayThatTheServiceIsSilent(b *bench) {
	if b.options.Pause == nil {
		b.Skip("it needs Options.Pause")
	}
	p, unconnected, a := b.pool(), b.pool(), b.name("a")
	l := b.lock(p, a)
	resume := b.options.Pause(b)
	for what, call := range map[string]func(ctx context.Context) error{
		"Handle": func(ctx context.Context) error { _, err := unconnected.Handle(ctx); return err },
		"Verify": l.Verify,
		"Token":  func(ctx context.Context) error { _, err := l.Token(ctx); return err },
	} {
		err := call(b.timeout(100 * time.Millisecond))
		require.ErrorIs(b, err, context.DeadlineExceeded, what)
		require.ErrorIs(b, err, lockpool.ErrUnavailable, what)
		require.NotErrorIs(b, err, lockpool.ErrLockLost, what)
		err = call(b.timeout(0))
		require.NotErrorIs(b, err, lockpool.ErrUnavailable, what)
	}
	resume()
	b.unlock(l)
	for what, call := range map[string]func(ctx context.Context, fn func(context.Context) error) error{
		"Do":   func(ctx context.Context, fn func(context.Context) error) error { return p.Do(ctx, a, fn) },
		"Once": func(ctx context.Context, fn func(context.Context) error) error { return p.Once(ctx, a, "1", fn) },
	} {
		err := call(b.timeout(time.Second), func(context.Context) error { resume = b.options.Pause(b); return nil })
		require.Error(b, err, what)
		for _, other := range []error{context.DeadlineExceeded, context.Canceled, lockpool.ErrNotAcquired, lockpool.ErrUnavailable} {
			require.NotErrorIs(b, err, other, what)
		}
		require.Equal(b, what == "Once", errors.Is(err, lockpool.ErrLockLost), what)
		resume()
	}
}

func deadlineEndsTheWait(b *bench) {
	p, a := b.pool(lockpool.WithOwner("billing")), b.name("a")
	holder := b.lock(p, a)
	for _, wait := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond} { // in memory, and at the service
		began := time.Now()
		_, err := p.Lock(b.timeout(wait), a)
		b.took(wait, began)
		require.ErrorIs(b, err, context.DeadlineExceeded)
		if b.bubble { // a busy machine may not know the contender in time
			require.ErrorContains(b, err, "waiting behind "+b.nodes(a)[0], "the error names the contender in the way")
			require.ErrorContains(b, err, "(owner: billing, process ")
		}
		var lockErr *lockpool.LockError
		require.ErrorAs(b, err, &lockErr)
		require.Equal(b, []string{a, "lock", "timeout"}, []string{lockErr.Name, lockErr.Op, lockErr.ErrorType()})
		b.queued(a, 1)
	}
	b.unlock(holder)
}

func deadlineCoversTheWholeWait(b *bench) {
	p, a := b.pool(atService), b.name("a")
	holder := b.lock(p, a)
	var ahead []*call[*lockpool.Lock]
	for i := range 4 {
		ahead = append(ahead, b.enqueue(p, a, i+2))
	}
	queue := b.nodes(a)
	const wait = time.Second
	began := time.Now()
	ctx := b.timeout(wait)
	last := do(b, func(context.Context) error { _, err := p.Lock(ctx, a); return err })
	b.until(func() bool { return len(b.nodes(a)) == 6 || ctx.Err() != nil }, "the last call is in the queue")
	for i := len(ahead) - 1; i > 0; i-- { // each wakes the next one
		ahead[i].cancel()
		b.until(func() bool { return !slices.Contains(b.nodes(a), queue[i+1]) }, "the canceled call has left")
	}
	require.ErrorIs(b, last.returned(), context.DeadlineExceeded)
	b.took(wait, began)
	b.unlock(holder)
	b.unlock(ahead[0].granted())
}

func canceledWaiterLeaves(b *bench) {
	p, a := b.pool(atService), b.name("a")
	holder := b.lock(p, a)
	second, third, fourth := b.enqueue(p, a, 2), b.enqueue(p, a, 3), b.enqueue(p, a, 4)
	queue, began := b.nodes(a), time.Now()
	second.cancel()
	require.ErrorIs(b, second.returned(), context.Canceled)
	b.took(0, began)
	b.queued(a, 3)
	third.waits()
	b.unlock(holder)
	l := third.granted()
	require.Equal(b, queue[2:], b.nodes(a))
	fourth.waits()
	b.unlock(l)
	b.unlock(fourth.granted())
}

func cancelAtAnyTime(b *bench) {
	for _, turns := range []int{0, 1000} {
		pools := b.pools(2, lockpool.WithLocalTurns(turns))
		held := b.lock(pools[0], b.name("held"))
		plays.Together(b, 8, func(i int) error {
			for turn := range 30 {
				for _, name := range []string{b.name("held"), b.name("free")} {
					ctx, cancel := context.WithTimeout(b.ctx, time.Duration(1+(7*turn+3*i)%30)*100*time.Microsecond)
					l, err := pools[i%2].Lock(ctx, name)
					cancel()
					if err == nil {
						err = l.Unlock(b.ctx)
					} else if errors.Is(err, context.DeadlineExceeded) {
						err = nil
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		})
		b.queued(b.name("held"), 1)
		b.queued(b.name("free"), 0)
		b.unlock(held)
		require.Zero(b, pools[1].Stats().InUse)
	}
}

func handleIsUsableAfterAnEndedWait(b *bench) {
	p, a, own := b.pool(), b.name("a"), b.name("own")
	h := b.handle(p)
	mine, holder := b.lock(h, own), b.lock(p, a)
	ctx := b.timeout(20 * time.Millisecond)
	_, err := h.Lock(ctx, a)
	require.ErrorIs(b, err, context.DeadlineExceeded)
	require.Equal(b, 1, mine.Depth())
	_, err = h.Lock(ctx, own)
	require.ErrorIs(b, err, context.DeadlineExceeded, "to enter again with an ended context is an error")
	require.Equal(b, 1, mine.Depth())
	b.unlock(holder)
	for _, name := range []string{own, a, own} {
		b.lock(h, name)
	}
	require.Equal(b, 3, mine.Depth())
	b.close(h)
}

func errorCarriesTheCause(b *bench) {
	p, a := b.pool(), b.name("a")
	holder := b.lock(p, a)
	ctx, cancel := context.WithCancelCause(b.ctx)
	w := do(b, func(context.Context) error { _, err := p.Lock(ctx, a); return err })
	b.queued(a, 2)
	cancel(errWork)
	err := w.returned()
	require.ErrorIs(b, err, context.Canceled)
	require.ErrorIs(b, err, errWork)

	// In a group of goroutines, the cause is the error of another call.
	busy := b.looker.Do(b.ctx, a, plays.Never(b), lockpool.WaitAtMost(0))
	for _, cause := range []error{busy, lockpool.ErrPoolClosed} {
		ctx, cancel := context.WithCancelCause(b.ctx)
		cancel(cause)
		err := p.Do(ctx, b.name("free"), plays.Never(b))
		require.ErrorIs(b, err, context.Canceled)
		require.ErrorContains(b, err, cause.Error())
		require.NotErrorIs(b, err, lockpool.ErrLocked)
		require.NotErrorIs(b, err, lockpool.ErrPoolClosed)
	}
	b.unlock(holder)
}

// causes is a type whose values cannot be compared.
type causes []error

func (c causes) Error() string   { return errors.Join(c...).Error() }
func (c causes) Unwrap() []error { return c }

// The cause of a context may look like the loss of a lock.
func causeOfAnyType(b *bench) {
	p := b.pool()
	l := b.lock(p, b.name("a"))
	ctx, cancel := context.WithCancelCause(b.ctx)
	held := l.Context(ctx)
	cancel(causes{lockpool.ErrLockLost})
	_, err := p.Lock(held, b.name("c"))
	require.ErrorIs(b, err, context.Canceled)
	require.ErrorContains(b, err, lockpool.ErrLockLost.Error())
	require.NotErrorIs(b, err, lockpool.ErrLockLost)
	if err := l.Unlock(held); err != nil { // the wait ends with ctx
		require.ErrorIs(b, err, context.Canceled)
	}
}

// The context of Unlock bounds the wait, never whether the release happens.
func unlockWithAnEndedContext(b *bench) {
	p, a := b.pool(), b.name("a")
	for _, waiter := range []*lockpool.Pool{b.pool(), p} {
		l := b.lock(p, a)
		w := b.waiter(waiter, a, 1)
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		err := l.Unlock(ctx)
		if err != nil && !b.bubble { // the answer took longer than the release waits
			require.ErrorIs(b, err, context.Canceled)
		} else {
			require.NoError(b, err)
		}
		require.Zero(b, l.Depth())
		require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrNotHeld)
		b.unlock(w.granted())
	}
}

// The natural call passes Unlock a context ended by Unlock itself.
func unlockWithTheLocksContext(b *bench) {
	p, a := b.pool(), b.name("a")
	l := b.lock(p, a)
	ctx := l.Context(b.ctx)
	require.NoError(b, l.Unlock(ctx))
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrNotHeld)
	b.isFree(a)

	l = b.lock(p, a)
	derived, cancel := context.WithTimeout(l.Context(l.Context(b.ctx)), patience)
	defer cancel()
	require.NoError(b, l.Unlock(derived))
	l = b.lock(p, a)
	inner, err := p.Lock(l.Context(b.ctx), b.name("c"))
	require.NoError(b, err)
	ctx = inner.Context(l.Context(b.ctx))
	b.unlock(l)
	b.isFree(a)
	b.isHeld(b.name("c")) // the inner lock outlives the outer one
	require.Equal(b, 1, p.Stats().InUse)
	require.NoError(b, inner.Unlock(ctx), "the end of another lock does not end the call")
	require.Zero(b, p.Stats().InUse)
	all := b.lockAll(p, []string{a, b.name("c")})
	require.NoError(b, all.Unlock(all.Context(b.ctx)))
	h := b.handle(p)
	require.NoError(b, h.Close(b.lock(h, a).Context(b.ctx)))
	b.isFree(a)
	b.isFree(b.name("c"))
}

func contextBoundsTheWaitOnly(b *bench) {
	p, a := b.pool(), b.name("a")
	ctx, cancel := context.WithCancel(b.ctx)
	l, err := p.Lock(ctx, a)
	require.NoError(b, err)
	work := l.Context(ctx)
	cancel()
	require.ErrorIs(b, work.Err(), context.Canceled)
	require.Equal(b, 1, l.Depth())
	require.NoError(b, l.Verify(b.ctx))
	b.isHeld(a)
	b.unlock(l)
}

func waitAtMostBoundsTheWaitOnly(b *bench) {
	p, a := b.pool(), b.name("a")
	require.NoError(b, p.Do(b.ctx, a, func(ctx context.Context) error {
		began := time.Now()
		err := p.Do(b.ctx, a, nothing, lockpool.WaitAtMost(50*time.Millisecond))
		require.ErrorIs(b, err, context.DeadlineExceeded)
		b.took(50*time.Millisecond, began)
		return nil
	}))
	deadline, ok := b.ctx.Deadline()
	require.True(b, ok)
	require.NoError(b, p.Do(b.ctx, a, func(ctx context.Context) error {
		inner, ok := ctx.Deadline()
		require.True(b, ok)
		require.Equal(b, deadline, inner)
		return nil
	}, lockpool.WaitAtMost(patience/2)))
}

func waitAtMostZeroTries(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	for _, d := range []time.Duration{0, -time.Second} {
		now := lockpool.WaitAtMost(d)
		require.NoError(b, p.Do(b.ctx, a, nothing, now), "a free lock")
		require.NoError(b, p.Do(b.ctx, a, nothing, now, lockpool.Shared()))
		l, err := p.TryLock(b.ctx, a, now)
		require.NoError(b, err)
		for _, opts := range [][]lockpool.LockOption{{now}, {now, lockpool.Shared()}, {lockpool.Shared(), now}} {
			err = others.Do(b.ctx, a, nothing, opts...)
			require.ErrorIs(b, err, lockpool.ErrLocked)
			require.NotErrorIs(b, err, context.DeadlineExceeded)
		}
		_, err = others.Lock(b.ctx, a, now, lockpool.Shared())
		require.ErrorIs(b, err, lockpool.ErrLocked)
		b.unlock(l)
	}
	_, err := p.TryLock(b.ctx, a, lockpool.WaitAtMost(time.Second))
	require.ErrorContains(b, err, "leave out WaitAtMost")
}
