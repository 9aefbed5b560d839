package lockpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/telemetry"
	"github.com/lockpool/lockpool/recipe"
)

// acquire acquires a lock that the handle does not hold, and makes l its Lock.
func (h *Handle) acquire(ctx context.Context, name string, req request, l *Lock) error {
	if err := h.pool.checkName(name); err != nil {
		h.returnIfUnused()
		return err
	}
	ctx, cancel := req.bound(ctx)
	defer cancel()
	returned := false
	defer func() {
		if !returned && l.hold != nil { // user code panics, so the caller cannot unlock it
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_ = h.unlock(ended, l) // continues in the background
		}
	}()
	err := h.exclusively(ctx, func(ctx context.Context) (err error) {
		a := &acquisition{pool: h.pool, name: name, req: req, local: h.mayWaitLocally(req), hasSlot: h.slot != nil}
		ctx = a.begin(ctx)
		err = errPanic // unless grant returns
		defer func() { a.end(err) }()
		if err = h.grant(ctx, a, l); err != nil && ctx.Err() != nil {
			err = h.pool.withCause(ctx, h, err)
		}
		a.nested.report(err)
		return err
	})
	returned = true
	return err
}

// errPanic is reported for an acquisition during which user code, such as a span
// processor, panics.
var errPanic = errors.New("panic")

// exclusively calls do as the one acquisition of the handle. Its context ends with
// ctx, when the handle is closed, and when the pool is: a handle that holds something
// may acquire more until Pool.Close, others until Pool.Shutdown.
func (h *Handle) exclusively(ctx context.Context, do func(ctx context.Context) error) error {
	defer h.returnIfUnused()
	if !h.pool.begin() {
		return ErrPoolClosed
	}
	defer h.pool.work.Done()
	ctx, err := h.beginAcquisition(ctx)
	if err != nil {
		return err
	}
	defer h.endAcquisition()
	if err := ctx.Err(); err != nil {
		return h.pool.withCause(ctx, h, err)
	}
	return do(ctx)
}

// beginAcquisition is a function of its own, as others below are, because the frames of a
// goroutine that waits are what a waiter costs (DESIGN.md, "What a waiter weighs").
func (h *Handle) beginAcquisition(ctx context.Context) (context.Context, error) {
	until := h.pool.accepting
	h.mu.Lock()
	if len(h.holds) > 0 {
		until = h.pool.alive
	}
	h.mu.Unlock()
	ctx, giveUp := bound(ctx, until) // calls methods of the caller's context
	var err error
	h.mu.Lock()
	switch {
	case h.acquiring:
		err = ErrConcurrentUse
	case h.closed.Load():
		err = h.cause
	default:
		h.acquiring, h.giveUp = true, giveUp
	}
	h.mu.Unlock()
	if err != nil {
		giveUp(nil)
	}
	return ctx, err
}

func (h *Handle) endAcquisition() {
	h.mu.Lock()
	giveUp := h.giveUp
	h.acquiring, h.giveUp = false, nil
	h.mu.Unlock()
	giveUp(nil)
}

// grant acquires the lock, from the service or from a holder of the pool. A waiter whose
// session ends, or whose node is removed, queues again.
func (h *Handle) grant(ctx context.Context, a *acquisition, l *Lock) error {
	defer h.pool.resign(a) // if it does not get the lock for those who wait behind it
	for {
		t, turn, err := h.pool.awaitTurn(ctx, a)
		if err == nil && t == nil {
			t, err = h.acquireFromService(ctx, a)
		}
		if err == nil {
			err = h.establish(ctx, newHold(h, a, t, turn), a, l)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil: // the node may still be on its way out
			return a.describeBlocker(ctx, err)
		case !errors.Is(err, driver.ErrRemoved) && !errors.Is(err, driver.ErrSessionLost):
			return err
		}
		a.Requeued(err)
		if a.queue != nil {
			h.pool.mu.Lock()
			a.hasWaited = true
			h.pool.mu.Unlock()
		}
	}
}

// acquireFromService waits for the lock in the service's queue: the one place where
// handles and recipes meet.
func (h *Handle) acquireFromService(ctx context.Context, a *acquisition) (*tenancy, error) {
	at := a.at
	if at.session == nil {
		err := h.pool.checkTry(a)
		if err != nil {
			return nil, err
		}
		if at.session, err = h.chooseSession(ctx, a); err != nil {
			return nil, err
		}
	}
	s := at.session
	within, nested := h.beginNested(ctx, a, s)
	defer nested.end()
	switch {
	case nested != nil:
		at.data = nested.data
	case at.data == nil && a.req.permits > 0:
		at.data = h.pool.owner.Data(a.span, a.local, h.pool.newAsk())
	case at.data == nil:
		at.data = h.pool.owner.Data(a.span, a.local, "")
	}
	a.onSession(s) // user code, which may panic
	a.at = place{} // from here on, the claim removes the node
	claim := recipe.Claim{
		Session:   s.Session,
		Queue:     a.name,
		Views:     &s.views,
		Node:      at.node,
		Data:      at.data,
		Observer:  a,
		Revocable: a.req.revocable,
	}
	if a.local {
		claim.Keep = func(node driver.Node) bool {
			kept := h.pool.passPlace(a, place{s, node, at.data})
			if kept {
				a.PassedPlace()
			}
			return kept
		}
	}
	take, queue := a.req.recipe(claim)
	node, err := take(within)
	err = nested.explain(ctx, err)
	nested.end() // before user code is told
	if err != nil {
		return nil, err
	}
	nested.gotNested()
	return newTenancy(a, s, queue, node, claim.Data), nil
}

// handlePatience is how long a call for which others may wait waits for a free handle
// before it does without.
const handlePatience = 10 * time.Millisecond

// chooseSession returns the session for a node. A call for which others may wait, because
// the handle holds a lock or because they wait behind the call in memory, does without a
// place for the handle if none is free: those others may have the places.
func (h *Handle) chooseSession(ctx context.Context, a *acquisition) (*session, error) {
	free := ctx
	if a.queue != nil && (a.hasWaited || a.hasSlot) || h.holdsAny() {
		var cancel context.CancelFunc
		free, cancel = context.WithTimeout(ctx, handlePatience)
		defer cancel()
	}
	s, err := h.ensureSlot(ctx, free)
	if err == nil && a.queue != nil {
		h.pool.mu.Lock()
		a.hasSlot = true
		h.pool.mu.Unlock()
	}
	return s, err
}

// establish registers a hold that was granted, and enters it.
func (h *Handle) establish(ctx context.Context, held *hold, a *acquisition, l *Lock) (err error) {
	established, reported := false, false
	defer func() {
		if established {
			return
		}
		// The pool or the handle is closed, or user code panics.
		if held.tenancy.leave() {
			_ = held.tenancy.removeNode(ctx) // continues in the background if it fails
		}
		if reported {
			held.telemetry.Withdraw()
		}
	}()
	if err = held.tenancy.session.Alive(ctx); err != nil {
		held.tenancy.endIfLost(err) // so that nobody else has a turn
		return err
	}
	reported = true // before the hold is registered, and can end
	a.granted(held)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err = h.cause; err == nil {
		err = h.pool.addHold(held)
	}
	if err != nil {
		return err
	}
	if h.holds == nil {
		h.holds = map[string]*hold{}
	}
	h.holds[held.name] = held
	l.hold, l.entry = held, held.entries.add(a.req.shared)
	established = true
	return nil
}

// acquisition follows a request for a lock that goes to the service: for telemetry,
// for the pool's figures, and for the text of its error. It is the recipe's Observer.
type acquisition struct {
	telemetry.Acquisition
	pool *Pool
	name string
	req  request

	call     context.Context   // of the caller
	ctx      context.Context   // with the span
	span     trace.SpanContext // of ctx, if waits are linked to it
	queue    *localQueue       // where it is the delegate or waits, if it is local
	at       place             // that it is to take over
	waiting  bool
	longWait *time.Timer
	nested   *nestedWait // nil if the handle holds nothing

	// Pool.mu guards these, until others no longer find it in the local queue.
	local     bool // it may get the lock from another handle of the pool
	hasSlot   bool // it does not wait for a free handle
	inMemory  bool // it waits in the local queue
	hasWaited bool // it has waited there, or lost its place at the service
	revoked   bool // while it waited there

	mu      sync.Mutex // guards the following, which others read
	session *session
	node    string // in the service's queue
	blocker recipe.Wait
}

func (a *acquisition) lock() telemetry.Lock {
	return telemetry.Lock{Name: a.name, Kind: a.req.kind()}
}

func (a *acquisition) begin(ctx context.Context) context.Context {
	a.call = ctx
	a.ctx = a.Begin(ctx, a.pool.telemetry, a.lock(), a.req.permits)
	if !a.pool.telemetry.NoLinks {
		a.span = trace.SpanContextFromContext(a.ctx)
	}
	return a.ctx
}

func (a *acquisition) onSession(s *session) {
	a.mu.Lock()
	a.session = s
	a.mu.Unlock()
	a.OnSession(s)
}

// Waiting implements recipe.Observer.
func (a *acquisition) Waiting(w recipe.Wait) (wantHolder bool) {
	a.nested.waiting(w)
	a.mu.Lock()
	if w.Data == nil && w.Behind == a.blocker.Behind {
		w.Data = a.blocker.Data // as it was before another client's node was revoked
	}
	a.blocker = w
	a.mu.Unlock()
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
	a.mu.Lock()
	a.node = self.Name
	a.mu.Unlock()
	a.nested.joined(self)
	a.Acquisition.Queued(self, place, length)
}

// Requeued reports why the acquisition queues again.
func (a *acquisition) Requeued(why error) {
	a.mu.Lock()
	a.node, a.blocker = "", recipe.Wait{}
	a.mu.Unlock()
	a.Acquisition.Requeued(why)
}

// Woken implements recipe.Observer.
func (a *acquisition) Woken(e driver.Event, nearest bool) {
	if e == driver.Interrupted || nearest && e != driver.Changed {
		a.mu.Lock()
		a.blocker = recipe.Wait{}
		a.mu.Unlock()
	}
	a.Acquisition.Woken(e, nearest)
}

func (a *acquisition) granted(h *hold) {
	h.telemetry.Begin(a.call, a.pool.telemetry, a.lock(), a.Traced())
	a.Granted(h.tenancy.node, h.turn > 0)
}

func (a *acquisition) end(err error) {
	if a.waiting {
		a.pool.waiting.Add(-1)
	}
	if a.longWait != nil {
		a.longWait.Stop()
	}
	a.End(err)
}

// warnLongWait is called when the wait has lasted for the duration of WithLongWait.
func (a *acquisition) warnLongWait() {
	const patience = 5 * time.Second // for the holder's name
	t, waited := a.pool.telemetry, time.Since(a.Began())
	if !t.ShouldLogLongWait(a.name) || !a.pool.begin() {
		return
	}
	defer a.pool.work.Done()
	a.findBlocker()
	a.mu.Lock()
	w, s := a.blocker, a.session
	a.mu.Unlock()
	var holder driver.Node
	var data []byte
	if s != nil && a.req.kind() != driver.Plain { // waiters for a plain lock wait for its holder
		ctx, cancel := context.WithTimeout(a.ctx, patience)
		defer cancel()
		queue := w.Queue
		if queue == a.name+"/"+driver.Guards {
			queue = a.name + "/" + driver.Leases
		}
		holder, data = recipe.FindHolder(ctx, s, queue)
	}
	t.LogLongWait(a.ctx, a.lock(), waited, w, holder, data)
}

// describeBlocker adds to the error of a call whose context has ended what the call waited
// for: another contender, which it names with the owner as far as they are known
// (ErrLocked), or an answer of the service (ErrUnavailable).
func (a *acquisition) describeBlocker(ctx context.Context, err error) error {
	a.mu.Lock()
	w := a.blocker
	a.mu.Unlock()
	switch node := w.Behind.String(); {
	case errors.Is(err, errNoFreeHandle):
	case node == "" && err == ctx.Err():
		err = fmt.Errorf("no place in the queue yet: %w", err)
	case node != "" && !strings.Contains(err.Error(), node):
		err = fmt.Errorf("waiting behind %s: %w", node, err)
	}
	err = unanswered(err)
	if owner := nodedata.Parse(w.Data).String(); owner != "" {
		err = fmt.Errorf("%w (owner: %s)", err, owner)
	}
	return err
}
