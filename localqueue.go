package lockpool

// This file has the queue of the calls of one process for one lock, which decides who has
// the next turn. The queue asks the service one thing, through the tenancy: whether another
// process waits.

import (
	"container/list"
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/telemetry"
)

const (
	// localTime is how long after the grant a tenancy gives out turns at most.
	localTime = 100 * time.Millisecond
	// leastShare is how long a tenancy gives out turns at least.
	leastShare = 5 * time.Millisecond
)

// localQueues are the queues of a pool. Their mutex guards the queues, the waiters and the
// turns, whose methods are called with mu held.
type localQueues struct {
	mu       sync.Mutex
	most     int                    // turns of one tenancy
	byName   map[string]*localQueue // with turns or a delegate
	joined   int64                  // number of the newest waiter
	passedOn atomic.Int64           // turns begun without a request
	resting  int                    // locks at rest
	keeping  keeping
	paces    paces

	report    func() // called some time after reportSoon; nil for never
	reporting bool
}

// A localQueue is where calls wait for one lock in memory, in the order in which they
// asked. The first waiter either gets a turn or, without a turn, becomes the delegate, and
// queues at the service for the next tenancy, in front of the other waiters. So the queue
// has at most one waiting node.
//
// Only calls of handles without a hold wait here. No call waits for such a call, so the
// queue adds no deadlock to a program.
type localQueue struct {
	all      *localQueues
	name     string
	turns    *turns       // nil if there are none, or the tenancy gives out no more
	delegate *localWaiter // nil if there is none
	waiters  list.List    // of *localWaiter; empty unless there are turns or a delegate
	accepted bool         // by the service's queue, for a call of the pool: later ones may wait
}

// localWaiter is a call in a localQueue: a waiter or the delegate.
type localWaiter struct {
	progress  *progress
	shared    bool
	revocable bool
	giveUp    context.CancelCauseFunc // ends the call; calls methods of the caller's context
	began     time.Time
	span      *trace.SpanContext // of the request; nil if waits are not linked to a span
	at        string             // where the request was made, or empty

	alone     bool // outside of the queue, or replaced as the delegate by another call
	hasSlot   bool // not waiting for a free handle
	hasWaited bool // waited in memory, or lost the place at the service
	blocked   bool // by a holder, until the call became the delegate
	revoked   bool // during the wait
	queue     *localQueue
	place     *place // for the delegate to take over; nil if there is none
	id        int64
	element   *list.Element // in the queue, during the wait

	admission *admission // nil if the call accepts any queue

	done  chan struct{} // closed at the end of the wait: with a turn, an error, or neither as the delegate
	turns *turns
	turn  int
	err   error
}

// place is a place in the service's queue. A delegate that gives up leaves the place to the
// next one.
type place struct {
	session *session
	node    driver.Node
	data    []byte // stored in the node
}

// turns are a tenancy's turns for the calls of the pool. They are bounded, in number and in
// time, for other contenders, in the order of the service's queue. Hundreds of turns cost two
// writes and a few listings.
type turns struct {
	tenancy *tenancy
	queue   *localQueue  // nil if the lock is not passed on in memory
	retired *atomic.Bool // the session of the tenancy is not to be used any longer

	last     int                // turn of the newest holder
	seen     int                // last, at the last report
	holders  int                // present holders
	holder   *trace.SpanContext // of the newest holder's request, or nil
	at       string             // where the newest holder's request was made
	asked    time.Time          // when it was made; zero if not known
	tookOver bool               // the node was made for another request

	revocable bool // the newest holder's request is
	granted   time.Time
	share     time.Duration // after which the waiters of other processes have the lock; doubled while there are none
	due       time.Time     // end of the present share
	expiry    *time.Timer   // of the share, if there are waiters
	over      bool          // the share is, and another process waits
	shared    bool          // readers have the lock
	stopped   bool          // there are no more turns
	frozen    bool          // there is no turn while a downgrade is under way, or after it has failed
	ended     bool          // the tenancy is over

	all *localQueues
	idle
}

// join adds a call to the queue for a lock, and reports false if the call is the delegate.
// Otherwise the call has a turn already, or waits behind other requests, of which some may
// have spans. slow says that waits for the lock are long.
func (ls *localQueues) join(name string, w *localWaiter) (waits, slow bool, behind *telemetry.Behind) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.byName[name]
	if q == nil {
		q = ls.newQueue(name)
		q.delegate = w
	}
	w.queue = q
	if d := q.delegate; d != nil && !d.hasSlot && !d.hasWaited && w.hasSlot {
		// The delegate waits for a free handle, perhaps that of w, and goes on by itself.
		d.alone, q.delegate = true, w
	}
	if q.delegate == w {
		return false, false, nil
	}
	behind = q.behind(w)
	if slow = q.isSlow(w); w.admission.isUndecided() {
		q.admit(w)
		return true, slow, behind
	}
	q.push(w)
	q.advance()
	return true, slow, behind
}

// behind returns what a call is about to wait behind, or nil if the call is not traced.
func (q *localQueue) behind(w *localWaiter) *telemetry.Behind {
	if w.span == nil {
		return nil
	}
	b := new(telemetry.Behind)
	if q.turns != nil {
		b.Holder = q.turns.holder
	}
	switch {
	case q.waiters.Len() > 0:
		b.Predecessor = q.waiters.Back().Value.(*localWaiter).span
	case q.delegate != nil:
		b.Predecessor = q.delegate.span
	}
	return b
}

// admit adds a waiter, unless the queue is too long for the call.
func (q *localQueue) admit(w *localWaiter) {
	a, ahead := w.admission, q.ahead()
	q.push(w)
	q.advance()
	full := a.refuse(ahead, q.all.paces.now(paceKey{q.name, true}))
	switch {
	case w.element == nil:
		a.accepted = w.turns != nil // the service's queue may be too long for the delegate
	case full != nil:
		w.err = full
		q.finish(w)
		q.advance()
	default:
		a.wait(ahead, true)
	}
}

// newQueue returns a queue for a name without one. The caller adds turns or a delegate.
func (ls *localQueues) newQueue(name string) *localQueue {
	if ls.byName == nil {
		ls.byName = map[string]*localQueue{}
	}
	q := &localQueue{all: ls, name: name}
	ls.byName[name] = q
	return q
}

// push adds a waiter behind the calls that began earlier. A call that queues again may have
// begun before some of the waiters.
func (q *localQueue) push(w *localWaiter) {
	q.all.joined++
	w.id, w.hasWaited, w.done = q.all.joined, true, make(chan struct{})
	w.turns, w.turn, w.err = nil, 0, nil
	w.element = q.waiters.PushBack(w)
	q.all.reportSoon()
	for e := w.element.Prev(); e != nil && w.began.Before(e.Value.(*localWaiter).began); e = w.element.Prev() {
		q.waiters.MoveBefore(w.element, e)
	}
}

// waiting returns the waiters in their order. The caller may remove the waiter just returned.
func (q *localQueue) waiting() iter.Seq[*localWaiter] {
	return func(yield func(*localWaiter) bool) {
		for e := q.waiters.Front(); e != nil; {
			w := e.Value.(*localWaiter)
			e = e.Next()
			if !yield(w) {
				return
			}
		}
	}
}

// first returns the first waiter. There must be one.
func (q *localQueue) first() *localWaiter { return q.waiters.Front().Value.(*localWaiter) }

func (q *localQueue) remove(w *localWaiter) {
	q.waiters.Remove(w.element)
	w.element = nil
}

// finish ends the wait of a waiter.
func (q *localQueue) finish(w *localWaiter) {
	q.remove(w)
	if w.admission != nil {
		w.admission.accepted = w.admission.accepted || q.accepted
	}
	close(w.done)
}

// advance gives turns to the first waiters, as many as may have one now. If the tenancy has no
// turn for the first waiter, now or later, that waiter becomes the delegate. advance follows
// each change.
func (q *localQueue) advance() {
	q.accepted = q.accepted || q.turns != nil
	for q.delegate == nil && q.waiters.Len() > 0 {
		w, t := q.first(), q.turns
		switch {
		case t == nil || !t.hasOneFor(w):
			q.delegate, w.blocked = w, t != nil
		case t.holders == 0 && !t.hasTimeLeft() || t.shared:
			w.turns, w.turn = t, t.take(w)
			if t.shared { // readers that follow each other keep the lock from writers
				t.awaitExpiry()
			}
		default:
			t.awaitExpiry()
			return
		}
		q.finish(w)
	}
	if q.turns == nil && q.delegate == nil && q.all.byName[q.name] == q {
		delete(q.all.byName, q.name)
	}
}

// take begins the next turn.
func (t *turns) take(w *localWaiter) (turn int) {
	if t.state == isKept {
		t.reused++
		t.all.keeping.taken++
	}
	if t.state != inUse {
		t.endIdle()
	}
	t.looks = 0
	t.last++
	t.holders++
	t.holder, t.at, t.asked, t.revocable = w.span, w.at, w.began, w.revocable
	t.all.passedOn.Add(1)
	return t.last
}

// hasOne reports whether there is a turn for readers, or for a writer, now or when the
// present holders have left. A node holds the lock for readers or for a writer: readers may
// hold the lock for long, and readers of other processes must be able to share the lock. A
// kept lock has none if an event of its node has arrived: the node may be gone.
func (t *turns) hasOne(shared bool) bool {
	return t.shared == shared && t.last+1 < t.all.most && !t.stopped && !t.frozen && !t.ended && !t.retired.Load() &&
		(t.state != isKept || t.tenancy.isWatched())
}

// hasOneFor reports whether there is a turn for a waiter. There is no limit of time while a
// watch on the queue tells that no other contender waits.
func (t *turns) hasOneFor(w *localWaiter) bool {
	return t.hasOne(w.shared) && (t.isAlone() || !t.over && time.Since(t.granted) < localTime)
}

// awaitExpiry makes the first waiter queue at the service when the time of the tenancy is
// over, even if the holder keeps the lock: a later call in another process must not get the
// lock earlier. (A lock that the pool keeps is given back when another contender joins.)
func (t *turns) awaitExpiry() {
	if t.expiry == nil && !t.isAlone() {
		ls := t.all
		t.expiry = time.AfterFunc(time.Until(t.due), func() { ls.endShare(t) })
	}
}

// endShare ends the turns if another process waits, and otherwise begins another share, twice as
// long, for a listing less. The turns go on while the service is asked.
func (ls *localQueues) endShare(t *turns) {
	latest, look := t.granted.Add(localTime), false
	ls.change(t, func() {
		look = t.isCurrent() && t.queue.delegate == nil && (t.shared || t.queue.waiters.Len() > 0) && time.Now().Before(latest)
		if !look {
			t.expiry = nil // a waiter needs another
		}
	})
	if !look {
		return
	}
	began := time.Now()
	another := t.tenancy.anotherWaits(latest)
	ls.change(t, func() {
		t.over, t.expiry = another, nil
		t.share = max(2*t.share, sharedCreates*time.Since(began))
		if t.due = time.Now().Add(t.share); t.due.After(latest) {
			t.due = latest
		}
	})
}

func (t *turns) stopExpiry() {
	if t.expiry != nil {
		t.expiry.Stop()
	}
}

// isCurrent reports whether waiters of a queue wait for these turns.
func (t *turns) isCurrent() bool { return t.queue != nil && t.queue.turns == t }

func (t *turns) advance() {
	if t.isCurrent() {
		t.queue.advance()
	}
}

// passesOn reports whether other handles have the lock when a holder leaves.
func (t *turns) passesOn() bool {
	return t.holders > 1 || t.isCurrent() && t.queue.delegate == nil && t.queue.waiters.Len() > 0 && t.hasOneFor(t.queue.first())
}

// begin begins the turns of a tenancy granted to the delegate.
func (t *turns) begin() {
	if q := t.queue; q != nil {
		if q.turns != nil {
			q.turns.stopExpiry() // of readers with no turn left, or of a tenancy whose loss is not known yet
		}
		now := time.Now()
		q.turns, q.delegate, t.granted, t.due = t, nil, now, now.Add(t.share)
		if t.tookOver {
			q.all.reportSoon()
		}
	}
}

// change changes turns, and lets the waiters have the rest.
func (ls *localQueues) change(t *turns, change func()) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	change()
	t.advance()
}

// leave ends the turn of a holder whose lock is not to come free before the given time. If the
// service must be asked first, leave changes nothing and returns notYet.
func (ls *localQueues) leave(t *turns, until time.Time, known knowledge) leaving {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	mayStay := t.wanted && t.mayBecomeKept()
	switch {
	case known == nothingMore, t.ended:
	case mayStay && t.joins == nil, known == nothing && (mayStay || t.passesOn() || time.Now().Before(until) || t.hasTimeLeft()):
		return notYet
	}
	if until.After(t.restUntil) {
		t.restUntil = until
	}
	if t.holders--; t.holders == 0 {
		t.advance()
	} else {
		t.holder, t.at = nil, "" // perhaps of the reader who has left
	}
	return t.settle()
}

// hasTimeLeft reports whether the lock is not to come free yet (HoldAtLeast).
func (t *turns) hasTimeLeft() bool {
	return !t.ended && !t.restUntil.IsZero() && time.Now().Before(t.restUntil)
}

// settle decides what becomes of the lock after a holder has left, or after a rest.
func (t *turns) settle() leaving {
	switch {
	case t.holders > 0:
		return stays
	case t.hasTimeLeft():
		t.beginRest()
		return stays
	case t.wanted && t.tryToKeep():
		return stays
	}
	t.end()
	return gaveBack
}

// end ends the turns: the node of the tenancy is about to be removed, or lost.
func (t *turns) end() {
	t.ended = true
	t.stopExpiry()
	if t.state != inUse {
		t.endIdle()
	}
	if t.joins != nil {
		t.forgetKept()
	}
	if t.isCurrent() {
		t.queue.turns = nil
		t.queue.advance()
	}
}

// giveUp ends the wait of a call, and returns the turns if the call has got one meanwhile,
// or nil.
func (ls *localQueues) giveUp(w *localWaiter) *turns {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.element != nil {
		w.queue.remove(w)
		w.queue.advance() // others may have waited for the end: readers behind a writer
	}
	return w.turns
}

// resign makes the next waiter the delegate if the call was the delegate.
func (ls *localQueues) resign(w *localWaiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if q := w.queue; q.delegate == w {
		q.delegate = nil
		q.advance()
	}
}

// passPlace makes the next waiter the delegate, with the place of a delegate that gives up,
// and reports false if no waiter can use the place.
func (ls *localQueues) passPlace(w *localWaiter, at *place) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := w.queue
	if q.delegate != w || q.waiters.Len() == 0 {
		return false
	}
	next := q.first()
	if next.shared != w.shared {
		return false
	}
	next.place, q.delegate, q.accepted = at, next, true
	q.finish(next)
	return true
}

// note records something about a call, for other calls to read.
func (ls *localQueues) note(what *bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	*what = true
}

// wouldOvertake reports whether a call without a wait would overtake other calls, waiting
// in memory now or until a moment ago.
func (ls *localQueues) wouldOvertake(name string, shared bool) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.byName[name]
	if q == nil {
		return false
	}
	if d := q.delegate; d != nil && d.hasWaited && !(shared && d.shared) {
		return true
	}
	for w := range q.waiting() {
		if !(shared && w.shared) {
			return true
		}
	}
	return false
}

// obstacle returns the tenancy and the delegate in front of a waiter. ok is false if the call
// waits no longer.
func (ls *localQueues) obstacle(w *localWaiter) (t *tenancy, delegate *progress, ok bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.element == nil {
		return nil, nil, false
	}
	t, delegate = w.queue.front()
	return t, delegate, true
}

// aheadOf returns how many calls are before a waiter in memory, with the holder or the delegate,
// or 0 for a call that does not wait there.
func (ls *localQueues) aheadOf(w *localWaiter) (n int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.element != nil {
		for e := w.element; e != nil; e = e.Prev() {
			n++
		}
	}
	return n
}

// inFront returns the tenancy and the delegate for a lock.
func (ls *localQueues) inFront(name string) (t *tenancy, delegate *progress) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if q := ls.byName[name]; q != nil {
		return q.front()
	}
	return nil, nil
}

// front returns the tenancy and the delegate, each as far as there is one.
func (q *localQueue) front() (t *tenancy, delegate *progress) {
	if q.turns != nil {
		t = q.turns.tenancy
	}
	if q.delegate != nil {
		delegate = q.delegate.progress
	}
	return t, delegate
}

// heldAt returns where the newest holder of a node's turns asked for the lock, if known. ours
// reports whether the pool's turns are those of the node.
func (ls *localQueues) heldAt(name, node string) (at string, ours bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.byName[name]
	if q == nil || q.turns == nil || q.turns.tenancy.nodeNow().Name != node {
		return "", false
	}
	return q.turns.at, true
}

// find returns copies of the waiters for a lock, and the tenancy and the delegate before them.
func (ls *localQueues) find(name string) (waiters []localWaiter, t *tenancy, delegate *localWaiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.byName[name]
	if q == nil {
		return nil, nil, nil
	}
	if d := q.delegate; d != nil {
		delegate = &localWaiter{id: d.id, shared: d.shared, began: d.began, span: d.span, at: d.at, revocable: d.revocable, hasWaited: d.hasWaited, progress: d.progress}
	}
	for w := range q.waiting() {
		waiters = append(waiters, localWaiter{id: w.id, shared: w.shared, began: w.began, span: w.span, at: w.at, revocable: w.revocable})
	}
	t, _ = q.front()
	return waiters, t, delegate
}

// revoke revokes the given waiters for a lock. It returns how to end the call of the delegate,
// which is to give up, or nil.
func (ls *localQueues) revoke(name string, asked func(w *localWaiter) bool) (giveUp context.CancelCauseFunc) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.byName[name]
	if q == nil {
		return nil
	}
	if d := q.delegate; d != nil && asked(d) { // perhaps without a node yet
		if d.revoked = true; d.revocable {
			giveUp = d.giveUp
		}
	}
	for w := range q.waiting() {
		switch {
		case !asked(w):
		case w.revocable:
			w.err = ErrRevoked
			q.finish(w)
		default:
			w.revoked = true // and so will be the hold
		}
	}
	q.advance()
	return giveUp
}

// isRevoked reports whether a waiter, or the delegate, was revoked.
func (ls *localQueues) isRevoked(w *localWaiter) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return w.revoked
}
