package lockpool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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

// withCause completes the error of a call whose context has ended: with the context's
// error, for example if a session was lost at the same moment, and with the cause.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == ErrPoolClosed || cause == ErrHandleClosed {
		return cause
	}
	if !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	if cause != ctx.Err() {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// beyondHolds returns a context that bounds a wait as ctx does, except that, if ctx is
// the context of a lock, it does not end with the lock: releasing the lock ends ctx.
func beyondHolds(ctx context.Context) (context.Context, context.CancelFunc) {
	held := innermost(ctx)
	if held == nil {
		return ctx, func() {}
	}
	outside := held.parent
	for held = innermost(outside); held != nil; held = innermost(outside) {
		outside = held.parent
	}
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if deadline, ok := ctx.Deadline(); ok {
		wait, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	endsWith := func(outer context.Context) func() bool {
		return context.AfterFunc(outer, func() {
			if cause := context.Cause(outer); !isEndOfHold(cause) && cause != context.DeadlineExceeded {
				cancel()
			}
		})
	}
	stopOutside, stop := endsWith(outside), endsWith(ctx) // ctx for contexts between the two
	return wait, func() {
		stopOutside()
		stop()
		cancel()
	}
}

// isEndOfHold reports whether cause is one that ends the context of a lock.
func isEndOfHold(cause error) bool {
	switch cause {
	case ErrNotHeld, ErrRevoked, ErrHandleClosed, ErrPoolClosed:
		return true
	}
	return errors.Is(cause, ErrLockLost)
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
