package lockpool

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/telemetry"
	"github.com/lockpool/lockpool/recipe"
)

const (
	// localTime is how long after its grant a tenancy gives out turns.
	localTime = 100 * time.Millisecond

	turnBits = 10 // of a token
	maxTurns = 1<<turnBits - 1
)

// packToken returns the token of a turn: the turn is its lower bits, and the order number
// of the tenancy's node the others.
func packToken(created int64, turn int) (int64, error) {
	if created < 0 || created >= 1<<(63-turnBits) {
		return 0, fmt.Errorf("there is no token: the service's order number %#x is larger than 53 bits (ZooKeeper's epoch, "+
			"its upper half, grows with each election): restore the data on a new ensemble, where it starts over, and let stores forget their tokens", created)
	}
	return created<<turnBits | int64(turn), nil
}

// knownToken returns the token, or 0 if it is not known yet.
func (h *hold) knownToken() int64 {
	created := h.tenancy.created.Load()
	if created == 0 {
		return 0
	}
	token, _ := packToken(created, h.turn)
	return token
}

// tenancy is the time for which a node of the pool holds a lock. Handles that want the
// lock, and hold no other, have a turn each: writers one after the other, readers also
// together. A tenancy has one turn if the lock is not passed on in memory.
//
// It is bounded, in turns and in time, so that other processes get the lock, in the
// order of the service's queue. The pool need not know whether there are any: two
// requests for hundreds of turns cost nothing.
type tenancy struct {
	heldNode
	pool  *Pool
	local *localQueue // nil if the lock is not passed on in memory
	name  string
	kind  driver.Kind
	alive context.Context // ends with the tenancy
	kill  context.CancelFunc

	// Pool.mu guards the following.
	holds   []*hold // that are registered
	guard   *time.Timer
	turn    int // of the newest holder
	holders int // that have not left, some of which may rest
	until   time.Time
	expiry  *time.Timer       // at until, if there are waiters
	holder  trace.SpanContext // of the newest holder's request
	shared  bool              // readers hold it
	lost    bool
	revoked bool // there are no more turns
	frozen  bool // there is no turn while a downgrade is under way, or after it has failed
}

func newTenancy(a *acquisition, s *session, queue string, node driver.Node, data []byte) *tenancy {
	t := &tenancy{pool: a.pool, name: a.name, kind: a.req.kind(), shared: a.req.shared, holders: 1, holder: a.span}
	t.session, t.queue, t.node, t.data = s, queue, node, data
	t.alive, t.kill = context.WithCancel(context.Background())
	if a.local {
		t.local = a.queue
	}
	return t
}

// localQueue is where calls of the pool wait for one lock in memory, in the order in
// which they asked. The first of them either gets a turn of the tenancy or, if the
// tenancy has none for it, becomes the delegate: it queues at the service for the next
// tenancy, in front of the others. So the pool has at most one node that waits.
//
// Only calls of handles that hold nothing wait here: whatever such a call waits for, no
// call waits for it. So the queue adds no deadlock to those that a program has anyway.
//
// Pool.mu guards it. It is in Pool.local while it has a tenancy or a delegate.
type localQueue struct {
	pool     *Pool
	name     string
	tenancy  *tenancy     // nil if there is none, or it gives out no more turns
	delegate *acquisition // nil if there is none
	waiters  list.List    // of *localWaiter; empty unless there is a tenancy or a delegate
}

// place is a place in the service's queue. A delegate that gives up leaves it to the next
// one.
type place struct {
	session *session // nil if there is no place
	node    driver.Node
	data    []byte // stored in the node
}

// localWaiter is a call that waits in a localQueue.
type localWaiter struct {
	*acquisition
	id      int64
	element *list.Element // of localQueue.waiters
	done    chan struct{} // closed when the following are set
	tenancy *tenancy      // that it has a turn of; nil if it is the delegate
	turn    int
	err     error
}

// mayWaitLocally reports whether a request may wait in a localQueue.
func (h *Handle) mayWaitLocally(req request) bool {
	if kind := req.kind(); h.pool.cfg.localTurns == 0 || req.try || req.op == opOnce || kind != driver.Exclusive && kind != driver.Shared {
		return false
	}
	return !h.holdsAny()
}

// awaitTurn waits, until ctx ends, for a turn of a tenancy. If it returns none and no
// error, the call is to acquire the lock from the service.
func (p *Pool) awaitTurn(ctx context.Context, a *acquisition) (t *tenancy, turn int, err error) {
	if !a.local {
		return nil, 0, nil
	}
	w, report := p.joinLocally(a)
	if w == nil {
		return nil, 0, nil
	}
	accepted := false
	defer func() {
		if !accepted { // ctx has ended, or user code panics
			w.giveUp()
		}
	}()
	select {
	case <-w.done:
	default:
		a.waits(report)
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, 0, w.explain(ctx)
		}
	}
	if w.tenancy != nil {
		a.onSession(w.tenancy.session)
	}
	accepted = true
	return w.tenancy, w.turn, w.err
}

// joinLocally returns nil if the caller is the delegate. Otherwise it returns a waiter,
// which may have a turn already, and what reports the requests that it waits for.
func (p *Pool) joinLocally(a *acquisition) (w *localWaiter, report func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.local[a.name]
	if q == nil {
		q = &localQueue{pool: p, name: a.name, delegate: a}
		p.local[a.name] = q
	}
	a.queue = q
	if d := q.delegate; d != nil && !d.hasSlot && !d.hasWaited && a.hasSlot {
		// The delegate waits for a free handle, which a may be. It goes on by itself.
		d.local, q.delegate = false, a
	}
	if q.delegate == a {
		return nil, nil
	}
	var predecessor, holder trace.SpanContext
	if q.tenancy != nil {
		holder = q.tenancy.holder
	}
	switch last := q.waiters.Back(); {
	case last != nil:
		predecessor = last.Value.(*localWaiter).span
	case q.delegate != nil:
		predecessor = q.delegate.span
	default:
		predecessor = holder
	}
	p.lastLocal++
	w = &localWaiter{acquisition: a, id: p.lastLocal, done: make(chan struct{})}
	a.inMemory, a.hasWaited = true, true
	w.element = q.waiters.PushBack(w)
	for e := w.element.Prev(); e != nil && a.Began().Before(e.Value.(*localWaiter).Began()); e = w.element.Prev() {
		q.waiters.MoveBefore(w.element, e) // a queues again
	}
	q.settle()
	return w, func() { a.WaitingLocally(predecessor, holder) }
}

// giveUp gives up the place in the queue, or what the waiter has got meanwhile.
func (w *localWaiter) giveUp() {
	p := w.pool
	p.mu.Lock()
	select {
	case <-w.done:
	default:
		q := w.queue
		w.inMemory = false
		q.waiters.Remove(w.element)
		q.settle() // others may have waited for it to go: readers behind a writer
		p.mu.Unlock()
		return
	}
	t := w.tenancy
	p.mu.Unlock()
	if t == nil {
		return // resign passes on that it is the delegate
	}
	if t.leave() {
		_ = t.removeNode(canceled) // continues in the background
	}
}

// canceled has ended.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// resign makes the next waiter the delegate if a was it.
func (p *Pool) resign(a *acquisition) {
	if a.queue == nil {
		return
	}
	at := a.at // which it has not come to use
	a.at = place{}
	if at.session != nil && p.passPlace(a, at) {
		return
	}
	p.mu.Lock()
	if q := a.queue; q.delegate == a {
		q.delegate = nil
		q.settle()
	}
	p.mu.Unlock()
	if at.session != nil {
		_ = at.session.Leave(canceled, a.name, at.node) // continues in the background
	}
}

// passPlace makes the next waiter the delegate, with the place of a, which was it and
// gives up. It reports false if nobody can use the place.
func (p *Pool) passPlace(a *acquisition, at place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := a.queue
	if q.delegate != a || q.waiters.Len() == 0 {
		return false
	}
	w := q.waiters.Front().Value.(*localWaiter)
	if w.req.shared != a.req.shared {
		return false
	}
	w.at, q.delegate = at, w.acquisition
	q.waiters.Remove(w.element)
	w.finish()
	return true
}

// checkTry returns an error if a try is to fail because other calls of the pool wait for
// the lock in memory, or did so until a moment ago.
func (p *Pool) checkTry(a *acquisition) error {
	if kind := a.req.kind(); !a.req.try || kind != driver.Exclusive && kind != driver.Shared {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.local[a.name]
	if q == nil {
		return nil
	}
	blocks := func(other *acquisition) bool { return !a.req.shared || !other.req.shared }
	blocked := q.delegate != nil && q.delegate.hasWaited && blocks(q.delegate)
	for e := q.waiters.Front(); e != nil && !blocked; e = e.Next() {
		blocked = blocks(e.Value.(*localWaiter).acquisition)
	}
	if blocked {
		return fmt.Errorf("%w: other calls of this pool wait for it", ErrLocked)
	}
	return nil
}

// settle gives turns to the waiters at the head, as many as may have one now. If the
// tenancy has no turn for the first waiter, now or later, that one becomes the delegate.
// It is called with Pool.mu held, after every change.
func (q *localQueue) settle() {
	for q.delegate == nil && q.waiters.Len() > 0 {
		w, t := q.waiters.Front().Value.(*localWaiter), q.tenancy
		switch {
		case t == nil || !t.hasTurnFor(w.req):
			q.delegate = w.acquisition
		case t.holders == 0 || t.shared:
			if t.turn++; t.turn == 1 {
				t.startGuardLocked() // turns are short, but the tenancy may be long
			}
			t.holders++
			t.holder = w.span
			q.pool.localTurns++
			w.tenancy, w.turn = t, t.turn
		default:
			t.awaitExpiry()
			return
		}
		q.waiters.Remove(w.element)
		w.finish()
	}
	if q.tenancy == nil && q.delegate == nil && q.pool.local[q.name] == q {
		delete(q.pool.local, q.name)
	}
}

// hasTurnFor reports whether the tenancy has a turn for a request, now or when the
// present holders have left. A node holds the lock for readers or for a writer: readers
// may hold it for long, and those of other processes must be able to share it.
func (t *tenancy) hasTurnFor(req request) bool {
	return t.shared == req.shared && t.turn+1 < t.pool.cfg.localTurns && !t.revoked && !t.frozen &&
		!t.session.retired.Load() && time.Now().Before(t.until)
}

// awaitExpiry makes the first waiter queue at the service when the tenancy's time is
// over, even if its holder keeps the lock: whoever asks in another process later must
// not get it earlier.
func (t *tenancy) awaitExpiry() {
	if t.expiry == nil {
		t.expiry = time.AfterFunc(time.Until(t.until), func() {
			t.pool.mu.Lock()
			defer t.pool.mu.Unlock()
			if t.local.tenancy == t {
				t.local.settle()
			}
		})
	}
}

// add registers a hold. The first one begins the tenancy. It is called with Pool.mu held.
func (t *tenancy) add(h *hold) {
	t.holds = append(t.holds, h)
	if t.guard == nil {
		t.guard = time.AfterFunc(guardDelay, t.guardNode)
		if q := t.local; q != nil {
			if q.tenancy != nil {
				q.tenancy.stopExpiry() // readers, whose turns are used up
			}
			q.tenancy, q.delegate, t.until = t, nil, time.Now().Add(localTime)
			q.settle()
		}
	}
	if t.revoked {
		h.life.revoke()
	}
	if h.life.revocable {
		t.startGuardLocked()
	}
}

// remove is called with Pool.mu held.
func (t *tenancy) remove(h *hold) {
	if i := slices.Index(t.holds, h); i >= 0 {
		t.holds = slices.Delete(t.holds, i, i+1)
	}
}

// passesOn reports whether other handles have the lock when a holder leaves. It is called with
// Pool.mu held.
func (t *tenancy) passesOn() bool {
	q := t.local
	return t.holders > 1 || q != nil && q.tenancy == t && q.delegate == nil && q.waiters.Len() > 0 &&
		t.hasTurnFor(q.waiters.Front().Value.(*localWaiter).req)
}

// leave ends the turn of a holder. It reports whether the tenancy has ended with it: then
// the caller removes the node. Otherwise other handles have the lock.
func (t *tenancy) leave() (ended bool) {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	return t.leaveLocked()
}

// leaveLocked is leave for callers that hold Pool.mu.
func (t *tenancy) leaveLocked() (ended bool) {
	t.holders--
	if q := t.local; q != nil && q.tenancy == t && t.holders == 0 {
		q.settle()
	}
	if t.holders > 0 {
		return false
	}
	t.close()
	return true
}

// close ends the tenancy: its node is about to be removed, or lost. It is called with
// Pool.mu held.
func (t *tenancy) close() {
	t.kill()
	if t.guard != nil {
		t.guard.Stop()
	}
	t.stopExpiry()
	t.endRests()
	if q := t.local; q != nil && q.tenancy == t {
		q.tenancy = nil
		q.settle()
	}
}

func (t *tenancy) stopExpiry() {
	if t.expiry != nil {
		t.expiry.Stop()
	}
}

// end closes the tenancy.
func (t *tenancy) end() {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	t.close()
}

// guardDelay is how long a lock is held before its node is watched: most locks are
// released sooner, and need no such request.
const guardDelay = 20 * time.Millisecond

// startGuard starts the guard of the node now, unless it has already started.
func (t *tenancy) startGuard() {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	t.startGuardLocked()
}

// startGuardLocked is startGuard for callers that hold Pool.mu.
func (t *tenancy) startGuardLocked() {
	if t.guard.Stop() {
		t.guard.Reset(0)
	}
}

// guardNode watches the node, which an operator may remove. It is called by the timer
// and ends with the tenancy.
func (t *tenancy) guardNode() {
	p := t.pool
	if !p.begin() {
		return
	}
	defer p.work.Done()
	for {
		watch, err := t.watchNode(t.alive)
		if t.alive.Err() != nil {
			return
		}
		if err != nil {
			watch = driver.NewWatch()
			time.AfterFunc(lookAgainDelay, func() { watch.Fire(driver.Interrupted) })
		}
		fired, stop := driver.First(watch)
		select {
		case <-fired:
			if watch.Fired() == driver.Unnoticed {
				p.telemetry.Rescued(t.alive, telemetry.Lock{Name: t.name, Kind: t.kind})
			}
		case <-t.alive.Done():
			stop()
			return
		}
	}
}

// watchNode watches the node and learns its order number. It ends the tenancy if the
// node is gone or can no longer be read.
func (t *tenancy) watchNode(ctx context.Context) (*driver.Watch, error) {
	watch, err := t.watch(ctx)
	if err != nil {
		t.endIfLost(err)
		return nil, err
	}
	if watch.Revoked {
		t.revoke()
	}
	return watch, nil
}

// revoke notifies the holders that the lock is revoked. There are no further turns.
func (t *tenancy) revoke() {
	t.pool.mu.Lock()
	t.revoked = true
	holds := slices.Clone(t.holds)
	if q := t.local; q != nil && q.tenancy == t {
		q.settle()
	}
	t.pool.mu.Unlock()
	for _, h := range holds {
		h.life.revoke()
	}
}

// endIfLost ends the tenancy and its holds if err, of a request about its node, means
// that the lock is lost. It reports whether it does.
func (t *tenancy) endIfLost(err error) bool {
	removed, unreadable := errors.Is(err, driver.ErrRemoved), errors.Is(err, driver.ErrNoPermission)
	if !removed && !unreadable && !errors.Is(err, driver.ErrSessionLost) {
		return false
	}
	t.pool.mu.Lock()
	t.lost = true
	rested := t.endRests()
	t.close()
	holds := slices.Clone(t.holds)
	t.pool.mu.Unlock()
	cause := lostWith(err)
	holds = slices.DeleteFunc(holds, func(h *hold) bool { return !h.life.end(cause) })
	if (len(holds) > 0 || rested) && (unreadable || removed && t.kind != driver.Plain) {
		// A node that cannot be read may still exist, and if there are several nodes,
		// some may be left.
		_ = t.removeNode(canceled) // continues in the background
	}
	for _, h := range holds {
		defer h.reportEnd(cause) // deferred, so that each runs even if user code panics
	}
	return true
}

// beginDowngrade is heldNode.beginReplace for the one holder, a writer. Afterward other
// readers may have turns.
func (t *tenancy) beginDowngrade(turn int) func(alive context.Context) error {
	freeze := func(frozen bool) {
		t.pool.mu.Lock()
		defer t.pool.mu.Unlock()
		t.frozen, t.shared = frozen, !frozen
		if q := t.local; q != nil && q.tenancy == t {
			q.settle()
		}
	}
	freeze(true)
	replace := t.beginReplace(turn)
	return func(alive context.Context) error {
		err := replace(alive)
		if err == nil {
			freeze(false)
		}
		return err
	}
}

// removeNode removes the node. ctx bounds the wait, never whether it happens.
func (t *tenancy) removeNode(ctx context.Context) error {
	node, err := t.current(ctx)
	if err == nil {
		return t.session.Leave(ctx, t.queue, node)
	}
	if t.pool.begin() {
		go func() { // ends when the node is gone, or with the session
			defer t.pool.work.Done()
			if node, err := t.current(context.Background()); err == nil {
				_ = t.session.Leave(context.Background(), t.queue, node)
			}
		}()
	}
	return err
}

// explain returns the error of a wait in memory whose context has ended.
func (w *localWaiter) explain(ctx context.Context) error {
	w.findBlocker()
	w.mu.Lock()
	s, behind := w.session, w.blocker.Behind
	w.mu.Unlock()
	switch {
	case s == nil:
		return w.pool.explainNoSlot(ctx, ctx.Err()) // nor has the delegate a session
	case behind.Name != "":
		return recipe.Busy(fmt.Errorf("waiting behind %s: %w", behind, ctx.Err()))
	}
	return ctx.Err()
}

// findBlocker makes the node that keeps the lock from the pool, or for one of its
// holders, that of an acquisition that waits in memory.
func (a *acquisition) findBlocker() {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if !a.inMemory {
		return
	}
	var w recipe.Wait
	var s *session
	if t := a.queue.tenancy; t != nil {
		t.mu.Lock()
		w, s = recipe.Wait{Queue: t.queue, Behind: t.node, Data: t.data, Holder: t.node}, t.session
		t.mu.Unlock()
	} else if d := a.queue.delegate; d != nil {
		d.mu.Lock()
		w, s = d.blocker, d.session
		d.mu.Unlock()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.blocker, a.session = w, s
}

const localPrefix = "local-" // of what stands for a node's name of a waiter without a node

func (w *localWaiter) name() string { return fmt.Sprintf("%s%s-%d", localPrefix, w.pool.id, w.id) }

// localWaiters returns the waiters for the lock that have no node, and the node that
// they wait behind.
func (p *Pool) localWaiters(name string) (waiters []Contender, behind string) {
	found, behind := p.findLocalWaiters(name)
	for _, w := range found { // without Pool.mu, because there may be thousands
		owner := nodedata.Parse(p.owner.Data(w.span, true, ""))
		waiters = append(waiters, Contender{
			Node: w.name(), Kind: w.req.kind().String(), Local: true, Asked: w.Began(),
			Owner: owner.Owner, Host: owner.Host, PID: owner.PID, Trace: owner.Trace,
		})
	}
	return waiters, behind
}

func (p *Pool) findLocalWaiters(name string) (waiters []*localWaiter, behind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.local[name]
	if q == nil {
		return nil, ""
	}
	if t := q.tenancy; t != nil {
		behind = t.nodeNow().Name
	}
	if d := q.delegate; d != nil {
		d.mu.Lock()
		behind = cmp.Or(d.node, behind)
		d.mu.Unlock()
	}
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		waiters = append(waiters, e.Value.(*localWaiter))
	}
	return waiters, behind
}

// revokeLocally revokes the waiters without a node that have one of the names.
func (p *Pool) revokeLocally(name string, names []string) {
	if len(names) == 0 {
		return
	}
	asked := map[string]bool{}
	for _, n := range names {
		asked[n] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.local[name]
	if q == nil {
		return
	}
	for e := q.waiters.Front(); e != nil; {
		w := e.Value.(*localWaiter)
		e = e.Next()
		if !asked[w.name()] {
			continue
		}
		if !w.req.revocable {
			w.revoked = true // and so will be its hold
			continue
		}
		q.waiters.Remove(w.element)
		w.err = ErrRevoked
		w.finish()
	}
	q.settle()
}

// finish tells the waiter that its wait is over. It is called with Pool.mu held.
func (w *localWaiter) finish() {
	w.inMemory = false
	close(w.done)
}
