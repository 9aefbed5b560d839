package lockpool

// This file has one request for a lock, from the call to the grant.

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/telemetry"
	"github.com/lockpool/lockpool/recipe"
)

// acquire acquires a lock not held by the handle, with l as the Lock.
func (h *Handle) acquire(ctx context.Context, name string, req *request, l *Lock) error {
	if err := h.pool.checkName(name); err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned && l.hold != nil { // user code panics, so the caller cannot unlock
			_ = h.unlock(canceled, l) // continues in the background
		}
	}()
	err := h.acquireAlone(ctx, name, req, l)
	returned = true
	return err
}

// acquireAlone is acquire, as the one acquisition of the handle.
func (h *Handle) acquireAlone(ctx context.Context, name string, req *request, l *Lock) (err error) {
	if ctx, err = h.beginAcquisition(ctx); err != nil {
		return err
	}
	err = errPanic // unless grant returns
	defer h.endAcquisition()
	if err := h.mayAcquire(ctx); err != nil {
		return err
	}
	if h.has(name) { // another call has just taken the lock
		return ErrConcurrentUse
	}
	ctx, cancel := req.bound(ctx)
	defer cancel()
	a := h.newAcquisition(ctx, name, req)
	ctx = a.begin(ctx)
	defer func() { a.end(err); h.noteInside(a) }()
	err = h.grant(ctx, a, l)
	switch {
	case err == nil || ctx.Err() == nil:
	case a.req.revocable && a.isRevoked():
		err = ErrRevoked
	default:
		err = h.pool.withCause(ctx, h, err)
	}
	a.nested.report(err)
	return err
}

func (h *Handle) newAcquisition(ctx context.Context, name string, req *request) *acquisition {
	a := &acquisition{pool: h.pool, name: name, req: *req}
	a.local.alone, a.local.hasSlot = !h.mayWaitLocally(req), h.slot != nil
	_, a.local.giveUp, _ = h.underWay()
	a.local.admission = h.pool.newAdmission(ctx, req)
	return a
}

// errPanic is reported for an acquisition during which user code, such as a span
// processor, panics.
var errPanic = errors.New("panic")

// beginAcquisition begins the one acquisition of the handle, whose context ends with ctx, when
// the handle is closed, and when the pool is. After success, the caller defers endAcquisition
// before calling mayAcquire, which may panic.
//
// beginAcquisition is a separate function, as others below are, because the cost of a waiter is
// the frames of the waiting goroutine (DESIGN.md, "A waiter weighs its stack").
func (h *Handle) beginAcquisition(ctx context.Context) (_ context.Context, err error) {
	err = errPanic
	defer func() {
		if err != nil {
			h.returnIfUnused()
		}
	}()
	if !h.pool.begin() {
		return ctx, ErrPoolClosed
	}
	defer func() {
		if err != nil {
			h.pool.work.Done()
		}
	}()
	ctx, giveUp := context.WithCancelCause(ctx) // calls methods of the caller's context
	if err = h.setAcquiring(ctx, giveUp); err != nil {
		giveUp(nil)
	}
	return ctx, err
}

func (h *Handle) setAcquiring(ctx context.Context, giveUp context.CancelCauseFunc) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.acquiring != nil:
		return ErrConcurrentUse
	case h.closed.Load():
		return h.cause
	}
	h.acquiring, h.giveUp = ctx, giveUp
	return nil
}

// mayAcquire returns an error if the acquisition has ended already. Shutdown or Close may have
// looked before the acquisition began.
func (h *Handle) mayAcquire(ctx context.Context) error {
	if until := h.until(h.pool); until.Err() != nil {
		_, giveUp, _ := h.underWay()
		giveUp(context.Cause(until)) // calls methods of the caller's context
	}
	if err := ctx.Err(); err != nil {
		return h.pool.withCause(ctx, h, err)
	}
	return nil
}

func (h *Handle) endAcquisition() {
	defer h.returnIfUnused()
	defer h.pool.work.Done()
	h.mu.Lock()
	giveUp := h.giveUp
	h.acquiring, h.giveUp = nil, nil
	h.mu.Unlock()
	giveUp(nil) // calls methods of the caller's context
}

// grant acquires the lock, from the service or from a holder of the pool. A waiter whose
// session ends, or whose node is removed, queues again.
func (h *Handle) grant(ctx context.Context, a *acquisition, l *Lock) error {
	defer a.using(nil)
	defer a.resign() // does nothing after a grant: turns.begin has ended the role of the delegate
	for {
		t, turn, err := a.awaitTurn(ctx)
		if err == nil && t == nil && h.pool.keeps(&a.req) {
			t, turn = a.takeKept() // for a call that does not wait in memory
		}
		if err == nil && t == nil {
			t, err = h.acquireFromService(ctx, a)
		}
		if err == nil {
			err = h.establish(ctx, t, turn, a, l)
		}
		if err != nil && a.local.admission != nil {
			a.completeRefusal(ctx, err)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, driver.ErrRemoved) || errors.Is(err, driver.ErrSessionLost)):
			// It is too late to queue again.
			return a.describeBlocker(ctx, err)
		case !errors.Is(err, driver.ErrRemoved) && !errors.Is(err, driver.ErrSessionLost):
			return err
		}
		a.Requeued(err)
		h.pool.local.note(&a.local.hasWaited)
	}
}

// acquireFromService waits for the lock in the service's queue, as the lock's recipe says.
func (h *Handle) acquireFromService(ctx context.Context, a *acquisition) (*tenancy, error) {
	s, err := h.sessionFor(ctx, a)
	if err != nil {
		return nil, err
	}
	a.using(s)
	within, nested := h.beginNested(ctx, a, s)
	defer nested.end()
	lock, err := a.newClaim(within, s, nested)
	if err != nil {
		return nil, nested.explain(ctx, err)
	}
	var node driver.Node
	if a.req.try {
		node, err = lock.Try(within)
	} else {
		node, err = lock.Acquire(within)
	}
	if err == nil {
		a.noteJoined()
	}
	err = nested.explain(ctx, err)
	if nested != nil && err == nil {
		nested.tried = false // the age ends with the grant
	}
	nested.end() // before user code is told
	if err != nil {
		return nil, err
	}
	return newTenancy(a, s, node), nil
}

// sessionFor returns the session of the place left by a delegate that gave up, or one for a
// node.
func (h *Handle) sessionFor(ctx context.Context, a *acquisition) (*session, error) {
	if at := a.local.place; at != nil {
		return at.session, nil
	}
	if err := a.checkTry(); err != nil {
		return nil, err
	}
	return h.chooseSession(ctx, a)
}

// newClaim returns the claim on the lock, which joins the service's queue or takes over the
// place left by another delegate.
func (a *acquisition) newClaim(ctx context.Context, s *session, nested *nestedWait) (taker, error) {
	local := &a.pool.local
	var node driver.Node
	a.data = nil
	if at := a.local.place; at != nil {
		node, a.data, a.tookOver = at.node, at.data, true
		a.placeToTell()
	}
	switch {
	case nested != nil:
		a.data, a.local.at = nested.dataNow(), nested.at
	case a.data == nil:
		r := nodedata.Request{Span: a.local.span, Local: !a.local.alone, At: a.placeToTell(), Revocable: a.req.revocable}
		if a.req.permits > 0 {
			r.Ask = a.pool.newAsk()
		}
		a.data = a.pool.owner.Data(r)
	}
	a.onSession(s)      // user code: may panic
	a.local.place = nil // from here on, the claim removes the node
	claim := &recipe.Claim{
		Session:   s.Session,
		Queue:     a.name,
		Views:     &s.views,
		Node:      node,
		Data:      a.data,
		Observer:  a,
		Revocable: a.req.revocable,
	}
	if a.pool.keeps(&a.req) { // costs a refused try a request for each obstacle
		claim.Kept = isKeptNode
	}
	if !a.local.alone {
		claim.PassOn = func(node driver.Node) bool {
			passed := local.passPlace(&a.local, &place{s, node, a.data})
			if passed {
				a.PassedPlace()
			}
			return passed
		}
	}
	if joins := node == (driver.Node{}); joins {
		if a.local.admission.isUndecided() {
			if err := a.askForRoom(ctx, s); err != nil {
				return nil, err
			}
			claim.Admit = a.admit
		}
		if !a.req.plain { // a plain lock is created at the end of the wait
			a.joining, a.joinBegan = s, time.Now()
		}
	}
	return a.req.recipe(claim), nil
}

// handlePatience is how long a call with possible waiters behind waits for a free handle,
// before going on without.
const handlePatience = 10 * time.Millisecond

// chooseSession returns the session for a node. Others may wait for a call, because the
// handle holds a lock or because they wait behind the call in memory. Such a call does
// without a slot for the handle if none is free: the waiters may have the slots.
func (h *Handle) chooseSession(ctx context.Context, a *acquisition) (*session, error) {
	var patience time.Duration
	if a.local.queue != nil && (a.local.hasWaited || a.local.hasSlot) || h.holdsAny() {
		patience = handlePatience
	}
	queue := "" // holders of permits, and readers, do not all depend on one session
	if a.local.queue == nil && !a.req.try && a.req.kind() == driver.Exclusive {
		queue = a.name
	}
	s, err := h.ensureSlot(ctx, queue, patience)
	if err == nil {
		h.pool.local.note(&a.local.hasSlot)
	}
	return s, err
}

// establish registers and enters a granted hold.
func (h *Handle) establish(ctx context.Context, t *tenancy, turn int, a *acquisition, l *Lock) (err error) {
	held := newHold(h, a.name, &a.req, t, turn)
	established, reported := false, false
	defer func() {
		if established {
			return
		}
		// The pool or the handle is closed, or user code panics.
		t.drop(ctx) // without a watch: the next holder watches at once
		if reported {
			held.telemetry.Withdraw()
		}
	}()
	if err = t.session.Alive(ctx); err != nil {
		t.endIfLost(err) // so no other waiter has a turn
		return err
	}
	if a.req.revocable && a.isRevoked() {
		return ErrRevoked
	}
	reported = true // first, because a registered hold can end at any moment
	a.granted(held)
	h.mu.Lock()
	defer h.mu.Unlock()
	err = h.register(held, a.req.shared, l)
	established = err == nil
	if established && a.isRevoked() { // now the call is no delegate anymore
		held.life.revoke()
	}
	return err
}

// register registers a hold, and enters. The caller holds mu.
func (h *Handle) register(held *hold, shared bool, l *Lock) error {
	if h.cause != nil {
		return h.cause
	}
	if err := h.pool.addHold(held); err != nil {
		return err
	}
	h.holds.add(held)
	l.hold, l.entry = held, held.entries.add(shared)
	return nil
}

// acquisition is one request for a lock. It tells telemetry, the figures of the pool and the
// nested wait what becomes of the request: it is the recipe's Observer.
type acquisition struct {
	telemetry.Acquisition
	pool *Pool
	name string
	req  request

	call     context.Context // of the caller
	waiting  bool
	longWait *time.Timer
	tookOver bool // the place in the queue from another call
	progress progress
	local    localWaiter // the place among the calls of the pool
	nested   *nestedWait // nil if the handle holds nothing
	asked    int64       // order number of the first node; 0 if unknown
	data     []byte      // stored in the node

	session   *session // that the call needs; nil if none
	joining   *session // where the node is being created; nil if that is over
	joinBegan time.Time

	// For the costs.
	weight     int32 // for how many calls this one counts
	weighed    bool
	again      bool      // the node has joined directly after another of the pool
	beside     bool      // other calls of the pool have nodes
	stageBegan time.Time // of the wait behind a node; zero during none
}

// hasAsked records the order number of a node, or 0, and returns the smallest so far.
func (a *acquisition) hasAsked(order int64) (first int64) {
	asked := &a.asked
	if a.req.asked != nil {
		asked = a.req.asked
	}
	if order != 0 && (*asked == 0 || order < *asked) {
		*asked = order
	}
	return *asked
}

func (a *acquisition) lock() telemetry.Lock {
	return telemetry.Lock{Name: a.name, Kind: a.req.kind()}
}

func (a *acquisition) begin(ctx context.Context) context.Context {
	a.call = ctx
	a.Candidate = a.req.op == opElect
	a.beside = a.pool.costs.enter(a.name)
	ctx = a.Begin(ctx, a.pool.telemetry, a.lock(), a.req.permits)
	w := &a.local // before other calls can see it
	w.progress, w.shared, w.revocable, w.began, w.span = &a.progress, a.req.shared, a.req.revocable, a.Began(), a.pool.spanToLink(ctx)
	return ctx
}

// spanToLink returns the span of ctx, which waits are linked to, or nil.
func (p *Pool) spanToLink(ctx context.Context) *trace.SpanContext {
	if p.telemetry.NoLinks {
		return nil
	}
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return nil
	}
	kept := span // on the heap only where there is a span
	return &kept
}

// using says which session the call needs from now on, or nil.
func (a *acquisition) using(s *session) {
	if s != nil {
		s.calls.Add(1)
	}
	if a.session != nil {
		a.session.calls.Add(-1)
	}
	a.session = s
}

func (a *acquisition) onSession(s *session) {
	a.progress.onSession(s)
	a.OnSession(s)
}

// Waiting implements recipe.Observer.
func (a *acquisition) Waiting(w recipe.Wait) (wantHolder bool) {
	a.hasAsked(w.Created)
	a.pool.local.noteQueued(&a.local)
	a.nested.waiting(w)
	a.beginStage(w)
	a.progress.waitsBehind(w)
	a.waits(func() { wantHolder = a.Acquisition.Waiting(w) })
	return wantHolder
}

// waits reports a wait with the function.
func (a *acquisition) waits(report func()) {
	first := !a.waiting
	if first {
		a.waiting = true
		a.pool.waiting.Add(1)
		if d := a.pool.telemetry.LongWait; d > 0 {
			a.longWait = time.AfterFunc(max(d-time.Since(a.Began()), 0), a.warnLongWait)
		}
	}
	report()
	if first && a.pool.seemsToWaitForItself(a.call, a.name) {
		a.pool.telemetry.LogSelfDeadlock(a.call, a.name)
	}
}

// Queued implements recipe.Observer.
func (a *acquisition) Queued(self driver.Node, place, length int) {
	a.noteJoined()
	a.progress.queued(self.Name)
	a.nested.joined(self, 0)
	a.Predict(func() time.Duration { return time.Duration(place) * a.pool.costs.usual(a.name) })
	a.Acquisition.Queued(self, place, length)
}

// noteJoined tells the session that the node has been created.
func (a *acquisition) noteJoined() {
	if a.joining != nil {
		a.joining.noteJoined(time.Since(a.joinBegan))
		a.joining = nil
	}
}

// Requeued reports why the acquisition queues again.
func (a *acquisition) Requeued(why error) {
	if a.local.admission != nil {
		a.local.admission.began = time.Time{} // an outage does not say how long turns are
	}
	a.joining = nil
	a.endStage()
	a.progress.requeued()
	a.Acquisition.Requeued(why)
}

// Woken implements recipe.Observer.
func (a *acquisition) Woken(e driver.Event, nearest bool) {
	over := e == driver.Interrupted || nearest && e != driver.Changed
	if over {
		a.endStage()
	}
	a.progress.woken(e, over)
	a.Acquisition.Woken(e, nearest)
}

func (a *acquisition) granted(h *hold) {
	h.cost.weight = a.weigh() // finds the line
	h.cost.at = cmp.Or(a.local.at, h.cost.at)
	h.telemetry.Begin(a.call, a.pool.telemetry, h.lock(), a.Traced())
	a.Granted(h.tenancy.node, h.turn > 0)
}

func (a *acquisition) end(err error) {
	if a.waiting {
		a.pool.waiting.Add(-1)
	}
	if a.longWait != nil {
		a.longWait.Stop()
	}
	if bounds := a.local.admission; err == nil && bounds != nil && !bounds.began.IsZero() {
		a.pool.local.notePace(a.name, bounds)
	}
	a.account(err)
	if err != nil { // there is no hold, which would leave in the end
		a.pool.costs.leave(a.name)
	}
	a.End(err)
}
