package lockpool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// release is how a hold was let go.
type release struct {
	hold  *hold
	began time.Time
	asked bool  // the service, to remove the node
	cause error // of the hold's end, if it ended here
	err   error // for the caller
}

// unconfirmed is the error of a release that goes on in the background.
type unconfirmed struct{ error }

func (u unconfirmed) Unwrap() error { return u.error }

// release lets go of the hold, whatever its count. It calls no users' code, so
// nothing keeps the lock from others; report does.
func (h *hold) release(ctx context.Context, cause error) release {
	r := release{hold: h, began: time.Now()}
	if err := h.session.Err(); err != nil { // and mourn, which would say so, may not have come to it
		cause = lostWith(err)
	}
	if !h.end(cause) { // it was lost before
		r.err = h.failure()
		return r
	}
	r.cause = cause
	if errors.Is(cause, ErrLockLost) {
		r.err = cause
		return r
	}
	ctx, cancel := beyondHolds(ctx)
	defer cancel()
	r.asked = true
	err := h.removeNode(ctx)
	switch {
	case err == nil:
	case errors.Is(err, driver.ErrRemoved), errors.Is(err, driver.ErrExpired): // before we let go
		r.cause = lostWith(err)
		h.markLost(r.cause)
		r.err = r.cause
	case errors.Is(err, driver.ErrSessionLost): // after we did, and the node with it
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		r.err = unconfirmed{fmt.Errorf("let go, which the server has not confirmed yet: %w", err)}
	default:
		r.err = err
	}
	return r
}

// report tells of the release, and takes the hold from the record.
func (r release) report(ctx context.Context) {
	p := r.hold.handle.pool
	defer p.removeHold(r.hold)
	if r.cause != nil {
		defer r.hold.reportEnd(r.cause)
	}
	if r.asked {
		p.telemetry.released(ctx, r)
	}
}

// heldKey is the key of the innermost heldContext in a context.
type heldKey struct{}

// beyondHolds returns a context that bounds a wait as ctx does, but does not end
// with a lock whose context ctx is: letting go of the lock ends that itself.
func beyondHolds(ctx context.Context) (context.Context, context.CancelFunc) {
	held, _ := ctx.Value(heldKey{}).(*heldContext)
	if held == nil {
		return ctx, func() {}
	}
	outside := held.parent
	for held, _ = outside.Value(heldKey{}).(*heldContext); held != nil; held, _ = outside.Value(heldKey{}).(*heldContext) {
		outside = held.parent
	}
	wait, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if deadline, ok := ctx.Deadline(); ok { // it ends at, and says so
		wait, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	endsWith := func(outer context.Context) func() bool {
		return context.AfterFunc(outer, func() {
			if cause := context.Cause(outer); !isEndOfHold(cause) && cause != context.DeadlineExceeded {
				cancel()
			}
		})
	}
	stopOutside, stop := endsWith(outside), endsWith(ctx) // ctx for a context in between
	return wait, func() {
		stopOutside()
		stop()
		cancel()
	}
}

// isEndOfHold reports whether cause is why the context of a lock ends.
func isEndOfHold(cause error) bool {
	switch cause {
	case ErrNotHeld, ErrRevoked, ErrHandleClosed, ErrPoolClosed:
		return true
	}
	return errors.Is(cause, ErrLockLost)
}
