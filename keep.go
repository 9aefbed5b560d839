package lockpool

// This file has kept locks: the node stays after the last unlock until another contender asks.

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// A pool with WithKeptLocks keeps the node of a lock that other processes do not want. The
// next holder has a turn under the node, as after any other handle of the pool, with the same
// checks and without a request. What excludes others is the node alone. The watch on the queue,
// which fires when another contender joins, only tells when to give the lock back, as do the
// time, the number of kept locks, a revocation and a lost connection.
// (GFS2 and distributed lock managers cache locks in this way; Chubby tells
// holders of conflicting requests.)

// keeping is what a pool knows of kept locks. localQueues.mu guards it.
type keeping struct {
	most   int           // kept locks; 0 if the pool keeps none
	unused time.Duration // how long
	closed bool          // Shutdown or Close has begun

	order  list.List   // of *turns with a watch on the queue; the kept among them in the order of their last use
	idle   int         // how many of them are kept
	sweep  *time.Timer // set while order is not empty
	habits map[string]habit
	taken  int64 // turns of kept locks
	asked  int64 // kept locks that others wanted
}

// kept is the part of the turns about keeping the lock.
type kept struct {
	wanted  bool // the lock is to be kept while no other contender wants the lock
	joins   *driver.Watch
	stop    func() // ends the callback of joins
	reused  int32  // turns of the kept lock
	looks   int32  // at the queue, since the last turn
	element *list.Element
}

// A habit tells whether a lock is worth keeping: a kept lock that others want costs an
// event, and the start of keeping costs five requests.
type habit struct {
	last   driver.Node // of the pool
	alone  int         // uses in a row with no other contender in between
	needed int         // to keep the lock
}

const (
	mostNeeded  = 1024
	worthwhile  = 4  // turns of a kept lock that make up for the cost
	mostLooks   = 8  // at a queue for readers that come and go, between two turns
	habitFactor = 4  // habits remembered for each kept lock
	atOnce      = 16 // removals of kept locks: a call sends its request behind these
)

// noteUse records the use of a lock by a new node of the pool. next reports whether no other
// client has joined between two nodes.
func (ls *localQueues) noteUse(t *turns, node driver.Node, next func(before, after driver.Node) bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	k, name := &ls.keeping, t.tenancy.name
	if k.habits == nil {
		k.habits = map[string]habit{}
	}
	h, known := k.habits[name]
	switch {
	case !known:
		h.needed = 1
	case next(h.last, node):
		h.alone++
	default:
		h.alone = 0
	}
	h.last = node
	if !known && len(k.habits) >= habitFactor*k.most {
		for other := range k.habits {
			delete(k.habits, other)
			break
		}
	}
	k.habits[name] = h
	t.wanted = h.alone >= h.needed
}

// noteEnd records how keeping a lock has ended, or that keeping could not begin.
func (k *keeping) noteEnd(t *turns) {
	h, known := k.habits[t.tenancy.name]
	switch {
	case !known:
		return
	case t.reused >= worthwhile:
		h.needed = 0
	default:
		h.alone, h.needed = -1, min(max(1, 2*h.needed), mostNeeded) // the next use is the first
	}
	k.habits[t.tenancy.name] = h
}

// isAlone reports whether the queue is watched, and no other contender has joined.
func (t *turns) isAlone() bool { return t.joins != nil && t.joins.Fired() == 0 }

// mayBecomeKept reports whether a wanted lock becomes kept if the last holder leaves and no
// other contender wants the lock.
func (t *turns) mayBecomeKept() bool {
	return (t.joins == nil || t.isAlone()) && t.holders == 1 && t.isWorthKeeping()
}

// isWorthKeeping reports whether a wanted lock can be kept, and there are turns. The node of a
// downgraded lock says more than a mark would leave.
func (t *turns) isWorthKeeping() bool {
	downgraded := t.shared && t.tenancy.kind != driver.Shared
	return !downgraded && !t.all.keeping.closed && t.hasOne(t.shared) && t.hasPlace()
}

// hasPlace reports whether later calls find the turns in the queue of the process, or may.
func (t *turns) hasPlace() bool {
	if t.queue == nil {
		return t.all.byName[t.tenancy.name] == nil
	}
	return t.isCurrent() && t.queue.delegate == nil && t.queue.waiters.Len() == 0
}

// tryToKeep makes a wanted lock without a holder a kept lock, and reports whether it did.
func (t *turns) tryToKeep() bool {
	k := &t.all.keeping
	if !t.isAlone() || !t.isWorthKeeping() {
		return false
	}
	if t.queue == nil {
		t.queue = t.all.newQueue(t.tenancy.name)
		t.queue.turns = t
	}
	t.state, t.since = isKept, time.Now()
	k.idle++
	if t.element == nil {
		t.element = k.order.PushBack(t)
	} else {
		k.order.MoveToBack(t.element)
	}
	if k.sweep == nil {
		pool := t.tenancy.pool
		k.sweep = time.AfterFunc(k.unused, pool.giveBackKept)
	}
	if k.idle > k.most {
		k.sweep.Reset(0)
	}
	return true
}

// forgetKept is called at the end of the turns.
func (t *turns) forgetKept() {
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
	k := &t.all.keeping
	if t.element != nil {
		k.order.Remove(t.element)
		t.element = nil
	}
	if k.sweep != nil && k.order.Len() == 0 { // also at Close: the timer has the pool
		k.sweep.Stop()
		k.sweep = nil
	}
}

// takeKept gives a call a turn of a kept lock, if the lock is kept. Events that have arrived
// count already, though the goroutine they begin may not have run. Once Shutdown has begun, no call
// has such a turn: a call without a lock is refused, and others wait until the lock is given back.
func (ls *localQueues) takeKept(name string, shared bool) (t *turns, turn int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.byName[name]
	if ls.keeping.closed || q == nil || q.turns == nil || q.delegate != nil || q.turns.state != isKept || !q.turns.hasOne(shared) || !q.turns.isAlone() {
		return nil, 0
	}
	ls.reportSoon() // the node names another call
	return q.turns, q.turns.take(new(localWaiter))
}

// recall ends keeping, and gives the lock back if it is unused; the present holder is the last.
// asked says that another contender wants the lock.
func (ls *localQueues) recall(t *turns, asked bool) leaving {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if t.ended {
		return stays
	}
	if t.joins != nil && t.wanted { // for the first time
		ls.keeping.noteEnd(t)
		if asked {
			ls.keeping.asked++
		}
	}
	t.wanted, t.stopped = false, true
	if t.state != isKept {
		t.advance()
		return stays
	}
	t.end()
	return gaveBack
}

// due ends the turns of kept locks that have been unused for too long, or that are too many, and
// returns the tenancies, a few.
func (k *keeping) due() (due []*tenancy) {
	now := time.Now()
	for busy := 0; busy < k.order.Len() && len(due) < atOnce; {
		t := k.order.Front().Value.(*turns)
		switch {
		case t.state != isKept:
			k.order.MoveToBack(t.element)
			busy++
			continue
		case k.idle <= k.most && !k.closed && now.Sub(t.since) < k.unused:
			k.sweep.Reset(t.since.Add(k.unused).Sub(now))
			return due
		case !k.closed:
			k.noteEnd(t)
		}
		t.end()
		due = append(due, t.tenancy)
	}
	if k.sweep != nil {
		k.sweep.Reset(k.unused)
	}
	return due
}

// keepNone ends keeping for Shutdown, which does not wait for the kept locks to be given back.
func (p *Pool) keepNone() {
	p.local.mu.Lock()
	defer p.local.mu.Unlock()
	p.local.keeping.closed = true
	if p.local.keeping.sweep != nil {
		p.local.keeping.sweep.Reset(0)
	}
}

// giveBackKept gives back the kept locks that have been unused for too long, or are too many: all
// of them after keepNone.
func (p *Pool) giveBackKept() {
	if !p.begin() {
		return
	}
	defer p.work.Done()
	for {
		p.local.mu.Lock()
		due := p.local.keeping.due()
		p.local.mu.Unlock()
		if len(due) == 0 {
			return
		}
		var removals sync.WaitGroup
		for _, t := range due {
			removals.Go(func() { _ = t.giveBack(canceled) })
		}
		removals.Wait()
	}
}

// keep begins to watch for other contenders, and marks the node for their tries. The
// caller calls watchNode.
func (t *tenancy) keep(ctx context.Context) {
	ls := &t.pool.local
	ls.mu.Lock()
	wanted := t.turns.wanted && t.turns.joins == nil
	ls.mu.Unlock()
	if !wanted {
		return
	}
	var joins *driver.Watch
	err := t.mark(ctx, nodedata.Kept(t.data)) // first, because the watch may fire for each change
	if err == nil {
		joins, _ = t.watchJoins(ctx)
	}
	if mayBeMarked := err == nil || ctx.Err() != nil; mayBeMarked && joins == nil && t.pool.begin() {
		go func() { // ends when the service has answered, or with the session
			defer t.pool.work.Done()
			_ = t.mark(context.Background(), t.data)
		}()
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if t.turns.wanted = joins != nil; !t.turns.wanted {
		ls.keeping.noteEnd(&t.turns) // there is another contender, or a right is missing
	} else if !t.turns.ended {
		t.turns.recallAt(joins)
	}
}

// recallAt has the lock recalled when the watch on the queue fires.
func (t *turns) recallAt(joins *driver.Watch) {
	t.joins, t.stop = joins, joins.OnFire(func() { go t.tenancy.joined(joins) })
}

// watchJoins returns a watch that fires when another contender has joined the queue, or nil
// if there is another one.
func (t *tenancy) watchJoins(ctx context.Context) (*driver.Watch, error) {
	follower, err := driver.Offer[driver.Follower](t.session.Session)
	if err != nil {
		return nil, err
	}
	alone := true
	f, err := follower.Follow(ctx, t.queue, func(nodes []driver.Node) (n int, complete bool) {
		alone = t.isFree(nodes)
		return 0, !alone
	})
	if err != nil || !alone || len(f.Watches) == 0 {
		return nil, err
	}
	return f.Watches[len(f.Watches)-1], nil
}

// isFree reports whether no other contender wants the lock: readers do not want what a reader has.
func (t *tenancy) isFree(nodes []driver.Node) bool {
	own := t.nodeNow()
	for _, n := range nodes {
		if n != own && (own.Kind != driver.Shared || n.Kind != driver.Shared) {
			return false
		}
	}
	return true
}

// joined is called when the watch on the queue has fired.
func (t *tenancy) joined(joins *driver.Watch) {
	if !t.pool.begin() {
		return
	}
	defer t.pool.work.Done()
	asked := joins.Fired() == driver.Changed
	if asked && t.nodeNow().Kind == driver.Shared { // perhaps it was another reader
		if again, err := t.watchJoins(context.Background()); err == nil && again != nil {
			if t.watchAgain(again) {
				return
			}
			asked = false
		}
	}
	left := t.pool.local.recall(&t.turns, asked)
	t.after(canceled, left)
	if left != gaveBack {
		_ = t.mark(context.Background(), t.data) // so that tries do not wait for an answer
	}
}

// watchAgain replaces the watch on the queue. It reports false if the lock is not to be kept
// any longer: other readers have come and gone too often since the last use, or a call of the pool
// has queued at the service meanwhile.
func (t *tenancy) watchAgain(joins *driver.Watch) bool {
	ls := &t.pool.local
	ls.mu.Lock()
	defer ls.mu.Unlock()
	k := &t.turns
	switch {
	case k.ended:
		return true
	case k.looks == mostLooks, k.state == isKept && !k.hasPlace():
		return false
	}
	k.looks++
	k.recallAt(joins)
	return true
}

// mark rewrites the node, unless a downgrade has replaced it: the new node says more.
func (t *tenancy) mark(ctx context.Context, data []byte) error {
	node, err := t.current(ctx)
	if err == nil && (node.Kind != driver.Shared || t.kind == driver.Shared) {
		err = t.session.Rewrite(ctx, t.queue, node, data)
	}
	if errors.Is(err, driver.ErrRemoved) && !t.replaced(node.Name) {
		t.endIfLost(err)
	}
	return err
}

// isKeptNode reports whether the data of a node says that the pool keeps the lock.
func isKeptNode(data []byte) bool { return nodedata.Parse(data).Kept }

// takeKept gives a call that does not wait in memory a turn of a kept lock.
func (a *acquisition) takeKept() (*tenancy, int) {
	t, turn := a.pool.local.takeKept(a.name, a.req.shared)
	if t == nil {
		return nil, 0
	}
	a.progress.onSession(t.tenancy.session)
	return t.tenancy, turn
}

// enterKept gives the handle a turn of a kept lock. It is acquire without a request, and
// without a span: a pool with a tracer takes the longer way.
func (h *Handle) enterKept(ctx context.Context, name string, req *request, l *Lock) (done bool, err error) {
	p := h.pool
	if p.telemetry.Traces() {
		return false, nil
	}
	t, turn := p.local.takeKept(name, req.shared)
	if t == nil {
		return false, nil
	}
	held := newHold(h, name, req, t.tenancy, turn)
	p.sampleKept(held)
	established, returned := false, false
	defer func() {
		switch {
		case !established:
			t.tenancy.drop(canceled)
		case !returned: // user code panics, so the caller cannot unlock
			_ = h.unlock(canceled, l)
		}
	}()
	if err := t.tenancy.session.Alive(canceled); err != nil {
		t.tenancy.endIfLost(err)
		return false, nil // acquire asks
	}
	defer func() {
		if !established {
			held.telemetry.Withdraw()
		}
	}()
	held.telemetry.Begin(ctx, p.telemetry, held.lock(), false)
	if err = h.registerAlone(held, req.shared, l); err == nil {
		established = true
		p.telemetry.AcquiredAtOnce(ctx, held.lock(), held.life.began)
	}
	returned = true
	if errors.Is(err, driver.ErrRemoved) || errors.Is(err, driver.ErrSessionLost) {
		return false, nil // the kept lock has been lost meanwhile
	}
	return true, err
}

// registerAlone is register, unless an acquisition of the handle has begun meanwhile.
func (h *Handle) registerAlone(held *hold, shared bool, l *Lock) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.acquiring != nil {
		return ErrConcurrentUse
	}
	return h.register(held, shared, l)
}
