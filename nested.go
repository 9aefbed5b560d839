package lockpool

// This file has nested waits: waits of handles with other locks.

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
	"github.com/lockpool/lockpool/recipe"
)

// A nestedWait is an acquisition that waits at the service while the handle holds other
// locks: only such a wait can be part of a deadlock. The node names the handle's holds,
// which do not grow during the wait, because a handle does one thing at a time. (If another
// goroutine unlocks one, and the held node stays in use, the waiting node is rewritten. A
// downgraded node says itself which node was replaced.)
//
// After a while, the wait reads who waits for the handle's holds, and for what the waiters
// hold, and so on, until a holder of the awaited lock is found, or an end (look.go). So no
// wait has to tell another, and a short wait costs nothing. All waits on a cycle come to
// the same victim (package waitgraph). Only the victim acts, for itself (victim.go).
type nestedWait struct {
	*acquisition
	handle *Handle
	on     *session
	ask    string
	age    int64           // order number of an earlier try, or 0
	tried  bool            // the age is that of a victim, and the wait has not been granted the lock
	holds  []*hold         // named by the nodes
	named  []nodedata.Hold // the holds as named in the nodes
	base   []byte          // of the data of the nodes, without the holds
	at     string          // the place of the call in the program
	ctx    context.Context
	cancel context.CancelCauseFunc
	victim *DeadlockError // the deadlock that ended the wait, if known to the call

	looks looks
	acts  chan struct{} // full while a request about the wait's nodes is under way: show, rewrite or leave
	shown bool          // for a plain lock: a node shows the wait; belongs to who acts

	mu      sync.Mutex       // guards the following
	data    []byte           // of the wait's nodes
	changed bool             // they may say something else
	order   int64            // of the beginning among the pool's nested waits; 0 before
	created int64            // order number of the first of the nodes; 0 if unknown
	nodes   []driver.Located // of the wait: of a semaphore, the guard before the leases
	timer   *time.Timer      // of the next look; nil before the wait for others
	looking bool             // a look is under way
	again   bool             // a queue was joined since the look began
	soonest time.Time        // of the next look, if something has changed
}

// beginNested begins a nested wait, if the handle holds anything and the call waits. The
// data is stored in the wait's nodes.
func (h *Handle) beginNested(ctx context.Context, a *acquisition, s *session) (context.Context, *nestedWait) {
	a.nested = nil
	if a.req.try || !h.holdsAny() {
		return ctx, nil
	}
	holds := h.holdsNow()
	if len(holds) == 0 {
		return ctx, nil
	}
	p := h.pool
	w := &nestedWait{acquisition: a, handle: h, on: s, ask: p.newAsk(), at: callSite(), holds: holds, acts: make(chan struct{}, 1)}
	w.age = p.ages.take(w)
	w.tried = w.age != 0
	w.age = a.hasAsked(w.age) // the first of an earlier try, a wait without a place anymore, and another lock of LockAll
	for _, held := range holds {
		w.named = append(w.named, held.named())
	}
	w.base = p.owner.Data(nodedata.Request{Span: a.local.span, Ask: w.ask, At: w.at, Revocable: a.req.revocable})
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	a.nested = w
	h.mu.Lock()
	h.nested = w
	h.mu.Unlock()
	w.mu.Lock()
	w.data = w.encode() // without the holds ended meanwhile
	w.mu.Unlock()
	p.nested.add(w)
	return w.ctx, w
}

// nestedWaits are the nested waits of a pool. A walk reads many, one lock at a time, and
// delays no other call.
type nestedWaits struct {
	last atomic.Int64 // nestedWait.order of the newest

	mu     sync.RWMutex
	byLock map[string]map[string]*nestedWait // and by ask
}

func (n *nestedWaits) add(w *nestedWait) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byLock == nil {
		n.byLock = map[string]map[string]*nestedWait{}
	}
	if n.byLock[w.name] == nil {
		n.byLock[w.name] = map[string]*nestedWait{}
	}
	n.byLock[w.name][w.ask] = w
}

func (n *nestedWaits) remove(w *nestedWait) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if delete(n.byLock[w.name], w.ask); len(n.byLock[w.name]) == 0 {
		delete(n.byLock, w.name)
	}
}

// find returns the wait for a lock with the ask, or nil.
func (n *nestedWaits) find(lock, ask string) *nestedWait {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byLock[lock][ask]
}

// waitsFor returns the waits for a lock.
func (n *nestedWaits) waitsFor(lock string) []*nestedWait {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Collect(maps.Values(n.byLock[lock]))
}

// named returns the hold as named in the nodes of a nested wait.
func (h *hold) named() nodedata.Hold {
	return nodedata.Hold{Lock: h.name, Node: h.tenancy.nodeNow().Name, Permits: h.kind == driver.Permit}
}

// encode returns what the nodes of the wait say.
func (w *nestedWait) encode() []byte {
	most := nodedata.MaxNode
	if w.req.permits > 0 {
		most = nodedata.MaxLease
	}
	named := w.named // as a rule
	for i, held := range slices.Backward(w.holds) {
		if held.life.over.Load() {
			named = slices.Concat(named[:i], named[i+1:])
		}
	}
	return nodedata.WithHolds(w.base, named, w.pool.cfg.checkAfter == 0, w.age, most)
}

func (w *nestedWait) dataNow() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.data
}

// newAsk returns an identifier of a request, for the pool to know its own requests.
func (p *Pool) newAsk() string { return p.id[:8] + uuid.NewString()[8:] }

// hasEnded reports whether a contender for the lock is an ended nested wait of the pool, or
// a victim, whose node is about to go.
func (p *Pool) hasEnded(lock, ask string) bool {
	if !strings.HasPrefix(ask, p.id[:8]) {
		return false
	}
	w := p.nested.find(lock, ask)
	return w == nil || w.ctx.Err() != nil
}

// waitsNested reports whether the handle has a nested wait.
func (h *Handle) waitsNested() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nested != nil
}

// holdsNow returns what the handle holds, the newest first.
func (h *Handle) holdsNow() (holds []*hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for held := range h.holds.all() {
		if !held.life.over.Load() && held.tenancy.session.Err() == nil {
			holds = append(holds, held)
		}
	}
	slices.SortFunc(holds, func(a, b *hold) int { return b.life.began.Compare(a.life.began) })
	return holds
}

// tellNested removes the hold from the nodes of the handle's nested wait, if there is one,
// although the hold's own node stays for others. The caller holds Handle.mu.
func (h *hold) tellNested() {
	if w := h.handle.nested; w != nil && slices.Contains(w.holds, h) {
		w.inBackground(w.rewrite)
	}
}

// inBackground calls a function on a goroutine, which ends when the service has answered or the wait
// has ended.
func (w *nestedWait) inBackground(do func()) {
	if w.pool.begin() {
		go func() { // ends when do returns
			defer w.pool.work.Done()
			do()
		}()
	}
}

// act waits until no other request about the nodes of the wait is under way, and reports
// false if the wait ends before. The caller then calls acted.
func (w *nestedWait) act() bool {
	select {
	case w.acts <- struct{}{}:
		return true
	case <-w.ctx.Done():
		return false
	}
}

func (w *nestedWait) acted() { <-w.acts }

// rewrite makes the nodes of the wait say what the handle holds now.
func (w *nestedWait) rewrite() {
	if !w.act() {
		return
	}
	defer w.acted()
	w.mu.Lock()
	w.changed = true
	w.data = w.encode()
	data, nodes := w.data, w.nodes
	w.mu.Unlock()
	for _, n := range nodes {
		for {
			err := w.on.Rewrite(w.ctx, n.Queue, n.Node, data)
			if err == nil || w.ctx.Err() != nil || errors.Is(err, driver.ErrRemoved) || errors.Is(err, driver.ErrSessionLost) || errors.Is(err, driver.ErrNoPermission) {
				break
			}
			select { // the answer says nothing
			case <-time.After(lookAgainDelay):
			case <-w.ctx.Done():
			}
		}
	}
}

// end ends the wait, with or without a grant, and a look under way, without waiting for the
// look. end may be called again.
func (w *nestedWait) end() {
	if w == nil {
		return
	}
	w.handle.mu.Lock()
	ended := w.handle.nested != w
	w.handle.nested = nil
	w.handle.mu.Unlock()
	if ended {
		return
	}
	w.cancel(nil)
	if w.tried {
		w.pool.ages.put(w, w.age)
	}
	w.looks.unfollow()
	w.pool.nested.remove(w)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hasAsked(w.created) // of a plain lock, only a nested wait has a node
	if w.timer != nil {
		w.timer.Stop()
	}
}

// explain returns why the wait has ended with err. ctx is the context of the wait.
func (w *nestedWait) explain(ctx context.Context, err error) error {
	if w == nil || err == nil {
		return err
	}
	if errors.Is(err, driver.ErrRemoved) && w.act() { // perhaps by the wait itself
		w.acted()
	}
	cause := context.Cause(w.ctx)
	if deadlock, ok := cause.(*DeadlockError); ok && cause != context.Cause(ctx) { // perhaps the deadlock of another call
		w.victim = deadlock
		return deadlock
	}
	return err
}

// report reports a deadlock, if the call fails because of one. Then the caller's next
// attempt is as old as the wait.
func (w *nestedWait) report(err error) {
	if w != nil && w.victim != nil && errors.Is(err, w.victim) {
		if !w.tried { // or end has
			w.pool.ages.put(w, w.asked())
		}
		w.Deadlocked(w.victim, w.victim.spans())
	}
}

// locate returns a node of the wait with the queue.
func (w *nestedWait) locate(node driver.Node) driver.Located {
	queue := w.name
	switch {
	case w.req.plain:
		queue = waitgraph.Waits(queue)
	case node.Kind == driver.Permit:
		queue += "/" + driver.Leases
	case w.req.permits > 0:
		queue += "/" + driver.Guards
	}
	return driver.Located{Queue: queue, Node: node}
}

// joined records the node of the wait in a queue, with the order number if known, and lets the
// wait look anew.
func (w *nestedWait) joined(node driver.Node, created int64) {
	if w == nil {
		return
	}
	at := w.locate(node)
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.nodes, at) {
		return
	}
	if node.Kind == driver.Permit && len(w.nodes) > 0 {
		w.nodes = []driver.Located{w.nodes[0], at} // the guard stays
	} else {
		w.nodes, w.created = []driver.Located{at}, created
	}
	if w.changed { // since the data was chosen
		time.AfterFunc(0, func() { w.inBackground(w.rewrite) })
	}
	w.lookSoon(w.pool.cfg.checkAfter)
}

// waiting is called before the wait waits for others, or, in the queue of a semaphore's own
// name, for the limit, without a node. A free lock costs no look, and no timer.
func (w *nestedWait) waiting(now recipe.Wait) {
	if w == nil || w.pool.cfg.checkAfter == 0 {
		return
	}
	w.mu.Lock()
	if w.req.permits > 0 && now.Queue == w.name {
		w.nodes = nil
		w.mu.Unlock()
		return
	}
	first := w.timer == nil
	if first {
		w.timer = time.AfterFunc(w.pool.cfg.checkAfter, w.lookOnTime)
		w.order = w.pool.nested.last.Add(1)
	}
	if w.created == 0 {
		w.created = now.Created
	}
	w.mu.Unlock()
	switch {
	case !w.req.plain:
		w.lookInMemory()
	case first:
		w.inBackground(func() {
			if w.show() == nil {
				w.lookInMemory()
			}
		})
	}
}

// show creates a node to show a wait for a plain lock, for as long as the wait lasts: the
// recipe of plain locks has no nodes of waiters.
func (w *nestedWait) show() error {
	if !w.req.plain || !w.act() {
		return w.ctx.Err()
	}
	defer w.acted()
	if w.shown {
		return nil
	}
	joined, err := w.on.Join(w.ctx, waitgraph.Waits(w.name), driver.Request{Kind: driver.Exclusive, Data: w.dataNow()})
	if err != nil {
		return err
	}
	w.shown = true
	context.AfterFunc(w.ctx, func() {
		if w.pool.begin() { // or else the node goes with the session
			defer w.pool.work.Done()
			_ = w.on.Leave(canceled, waitgraph.Waits(w.name), joined.Node) // continues in the background
		}
	})
	var created int64
	watches, err := w.on.Watch(w.ctx, waitgraph.Waits(w.name), joined.Node)
	if err == nil {
		created = watches[0].Created
	}
	w.joined(joined.Node, created) // not earlier: without the order number, the wait would be the last to ask
	return err
}
