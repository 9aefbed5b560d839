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
	data   []byte          // of its nodes
	record nodedata.Record // that the data encodes
	holds  []*hold         // that the record names
	ctx    context.Context
	cancel context.CancelCauseFunc

	again   atomic.Bool   // it has joined a queue since the last look began
	looking chan struct{} // full while a look is under way, which uses the following
	timer   *time.Timer   // nil if it does not look
	pause   time.Duration // before the next look
	known   sync.Map      // what it has read: a map[string]driver.Contender by node, for each queue
	shown   driver.Node   // for a plain lock: the node that shows the wait

	// Pool.mu guards these.
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
	w := &nestedWait{acquisition: a, handle: h, on: s, looking: make(chan struct{}, 1), pause: lookAgain}
	var nodes []driver.Node
	var named []nodedata.Hold
	for _, held := range h.holdsNow() {
		node, err := held.tenancy.current(ctx) // after a downgrade that is under way
		if err != nil {
			return ctx, nil // ctx has ended
		}
		nodes = append(nodes, node)
		w.holds = append(w.holds, held)
		named = append(named, nodedata.Hold{Lock: held.name, Node: node.Name, Permits: held.kind == driver.Permit})
	}
	if len(named) == 0 {
		return ctx, nil
	}
	p, most := h.pool, nodedata.MaxNode
	if a.req.permits > 0 {
		most = nodedata.MaxLease
	}
	w.data = nodedata.WithHolds(p.owner.Data(a.span, false, p.newAsk()), callSite(), named, p.cfg.checkAfter == 0, most)
	w.record = nodedata.Parse(w.data)
	w.holds = w.holds[:len(w.record.Holds)]
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	a.nested = w
	h.mu.Lock()
	h.nested = w
	for i, held := range w.holds {
		if h.holds[held.name] != held || held.tenancy.replaced(nodes[i]) { // meanwhile
			w.cancel(errHoldsChanged)
		}
	}
	h.mu.Unlock()
	p.mu.Lock()
	p.nested[a.name] = append(p.nested[a.name], w)
	p.mu.Unlock()
	if p.cfg.checkAfter > 0 {
		w.looking <- struct{}{}
		w.timer = time.AfterFunc(p.cfg.checkAfter, w.lookOnTime)
		<-w.looking
	}
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
	return !slices.ContainsFunc(p.nested[lock], func(w *nestedWait) bool { return w.record.Ask == ask && w.ctx.Err() == nil })
}

// holdsNow returns what the handle holds, the newest first.
func (h *Handle) holdsNow() (holds []*hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
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

// end ends the wait, whether or not the lock was granted. It may be called again.
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
	p := w.pool
	p.mu.Lock()
	p.nested[w.name] = slices.DeleteFunc(p.nested[w.name], func(other *nestedWait) bool { return other == w })
	if len(p.nested[w.name]) == 0 {
		delete(p.nested, w.name)
	}
	p.mu.Unlock()
	w.cancel(nil)
	w.looking <- struct{}{} // a look ends with ctx
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.shown != (driver.Node{}) {
		_ = w.on.Leave(canceled, waitsFor(w.name), w.shown) // continues in the background
	}
	<-w.looking // for a timer that fires now
}

// explain returns why the wait has ended with err, and reports a deadlock.
func (w *nestedWait) explain(err error) error {
	if w == nil {
		return err
	}
	cause := context.Cause(w.ctx)
	if deadlock, ok := cause.(*DeadlockError); ok {
		w.Deadlocked(deadlock, deadlock.spans())
		return deadlock
	}
	if cause == errHoldsChanged {
		return cause
	}
	return err
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
		w.timer.Reset(w.pool.cfg.checkAfter)
	}
}

// waiting is called before the wait waits for others, or, in the queue of a semaphore's own
// name, for its limit, without a node.
func (w *nestedWait) waiting(queue string) {
	if w == nil {
		return
	}
	if w.req.permits == 0 || queue != w.name {
		w.lookInMemory()
		return
	}
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	w.nodes = nil
}

// waitsFor returns the queue of the nodes that show nested waits for a plain lock.
func waitsFor(name string) string { return driver.Waits + "/" + name }

// lookOnTime looks for a deadlock, and again later. It is called by the timer.
func (w *nestedWait) lookOnTime() {
	w.looking <- struct{}{}
	defer func() { <-w.looking }()
	if w.ctx.Err() != nil || !w.pool.begin() {
		return
	}
	defer w.pool.work.Done()
	if w.again.Swap(false) {
		w.pause = lookAgain
	}
	circle, err := w.look()
	switch {
	case circle != nil:
		w.cancel(&DeadlockError{circle})
		return
	case err != nil && !errors.Is(err, driver.ErrNoPermission) && !errors.Is(err, errors.ErrUnsupported):
		w.timer.Reset(lookAfterFailed)
	default:
		w.timer.Reset(w.pause)
		w.pause = min(2*w.pause, lookRarely)
	}
	if w.again.Load() { // during the look
		w.timer.Reset(w.pool.cfg.checkAfter)
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
	circle, proof := g.find(w.record.Ask)
	if circle == nil {
		return nil, nil
	}
	err = w.on.Verify(w.ctx, proof...)
	if errors.Is(err, driver.ErrRemoved) { // the circle has dissolved
		return nil, nil
	}
	return circle, err
}

// show creates a node that shows the wait, if it is for a plain lock, in whose recipe
// waiters have none.
func (w *nestedWait) show() error {
	if !w.req.plain || w.shown != (driver.Node{}) {
		return nil
	}
	joined, err := w.on.Join(w.ctx, waitsFor(w.name), driver.Request{Kind: driver.Exclusive, Data: w.data})
	w.shown = joined.Node
	return err
}

// lookInMemory looks among the pool's own nested waits, when this one is about to wait for
// others. It ends the victim, which nearly always is this one.
func (w *nestedWait) lookInMemory() {
	if w.timer == nil {
		return
	}
	p := w.pool
	p.mu.Lock()
	if w.order == 0 {
		p.lastNested++
		w.order = p.lastNested
	}
	if w.req.plain {
		w.nodes = []driver.Node{{Kind: driver.Plain, Name: w.record.Ask}} // for want of one at the service
	}
	g, reached := w.graphInMemory()
	p.mu.Unlock()
	if g == nil {
		return
	}
	last := waitgraph.Last(g.queues, w.record.Ask)
	if circle, _ := g.find(last); circle != nil {
		reached[last].cancel(&DeadlockError{circle})
	}
}
