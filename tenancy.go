package lockpool

// This file has tenancies: the grants of a lock to a node of the pool, and the watch on that node.

import (
	"container/list"
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
	turnBits = nodedata.TurnBits
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
func (h *hold) knownToken() int64 { return h.tenancy.knownToken(h.turn) }

func (t *tenancy) knownToken(turn int) int64 {
	created := t.created.Load()
	if created == 0 {
		return 0
	}
	token, _ := packToken(created, turn)
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

	// Pool.mu guards the following.
	holds     []*hold       // that are registered
	granted   time.Time     // to the newest holder
	newest    int           // turn of the newest holder
	begun     bool          // there has been a hold
	unwatched *list.Element // in Pool.unwatched until keepWatching begins
	closed    bool
	lost      bool
	revoked   bool
}

func newTenancy(a *acquisition, s *session, node driver.Node) *tenancy {
	t := &tenancy{pool: a.pool, name: a.name, kind: a.req.kind()}
	t.turns = turns{tenancy: t, all: &a.pool.local, retired: &s.retired, holders: 1, holder: a.local.span, at: a.local.at, asked: a.local.began, tookOver: a.tookOver, revocable: a.req.revocable, shared: a.req.shared, share: s.share()}
	t.session, t.queue, t.node, t.data = s, a.req.queue(a.name), node, a.data
	if !a.local.alone {
		t.turns.queue = a.local.queue
	}
	a.again = a.pool.costs.follows(a.name, node, s)
	if a.pool.keeps(&a.req) {
		a.pool.local.noteUse(&t.turns, node, s.areNeighbors)
	}
	return t
}

// canceled is a context that has ended: a release with canceled begins, and continues in the
// background.
var canceled = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// add registers a hold; the first hold begins the tenancy. The caller holds Pool.mu.
func (t *tenancy) add(h *hold) {
	t.holds = append(t.holds, h)
	if h.turn >= t.newest {
		t.newest, t.granted = h.turn, h.life.began
	}
	if !t.begun {
		t.begun = true
		t.pool.unwatched.add(t)
		t.pool.local.change(&t.turns, t.turns.begin)
	}
	if t.revoked {
		h.life.revoke()
	}
	if h.turn > 0 || h.life.revocable { // turns are short, but the tenancy may be long
		t.watchNow()
	}
}

// anotherWaits reports whether a contender of another process may wait, and asks the service
// until the given time.
func (t *tenancy) anotherWaits(until time.Time) bool {
	if !t.pool.begin() {
		return false
	}
	defer t.pool.work.Done()
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	nodes, err := t.session.List(ctx, t.queue)
	return err == nil && !t.isFree(nodes)
}

// A leaving is what becomes of the lock when a hold of it has ended.
type leaving int

const (
	notYet   leaving = iota // the turn has not ended: the service must be asked first
	stays                   // the node does: other handles of the pool have the lock, or may get it
	gaveBack                // the turns are over: the caller gives the node back
)

// knowledge is what is known of a lock whose holder leaves.
type knowledge int

const (
	nothing     knowledge = iota // the removal of the node would go unnoticed if the node stays
	isWatched                    // the node is watched
	nothingMore                  // whatever is known: the service was asked, or is not to be asked
)

func watchedIf(watched bool) knowledge {
	if watched {
		return isWatched
	}
	return nothing
}

// drop ends the turn of a holder, as after does the rest.
func (t *tenancy) drop(ctx context.Context) {
	t.after(ctx, t.pool.local.leave(&t.turns, time.Time{}, nothingMore))
}

// after does what is left to be done when a holder has left. ctx bounds the wait, as in giveBack.
func (t *tenancy) after(ctx context.Context, left leaving) {
	if left == gaveBack {
		_ = t.giveBack(ctx) // continues in the background on failure
	}
}

// giveBack closes the tenancy, and removes the node.
func (t *tenancy) giveBack(ctx context.Context) error {
	t.end()
	return t.removeNode(ctx)
}

// close ends the tenancy, but no hold: the node is about to be removed, or lost. close reports
// whether the lock was idle. The caller holds Pool.mu.
func (t *tenancy) close() (wasIdle bool) {
	t.pool.unwatched.remove(t)
	t.unwatch()
	t.pool.local.change(&t.turns, func() {
		wasIdle = t.turns.state != inUse
		t.turns.end()
	})
	t.closed = true
	t.pool.noteDrained()
	t.forgetUnused()
	return wasIdle
}

// forgetUnused makes the session forget the tenancy when it is over and has no holds. The caller
// holds Pool.mu.
func (t *tenancy) forgetUnused() {
	if t.closed && len(t.holds) == 0 {
		t.session.forget(t)
		t.pool.closeIfIdle(t.session)
	}
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

// unwatched are the tenancies held for less than watchDelay, in the order of their grants. They
// share a timer.
type unwatched struct {
	tenancies list.List
	timer     *time.Timer // nil before the first tenancy
}

func (u *unwatched) add(t *tenancy) {
	t.unwatched = u.tenancies.PushBack(t)
	switch {
	case u.timer == nil:
		u.timer = time.AfterFunc(watchDelay, t.pool.watchDue)
	case u.tenancies.Len() == 1:
		u.timer.Reset(watchDelay)
	}
}

// remove reports whether the tenancy was unwatched.
func (u *unwatched) remove(t *tenancy) bool {
	if t.unwatched == nil {
		return false
	}
	u.tenancies.Remove(t.unwatched)
	t.unwatched = nil
	return true
}

// stop is called when nothing is added any more.
func (u *unwatched) stop() {
	if u.timer != nil {
		u.timer.Stop()
	}
}

// watchDue has the nodes watched of the tenancies that have been held for watchDelay.
func (p *Pool) watchDue() {
	if !p.begin() {
		return
	}
	defer p.work.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	for first := p.unwatched.tenancies.Front(); first != nil; first = p.unwatched.tenancies.Front() {
		t := first.Value.(*tenancy)
		if left := time.Until(t.granted.Add(watchDelay)); left > 0 {
			p.unwatched.timer.Reset(left)
			return
		}
		t.watchNow()
	}
}

// watchNow makes keepWatching begin now, unless it has begun. The caller holds Pool.mu.
func (t *tenancy) watchNow() {
	if t.pool.unwatched.remove(t) {
		go t.keepWatching() // ends when the service has answered, or with the session
	}
}

// watchSoon is watchNow.
func (t *tenancy) watchSoon() {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	t.watchNow()
}

func (t *tenancy) isClosed() bool {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	return t.closed
}

// keepWatching watches the node, which an operator may remove.
func (t *tenancy) keepWatching() {
	p := t.pool
	if !p.begin() {
		return
	}
	defer p.work.Done()
	if t.isClosed() {
		return
	}
	watch, err := t.watchNode(context.Background())
	switch {
	case t.isClosed():
	case err != nil:
		time.AfterFunc(lookAgainDelay, t.keepWatching)
	default:
		t.onFire(watch, func() { // ends at once
			if watch.Fired() == driver.Unnoticed {
				p.telemetry.Rescued(context.Background(), telemetry.Lock{Name: t.name, Kind: t.kind})
			}
			t.keepWatching()
		})
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
	t.after(canceled, t.pool.local.recall(&t.turns, false))
}

// endIfLost ends the tenancy and its holds if err, of a request about its node, means
// that the lock is lost. It reports whether it does.
func (t *tenancy) endIfLost(err error) bool {
	removed, unreadable := errors.Is(err, driver.ErrRemoved), errors.Is(err, driver.ErrNoPermission)
	if !removed && !unreadable && !errors.Is(err, driver.ErrSessionLost) {
		return false
	}
	// A node that cannot be read may still exist, and if there are several nodes, some may be
	// left.
	t.lose(lostWith(err), unreadable || removed && t.kind != driver.Plain)
	return true
}

// lose ends the tenancy and its holds, and perhaps removes the node.
func (t *tenancy) lose(cause error, remove bool) {
	t.pool.mu.Lock()
	t.lost = true
	wasIdle := t.close()
	holds := slices.Clone(t.holds)
	t.pool.mu.Unlock()
	holds = slices.DeleteFunc(holds, func(h *hold) bool { return !h.life.end(cause, false) })
	if (len(holds) > 0 || wasIdle) && remove {
		_ = t.removeNode(canceled) // continues in the background
	}
	for _, h := range holds {
		defer h.reportEnd(cause) // deferred, so that each runs even if user code panics
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
