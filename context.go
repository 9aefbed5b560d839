package lockpool

// This file has contexts that bound waits.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// refuseNil panics if ctx is nil, before anything has changed, and calls no method of ctx.
func refuseNil(ctx context.Context) {
	if ctx == nil {
		panic("lockpool: nil context")
	}
}

// bound returns a context that ends when ctx does, or when until does, with the cause
// of until.
func bound(ctx, until context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if until.Err() != nil {
		cancel(context.Cause(until))
	}
	stop := context.AfterFunc(until, func() { cancel(context.Cause(until)) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// withCause completes the error of a call on the pool whose context has ended: with the
// context's error, for example if a session was lost at the same moment, and with the cause.
// The handle is nil if the call has none. If the context was that of a lock, the error names
// the lock. The error is ErrPoolClosed or ErrHandleClosed only if the call's own pool or handle
// is closed, and tells the cause as an error only if the lock is of the call's own handle.
func (p *Pool) withCause(ctx context.Context, h *Handle, err error) error {
	cause := context.Cause(ctx)
	held := heldWith(ctx, cause)
	closed := cause == ErrPoolClosed || cause == ErrHandleClosed
	ours := cause == ErrPoolClosed && p.accepting.Err() != nil || cause == ErrHandleClosed && h != nil && h.closed.Load()
	if ours && (held == nil || held.handle == h || held.handle.pool == p && cause == ErrPoolClosed) {
		return cause
	}
	if !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	switch {
	case cause == ctx.Err():
	case held != nil && (closed || held.handle != h):
		err = fmt.Errorf("%w: the context of lock %q has ended: %v", err, held.name, cause)
	case held != nil:
		err = fmt.Errorf("%w: the context of lock %q has ended: %w", err, held.name, cause)
	case closed:
		err = fmt.Errorf("%w: %v", err, cause)
	default: // perhaps the error of another call, as in a group of goroutines
		err = fmt.Errorf("%w: %w", err, apart(cause))
	}
	return err
}

// heldWith returns the hold that has ended ctx with the cause, or nil.
func heldWith(ctx context.Context, cause error) (ended *hold) {
	if !isEndOfHold(cause) {
		return nil
	}
	for c := innermost(ctx); c != nil && context.Cause(c) == cause; c = innermost(c.parent) {
		ended = c.hold // the outermost: those within have ended with it
	}
	return ended
}

// beyondHolds returns a context that bounds a wait as ctx does, except that, if ctx is
// the context of a lock, it does not end with the lock: releasing the lock ends ctx. The
// returned context's Done and Err call no method of ctx, which may panic.
func beyondHolds(ctx context.Context) (context.Context, context.CancelFunc) {
	held := innermost(ctx)
	if held == nil {
		return context.WithCancel(ctx)
	}
	outside := held.parent
	for held = innermost(outside); held != nil; held = innermost(outside) {
		outside = held.parent
	}
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if deadline, ok := ctx.Deadline(); ok {
		wait, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	endsWith := func(outer context.Context, reaches func() bool) func() bool {
		return context.AfterFunc(outer, func() {
			cause := context.Cause(outer) // waits until the contexts derived from outer have ended, too
			if cause != ErrPoolClosed && heldWith(outer, cause) == nil && cause != context.DeadlineExceeded && reaches() {
				cancel()
			}
		})
	}
	stopOutside := endsWith(outside, func() bool { return hasEndedThroughout(ctx) })
	stop := endsWith(ctx, func() bool { return true }) // for contexts between the two
	return wait, func() {
		stopOutside()
		stop()
		cancel()
	}
}

// hasEndedThroughout reports whether ctx has ended, and so have the parents of all contexts of
// locks that ctx is derived from: context.WithoutCancel passes on the values of a parent, but not
// the end.
func hasEndedThroughout(ctx context.Context) bool {
	for ctx.Err() != nil {
		held := innermost(ctx)
		if held == nil {
			return true
		}
		ctx = held.parent
	}
	return false
}

// isEndOfHold reports whether cause is one that ends the context of a lock. Such causes can be
// compared; those of callers perhaps not.
func isEndOfHold(cause error) bool {
	switch cause {
	case ErrNotHeld, ErrRevoked, ErrHandleClosed, ErrPoolClosed:
		return true
	}
	return errors.Is(cause, ErrLockLost) && reflect.ValueOf(cause).Comparable()
}

// outlasting returns a context that ends d after ctx has.
func outlasting(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(d, cancel)
		context.AfterFunc(wait, func() { timer.Stop() })
	})
	return wait, func() {
		stop()
		cancel()
	}
}
