package behavior

// This file has the tests of handles and of holders in contexts.

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var handleTests = []test{
	{"IsHeldUntilTheLastUnlock", isHeldUntilTheLastUnlock, nil},
	{"ContextCarriesTheHolder", contextCarriesTheHolder, nil},
	{"ContextOnAnotherGoroutine", contextOnAnotherGoroutine, nil},
	{"ContextOfAReleasedLock", contextOfAReleasedLock, nil},
	{"SecondUnlockChangesNothing", secondUnlockChangesNothing, nil},
	{"HolderInAContextUnlocksWhileItWaits", holderInAContextUnlocksWhileItWaits, nil},
	{"WaitInTheContextOfAnUnlockedLock", waitInTheContextOfAnUnlockedLock, nil},
	{"Do", handleDo, nil},
	{"DoThatPanicsOrFails", doThatPanicsOrFails, nil},
	{"CallThatPanics", callThatPanics, nil},
	{"CloseThatPanics", closeThatPanics, nil},
	{"EntryOfARevokedLock", entryOfARevokedLock, nil},
	{"NilFunctionsAndOptions", nilFunctionsAndOptions, nil},
	{"ConcurrentUse", concurrentUse, nil},
	{"ConcurrentUseOfOneLock", concurrentUseOfOneLock, nil},
	{"MovesBetweenGoroutines", movesBetweenGoroutines, nil},
	{"Close", closeReleasesItsLocks, nil},
	{"CloseEndsItsWait", closeEndsItsWait, nil},
	{"ShareFewSessions", handlesShareFewSessions, nil},
	{"WaitForAHandle", waitForAHandle, nil},
	{"UnlockBesideItsWait", unlockBesideItsWait, nil},
	{"Stats", statsCount, nil},
}

func isHeldUntilTheLastUnlock(b *bench) {
	a := b.name("a")
	h := b.handle(b.pool())
	var locks []*lockpool.Lock
	for depth := range 3 {
		l := b.lock(h, a)
		require.Equal(b, depth+1, l.Depth())
		locks = append(locks, l)
	}
	for _, i := range []int{0, 2} { // in any order
		b.unlock(locks[i])
		b.isHeld(a)
	}
	require.Equal(b, 1, locks[1].Depth())
	b.unlock(locks[1])
	b.isFree(a)
	b.close(h)
}

func contextCarriesTheHolder(b *bench) {
	p, other, a := b.pool(), b.pool(), b.name("a")
	require.NoError(b, p.Do(b.ctx, a, func(ctx context.Context) error {
		l, err := p.Lock(ctx, a)
		require.NoError(b, err)
		require.Equal(b, 2, l.Depth())
		require.NoError(b, p.Do(ctx, b.name("b"), func(ctx context.Context) error {
			require.Equal(b, 1, p.Stats().InUse, "it is the same holder")
			return p.Do(ctx, a, func(ctx context.Context) error {
				require.Equal(b, 3, l.Depth())
				return nil
			})
		}))
		b.unlock(l)
		_, err = other.TryLock(ctx, a)
		require.ErrorIs(b, err, lockpool.ErrLocked, "another pool's holder is another holder")
		return nil
	}))
	require.Zero(b, p.Stats().InUse)
	require.Zero(b, p.Stats().Held)
}

func contextOnAnotherGoroutine(b *bench) {
	p, a := b.pool(), b.name("a")
	outer := b.lock(p, a)
	ctx := context.WithoutCancel(outer.Context(b.ctx))
	w := begin(b, func(context.Context) (*lockpool.Lock, error) { return p.Lock(ctx, a) })
	b.queued(a, 2) // waits like any other holder
	require.Equal(b, 1, outer.Depth())
	b.unlock(outer)
	b.unlock(w.granted())
}

func contextOfAReleasedLock(b *bench) {
	p, a := b.pool(), b.name("a")
	l := b.lock(p, a)
	ctx := l.Context(context.WithoutCancel(b.ctx))
	b.unlock(l)
	require.ErrorIs(b, ctx.Err(), context.Canceled)
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrNotHeld)
	l = b.lock(p, a)
	_, err := p.TryLock(context.WithoutCancel(ctx), a)
	require.ErrorIs(b, err, lockpool.ErrLocked, "it carries no holder")
	b.unlock(l)
}

func secondUnlockChangesNothing(b *bench) {
	a := b.name("a")
	h := b.handle(b.pool())
	outer, inner := b.lock(h, a), b.lock(h, a)
	twin := b.lockIn(inner.Context(b.ctx)) // another value for the same entry
	b.unlock(inner)
	require.ErrorIs(b, inner.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.ErrorIs(b, twin.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.Equal(b, 1, outer.Depth())
	b.isHeld(a)
	b.unlock(outer)
	require.ErrorIs(b, outer.Unlock(b.ctx), lockpool.ErrNotHeld)
	again := b.lock(h, a)
	require.ErrorIs(b, outer.Unlock(b.ctx), lockpool.ErrNotHeld, "it belongs to an earlier hold")
	b.isHeld(a)
	b.unlock(again)
	require.ErrorIs(b, new(lockpool.Lock).Unlock(b.ctx), lockpool.ErrNotHeld)
	require.ErrorIs(b, (*lockpool.Lock)(nil).Unlock(b.ctx), lockpool.ErrNotHeld)
	b.close(h)
}

// A holder found in a context may unlock everything while waiting for another lock.
func holderInAContextUnlocksWhileItWaits(b *bench) {
	p, others, a, c := b.pool(), b.pool(), b.name("a"), b.name("c")
	held, l := b.lock(others, c), b.lock(p, a)
	ctx := context.WithoutCancel(l.Context(b.ctx))
	unlocks := do(b, func(ctx context.Context) error {
		for p.Stats().Waiting == 0 { // the lock is held until unlocked by this goroutine
			time.Sleep(time.Millisecond)
		}
		return errors.Join(l.Unlock(ctx), held.Unlock(ctx))
	})
	second, err := p.Lock(ctx, c)
	require.NoError(b, err)
	require.NoError(b, unlocks.returned())
	require.Equal(b, 1, p.Stats().InUse)
	b.unlock(second)
	require.Zero(b, p.Stats().InUse)
}

// If the unlock ends the context of the wait, the error still says that the lock was busy.
func waitInTheContextOfAnUnlockedLock(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	held, l := b.lock(b.pool(), c), b.lock(p, a)
	unlocks := do(b, func(ctx context.Context) error {
		b.waiting(p, 1)
		return l.Unlock(ctx)
	})
	_, err := p.Lock(l.Context(b.ctx), c)
	require.ErrorIs(b, err, lockpool.ErrLocked)
	require.ErrorIs(b, err, lockpool.ErrNotHeld, "why the context has ended")
	require.NoError(b, unlocks.returned())
	b.unlock(held)
}

func handleDo(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	h := b.handle(p)
	outer := b.lock(h, a)
	require.NoError(b, h.Do(b.ctx, a, func(ctx context.Context) error {
		require.Equal(b, 2, outer.Depth())
		return h.Do(ctx, c, func(ctx context.Context) error {
			require.Equal(b, 1, p.Stats().InUse, "the context carries the same holder")
			return p.Do(ctx, a, func(context.Context) error {
				require.Equal(b, 3, outer.Depth())
				return nil
			})
		}, lockpool.Shared())
	}))
	require.Equal(b, 1, outer.Depth())
	b.isFree(c)
	held := b.lock(b.pool(), c)
	require.ErrorIs(b, h.Do(b.ctx, c, nothing, lockpool.WaitAtMost(0)), lockpool.ErrLocked)
	b.unlock(held)
	b.close(h) // unlocks a
	require.ErrorIs(b, h.Do(b.ctx, a, nothing), lockpool.ErrHandleClosed)
	b.isFree(a)
}

func doThatPanicsOrFails(b *bench) {
	p, a := b.pool(), b.name("a")
	h := b.handle(p)
	for _, do := range []func(context.Context, string, func(context.Context) error, ...lockpool.LockOption) error{p.Do, h.Do} {
		var kept context.Context
		require.NoError(b, do(b.ctx, a, func(ctx context.Context) error {
			kept = ctx
			return ctx.Err()
		}))
		require.ErrorIs(b, context.Cause(kept), lockpool.ErrNotHeld)
		b.isFree(a)
		require.PanicsWithValue(b, "oops", func() {
			_ = do(b.ctx, a, func(context.Context) error { panic("oops") })
		})
		b.isFree(a)
		require.Equal(b, errWork, do(b.ctx, a, func(context.Context) error { return errWork }))
		b.isFree(a)
		// And if a method of its context panics, before the function or after.
		for _, within := range []bool{false, true} {
			for calls, over := int64(1), false; !over; calls++ {
				ctx, left := panicking(b.ctx)
				if !within {
					left.Store(calls)
				}
				func() {
					defer func() { over = recover() == nil }()
					_ = do(ctx, a, func(context.Context) error {
						left.Store(0)
						if within {
							left.Store(calls)
						}
						return nil
					})
				}()
				b.until(func() bool { // the release is not waited for
					l, err := b.looker.TryLock(b.ctx, a)
					if err == nil {
						b.unlock(l)
					}
					return err == nil
				}, "the lock is free")
				require.Zero(b, p.Stats().Held)
			}
		}
	}
	b.close(h)
	require.Zero(b, p.Stats().InUse)
}

// A call that gets a lock or a handle, and then panics in a method of its context, leaves
// nothing.
func callThatPanics(b *bench) {
	p, a := b.pool(), b.name("a")
	for what, call := range map[string]func(ctx context.Context) error{
		"LockAll": func(ctx context.Context) error {
			all, err := p.LockAll(ctx, []string{a, b.name("c")})
			return errors.Join(err, all.Unlock(b.ctx))
		},
		"WaitAtMost": func(ctx context.Context) error { return p.Do(ctx, a, nothing, lockpool.WaitAtMost(time.Hour)) },
		"Handle": func(ctx context.Context) error {
			h, err := p.Handle(ctx)
			if err == nil {
				b.close(h)
			}
			return err
		},
	} {
		for calls, over := int64(1), false; !over; calls++ {
			ctx, left := panicking(b.ctx)
			left.Store(calls)
			func() {
				defer func() { over = recover() == nil }()
				_ = call(ctx)
			}()
			b.until(func() bool { s := p.Stats(); return s.Held == 0 && s.InUse == 0 }, "%s leaves nothing after call %d", what, calls)
		}
	}
}

// A method of the context of a waiting call panics when the call gives up.
func closeThatPanics(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	held := b.lock(b.pool(), c)
	for calls, over := int64(1), false; !over; calls++ {
		h := b.handle(p)
		b.lock(h, a)
		ctx, left := panicking(b.ctx)
		w := do(b, func(context.Context) error { _, err := h.Lock(ctx, c); return err })
		b.waiting(p, 1)
		left.Store(calls)
		func() {
			defer func() { over = recover() == nil }()
			_ = h.Close(b.ctx)
		}()
		b.isFree(a)
		require.ErrorIs(b, w.returned(), lockpool.ErrHandleClosed)
		require.Zero(b, p.Stats().InUse)
	}
	b.unlock(held)
}

// Revocable ends the contexts of a lock that was revoked before, and a parent of one asks for
// the depth.
func entryOfARevokedLock(b *bench) {
	h, a := b.handle(b.pool()), b.name("a")
	l := b.lock(h, a)
	var revoked atomic.Bool
	ctx := l.Context(parent{b.ctx, func() {
		if revoked.Load() {
			l.Depth()
		}
	}})
	require.NoError(b, b.looker.Revoke(b.ctx, a))
	<-l.Revoked()
	revoked.Store(true)
	b.unlock(b.lock(h, a, lockpool.Revocable()))
	<-ctx.Done()
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrRevoked)
	b.close(h)
}

func nilFunctionsAndOptions(b *bench) {
	p, a := b.pool(), b.name("a")
	require.ErrorContains(b, p.Do(b.ctx, a, nil), "function is nil")
	require.ErrorContains(b, p.Do(b.ctx, a, nothing, nil), "nil LockOption")
	require.Zero(b, p.Stats().OpenSessions)
	h := b.handle(p)
	require.ErrorContains(b, h.Do(b.ctx, a, nil), "function is nil")
	b.close(h)
}

func concurrentUse(b *bench) {
	p, a, own := b.pool(), b.name("a"), b.name("own")
	holder, h := b.lock(p, a), b.handle(p)
	mine, began := b.lock(h, own), time.Now()
	w := b.enqueue(h, a, 2)
	if b.bubble { // where what happens at once takes no time
		require.Less(b, time.Since(began), 5*time.Millisecond, "a holder waits in memory for its turn to queue")
	}
	_, err := h.Lock(b.ctx, b.name("c"))
	require.ErrorIs(b, err, lockpool.ErrConcurrentUse)
	_, err = h.TryLock(b.ctx, own)
	require.ErrorIs(b, err, lockpool.ErrConcurrentUse)
	b.unlock(holder)
	b.unlock(w.granted())
	b.unlock(mine)
	b.close(h)
}

// concurrentUseOfOneLock has two goroutines take the same lock: none waits for the other.
func concurrentUseOfOneLock(b *bench) {
	h, a := b.handle(b.pool(keeps)), b.name("a")
	for range 300 {
		var locks [2]*lockpool.Lock
		plays.Together(b, 2, func(i int) (err error) {
			if locks[i], err = h.Lock(b.ctx, a); errors.Is(err, lockpool.ErrConcurrentUse) {
				return nil
			}
			return err
		})
		for _, l := range locks {
			if l != nil {
				b.unlock(l)
			}
		}
	}
	b.close(h)
}

func movesBetweenGoroutines(b *bench) {
	h, a := b.handle(b.pool()), b.name("a")
	var l *lockpool.Lock
	for range 3 {
		plays.Together(b, 1, func(int) (err error) { l, err = h.Lock(b.ctx, a); return err })
	}
	require.Equal(b, 3, l.Depth())
	b.close(h)
}

func closeReleasesItsLocks(b *bench) {
	p, a, c := b.pool(), b.name("a"), b.name("c")
	h := b.handle(p)
	var locks []*lockpool.Lock
	for _, name := range []string{a, a, c} {
		locks = append(locks, b.lock(h, name))
	}
	ctx := locks[0].Context(b.ctx)
	b.close(h)
	b.close(h)
	b.isFree(a)
	b.isFree(c)
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrHandleClosed)
	for _, l := range locks {
		require.Zero(b, l.Depth())
		err := l.Unlock(b.ctx)
		require.ErrorIs(b, err, lockpool.ErrNotHeld)
		require.ErrorIs(b, err, lockpool.ErrHandleClosed)
	}
	_, err := h.Lock(b.ctx, a)
	require.ErrorIs(b, err, lockpool.ErrHandleClosed)
	require.Zero(b, p.Stats().InUse)
}

func closeEndsItsWait(b *bench) {
	p, others, a, c := b.pool(), b.pool(), b.name("a"), b.name("c")
	held, h := b.lock(others, c), b.handle(p)
	b.lock(h, a)
	w := b.enqueue(h, c, 2)
	b.close(h)
	require.ErrorIs(b, w.returned(), lockpool.ErrHandleClosed)
	b.isFree(a)
	b.queued(c, 1)
	require.Zero(b, p.Stats().InUse)
	b.unlock(held)
}

func handlesShareFewSessions(b *bench) {
	p := b.pool(lockpool.WithMaxSessions(2))
	var handles []*lockpool.Handle
	for range 200 {
		handles = append(handles, b.handle(p))
	}
	stats := p.Stats()
	require.Equal(b, 200, stats.InUse)
	require.LessOrEqual(b, stats.OpenSessions, 2)
	for _, h := range handles {
		b.close(h)
	}
	require.Zero(b, p.Stats().InUse)
}

func waitForAHandle(b *bench) {
	p, a := b.pool(lockpool.WithMaxHandles(1)), b.name("a")
	h := b.handle(p)
	ctx := b.timeout(50 * time.Millisecond)
	_, err := p.Handle(ctx)
	require.ErrorIs(b, err, context.DeadlineExceeded)
	_, err = p.Lock(ctx, a)
	require.ErrorIs(b, err, context.DeadlineExceeded)
	_, err = p.TryLock(b.timeout(time.Second), a)
	require.ErrorContains(b, err, "no free handle, all 1 are in use")
	began := p.Stats()
	b.until(func() bool {
		w := do(b, func(ctx context.Context) error { return p.Do(ctx, a, nothing) })
		b.settle()
		time.Sleep(time.Millisecond) // the millisecond counts
		b.close(h)
		require.NoError(b, w.returned())
		waited := p.Stats()
		h = b.handle(p)
		return waited.WaitCount > began.WaitCount && waited.WaitDuration > began.WaitDuration
	}, "a call has come before the handle was free")
	b.close(h)
}

func statsCount(b *bench) {
	p, a := b.pool(), b.name("a")
	holder := b.lock(p, a)
	w := b.enqueue(p, a, 2)
	b.waiting(p, 1)
	stats := p.Stats()
	require.Equal(b, []int{1, 2, 1}, []int{stats.Held, stats.InUse, stats.OpenSessions})
	b.unlock(holder)
	b.unlock(w.granted())
	stats = p.Stats()
	require.Equal(b, []int{0, 0, 0}, []int{stats.Held, stats.InUse, stats.Waiting})
	require.Zero(b, stats.WaitCount, "there were free handles")
	require.Zero(b, stats.WaitDuration)
}

// A timer may unlock one lock while the handle waits for another.
func unlockBesideItsWait(b *bench) {
	a, c := b.name("a"), b.name("c")
	held, h := b.lock(b.pool(), c), b.handle(b.pool())
	l := b.lock(h, a)
	w := b.enqueue(h, c, 2)
	b.unlock(l)
	b.isFree(a)
	w.waits()
	b.unlock(held)
	b.unlock(w.granted())
	b.close(h)
}
