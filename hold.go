package lockpool

// This file has holds: their entries, their life, their release.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/telemetry"
)

// hold is a lock held by a handle: the entries, and the life until the release or a loss. A
// hold is one turn of a tenancy, and depends on the tenancy's node.
type hold struct {
	handle    *Handle
	name      string
	kind      driver.Kind // as granted
	limit     int         // of a semaphore, as given by the caller
	entries   entries     // guarded by handle.mu
	until     time.Time   // before which the lock does not come free (HoldAtLeast); guarded by handle.mu
	tenancy   *tenancy
	turn      int // in the tenancy, starting with 0
	life      life
	maxHold   time.Duration // 0 for any; of WithMaxHold
	overdue   *time.Timer   // when the hold has lasted for so long; guarded by Pool.mu
	cost      holdCost
	telemetry telemetry.Hold
}

func newHold(h *Handle, name string, req *request, t *tenancy, turn int) *hold {
	held := &hold{handle: h, name: name, kind: req.kind(), limit: req.limit, tenancy: t, turn: turn}
	held.life.begin(req.revocable)
	if d := h.pool.cfg.maxHold; d > 0 && req.op != opElect { // leaders hold their locks for as long as they lead
		held.maxHold, held.cost.at = d, callSite()
	}
	return held
}

func (h *hold) lock() telemetry.Lock { return telemetry.Lock{Name: h.name, Kind: h.kind} }

// checkReentry returns the error of a request unfit to enter the hold again.
func (h *hold) checkReentry(req *request) error {
	if err := h.life.err(); err != nil {
		return err
	}
	kind := req.kind()
	unlike := kind == driver.Permit || kind == driver.Plain || h.kind == driver.Permit || h.kind == driver.Plain
	switch {
	case h.entries.exclusive == 0 && !req.shared:
		return ErrUpgrade
	case unlike && kind != h.kind:
		return fmt.Errorf("%w: this handle holds it as %s", ErrKindMismatch, h.kind)
	case kind == driver.Permit && req.limit != h.limit:
		return fmt.Errorf("%w: %d was given, but %d when the handle acquired its permits", ErrLimit, req.limit, h.limit)
	case kind == driver.Permit && req.permits > h.tenancy.node.Permits: // the node of a semaphore is never replaced
		return ErrUpgrade
	}
	if req.shared && h.kind == driver.Exclusive { // the hold may become a reader's
		if _, err := driver.Offer[driver.Downgrader](h.tenancy.session.Session); err != nil {
			return err
		}
	}
	return nil
}

// makeRevocable makes the contexts of the hold end when the lock is revoked.
func (h *hold) makeRevocable() {
	h.life.setRevocable()
	h.tenancy.watchSoon()
}

// entries are the entries of a hold without an unlock so far.
type entries struct {
	list      []entry
	last      uint64   // id of the newest, and thus how many there have been
	exclusive int      // how many are not shared
	storage   [4]entry // where list begins, to spare the heap
}

// entry is what one Lock unlocks: an id, and in the lowest bit whether the entry is a reader's.
// An id is used once, so a copy of a Lock, or an unlocked one, cannot remove another's entry.
type entry uint64

func newEntry(id uint64, shared bool) entry {
	if shared {
		return entry(id<<1 | 1)
	}
	return entry(id << 1)
}

func (e entry) id() uint64   { return uint64(e >> 1) }
func (e entry) shared() bool { return e&1 != 0 }

func (e *entries) add(shared bool) (id uint64) {
	if e.list == nil {
		e.list = e.storage[:0]
	}
	e.last++
	e.list = append(e.list, newEntry(e.last, shared))
	if !shared {
		e.exclusive++
	}
	return e.last
}

// index returns where an entry is in the list, or -1.
func (e *entries) index(id uint64) int {
	last := len(e.list) - 1
	if last < 0 || e.list[last].id() == id { // almost always the last one
		return last
	}
	return slices.IndexFunc(e.list, func(other entry) bool { return other.id() == id })
}

// remove removes an entry, and reports whether the entry was there.
func (e *entries) remove(id uint64) (removed entry, ok bool) {
	i := e.index(id)
	if i < 0 {
		return 0, false
	}
	removed = e.list[i]
	e.list = slices.Delete(e.list, i, i+1)
	if !removed.shared() {
		e.exclusive--
	}
	return removed, true
}

func (e *entries) clear() { e.list, e.exclusive = nil, 0 }

// life is the time from the grant of a lock to its end.
type life struct {
	began time.Time
	over  atomic.Bool // set after cause

	mu        sync.Mutex
	finished  signal // the hold has ended
	lost      signal // ended other than by Unlock
	revoked   signal // the lock was revoked
	ended     time.Time
	cause     error // see end and markLost
	panicked  any   // by user code in end, for reportEnd
	revocable bool  // contexts end when the lock is revoked
	contexts  map[*heldContext]struct{}
	watched   atomic.Bool              // there was a context, or there is one
	alarms    map[time.Duration]*alarm // by how far ahead they ring
}

func (l *life) begin(revocable bool) {
	l.began, l.revocable = time.Now(), revocable
}

// signal says that something has happened. The context is created on demand; most locks
// have none. life.mu guards a signal.
type signal struct {
	happened bool
	waited   *waitedSignal
}

type waitedSignal struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (s *signal) raise() {
	s.happened = true
	if s.waited != nil {
		s.waited.cancel()
	}
}

// after returns a context that ends with the signal.
func (l *life) after(s *signal) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.waited == nil {
		ctx, cancel := context.WithCancel(context.Background())
		s.waited = &waitedSignal{ctx, cancel}
		if s.happened {
			cancel()
		}
	}
	return s.waited.ctx
}

// err returns nil while the lock is held, and then the reason of the end.
func (l *life) err() error {
	if !l.over.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// failure is err for a call on a Lock: for every cause other than a loss, the error
// wraps ErrNotHeld.
func (l *life) failure() error {
	err := l.err()
	if err == nil || err == ErrNotHeld || errors.Is(err, ErrLockLost) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotHeld, err)
}

// end ends the life, and also the contexts and, unless the lock was unlocked (ErrNotHeld),
// Lost. end reports false if the life had ended before. ownCall means a call of the holder
// (see endAll). The caller calls hold.reportEnd afterward.
func (l *life) end(cause error, ownCall bool) bool {
	l.mu.Lock()
	if l.cause != nil {
		l.mu.Unlock()
		return false
	}
	l.cause, l.ended = cause, time.Now()
	l.over.Store(true)
	contexts, alarms := l.contexts, l.alarms
	l.contexts, l.alarms = nil, nil
	l.mu.Unlock()
	for _, a := range alarms {
		a.stop()
		if cause != ErrNotHeld {
			a.ring() // before lost is raised
		}
	}
	l.panicked = endAll(maps.Keys(contexts), cause, ownCall)
	l.mu.Lock()
	defer l.mu.Unlock()
	if cause != ErrNotHeld {
		l.lost.raise()
	}
	l.finished.raise()
	return true
}

// guard calls user code, such as the methods of a caller's context, in the middle of a
// release. A panic must not keep the lock from the next holder: the panic is kept, and
// raised again when the lock has been released.
func guard(panicked *any, call func()) {
	defer func() {
		if r := recover(); r != nil {
			*panicked = r
		}
	}()
	call()
}

// raise raises a panic that guard has kept.
func raise(panicked *any) {
	if *panicked != nil {
		panic(*panicked)
	}
}

// markLost records that an ended life was ended by a loss, as the release has shown.
func (l *life) markLost(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cause
	l.lost.raise()
}

// lostWith is the cause of a loss.
func lostWith(err error) error { return fmt.Errorf("%w: %w", ErrLockLost, err) }

// setRevocable makes the contexts end when the lock is revoked.
func (l *life) setRevocable() {
	l.mu.Lock()
	l.revocable = true
	l.mu.Unlock()
	l.endContexts(ErrRevoked, true, func(*heldContext) bool { return l.revoked.happened })
}

// revoke notifies the holder that the lock is revoked.
func (l *life) revoke() {
	l.mu.Lock()
	l.revoked.raise()
	l.mu.Unlock()
	l.endContexts(ErrRevoked, false, func(*heldContext) bool { return l.revocable })
}

// endEntry ends the contexts of an unlocked entry.
func (l *life) endEntry(id uint64) {
	if l.watched.Load() {
		l.endContexts(ErrNotHeld, true, func(c *heldContext) bool { return c.entry == id })
	}
}

// endContexts ends the contexts for which ends returns true, as endAll does, and panics if
// user code does. ends is called with mu held.
func (l *life) endContexts(cause error, ownCall bool, ends func(*heldContext) bool) {
	var ended []*heldContext
	l.mu.Lock()
	for c := range l.contexts {
		if ends(c) {
			delete(l.contexts, c)
			ended = append(ended, c)
		}
	}
	l.mu.Unlock()
	panicked := endAll(slices.Values(ended), cause, ownCall)
	raise(&panicked)
}

// isRevoked reports whether a revocation has ended the contexts.
func (l *life) isRevoked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revocable && l.revoked.happened
}

// addContext makes the context c end with the entry, or returns why the entry is over.
func (h *hold) addContext(c *heldContext) (over error) {
	h.handle.mu.Lock() // no entry is unlocked meanwhile
	defer h.handle.mu.Unlock()
	l := &h.life
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.cause != nil:
		return l.cause
	case h.entries.index(c.entry) < 0:
		return ErrNotHeld
	case l.revocable && l.revoked.happened:
		return ErrRevoked
	}
	if l.contexts == nil {
		l.contexts = map[*heldContext]struct{}{}
	}
	l.contexts[c] = struct{}{}
	l.watched.Store(true)
	c.forget = context.AfterFunc(c.Context, func() { // the parent has ended
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.contexts, c)
	})
	return nil
}

// endIfLost ends the tenancy if err, of a request about the node, means a loss, and returns
// the error for the caller.
func (h *hold) endIfLost(err error) error {
	if !h.tenancy.endIfLost(err) {
		if cause := h.life.err(); errors.Is(cause, ErrLockLost) {
			return cause // the cause has ended the request
		}
		return err // not an answer
	}
	return h.life.err()
}

// release is an unreported release of a hold.
type release struct {
	hold  *hold
	began time.Time // if reported
	asked bool      // the service was asked to remove the node
	cause error     // of the hold's end, if ended here
	err   error     // for the caller

	panicked any // by user code, for report
}

// check returns nil if the lock is certainly held at this moment, by the lease and the
// clock of the session, and otherwise the loss. A release checks before the caller is told
// that the lock was held. (A grant calls Alive itself.) ctx bounds the wait for an answer,
// needed only if the clock is in doubt.
func (h *hold) check(ctx context.Context) error {
	s := h.tenancy.session
	err := s.Alive(canceled)
	if errors.Is(err, canceled.Err()) { // the clock is in doubt
		ctx, cancel := beyondHolds(ctx)
		defer cancel()
		ctx, end := outlasting(ctx, checkGrace)
		defer end()
		if err = s.Alive(ctx); err != nil && ctx.Err() != nil {
			return lostWith(fmt.Errorf("the wall clock has jumped, as after a stop of the machine, and no server has answered since: %w", err))
		}
	}
	if errors.Is(err, driver.ErrSessionLost) {
		return lostWith(err)
	}
	return nil // or the service's numbers have become too large: then only no more locks are granted
}

// checkEntry is check after the unlock of an inner entry, and ends the hold with the session.
func (h *hold) checkEntry(ctx context.Context) error {
	switch err := h.life.err(); {
	case errors.Is(err, ErrLockLost):
		return err
	case err != nil: // the unlock was the last, and has checked
		return nil
	}
	lost := h.check(ctx)
	if errors.Is(lost, driver.ErrSessionLost) {
		h.tenancy.lose(lost, false)
	}
	return lost
}

// checkGrace is how much longer than the context a release waits for an answer about
// whether the lock was held.
const checkGrace = 10 * time.Millisecond

// release releases the lock, whatever the number of entries. User code that need not run
// before the release runs in report, and does not delay the next holder.
func (h *hold) release(ctx context.Context, cause error) (r release) {
	r = release{hold: h, began: h.telemetry.Now()}
	guard(&r.panicked, func() { r.err = h.check(ctx) })
	if r.err != nil {
		cause = r.err
	}
	if !h.life.end(cause, true) { // lost, or closed by Close, before the release
		r.err = h.life.failure()
		return r
	}
	r.cause = cause
	t := h.tenancy
	if errors.Is(r.err, driver.ErrSessionLost) { // watchSession may not have ended the hold yet
		t.end()
		return r
	}
	left := h.leave(cause, watchedIf(t.isWatched()))
	wait := canceled // used if a method of ctx panics: the release continues in the background
	if left == notYet || left == gaveBack {
		cancel := func() {}
		guard(&r.panicked, func() { wait, cancel = beyondHolds(ctx) })
		defer func() { guard(&r.panicked, cancel) }()
	}
	if left == notYet {
		grace, end := outlasting(wait, checkGrace)
		var err error
		guard(&r.panicked, func() { // the loss of other holds may be reported
			t.keep(grace)
			_, err = t.watchNode(grace)
		})
		if err != nil && grace.Err() != nil && errors.Is(err, grace.Err()) {
			err = wait.Err()
		}
		end()
		r.conclude(wait, err)
		left = h.leave(cause, nothingMore) // even without a watch: the next holder watches at once (tenancy.add)
	}
	if r.asked = left == gaveBack; r.asked {
		r.conclude(wait, t.giveBack(wait))
		return r
	}
	h.handle.mu.Lock()
	if h.handle.nested != nil {
		h.tellNested()
	}
	h.handle.mu.Unlock()
	return r
}

// leave ends the turn of a hold ended for a cause. If the node stays, no request would
// notice a removal of the node, so the node must have been watched.
func (h *hold) leave(cause error, known knowledge) leaving {
	var until time.Time
	if cause == ErrNotHeld || cause == ErrHandleClosed {
		h.handle.mu.Lock()
		until = h.until
		h.handle.mu.Unlock()
	}
	return h.tenancy.pool.local.leave(&h.tenancy.turns, until, known)
}

// holdAtLeast applies HoldAtLeast to the hold that the lock is an entry of.
func (l *Lock) holdAtLeast(d time.Duration) {
	until := time.Now().Add(d)
	h := l.hold.handle
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.hold.entries.index(l.entry) >= 0 && until.After(l.hold.until) {
		l.hold.until = until
	}
}

// cutShort returns an error for Close if the lock comes free before its time.
func (h *hold) cutShort() error {
	h.handle.mu.Lock()
	defer h.handle.mu.Unlock()
	if errors.Is(h.life.err(), ErrLockLost) {
		return nil
	}
	return cutShort(h.name, h.until)
}

// conclude sets the error for the caller of a release from the service's answer err.
func (r *release) conclude(ctx context.Context, err error) {
	switch {
	case err == nil && r.asked && !errors.Is(r.err, ErrLockLost):
		r.err = nil // the service has removed the node, whatever was not known before
	case err == nil || errors.Is(r.err, ErrLockLost):
	case errors.Is(err, driver.ErrRemoved), errors.Is(err, driver.ErrExpired), !r.asked && errors.Is(err, driver.ErrNoPermission):
		// The node was gone before the release; or the node stays, and the removal of the node
		// would no longer be seen.
		r.err = lostWith(err)
		r.cause = r.err
		r.hold.life.markLost(r.cause)
	case r.err != nil: // the node was not watched
	default:
		r.err = err
		if errors.Is(err, driver.ErrSessionLost) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			unconfirmed := "released, but the server has not confirmed the release yet"
			if !r.asked { // passed on, or at rest
				unconfirmed = "unlocked, but the server has not confirmed that the lock was held"
			}
			r.err = fmt.Errorf("%s: %w", unconfirmed, err)
		}
	}
}

// report reports the release to telemetry.
func (r release) report(ctx context.Context) {
	h := r.hold
	defer raise(&r.panicked)
	if r.cause != nil {
		defer h.reportEnd(r.cause)
	}
	if r.asked {
		h.telemetry.Released(ctx, r.began, h.knownToken(), r.err)
	}
}

// reportEnd reports the end of the hold to telemetry, for as long as user code takes,
// unregisters the hold, and panics if user code has panicked in life.end. reportEnd is
// called once, where the hold was ended: a lost lock needs no Unlock to free the handle.
func (h *hold) reportEnd(cause error) {
	defer h.handle.pool.removeHold(h)
	defer raise(&h.life.panicked)
	var lost error
	if errors.Is(cause, ErrLockLost) {
		lost = cause
		defer h.handle.returnIfUnused()
	}
	h.telemetry.End(h.life.began, h.life.ended, h.knownToken(), lost)
}

// addHold registers a hold, and with the first hold the tenancy, unless the pool is closed or the
// lock was lost.
func (p *Pool) addHold(h *hold) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.alive.Done():
		return ErrPoolClosed
	case <-p.drained: // Shutdown has seen the last lock go, and is about to close
		return ErrPoolClosed
	default:
	}
	t := h.tenancy
	s := t.session
	if err := s.Err(); err != nil { // watchSession may not have come to it
		return err
	}
	if s.closed.Load() { // closeIfIdle is closing s
		return driver.ErrSessionLost
	}
	if t.lost {
		return driver.ErrRemoved
	}
	if !t.begun {
		s.tenancies[t.name] = append(s.tenancies[t.name], t)
	}
	p.held++
	t.add(h)
	if h.maxHold > 0 {
		h.overdue = time.AfterFunc(h.maxHold, h.tellOverdue)
	}
	return nil
}

// removeHold undoes addHold for an ended hold.
func (p *Pool) removeHold(h *hold) {
	defer func() { // even if user code panics
		p.mu.Lock()
		defer p.mu.Unlock()
		if h.overdue != nil {
			h.overdue.Stop()
		}
		t := h.tenancy
		if i := slices.Index(t.holds, h); i >= 0 {
			t.holds = slices.Delete(t.holds, i, i+1)
		}
		t.forgetUnused()
		p.held--
		p.noteDrained()
	}()
	h.handle.mu.Lock()
	entries, cost, until := h.entries.last, h.cost, h.until
	h.handle.mu.Unlock()
	h.account(cost, until)
	h.handle.pool.costs.leave(h.name)
	h.telemetry.Reentered(int(entries) - 1)
}

// noteDrained tells Shutdown when nothing is held and nothing rests. The caller holds mu.
func (p *Pool) noteDrained() {
	if p.drained == nil || p.held > 0 || p.local.atRest() > 0 {
		return
	}
	select {
	case <-p.drained:
	default:
		close(p.drained)
	}
}
