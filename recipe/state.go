package recipe

// This file has the state of a claim, and the decisions what the claim does next. A decision
// sends no request, so that a test can walk every interleaving of several contenders.

import (
	"fmt"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// step is what a claim does next.
type step int

const (
	lists step = iota // list the queue, and call list
	waits             // wait until a watch on an awaited contender or the own node fires, and call fired
	looks             // list the queue, keep the watches, and call look
	holds             // the lock is granted
	fails             // a try ends, because the lock is in use
)

// state is what a claim knows between two requests.
type state struct {
	claim    *Claim
	view     *View
	self     driver.Node
	listed   bool          // the queue has been listed since self joined
	admitted bool          // by Claim.Admit
	asked    bool          // a try has waited for contenders that keep the lock
	head     driver.Node   // of the queue, when awaited was decided
	awaited  []driver.Node // the contenders to watch, the nearest obstacle first
}

// join takes in the claim's node.
func (x *state) join(joined driver.Joined) (step, error) {
	x.self, x.listed = joined.Node, joined.Queue != nil
	queue := x.view.join(joined)
	if queue == nil {
		return lists, nil
	}
	return x.decide(queue)
}

// list takes in a listing.
func (x *state) list(queue []driver.Node) (step, error) {
	x.view.listed(queue)
	x.listed = true
	return x.decide(queue)
}

func (x *state) decide(queue []driver.Node) (step, error) {
	place, err := x.place(queue)
	if err != nil {
		return 0, err
	}
	obstacles := x.claim.Rule(queue, place)
	switch {
	case len(obstacles) == 0 && x.listed: // and the own node was there
		return holds, nil
	case len(obstacles) == 0:
		return lists, nil
	case !x.admitted && x.claim.Admit != nil:
		if err := x.claim.Admit(queue[:place]); err != nil && x.listed {
			return 0, err
		} else if err != nil {
			return lists, nil // some may be gone
		}
		x.admitted = true
	}
	x.head, x.awaited = queue[0], x.nearest(obstacles)
	return waits, nil
}

// place returns the claim's place in a queue.
func (x *state) place(queue []driver.Node) (int, error) {
	place := driver.Place(queue, x.self)
	if place < 0 {
		return 0, driver.ErrRemoved
	}
	if x.claim.Observer != nil {
		x.claim.Observer.Queued(x.self, place, len(queue))
	}
	return place, x.checkSequence(queue, place)
}

// checkSequence returns an error if sequence numbers do not order the queue. At the end of
// a service's counter the numbers may become negative, or repeat, and every client would
// grant a lock twice.
func (x *state) checkSequence(queue []driver.Node, place int) error {
	tied := func(i int) bool { return i >= 0 && i < len(queue) && queue[i].Seq == x.self.Seq }
	if x.self.Seq >= 0 && !tied(place-1) && !tied(place+1) {
		return nil
	}
	return fmt.Errorf("%w: own number is %d; to reset the numbers, remove the node of the lock %q while it has no holder and no waiter",
		driver.ErrSequenceExhausted, x.self.Seq, x.claim.Queue)
}

// look takes in a listing made while the watches stayed, and the events of the watches since.
func (x *state) look(queue []driver.Node, events []driver.Event, isThere func() bool) (step, error) {
	x.view.listed(queue)
	if _, err := x.place(queue); err != nil {
		return 0, err
	}
	return x.decideBy(events, isThere, false), nil
}

// fired takes in the events of the watches on the awaited contenders. isThere reports
// whether the watch on the claim's own node has not fired.
//
// The lock is granted if all possibly blocking contenders have been seen to leave: watches
// are set on them and on the own node, and fire in the order of the changes, so the own
// node was there when the last one left. No contender can have come between, because
// numbers only grow. The deletion of a Convertible node is no proof, because a Shared node
// with the same number may have taken the place; nor, for the same reason, is a node that
// was missing before the watch.
//
// After a break of the connection the obstacles are watched again: while one of them is there,
// nothing is listed. Of many waiters, each would list all others.
func (x *state) fired(events []driver.Event, isThere func() bool) step {
	return x.decideBy(events, isThere, true)
}

func (x *state) decideBy(events []driver.Event, isThere func() bool, mayLook bool) step {
	interrupted := false
	for i, node := range x.awaited {
		switch e := events[i]; {
		case e == driver.Interrupted:
			interrupted = true
		case e == driver.Deleted && node.Kind != driver.Convertible:
			x.view.gone(node)
		case e != 0:
			return lists
		}
	}
	obstacles, known := x.view.blocking(x.claim.Rule, x.self)
	switch {
	case interrupted && known && len(obstacles) > 0: // watched again, they tell what has happened meanwhile
		x.awaited = x.nearest(obstacles)
		return waits
	case !known || !isThere(): // after the view, because other waiters also tell the view what they see
		return lists
	case len(obstacles) == 0:
		return holds
	}
	again := x.nearest(obstacles)
	if mayLook && x.claim.Kind != driver.Permit && again[0] == x.awaited[0] && len(again) > 1 && !slices.Contains(x.awaited, again[1]) {
		return looks // the nearest is still there
	}
	x.awaited = again
	return waits
}

// answered takes in, for a try, the events of the watches on all contenders in the way, and
// which of them keep the lock. The try waits while all of the present ones keep the lock, and lists the
// queue when all have gone: what is seen here grants nothing.
func answered(events []driver.Event, keeps func(i int) bool) step {
	next := lists
	for i, e := range events {
		switch {
		case e == driver.Changed, e == 0 && !keeps(i):
			return fails
		case e == 0:
			next = waits
		}
	}
	return next
}

// nearest returns the contenders to watch, the nearest obstacle first. A nearest obstacle
// of the same session waits itself for the earlier ones, or has done so. Otherwise the
// second nearest is watched as well: when the second leaves, most likely as the holder, the
// claim looks for other obstacles (see fired), and knows the answer when the nearest
// leaves. So the removal of a node wakes at most two contenders.
//
// Any contender in the way of a semaphore's permits may make room.
func (x *state) nearest(obstacles []driver.Node) []driver.Node {
	if x.claim.Kind == driver.Permit {
		return obstacles
	}
	n := len(obstacles)
	awaited := []driver.Node{obstacles[n-1]} // a copy, not to keep a listing in memory
	if n > 1 && !x.view.isOwn(awaited[0]) {
		awaited = append(awaited, obstacles[n-2])
	}
	return awaited
}
