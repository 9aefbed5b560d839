package lockpool

// This file has bounded queues: a call that would wait for too long is refused before it
// joins.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// QueueFullError is the error of a call that did not join the queue of a lock, because of
// [MaxWaiters] or [InTime]. It wraps ErrQueueFull and ErrLocked.
type QueueFullError struct {
	// Waiters is the number of waiters before the call, not counting the holders. One waiter
	// at the service may stand for more waiters in the memory of another pool.
	Waiters int

	// Wait is how long the call would have waited, judging by the recent waits of the pool for
	// the lock, or 0 if there were none. A server may tell its client to come again later
	// (HTTP's Retry-After).
	Wait time.Duration

	// Holder is the first holder, as far as known: the zero Contender if the service did not
	// answer, or the lock was between two holders.
	Holder Contender

	reason string
	pace   pace
	first  driver.Node // in the service's queue; zero if the call was refused in memory
}

// Error tells how long the queue is, why the queue is too long for the call, and the holder.
func (e *QueueFullError) Error() string {
	text := fmt.Sprintf("%v: %d waiting, %s", ErrQueueFull, e.Waiters, e.reason)
	if e.Wait > 0 {
		text += fmt.Sprintf("; predicted wait %v", e.Wait)
	}
	if e.Holder.Node != "" {
		text += "; held by " + driver.Node{Name: e.Holder.Node}.String()
		if who := nodedata.Origin(e.Holder.Origin).String(); who != "" {
			text += " (owner: " + who + ")"
		}
	}
	return text
}

// Is reports whether target is ErrQueueFull or ErrLocked.
func (e *QueueFullError) Is(target error) bool { return target == ErrQueueFull || target == ErrLocked }

// admission is what a call accepts of the queue that the call joins, and where the call has
// joined.
type admission struct {
	most     int       // waiters, with the call; 0 for any number
	deadline time.Time // before which the call is to get the lock; zero for none
	accepted bool      // by the service's queue, or a wait of the pool there: the call may wait

	began    time.Time // of the wait, if bounded
	ahead    int       // waiters at that time
	inMemory bool
}

// newAdmission returns nil for a call that accepts any queue.
func (p *Pool) newAdmission(ctx context.Context, req *request) *admission {
	most := cmp.Or(req.maxWaiters, p.cfg.maxWaiters)
	inTime := req.inTime || p.cfg.inTime
	var deadline time.Time
	if inTime {
		deadline, _ = ctx.Deadline()
	}
	if most == 0 && !inTime || req.try || req.plain || req.op == opElect || req.op == opAcquire {
		return nil
	}
	return &admission{most: most, deadline: deadline}
}

func (a *admission) isUndecided() bool { return a != nil && !a.accepted }

// refuse returns the error of a call that does not accept a queue, or nil.
func (a *admission) refuse(ahead int, p pace) *QueueFullError {
	reason := ""
	switch left, need := time.Until(a.deadline), time.Duration(ahead+2)*p.mostly(); { // with the turn of the call
	case a.most > 0 && ahead >= a.most:
		reason = fmt.Sprintf("of at most %d (MaxWaiters)", a.most)
	case !a.deadline.IsZero() && need > max(left, 0):
		reason = fmt.Sprintf("for up to %v with the turn of the call, and the deadline is in %v (InTime)", need, left)
	default:
		return nil
	}
	return &QueueFullError{Waiters: ahead, Wait: time.Duration(ahead+1) * p.each, reason: reason, pace: p}
}

// wait notes the beginning of a wait.
func (a *admission) wait(ahead int, inMemory bool) {
	a.began, a.ahead, a.inMemory = time.Now(), ahead, inMemory
}

// paces are how long a wait for a lock lasts, for each of the contenders before, by the bounded
// waits of the pool. localQueues.mu guards them.
type paces map[paceKey]pace

type paceKey struct {
	name     string
	inMemory bool // with waiters of the pool before, not of all clients
}

// pace is an estimate of the time for each contender, zero if there is none. The estimate and
// its deviation follow the waits as those of round trips do in TCP (RFC 6298, RFC 7323).
type pace struct {
	each, deviation time.Duration
	at              time.Time
}

// mostly is longer than nearly all waits, for each contender.
func (p pace) mostly() time.Duration { return p.each + 4*p.deviation }

// validFor is how long an estimate refuses calls without a newer wait: after an outage or one long
// turn, the estimate is wrong.
func (p pace) validFor() time.Duration { return min(max(2*p.each, time.Second), 5*time.Second) }

// with adds a wait. All contenders of a queue tell of the same turns, so each counts less.
func (p pace) with(wait time.Duration, contenders int) pace {
	n := time.Duration(contenders)
	each := max(wait/n, 1)
	if p.each == 0 {
		return pace{each, each / 2, time.Now()}
	}
	error := each - p.each
	return pace{p.each + error/(8*n), p.deviation + (error.Abs()-p.deviation)/(4*n), time.Now()}
}

// mostPaces bounds the locks whose pace is remembered.
const mostPaces = 10_000

// now returns the recent pace of a lock. An old one could refuse every call, so that there would
// be none to learn from.
func (ps paces) now(key paceKey) pace {
	if p := ps[key]; time.Since(p.at) < p.validFor() {
		return p
	}
	return pace{}
}

// notePace records a wait that ended with the grant.
func (ls *localQueues) notePace(name string, a *admission) {
	key := paceKey{name, a.inMemory}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.paces == nil {
		ls.paces = paces{}
	}
	if _, known := ls.paces[key]; !known && len(ls.paces) >= mostPaces {
		for other := range ls.paces {
			delete(ls.paces, other)
			break
		}
	}
	ls.paces[key] = ls.paces.now(key).with(time.Since(a.began), a.ahead+1)
}

// ahead returns the number of waiters before a call that joins the queue now. A delegate that
// asks the service for the first time may get the lock at once.
func (q *localQueue) ahead() int {
	if q.delegate != nil && q.accepted {
		return q.waiters.Len() + 1
	}
	return q.waiters.Len()
}

// refuseAll refuses the waiters of the pool for which the service's queue is too long. The
// waiters behind a call that was accepted there stay.
func (ls *localQueues) refuseAll(delegate *localWaiter, full *QueueFullError) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if q := delegate.queue; q != nil && q.delegate == delegate && !q.accepted {
		q.refuse(func(int) (ahead int, p pace) { return full.Waiters, full.pace }, full.Holder)
	}
}

// noteQueued records that a call waits at the service. The waiters behind the call in memory are
// refused now, if they are too many with the call, and otherwise never.
func (ls *localQueues) noteQueued(w *localWaiter) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := w.queue
	if q == nil || q.delegate != w || q.accepted {
		return
	}
	q.accepted = true
	now := ls.paces.now(paceKey{q.name, true})
	q.refuse(func(before int) (int, pace) { return before + 1, now }, Contender{})
}

// refuse refuses the undecided waiters that do not accept the queue. For a waiter with the given
// number of others before in memory, queue returns the number of waiters ahead, and the pace.
func (q *localQueue) refuse(queue func(before int) (ahead int, p pace), holder Contender) {
	before := 0
	for w := range q.waiting() {
		if w.admission.isUndecided() {
			if full := w.admission.refuse(queue(before)); full != nil {
				full.Holder, w.err = holder, full
				q.finish(w)
				continue
			}
		}
		before++
	}
}

// paceOf returns the pace of a lock at the service.
func (ls *localQueues) paceOf(name string) pace {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.paces.now(paceKey{name, false})
}

// askForRoom refuses a call before the call joins the service's queue.
func (a *acquisition) askForRoom(ctx context.Context, s *session) error {
	bounds := a.local.admission
	pace := a.pool.local.paceOf(a.name)
	if bounds.most == 0 && pace.each == 0 {
		return nil // there is nothing to predict with
	}
	if sizer, err := driver.Offer[driver.Sizer](s.Session); err == nil {
		size, err := sizer.Size(ctx, a.name)
		if err != nil || size == 0 || bounds.refuse(size-1, pace) == nil {
			return err
		}
	}
	nodes, err := s.List(ctx, a.name) // not all need be waiters
	blocks := func(n driver.Node) bool { return recipe.Blocks(n, driver.Node{Kind: a.req.kind(), Seq: n.Seq + 1}) }
	if err == nil && slices.ContainsFunc(nodes, blocks) {
		_, err = a.refuseBehind(nodes)
	}
	return err
}

// refuseBehind returns the number of waiters among the contenders before the call, and an error
// if they are too many.
func (a *acquisition) refuseBehind(nodes []driver.Node) (waiters int, err error) {
	waiters = len(nodes) - recipe.FirstWaiter(nodes)
	if full := a.local.admission.refuse(waiters, a.pool.local.paceOf(a.name)); full != nil {
		full.first = nodes[0]
		return 0, full
	}
	return waiters, nil
}

// admit refuses a call that has joined the service's queue at the same time as others.
func (a *acquisition) admit(before []driver.Node) error {
	waiters, err := a.refuseBehind(before)
	if err == nil {
		a.local.admission.wait(waiters, false)
		a.local.admission.accepted = true
		a.pool.local.noteQueued(&a.local)
	}
	return err
}

// completeRefusal adds the holder to the error of a refused call, and refuses the waiters behind
// the call.
func (a *acquisition) completeRefusal(ctx context.Context, err error) {
	var full *QueueFullError
	if !errors.As(err, &full) || full.Holder.Node != "" {
		return
	}
	if full.first == (driver.Node{}) { // refused in memory
		t, delegate := a.pool.local.inFront(a.name)
		var w recipe.Wait
		if t != nil {
			w = t.asObstacle()
		} else if delegate != nil {
			w = delegate.now().wait()
		}
		if w.Holder == w.Behind { // otherwise the holder may be another one by now
			full.Holder = a.describe(w.Holder, w.Data)
		}
		return
	}
	holder, data := recipe.FindHolder(ctx, a.progress.now().session, a.name, full.first)
	full.Holder = a.describe(holder, data)
	a.pool.local.refuseAll(&a.local, full)
}

// describe describes a holder as far as known.
func (a *acquisition) describe(holder driver.Node, data []byte) Contender {
	if holder.Name == "" {
		return Contender{}
	}
	return Contender{Lock: a.name, Node: holder.Name, Kind: holder.Kind.String(), Holds: true, Permits: holder.Permits, Origin: Origin(nodedata.Parse(data).Origin)}
}
