package telemetry

// This file has the telemetry of a lock while held.

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Hold is a lock while held.
type Hold struct {
	t       *Telemetry
	lock    Lock
	traced  bool
	span    trace.Span // nil without Config.HoldSpans
	counted bool       // counted among the held locks
	failure atomic.Pointer[error]
}

// Begin reports the grant. ctx is the context of the requesting call; traced is Traced of
// the acquisition.
func (h *Hold) Begin(ctx context.Context, t *Telemetry, lock Lock, traced bool) {
	h.t, h.lock, h.traced = t, lock, traced
	if t.Profiles {
		profiles().held.Add(h, 1)
	}
	h.counted = t.countHeld(lock, 1)
	if t.HoldSpans {
		_, h.span = t.tracer.Start(ctx, spanHold)
	}
}

// Withdraw reports that the grant did not take effect: the session or the pool ended
// first.
func (h *Hold) Withdraw() {
	h.leaveCounts()
	if h.span != nil {
		h.span.End()
	}
}

func (h *Hold) leaveCounts() {
	if h.t.Profiles {
		profiles().held.Remove(h)
	}
	if h.counted {
		h.t.countHeld(h.lock, -1)
	}
}

// Overdue reports that the hold has lasted for longer than d. at is where the lock was asked for.
func (h *Hold) Overdue(ctx context.Context, d time.Duration, at string) {
	if h.span != nil {
		h.span.AddEvent("lockpool.overdue")
	}
	if h.t.overdue.Enabled(ctx) {
		h.t.overdue.Add(ctx, 1, h.t.option(h.t.labelsOf(h.lock)))
	}
	h.t.Logger.WarnContext(ctx, "lockpool: a lock is held for too long", "lock", h.lock.Name, "kind", h.lock.Kind.String(), "for", d, "at", at)
}

// Failed records an error of the work under the lock, for the span of the hold. It calls
// no user code.
func (h *Hold) Failed(err error) { h.failure.Store(&err) }

// End reports the end. lost is the cause of a loss, and otherwise nil. token is 0 if
// unknown.
func (h *Hold) End(began, ended time.Time, token int64, lost error) {
	h.leaveCounts() // first, because user code may panic
	h.t.recordHold(h.lock, ended.Sub(began))
	if lost != nil {
		h.t.lockLost(h.lock, lost)
		h.t.Logger.Warn("lockpool: lock lost", "lock", h.lock.Name, "kind", h.lock.Kind.String(),
			"held", ended.Sub(began).Round(time.Millisecond), "cause", lost)
	}
	if h.span == nil {
		return
	}
	if h.span.IsRecording() {
		attrs := h.attributes(token)
		attrs.setOn(h.span)
		if failure := h.failure.Load(); failure != nil {
			h.t.fail(h.span, *failure)
		}
		if lost != nil {
			h.span.AddEvent("lockpool.lost")
			h.t.fail(h.span, lost)
		}
	}
	h.span.End(trace.WithTimestamp(ended))
}

// Now returns the time for Released, which needs the time only of a traced lock.
func (h *Hold) Now() (now time.Time) {
	if h.traced {
		now = time.Now()
	}
	return now
}

// Released reports a release by the service. A lock left to other handles of the pool is not
// reported.
func (h *Hold) Released(ctx context.Context, began time.Time, token int64, err error) {
	if !h.traced {
		return
	}
	_, span := h.t.tracer.Start(ctx, spanRelease, h.t.start[0], trace.WithTimestamp(began))
	defer span.End()
	if !span.IsRecording() {
		return
	}
	attrs := h.attributes(token)
	attrs.setOn(span)
	if err != nil {
		h.t.fail(span, err)
	}
}

func (h *Hold) attributes(token int64) (attrs attributes) {
	attrs.addLock(h.lock)
	attrs.add(keyDriver.String(h.t.Driver))
	if token != 0 {
		attrs.add(keyToken.Int64(token))
	}
	return attrs
}

// Reentered reports how many times the lock was entered again.
func (h *Hold) Reentered(times int) { h.t.countReentries(h.lock, times) }
