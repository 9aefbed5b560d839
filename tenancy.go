package lockpool

// This file has tenancies: the grants of a lock to a node of the pool, and the watch on that node.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/telemetry"
	"github.com/lockpool/lockpool/recipe"
)

const (
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

// A tenancy is one grant of a lock to a node of the pool. During a tenancy, handles that want
// the lock, and hold no other, take turns: writers one after the other, readers also together.
// A tenancy has one turn if the lock is not passed on in memory.
type tenancy struct {
	heldNode
	pool  *Pool
	turns turns
	name  string
	kind  driver.Kind
	alive context.Context // ends with the tenancy
	kill  context.CancelFunc

	watcher *time.Timer // see keepWatching; set for the first hold

	// Pool.mu guards the following.
	holds   []*hold // that are registered
	resting int     // how many of them rest
	lost    bool
	revoked bool
}

func newTenancy(a *acquisition, s *session, queue string, node driver.Node, data []byte) *tenancy {
	t := &tenancy{pool: a.pool, name: a.name, kind: a.req.kind()}
	t.turns = turns{tenancy: t, retired: &s.retired, holders: 1, holder: a.span, shared: a.req.shared}
	t.session, t.queue, t.node, t.data = s, queue, node, data
	t.alive, t.kill = context.WithCancel(context.Background())
	if !a.local.alone {
		t.turns.queue = a.local.queue
	}
	return t
}

// mayWaitLocally reports whether a request may wait in a localQueue.
func (h *Handle) mayWaitLocally(req request) bool {
	if kind := req.kind(); h.pool.local.most == 0 || req.try || req.op == opOnce || kind != driver.Exclusive && kind != driver.Shared {
		return false
	}
	return !h.holdsAny()
}

// awaitTurn waits, until ctx ends, for a turn of a tenancy. If it returns none and no
// error, the call is to acquire the lock from the service.
func (a *acquisition) awaitTurn(ctx context.Context) (t *tenancy, turn int, err error) {
	if a.local.alone {
		return nil, 0, nil
	}
	w, report := a.joinLocally()
	if w == nil {
		return nil, 0, nil
	}
	accepted := false
	defer func() {
		if !accepted { // ctx has ended, or user code panics
			a.giveUpTurn()
		}
	}()
	select {
	case <-w.done:
	default:
		a.waits(report)
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, 0, a.explainLocally(ctx)
		}
	}
	if w.turns != nil {
		t = w.turns.tenancy
		a.onSession(t.session)
	}
	accepted = true
	return t, w.turn, w.err
}

// joinLocally returns nil if the caller is the delegate. Otherwise it returns a waiter,
// which may have a turn already, and what reports the requests that it waits for.
func (a *acquisition) joinLocally() (w *localWaiter, report func()) {
	w = &a.local
	waits, predecessor, holder := a.pool.local.join(a.name, w)
	if !waits {
		return nil, nil
	}
	return w, func() { a.WaitingLocally(predecessor, holder) }
}

// giveUpTurn gives up the place in the queue, or what the call has got meanwhile.
func (a *acquisition) giveUpTurn() {
	if got := a.pool.local.giveUp(&a.local); got != nil { // a delegate has got nothing: see resign
		got.tenancy.drop()
	}
}

// canceled is a context that has ended: a release with canceled begins, and continues in the
// background.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// resign gives up what the call has not used: the next waiter becomes the delegate if the
// call was the delegate, and has the place, or else the place is left.
func (a *acquisition) resign() {
	local, at := &a.pool.local, a.local.place
	a.local.place = place{}
	switch {
	case a.local.queue == nil || at.session != nil && local.passPlace(&a.local, at):
		return
	}
	local.resign(&a.local)
	if at.session != nil {
		_ = at.session.Leave(canceled, a.name, at.node) // continues in the background
	}
}

// checkTry returns an error if a try is to fail because other calls of the pool wait for
// the lock in memory, or did so until a moment ago.
func (a *acquisition) checkTry() error {
	kind := a.req.kind()
	if a.req.try && (kind == driver.Exclusive || kind == driver.Shared) && a.pool.local.wouldOvertake(a.name, a.req.shared) {
		return fmt.Errorf("%w: other calls of this pool wait for it", ErrLocked)
	}
	return nil
}

// add registers a hold; the first hold begins the tenancy. The caller holds Pool.mu.
func (t *tenancy) add(h *hold) {
	t.holds = append(t.holds, h)
	if t.watcher == nil {
		t.watcher = time.AfterFunc(watchDelay, t.keepWatching)
		t.pool.local.change(&t.turns, t.turns.begin)
	}
	if t.revoked {
		h.life.revoke()
	}
	if h.turn > 0 || h.life.revocable { // turns are short, but the tenancy may be long
		t.watchNow()
	}
}

// A leaving is what becomes of the lock when a hold of it has ended.
type leaving int

const (
	notYet   leaving = iota // the turn has not ended: the node must be watched first
	rested                  // nobody gets the lock before its time (HoldAtLeast)
	passedOn                // other handles of the pool have the lock
	gaveBack                // no handle has the lock: the caller removes the node
)

// leave ends the turn of a holder.
func (t *tenancy) leave(mayPassOn bool) leaving {
	left := t.pool.local.leave(&t.turns, mayPassOn)
	if left == gaveBack {
		t.end()
	}
	return left
}

// drop ends the turn of a holder, and waits for no answer.
func (t *tenancy) drop() {
	if t.leave(true) == gaveBack {
		_ = t.removeNode(canceled) // continues in the background
	}
}

// close ends the tenancy, but no hold: the node is about to be removed, or lost. close reports
// whether a hold has rested. The caller holds Pool.mu.
func (t *tenancy) close() (rested bool) {
	t.kill()
	if t.watcher != nil {
		t.watcher.Stop()
	}
	t.pool.local.change(&t.turns, t.turns.end)
	if rested = t.resting > 0; rested {
		t.endRests()
	}
	return rested
}

// end closes the tenancy.
func (t *tenancy) end() {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	t.close()
}

// watchDelay is how long a lock is held before its node is watched: most locks are
// released sooner, and need no such request.
const watchDelay = 20 * time.Millisecond

// watchNow makes keepWatching begin now, unless it has begun.
func (t *tenancy) watchNow() {
	if t.watcher.Stop() {
		t.watcher.Reset(0)
	}
}

// keepWatching watches the node, which an operator may remove. It is called by the timer
// and ends with the tenancy.
func (t *tenancy) keepWatching() {
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
		if err != nil { // look again after a pause, as if the connection had broken
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
	t.pool.local.change(&t.turns, func() { t.turns.stopped = true })
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
	rested := t.close()
	holds := slices.Clone(t.holds)
	t.pool.mu.Unlock()
	cause := lostWith(err)
	holds = slices.DeleteFunc(holds, func(h *hold) bool { return !h.life.end(cause, false) })
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
		t.pool.local.change(&t.turns, func() { t.turns.frozen, t.turns.shared = frozen, !frozen })
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

// removeNode removes the node. ctx bounds the wait: the removal happens even if ctx has ended.
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

// asObstacle returns the node as what another call waits behind.
func (t *tenancy) asObstacle() recipe.Wait {
	t.mu.Lock()
	defer t.mu.Unlock()
	return recipe.Wait{Queue: t.queue, Behind: t.node, Data: t.data, Holder: t.node}
}

// explainLocally returns the error of a wait in memory whose context has ended.
func (a *acquisition) explainLocally(ctx context.Context) error {
	at := a.stands()
	a.progress.standsLocally(at)
	switch {
	case at.session == nil:
		return a.pool.explainNoSlot(ctx, ctx.Err()) // nor has the delegate a session
	case at.behind.Behind.Name != "":
		return recipe.Busy(fmt.Errorf("waiting behind %s: %w", at.behind.Behind, ctx.Err()))
	}
	return ctx.Err()
}

const localPrefix = "local-" // of what stands for a node's name of a waiter without a node

func (p *Pool) localName(w *localWaiter) string {
	return fmt.Sprintf("%s%s-%d", localPrefix, p.id, w.id)
}

// localWaiters returns the waiters for the lock that have no node, and the node that
// they wait behind.
func (p *Pool) localWaiters(name string) (waiters []Contender, behind string) {
	found, t, delegate := p.local.find(name)
	if t != nil {
		behind = t.nodeNow().Name
	}
	if delegate != nil {
		behind = cmp.Or(delegate.now().node, behind)
	}
	for _, w := range found {
		kind := driver.Exclusive
		if w.shared {
			kind = driver.Shared
		}
		owner := nodedata.Parse(p.owner.Data(w.span, true, ""))
		waiters = append(waiters, Contender{
			Lock: name, Node: p.localName(w), Kind: kind.String(), Local: true, Asked: w.began, Origin: Origin(owner.Origin),
		})
	}
	return waiters, behind
}

// revokeLocally revokes the waiters without a node that have one of the names.
func (p *Pool) revokeLocally(name string, names []string) {
	if len(names) > 0 {
		asked := map[string]bool{}
		for _, n := range names {
			asked[n] = true
		}
		p.local.revoke(name, func(w *localWaiter) bool { return asked[p.localName(w)] })
	}
}
