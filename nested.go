package lockpool

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// A nestedWait is an acquisition that waits at the service while its handle holds other
// locks: only such a wait can be part of a deadlock. Its node names what the handle holds,
// which does not change for as long as it waits, because a handle does one thing at a
// time. (If another goroutine unlocks or downgrades one of these, and the node stays in
// use, the wait queues again.)
//
// After a while, the wait reads who waits for what its handle holds, and for what those
// hold, and so on, until it comes to somebody who holds what it waits for, or to an end. So
// nobody has to tell anybody, and a wait that is short costs nothing. Everybody on a circle
// comes to the same victim (package waitgraph). Only the victim acts, for itself, after one
// transaction has shown that all nodes of the circle exist at one moment.
type nestedWait struct {
	*acquisition
	handle *Handle
	on     *session
	ask    string
	data   []byte  // of its nodes
	holds  []*hold // that the data names
	ctx    context.Context
	cancel context.CancelCauseFunc
	victim *DeadlockError // that has ended it, if that is known to the call

	record nodedata.Record // that the data encodes, once it waits for others
	again  atomic.Bool     // it has joined a queue since the last look began

	// A look uses these, of which there is one at a time.
	pause time.Duration // before the next look
	known sync.Map      // what it has read: a map[string]driver.Contender by node, for each queue
	shown bool          // for a plain lock: a node shows the wait

	// Pool.mu guards these.
	timer *time.Timer   // of the next look, unless one is under way; nil before it waits for others
	order int64         // among the pool's nested waits; 0 if it is not known to wait
	nodes []driver.Node // with which it waits: of a semaphore, the guard before the leases
}

// The victim of a circle is the last to ask of those that hold something of it. When it joins
// its queue, it is connected with all of them, so its first look after that which is answered
// comes back to that queue, and nearly always decides. But the circle may close later, when
// nobody on it joins who holds something of it: when the guard of a wait for permits is first,
// so that too few are left for it, or when a limit is set. So looks that come back are
// repeated soon. The others are repeated rarely, in case the last to ask does not look.
const (
	lookAgain       = time.Second      // after the first look, and each that came back; after each later one twice as long
	lookRarely      = 10 * time.Second // but no longer than this
	lookAfterFailed = 500 * time.Millisecond
)

// errHoldsChanged ends a wait whose node no longer says what the handle holds.
var errHoldsChanged = errors.New("what the handle holds has changed")

// beginNested begins a nested wait, if the handle holds anything and the call waits. Its
// data is that of its nodes.
func (h *Handle) beginNested(ctx context.Context, a *acquisition, s *session) (context.Context, *nestedWait) {
	a.nested = nil
	if a.req.try || !h.holdsAny() {
		return ctx, nil
	}
	holds := h.holdsNow()
	if len(holds) == 0 {
		return ctx, nil
	}
	named := make([]nodedata.Hold, len(holds))
	for i, held := range holds {
		node, err := held.tenancy.current(ctx) // after a downgrade that is under way
		if err != nil {
			return ctx, nil // ctx has ended
		}
		named[i] = nodedata.Hold{Lock: held.name, Node: node.Name, Permits: held.kind == driver.Permit}
	}
	p, most := h.pool, nodedata.MaxNode
	if a.req.permits > 0 {
		most = nodedata.MaxLease
	}
	w := &nestedWait{acquisition: a, handle: h, on: s, ask: p.newAsk(), pause: lookAgain}
	data, fit := nodedata.WithHolds(p.owner.Data(a.span, false, w.ask), callSite(), named, p.cfg.checkAfter == 0, 0, most)
	w.data, w.holds = data, holds[:fit]
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	a.nested = w
	h.mu.Lock()
	h.nested = w
	for i, held := range w.holds {
		if h.holds[held.name] != held || held.tenancy.replaced(named[i].Node) { // meanwhile
			w.cancel(errHoldsChanged)
		}
	}
	h.mu.Unlock()
	p.mu.Lock()
	p.nested[a.name] = append(p.nested[a.name], w)
	p.mu.Unlock()
	return w.ctx, w
}

// newAsk returns an identifier of a request, which shows the pool that it is its own.
func (p *Pool) newAsk() string { return p.id[:8] + uuid.NewString()[8:] }

// hasEnded reports whether a contender for the lock is a nested wait of the pool that has
// ended, or is a victim, so that its node is about to go.
func (p *Pool) hasEnded(lock, ask string) bool {
	if !strings.HasPrefix(ask, p.id[:8]) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.nested[lock], func(w *nestedWait) bool { return w.ask == ask && w.ctx.Err() == nil })
}

// holdsNow returns what the handle holds, the newest first.
func (h *Handle) holdsNow() (holds []*hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	holds = make([]*hold, 0, len(h.holds))
	for _, held := range h.holds {
		if !held.life.over.Load() && held.tenancy.session.Err() == nil {
			holds = append(holds, held)
		}
	}
	slices.SortFunc(holds, func(a, b *hold) int { return b.life.began.Compare(a.life.began) })
	return holds
}

// requeueNested makes the nested wait of the handle, if there is one, queue again: the hold
// has ended, or is downgraded, and its node may stay. It is called with Handle.mu held.
func (h *hold) requeueNested() {
	if w := h.handle.nested; w != nil && slices.Contains(w.holds, h) {
		w.cancel(errHoldsChanged)
	}
}

// end ends the wait, whether or not the lock was granted, and its look, if one is under way,
// without waiting for it. It may be called again.
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
	p := w.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nested[w.name] = slices.DeleteFunc(p.nested[w.name], func(other *nestedWait) bool { return other == w })
	if len(p.nested[w.name]) == 0 {
		delete(p.nested, w.name)
	}
	if w.timer != nil {
		w.timer.Stop()
	}
}

// explain returns why the wait has ended with err. ctx is the one that it was begun with.
func (w *nestedWait) explain(ctx context.Context, err error) error {
	if w == nil {
		return err
	}
	cause := context.Cause(w.ctx)
	if cause == context.Cause(ctx) { // which may be the deadlock of another call
		return err
	}
	if deadlock, ok := cause.(*DeadlockError); ok {
		w.victim = deadlock
		return deadlock
	}
	if cause == errHoldsChanged {
		return cause
	}
	return err
}

// report reports a deadlock, if the call fails because of it.
func (w *nestedWait) report(err error) {
	if w != nil && w.victim != nil && errors.Is(err, w.victim) {
		w.Deadlocked(w.victim, w.victim.spans())
	}
}

// joined records the node with which the wait has joined a queue, and lets it look anew.
func (w *nestedWait) joined(node driver.Node) {
	if w == nil {
		return
	}
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	if slices.Contains(w.nodes, node) {
		return
	}
	if node.Kind == driver.Permit && len(w.nodes) > 0 {
		w.nodes = []driver.Node{w.nodes[0], node} // the guard stays
	} else {
		w.nodes = []driver.Node{node}
	}
	w.order = 0
	if w.timer != nil {
		w.again.Store(true)
		if w.timer.Stop() { // or else a look is under way
			w.timer.Reset(w.pool.cfg.checkAfter)
		}
	}
}

// waiting is called before the wait waits for others, or, in the queue of a semaphore's own
// name, for its limit, without a node. A lock that is free costs no look, and no timer.
func (w *nestedWait) waiting(queue string) {
	switch {
	case w == nil || w.pool.cfg.checkAfter == 0:
	case w.req.permits > 0 && queue == w.name:
		w.pool.mu.Lock()
		defer w.pool.mu.Unlock()
		w.nodes = nil
	default:
		w.lookInMemory()
	}
}

// waitsFor returns the queue of the nodes that show nested waits for a plain lock.
func waitsFor(name string) string { return driver.Waits + "/" + name }

// lookOnTime looks for a deadlock, and again later. It is called by the timer.
func (w *nestedWait) lookOnTime() {
	if w.ctx.Err() != nil || !w.pool.begin() {
		return
	}
	defer w.pool.work.Done()
	if w.again.Swap(false) {
		w.pause = lookAgain
	}
	circle, err := w.look()
	next := w.pause
	switch {
	case circle != nil:
		w.cancel(&DeadlockError{circle})
	case err != nil && !errors.Is(err, driver.ErrNoPermission) && !errors.Is(err, errors.ErrUnsupported):
		next = lookAfterFailed
	default:
		w.pause = min(2*w.pause, lookRarely)
	}
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	if w.again.Load() { // during the look
		next = w.pool.cfg.checkAfter
	}
	if w.ctx.Err() == nil {
		w.timer.Reset(next)
	}
}

// look returns the circle of which the wait is the victim, if there is one.
func (w *nestedWait) look() ([]DeadlockWait, error) {
	if err := w.show(); err != nil {
		return nil, err
	}
	g, err := w.read()
	if err != nil || g == nil {
		return nil, err
	}
	w.pause = min(w.pause, lookAgain)
	circle, proof := g.find(w.ask)
	if circle == nil {
		return nil, nil
	}
	err = w.on.Verify(w.ctx, proof...)
	switch {
	case errors.Is(err, driver.ErrRemoved): // the circle has dissolved
		return nil, nil
	case errors.Is(err, driver.ErrTooMany): // and may have fewer later
		w.pause = lookRarely
		return nil, nil
	}
	return circle, err
}

// show creates a node that shows the wait, and goes with it, if it is for a plain lock, in
// whose recipe waiters have none.
func (w *nestedWait) show() error {
	if !w.req.plain || w.shown {
		return nil
	}
	joined, err := w.on.Join(w.ctx, waitsFor(w.name), driver.Request{Kind: driver.Exclusive, Data: w.data})
	if err != nil {
		return err
	}
	w.shown = true
	context.AfterFunc(w.ctx, func() {
		if w.pool.begin() { // or else the node goes with the session
			defer w.pool.work.Done()
			_ = w.on.Leave(canceled, waitsFor(w.name), joined.Node) // continues in the background
		}
	})
	return nil
}

// lookInMemory looks among the pool's own nested waits, when this one is about to wait for
// others. It ends the victim, which nearly always is this one.
func (w *nestedWait) lookInMemory() {
	p := w.pool
	first := w.timer == nil
	if first {
		w.record = nodedata.Parse(w.data)
	}
	p.mu.Lock()
	if first {
		w.timer = time.AfterFunc(p.cfg.checkAfter, w.lookOnTime)
	}
	if w.order == 0 {
		p.lastNested++
		w.order = p.lastNested
	}
	if w.req.plain {
		w.nodes = []driver.Node{{Kind: driver.Plain, Name: w.ask}} // for want of one at the service
	}
	g, reached := w.graphInMemory()
	p.mu.Unlock()
	if g == nil {
		return
	}
	last := waitgraph.Last(g.queues, w.ask)
	if circle, _ := g.find(last); circle != nil {
		reached[last].cancel(&DeadlockError{circle})
	}
}
