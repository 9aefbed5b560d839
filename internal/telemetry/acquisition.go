package telemetry

// This file has the telemetry of one request for a lock.

import (
	"context"
	"errors"
	rtrace "runtime/trace"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// Acquisition is one request for a lock. One goroutine at a time may call the methods.
type Acquisition struct {
	t      *Telemetry
	lock   Lock
	ctx    context.Context // with the acquire span
	span   trace.Span
	began  time.Time
	traced bool

	self     string // our node while in the queue
	position int    // in the queue when joining it; -1 before
	wakeups  int
	requeues int
	local    bool // granted in memory

	waiting   bool // has waited for other contenders
	kept      bool // one of them kept the lock
	waitBegan time.Time
	wait      trace.Span // nil before startWait
	behind    *Behind    // in memory; nil if there is nothing to link to
	region    *rtrace.Region
	linked    []trace.SpanID
	room      [2]trace.SpanID // for the first of them
	counted   bool            // counted among the waiters
	predicted time.Duration   // wait; 0 if not known

	// Candidate is set before Begin for a wait that may rightly last for days, and does not
	// count as the oldest.
	Candidate bool

	next, previous *Acquisition // in Telemetry.waits

	attrs, waitAttrs attributes // of the spans, if recorded
}

// Begin begins the span of an acquisition, and returns a context with the span. permits is
// 0 unless the lock is a semaphore.
func (a *Acquisition) Begin(ctx context.Context, t *Telemetry, lock Lock, permits int) context.Context {
	a.t, a.lock, a.position, a.began = t, lock, -1, time.Now()
	a.ctx, a.span = ctx, noSpan
	if !t.isUntraced(a.began) {
		a.ctx, a.span = t.tracer.Start(ctx, spanAcquire, t.start...)
	}
	if a.noteTraced(); a.span.IsRecording() {
		a.describe(permits)
	}
	return a.ctx
}

var noSpan = trace.SpanFromContext(context.Background())

// isUntraced reports whether the program has set no global provider, as the latest acquisition
// has shown. An agent may begin to trace a program without setting a provider, so that a span is
// started once a second.
func (t *Telemetry) isUntraced(now time.Time) bool {
	if t.traces.Load() || t.global == nil || otel.GetTracerProvider() != t.global {
		return false
	}
	const often = int64(time.Second)
	at := now.UnixNano()
	if tried := t.tried.Load(); at-tried > often || at < tried {
		t.tried.Store(at)
		return false
	}
	return true
}

func (a *Acquisition) noteTraced() {
	a.traced = a.span.SpanContext().IsValid()
	if a.t.traces.Load() != a.traced {
		a.t.traces.Store(a.traced)
	}
}

func (a *Acquisition) describe(permits int) {
	a.attrs.addLock(a.lock)
	a.attrs.add(keyDriver.String(a.t.Driver))
	if a.t.Pool != "" {
		a.attrs.add(keyPool.String(a.t.Pool))
	}
	if permits > 0 {
		a.attrs.add(keyPermits.Int(permits))
	}
}

// Traced reports whether there is a tracer provider. A provider gives valid contexts even
// to spans not recorded. Without a provider, other spans need not be started.
func (a *Acquisition) Traced() bool { return a.traced }

// Context returns the context with the span of the acquisition.
func (a *Acquisition) Context() context.Context { return a.ctx }

// Began returns when the acquisition began.
func (a *Acquisition) Began() time.Time { return a.began }

// OnSession reports the session of the acquisition.
func (a *Acquisition) OnSession(s driver.Session) {
	if a.span.IsRecording() {
		a.attrs.addSession(s.Info())
	}
}

// Queued implements recipe.Observer.
func (a *Acquisition) Queued(self driver.Node, position, length int) {
	joined := a.self != self.Name
	a.self = self.Name
	switch {
	case self.Kind == driver.Permit: // the guard has already queued
		return
	case joined:
		a.position = position
		a.t.queued(a.ctx, a.lock, length)
		if a.span.IsRecording() {
			a.span.AddEvent("lockpool.enqueued")
			a.attrs.add(keyNode.String(self.Name), keyPosition.Int(position), keyLength.Int(length))
			a.attrs.setOn(a.span)
		}
	case a.wait != nil && a.wait.IsRecording():
		a.wait.AddEvent("lockpool.queue.seen", trace.WithAttributes(keyPosition.Int(position), keyLength.Int(length)))
	}
}

// Predict says how long the wait will last, if the span of the acquisition is recorded.
func (a *Acquisition) Predict(wait func() time.Duration) {
	if a.span.IsRecording() {
		a.predicted = wait()
	}
}

// Waiting implements recipe.Observer.
func (a *Acquisition) Waiting(w recipe.Wait) (wantHolder bool) {
	a.beginWait()
	a.startWait()
	if !a.wait.IsRecording() {
		return false
	}
	a.waitAttrs.add(keyBlocker.String(w.Behind.String()))
	blocker := nodedata.Parse(w.Data)
	if owner := blocker.String(); owner != "" {
		a.waitAttrs.add(keyBlockerOwner.String(owner))
	}
	if a.kept = a.kept || blocker.Kept; a.kept { // false after an answer that the lock is in use
		a.waitAttrs.add(keyBlockerKept.Bool(blocker.Kept))
	}
	a.waitAttrs.setOn(a.wait) // now, because the wait may be long
	if a.t.NoLinks {
		return false
	}
	role := rolePredecessor
	if w.Holder == w.Behind {
		role = roleHolder
	}
	a.linkTo(w.Data, role)
	return true
}

// Behind is what a wait for other handles of the pool is linked to: the holder's request, and
// the request before the waiting one, as far as they have spans.
type Behind struct{ Holder, Predecessor *trace.SpanContext }

// longInMemory is the duration from which on a wait for other handles of the pool has a span.
// A shorter wait takes the whole acquisition, whose span has the links.
const longInMemory = 10 * time.Millisecond

// WaitsBehind says what the acquisition waits for if WaitingLocally follows, or nil. It calls
// no user code.
func (a *Acquisition) WaitsBehind(b *Behind) { a.behind = b }

// WaitingLocally reports a wait for other handles of the pool.
func (a *Acquisition) WaitingLocally() {
	a.beginWait()
	if a.wait != nil {
		a.linkInMemory(a.wait)
	}
}

// UntilLong returns a timer for the call of WaitingLong, or nil: after a short wait, the next
// is likely to be short, and a timer costs as much as a span.
func (a *Acquisition) UntilLong() *time.Timer {
	if !a.Traced() || a.t.shortWaits.Load() {
		return nil
	}
	return time.NewTimer(longInMemory)
}

// WaitingLong reports that the wait for other handles of the pool has become long.
func (a *Acquisition) WaitingLong() { a.startWait() }

// linkInMemory links a span to what the acquisition waited for in memory.
func (a *Acquisition) linkInMemory(span trace.Span) {
	if b := a.behind; b != nil && span.IsRecording() {
		a.link(span, b.Holder, roleHolder, false)
		a.link(span, b.Predecessor, rolePredecessor, false) // unless Predecessor is the holder
	}
}

// Holder implements recipe.Observer.
func (a *Acquisition) Holder(_ driver.Node, data []byte) { a.linkTo(data, roleHolder) }

// beginWait counts the waiting acquisition.
func (a *Acquisition) beginWait() {
	if a.waiting {
		return
	}
	a.waiting, a.waitBegan = true, time.Now()
	if rtrace.IsEnabled() {
		a.region = rtrace.StartRegion(a.ctx, spanWait)
	}
	if a.t.Profiles {
		profiles().waiting.Add(a, 1)
	}
	if !a.Candidate { // also if no metric is enabled yet
		a.t.waits.add(a)
	}
	a.counted = a.t.countWaiter(a.ctx, a.lock, 1)
}

// startWait starts the span of the wait, unless started.
func (a *Acquisition) startWait() {
	if a.wait != nil {
		return
	}
	a.wait = trace.SpanFromContext(context.Background()) // does nothing
	if !a.Traced() {
		return
	}
	_, a.wait = a.t.tracer.Start(a.ctx, spanWait, trace.WithTimestamp(a.waitBegan))
	if a.wait.IsRecording() {
		a.waitAttrs.addLock(a.lock)
		if a.position >= 0 {
			a.waitAttrs.add(keyPosition.Int(a.position))
		}
		if a.predicted > 0 {
			a.waitAttrs.add(keyPredicted.Float64(a.predicted.Seconds()))
		}
	}
	a.linkInMemory(a.wait)
}

// linkTo links the wait to the span in the data of a node.
func (a *Acquisition) linkTo(data []byte, role string) {
	owner := nodedata.Parse(data)
	to := owner.SpanContext()
	a.link(a.wait, &to, role, owner.Local)
}

// link links a span to the span of another request. tenancy says that the process of the
// linked request may have passed the lock on to others, and one of them may be in the way.
func (a *Acquisition) link(span trace.Span, to *trace.SpanContext, role string, tenancy bool) {
	const most = 32 // links of one acquisition
	if to == nil || !to.IsValid() || len(a.linked) >= most || slices.Contains(a.linked, to.SpanID()) {
		return
	}
	if a.linked == nil {
		a.linked = a.room[:0]
	}
	a.linked = append(a.linked, to.SpanID())
	span.AddLink(trace.Link{SpanContext: *to, Attributes: linkAttributes[linkRole{role, tenancy}]})
}

// The roles of the requests that a wait is linked to.
const (
	roleHolder      = "holder"
	rolePredecessor = "predecessor"
)

type linkRole struct {
	role    string
	tenancy bool
}

// linkAttributes are shared by all links, which do not change them.
var linkAttributes = map[linkRole][]attribute.KeyValue{}

func init() {
	for _, role := range []string{roleHolder, rolePredecessor} {
		linkAttributes[linkRole{role, false}] = []attribute.KeyValue{keyLink.String(role)}
		linkAttributes[linkRole{role, true}] = []attribute.KeyValue{keyLink.String(role), keyTenancy.Bool(true)}
	}
}

// Woken implements recipe.Observer.
func (a *Acquisition) Woken(e driver.Event, nearest bool) {
	a.wakeups++
	switch {
	case e == driver.Unnoticed:
		a.t.Rescued(a.ctx, a.lock)
	case nearest && (e == driver.Deleted || e == driver.Missing) && a.wait.IsRecording():
		a.wait.AddEvent("lockpool.predecessor.gone")
	}
}

// Requeued reports why the acquisition joins the queue again: the session is over, or the
// node was removed.
func (a *Acquisition) Requeued(why error) {
	a.requeues++
	if a.waiting {
		a.startWait() // the links to what was in the way; the next wait may add others
	}
	a.behind = nil
	if a.span.IsRecording() {
		a.span.AddEvent("lockpool.requeued")
		a.attrs.add(keyRequeuedAfter.String(a.t.ErrorType(why)))
	}
}

// Deadlocked reports that the wait ends because of a deadlock with the calls of the given
// spans.
func (a *Acquisition) Deadlocked(err error, others []trace.SpanContext) {
	a.t.deadlock(a.ctx, a.lock)
	a.t.Logger.WarnContext(a.ctx, "lockpool: deadlock", "lock", a.lock.Name, "kind", a.lock.Kind.String(), "error", err)
	a.beginWait() // if the cycle was found before the wait had seen the queue
	a.startWait()
	if !a.wait.IsRecording() {
		return
	}
	a.wait.AddEvent("lockpool.deadlock", trace.WithAttributes(keyCycle.Int(1+len(others))))
	for _, sc := range others { // even if the wait is linked to one of them already, as the predecessor
		if sc.IsValid() && !a.t.NoLinks {
			a.wait.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{keyLink.String("deadlock")}})
		}
	}
}

// PassedPlace reports that the acquisition gives up, and leaves the place in the queue to
// another one of the pool.
func (a *Acquisition) PassedPlace() {
	if a.span.IsRecording() {
		a.span.AddEvent("lockpool.place.passed_on")
	}
}

// Granted reports the holding node. local says that another handle of the pool passed the
// lock on, or shares the lock.
func (a *Acquisition) Granted(node driver.Node, local bool) {
	a.local = local
	if a.span.IsRecording() {
		a.attrs.add(keyNode.String(node.Name))
		if local {
			a.attrs.add(keyLocal.Bool(true))
		}
	}
}

// End reports the outcome.
func (a *Acquisition) End(err error) {
	if a.region != nil { // user code may panic, and so comes last
		a.region.End()
	}
	if a.waiting && a.t.Profiles {
		profiles().waiting.Remove(a)
	}
	if a.waiting && !a.Candidate {
		a.t.waits.remove(a)
	}
	if a.counted {
		a.t.countWaiter(a.ctx, a.lock, -1)
	}
	if a.waiting && a.Traced() {
		a.endWait()
	}
	if a.wait != nil {
		a.finish(a.wait, &a.waitAttrs, err)
	}
	contended := a.waiting || errors.Is(err, recipe.ErrBusy)
	a.t.acquired(a.ctx, a.lock, a.began, contended, err)
	if a.span.IsRecording() {
		a.attrs.add(keyContended.Bool(contended))
	}
	a.finish(a.span, &a.attrs, err)
}

// endWait gives the wait a span if the wait was long, and the links to the acquisition if not.
func (a *Acquisition) endWait() {
	short := time.Since(a.waitBegan) < longInMemory
	if inMemory := a.self == ""; inMemory && a.t.shortWaits.Load() != short { // seldom
		a.t.shortWaits.Store(short)
	}
	switch {
	case a.wait != nil:
	case short:
		a.linkInMemory(a.span)
	default:
		a.startWait()
	}
}

func (a *Acquisition) finish(span trace.Span, attrs *attributes, err error) {
	if span.IsRecording() {
		outcome, errorType := a.t.outcome(err)
		attrs.add(keyOutcome.String(outcome))
		if !a.local || a.wakeups > 0 { // attributes cost a short turn more than anything else
			attrs.add(keyWakeups.Int(a.wakeups))
		}
		if a.requeues > 0 {
			attrs.add(keyRequeues.Int(a.requeues))
		}
		attrs.setOn(span)
		if errorType != "" {
			a.t.fail(span, err)
		}
	}
	span.End()
}

// Traces reports whether the latest acquisition had a tracer provider.
func (t *Telemetry) Traces() bool { return t.traces.Load() }

// AcquiredAtOnce reports an acquisition without a request, a wait and a span.
func (t *Telemetry) AcquiredAtOnce(ctx context.Context, lock Lock, began time.Time) {
	t.acquired(ctx, lock, began, false, nil)
}
