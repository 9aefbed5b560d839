package lockpool

// This file has handles, from the first lock to Close.

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
)

// The order of locks is Handle.mu, Pool.mu, localQueues.mu, and then one of life.mu (before
// alarms.mu), heldNode.mu, progress.mu and costs.mu. The mutexes of nested waits come after
// Handle.mu, and those of views and watches last. None is held during a request, during a wait, or while user code runs.

// Handle is one holder of locks. A Handle can lock again what it holds, deeper in the code,
// without waiting; see [Lock]. Create one with [Pool.Handle].
//
// A Handle may move from one goroutine to another, but is one holder, with one request for
// a lock at a time: a call during another one returns ErrConcurrentUse and does nothing.
// Unlocking and closing never wait for another call.
type Handle struct {
	pool      *Pool
	transient bool // created for a call such as Pool.Lock: returned when idle
	closed    atomic.Bool

	mu     sync.Mutex
	holds  holdSet
	recent *hold // one of holds, or nil: the last lock is likely to be locked again
	cause  error // why closed is set

	acquiring context.Context         // of the acquisition in progress, or nil; only the acquisition uses slot
	giveUp    context.CancelCauseFunc // ends acquiring
	slot      *puddleSlot
	nested    *nestedWait // the acquisition's, while it waits at the service and the handle holds something
}

// Format implements fmt.Formatter, so that a handle can be logged while it is in use.
func (h *Handle) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "lockpool.Handle(%p)", h) }

// A holdSet has the holds of a handle, by name. Most handles have one hold, and need no map.
type holdSet struct {
	first *hold
	more  map[string]*hold
}

func (s *holdSet) find(name string) *hold {
	if s.first != nil && s.first.name == name {
		return s.first
	}
	return s.more[name]
}

func (s *holdSet) add(h *hold) {
	switch {
	case s.first == nil:
		s.first = h
	case s.more == nil:
		s.more = map[string]*hold{h.name: h}
	default:
		s.more[h.name] = h
	}
}

func (s *holdSet) remove(h *hold) {
	if s.first == h {
		s.first = nil
	} else {
		delete(s.more, h.name)
	}
}

func (s *holdSet) all() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		if s.first != nil && !yield(s.first) {
			return
		}
		for _, h := range s.more {
			if !yield(h) {
				return
			}
		}
	}
}

// lostBefore returns how the handle has lost a lock that the handle has not unlocked.
func (h *Handle) lostBefore(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.holds.find(name); held != nil {
		return held.life.err()
	}
	return nil
}

// has reports whether the handle has the named lock.
func (h *Handle) has(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds.find(name) != nil
}

// until returns the context of the pool that ends the calls of the handle: a handle that holds
// something may acquire more until Pool.Close, others, and calls without a handle, until
// Pool.Shutdown.
func (h *Handle) until(p *Pool) context.Context {
	if h != nil && h.holdsAny() {
		return p.alive
	}
	return p.accepting
}

// open gets a new handle a slot. From then on the caller must close the handle.
func (h *Handle) open(ctx context.Context) error {
	ctx, err := h.beginAcquisition(ctx)
	if err != nil {
		return err
	}
	defer h.endAcquisition()
	if err = h.mayAcquire(ctx); err != nil {
		return err
	}
	if _, err = h.ensureSlot(ctx, "", 0); err != nil && ctx.Err() != nil {
		return h.pool.withCause(ctx, h, unanswered(err))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.transient = err != nil
	return err
}

// holdsAny reports whether the handle has a hold that has not ended.
func (h *Handle) holdsAny() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holdsAnyLocked()
}

func (h *Handle) holdsAnyLocked() bool {
	for held := range h.holds.all() {
		if !held.life.over.Load() {
			return true
		}
	}
	return false
}

// Lock waits for the named lock until ctx ends. If the handle holds the lock already, the
// depth grows by one, without waiting and without a request to the service. Each successful
// call returns a Lock of its own, to be unlocked once.
//
// ctx bounds the wait, never how long the lock is held. When ctx ends, Lock returns within
// milliseconds with ctx's error in the chain and gives up the place in the queue, in the
// background if the service does not answer.
func (h *Handle) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return h.lock(ctx, name, &request{op: opLock}, new(Lock), opts)
}

// TryLock is Lock without waiting for other contenders: if the lock has a holder or a
// waiter, the error is ErrLocked. TryLock waits for the answer of the service until ctx
// ends.
func (h *Handle) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return h.lock(ctx, name, &request{op: opLock, try: true}, new(Lock), opts)
}

// Do calls fn while the handle holds the named lock, like [Pool.Do] with a new handle.
func (h *Handle) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return errNilFunc
	}
	lock, err := h.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return do(ctx, fn, []*Lock{lock})
}

// lock applies the options and enters. The callers are small enough to be inlined, so l
// stays on the stack of a caller who does not keep l: entering a lock again needs no heap.
func (h *Handle) lock(ctx context.Context, name string, req *request, l *Lock, opts []LockOption) (*Lock, error) {
	if len(opts) > 0 {
		if err := req.with(opts); err != nil {
			return nil, notAcquired(req.String(), name, err)
		}
	}
	return h.enter(ctx, name, req, l)
}

// enter enters the lock again if the handle holds the lock, and otherwise acquires the lock.
// enter sets and returns l.
func (h *Handle) enter(ctx context.Context, name string, req *request, l *Lock) (*Lock, error) {
	again, err := h.enterAgain(ctx, name, req, l)
	if !again && err == nil && h.pool.keeps(req) {
		again, err = h.enterKept(ctx, name, req, l)
	}
	if !again && err == nil {
		err = h.acquire(ctx, name, req, l)
	}
	if err != nil {
		return nil, notAcquired(req.String(), name, err)
	}
	if req.op != opLockAll { // LockAll may fail to get all the locks
		l.apply(req)
	}
	return l, nil
}

// enterAgain enters a lock that the handle holds.
func (h *Handle) enterAgain(ctx context.Context, name string, req *request, l *Lock) (again bool, err error) {
	err = ctx.Err() // panics if ctx is nil
	if err != nil {
		err = h.pool.withCause(ctx, h, err)
	}
	h.mu.Lock()
	held := h.recent
	if held == nil || held.name != name {
		held = h.holds.find(name)
		h.recent = held
	}
	switch {
	case h.acquiring != nil:
		err = ErrConcurrentUse
	case err != nil && h.isClosedByUser():
		err = h.cause
	case err != nil:
	case held != nil:
		if err = held.checkReentry(req); err == nil {
			l.hold, l.entry = held, held.entries.add(req.shared)
		}
	}
	h.mu.Unlock()
	return held != nil, err
}

// apply applies the options of a request that concern the whole hold.
func (l *Lock) apply(req *request) {
	applied := false
	defer func() {
		if !applied { // user code panics, so the caller cannot unlock
			_ = l.hold.handle.unlock(canceled, l)
		}
	}()
	if req.revocable {
		l.hold.makeRevocable()
	}
	if req.atLeast > 0 {
		l.holdAtLeast(req.atLeast)
	}
	applied = true
}

// unlock removes the entry of l. If l was the last entry, unlock releases the lock, and waits
// for the confirmation until ctx ends.
func (h *Handle) unlock(ctx context.Context, l *Lock) (err error) {
	refuseNil(ctx)
	held := l.hold
	h.mu.Lock()
	left, ok := held.entries.remove(l.entry)
	if !ok {
		h.mu.Unlock()
		if err := held.life.err(); err != nil && err != ErrNotHeld {
			return fmt.Errorf("%w: %w", ErrNotHeld, err)
		}
		return ErrNotHeld
	}
	if len(held.entries.list) > 0 {
		finish := func(context.Context) error { return held.life.failure() }
		if held.entries.exclusive == 0 && !left.shared() {
			finish = held.downgrade()
		}
		h.mu.Unlock()
		defer func() { err = finish(ctx) }() // even if user code panics, because the downgrade has begun
		held.life.endEntry(l.entry)          // before others share the lock
		return nil
	}
	h.holds.remove(held)
	h.recent = nil
	h.mu.Unlock()
	defer h.returnIfUnused()
	r := held.release(ctx, ErrNotHeld)
	defer r.report(ctx)
	return r.err
}

// Close releases everything held, at any depth, and returns the handle to the pool. The
// contexts of the locks end, and unlocking them later returns ErrNotHeld. A waiting call
// returns ErrHandleClosed. Closing a handle again is not an error.
//
// ctx bounds the wait for the releases, never whether they happen.
func (h *Handle) Close(ctx context.Context) error { return h.close(ctx, ErrHandleClosed) }

func (h *Handle) close(ctx context.Context, cause error) error {
	refuseNil(ctx)
	var panicked any
	defer raise(&panicked)
	h.mu.Lock()
	h.markClosed(cause)
	holds := h.holds
	h.holds, h.recent = holdSet{}, nil
	for held := range holds.all() {
		held.entries.clear()
	}
	h.mu.Unlock()
	if _, giveUp, _ := h.underWay(); giveUp != nil {
		guard(&panicked, func() { giveUp(cause) }) // calls methods of the caller's context
	}
	defer h.returnIfUnused()
	var errs []error
	for held := range holds.all() {
		r := held.release(ctx, cause)
		defer r.report(ctx) // after all are released
		if r.err != nil && cause == ErrHandleClosed {
			errs = append(errs, &LockError{opUnlock, held.name, r.err})
		}
	}
	return errors.Join(errs...)
}

// underWay returns the context of the acquisition under way and the function that ends the
// context, or nil. holds reports whether the handle holds something.
func (h *Handle) underWay() (ctx context.Context, giveUp context.CancelCauseFunc, holds bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acquiring, h.giveUp, h.holdsAnyLocked()
}

// returnIfUnused returns the handle to the pool if the handle is closed, or was created
// for one call and holds nothing.
func (h *Handle) returnIfUnused() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.transient && h.acquiring == nil && !h.holdsAnyLocked() {
		h.markClosed(ErrNotHeld)
	}
	if h.closed.Load() && h.acquiring == nil {
		h.releaseSlot()
	}
}

// isClosedByUser reports whether Close of the handle or the pool was called. The caller
// holds mu.
func (h *Handle) isClosedByUser() bool { return h.closed.Load() && h.cause != ErrNotHeld }

// markClosed keeps the handle from locking. The caller holds mu.
func (h *Handle) markClosed(cause error) {
	if h.closed.Load() {
		return
	}
	h.cause = cause
	h.closed.Store(true)
	h.pool.mu.Lock()
	delete(h.pool.handles, h)
	h.pool.mu.Unlock()
}
