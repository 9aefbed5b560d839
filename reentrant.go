package lockpool

// This file has the contexts of locks and the holder in them.

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/petermattis/goid"
)

// heldContext is a context that ends with an entry into a lock, and carries the holder.
type heldContext struct {
	context.Context // derived from parent; ends earlier with the entry
	parent          context.Context
	cancel          context.CancelCauseFunc
	hold            *hold
	entry           uint64      // of the creating Lock
	goroutine       int64       // where the context carries the holder
	forget          func() bool // keeps the end of the parent from removing the context from the hold
}

// holderKey is the key of the innermost heldContext of a pool, heldKey that of the
// innermost one of all.
type (
	holderKey struct{ *Pool }
	heldKey   struct{}
)

func newHeldContext(parent context.Context, l *Lock) *heldContext {
	c := &heldContext{parent: parent, hold: l.hold, entry: l.entry, goroutine: goid.Get()}
	c.Context, c.cancel = context.WithCancelCause(parent)
	if cause := l.hold.addContext(c); cause != nil {
		c.cancel(cause)
	}
	return c
}

// endAll ends contexts for a cause. Each cancellation ends its context, and then calls
// methods of the parent, which are user code and may block or panic: no mutex is held. In a
// call of the holder, endAll waits for the methods, and returns what the last panic was
// about. A loss or a revocation concerns other holders, too, and waits for no method.
func endAll(contexts iter.Seq[*heldContext], cause error, ownCall bool) (panicked any) {
	for c := range contexts {
		if c.forget != nil {
			c.forget()
		}
		if ownCall {
			guard(&panicked, func() { c.cancel(cause) })
			continue
		}
		go c.cancel(cause) // ends when the methods return
		<-c.Context.Done()
		context.Cause(c.Context) // waits until the contexts derived from c have ended, too
	}
	return panicked
}

// Value implements context.Context.
func (c *heldContext) Value(key any) any {
	switch key {
	case heldKey{}, holderKey{c.hold.handle.pool}:
		return c
	}
	return c.Context.Value(key)
}

// innermost returns the innermost heldContext, or nil.
func innermost(ctx context.Context) *heldContext {
	c, _ := ctx.Value(heldKey{}).(*heldContext)
	return c
}

// LockFromContext returns the innermost lock whose context ctx is, or is derived from,
// whether [Lock.Context] or a Do of any pool created it. With it, code under a lock can
// get the fencing token. Unlike the holder that a context carries, the lock is found on
// every goroutine. It is not a new entry: do not unlock it.
func LockFromContext(ctx context.Context) (*Lock, bool) {
	c := innermost(ctx)
	if c == nil {
		return nil, false
	}
	return &Lock{hold: c.hold, entry: c.entry}, true
}

// carriedHandle returns the handle that ctx carries on this goroutine, or nil.
func (p *Pool) carriedHandle(ctx context.Context) *Handle {
	c, _ := ctx.Value(holderKey{p}).(*heldContext)
	if c == nil || c.goroutine != goid.Get() {
		return nil
	}
	h := c.hold.handle
	if !h.closed.Load() {
		return h
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.isClosedByUser() && errors.Is(c.hold.life.err(), ErrLockLost) { // a lost lock stays lost
		return h
	}
	return nil
}

// seemsToWaitForItself reports whether the holder in ctx already has the lock that the
// caller waits for, but ctx was created on another goroutine and so does not carry the
// holder on this one. If that goroutine waits for this one, they deadlock.
func (p *Pool) seemsToWaitForItself(ctx context.Context, name string) bool {
	c, _ := ctx.Value(holderKey{p}).(*heldContext)
	return c != nil && c.goroutine != goid.Get() &&
		slices.ContainsFunc(p.holdsOf(name), func(h *hold) bool { return h.handle == c.hold.handle && !h.life.over.Load() })
}
