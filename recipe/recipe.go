// Package recipe implements the lock algorithms of lockpool on the interfaces of package
// driver: a [Rule] for each kind of lock, and one waiting loop.
//
// The recipe is ZooKeeper's own: join the queue with a node of the session, list the queue,
// and while another contender blocks, watch the blocking node and no other, so the removal
// of a node wakes only the contenders concerned
// (https://zookeeper.apache.org/doc/current/recipes.html, "Locks"). Expressing a recipe as
// a predicate over the sorted queue is Apache Curator's idea (LockInternalsDriver).
package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// ErrBusy is returned by [Claim.Try] if another contender blocks, and by [Claim.Acquire] if
// the context ends while another contender blocks.
var ErrBusy = errors.New("held by another")

// Busy adds ErrBusy to the error of a wait whose context has ended while another contender
// blocked. The text stays.
func Busy(err error) error { return busy{err} }

type busy struct{ error }

func (b busy) Is(target error) bool { return target == ErrBusy }
func (b busy) Unwrap() error        { return b.error }

// ErrRevoked is returned to a waiter with Claim.Revocable after a request to give up the
// lock.
var ErrRevoked = errors.New("revoked")

// Claim is one attempt to take the lock of a queue.
type Claim struct {
	Session  driver.Session
	Queue    string
	Kind     driver.Kind
	Permits  int // of a driver.Permit
	Limit    int // of a driver.Permit: the limit that its node states; 0 for none
	Rule     Rule
	Views    *Views   // of the session; nil if the claim shares its view with no other
	Data     []byte   // stored in the node
	Observer Observer // may be nil

	Revocable bool // the wait ends with ErrRevoked when the node is revoked

	// Node is the node of an earlier claim in the queue, continued by this one, or zero if
	// the claim is to join.
	Node driver.Node

	// Keep, if not nil, is called when the claim fails because the context has ended. If
	// Keep returns true, the node stays in the queue for another claim.
	Keep func(driver.Node) bool
}

// Observer is notified of the progress of a claim, on the claiming goroutine.
type Observer interface {
	// Queued is called when the claim's node has joined the queue, and after each
	// later listing. place 0 is the head.
	Queued(self driver.Node, place, length int)
	// Waiting is called before the claim waits, and reports whether to call Holder, at the
	// cost of a request if the holder is not the awaited node.
	Waiting(Wait) (wantHolder bool)
	// Holder is called after Waiting with the holder's node and data, unless the holder is
	// Wait.Behind or cannot be found.
	Holder(node driver.Node, data []byte)
	// Woken is called after a wait, for each changed node among the awaited ones, and for
	// the claim's own node after an unnoticed removal. nearest marks the node waited for.
	Woken(e driver.Event, nearest bool)
}

// Wait is what a claim waits for.
type Wait struct {
	Queue   string
	Behind  driver.Node // the node waited for; the first of several
	Data    []byte      // stored in Behind
	Holder  driver.Node // the first in the queue, which may be Behind; zero if that one holds nothing (a guard)
	Created int64       // Watch.Created of the claim's own node; 0 if it has none
}

// Acquire waits until the rule grants the lock and returns the holding node. If Acquire
// returns an error, no node is left behind, unless Keep returned true; if the context ended
// the wait, the error wraps the context's error and names the awaited node.
func (c *Claim) Acquire(ctx context.Context) (driver.Node, error) {
	return c.acquire(ctx, c.wait)
}

// Try is Acquire without waiting: if another contender blocks, the error wraps ErrBusy and
// names the contender.
func (c *Claim) Try(ctx context.Context) (driver.Node, error) {
	return c.acquire(ctx, c.failBusy)
}

// blockedState is the state of a blocked claim.
type blockedState struct {
	head, self driver.Node
	obstacles  []driver.Node // as the rule returns them
	view       *View
	listed     bool // the obstacles were there after the claim's node had joined
}

// onBlocked handles obstacles, and reports true if the lock is granted without another
// listing.
type onBlocked func(ctx context.Context, s blockedState) (granted bool, err error)

func (c *Claim) failBusy(_ context.Context, s blockedState) (bool, error) {
	if !s.listed {
		return false, nil // those in the view may be gone
	}
	return false, fmt.Errorf("%w: %s", ErrBusy, c.awaited(s.view, s.obstacles)[0])
}

// acquire joins the queue, and calls blocked until the rule grants the lock.
func (c *Claim) acquire(ctx context.Context, blocked onBlocked) (node driver.Node, err error) {
	view := c.Views.open(c.Queue)
	defer c.Views.close(c.Queue, view)
	joined := driver.Joined{Node: c.Node}
	if c.Node == (driver.Node{}) {
		if joined, err = c.Session.Join(ctx, c.Queue, driver.Request{Kind: c.Kind, Permits: c.Permits, Limit: c.Limit, Data: c.Data, Known: view.last(c.Kind)}); err != nil {
			return driver.Node{}, err
		}
	}
	self := joined.Node
	granted := false
	defer func() {
		if granted || ctx.Err() != nil && c.Keep != nil && c.Keep(self) {
			return
		}
		// After an error, or a panic of the observer. Leave removes the node even if the
		// context has ended. The node stays until the session ends only if the service
		// refuses the removal.
		left := c.Session.Leave(ctx, c.Queue, self)
		if left == nil {
			view.gone(self)
		}
		if errors.Is(left, driver.ErrNoPermission) {
			err = fmt.Errorf("%w; and then %w", err, left)
		}
	}()
	queue, listed := view.join(joined), joined.Queue != nil
	for ; ; queue = nil {
		if queue == nil {
			if queue, err = c.Session.List(ctx, c.Queue); err != nil {
				return driver.Node{}, err
			}
			view.listed(queue)
			listed = true
		}
		obstacles, err := c.blocking(queue, self)
		if err != nil {
			return driver.Node{}, err
		}
		if len(obstacles) > 0 {
			granted, err = blocked(ctx, blockedState{queue[0], self, obstacles, view, listed})
		} else {
			granted = listed // and the own node was there
		}
		if err != nil {
			return driver.Node{}, err
		}
		if granted {
			return self, nil
		}
	}
}

// blocking returns the contenders in a queue that block self.
func (c *Claim) blocking(queue []driver.Node, self driver.Node) ([]driver.Node, error) {
	place := driver.Place(queue, self)
	if place < 0 {
		return nil, driver.ErrRemoved
	}
	if c.Observer != nil {
		c.Observer.Queued(self, place, len(queue))
	}
	if err := c.checkSequence(queue, place); err != nil {
		return nil, err
	}
	return c.Rule(queue, place), nil
}

// checkSequence returns an error if sequence numbers do not order the queue. At the end of
// a service's counter the numbers may become negative, or repeat, and every client would
// grant a lock twice.
func (c *Claim) checkSequence(queue []driver.Node, place int) error {
	self := queue[place]
	tied := func(i int) bool { return i >= 0 && i < len(queue) && queue[i].Seq == self.Seq }
	if self.Seq >= 0 && !tied(place-1) && !tied(place+1) {
		return nil
	}
	return fmt.Errorf("%w: own number is %d; to reset the numbers, remove the node of the lock %q while it has no holder and no waiter",
		driver.ErrSequenceExhausted, self.Seq, c.Queue)
}

// wait waits until the lock is granted, and then reports true, or until the queue must be
// listed again.
func (c *Claim) wait(ctx context.Context, s blockedState) (bool, error) {
	awaited := c.awaited(s.view, s.obstacles)
	s.obstacles = nil // a slice of a listing, which would stay in memory for as long as the wait lasts
	for behind := (driver.Node{}); ; {
		watched := awaited
		if s.self != (driver.Node{}) { // waiters for a plain lock have no node
			watched = append(slices.Clip(awaited), s.self) // another client may remove it
		}
		watches, err := c.Session.Watch(ctx, c.Queue, watched...)
		if err != nil && ctx.Err() != nil {
			return false, Busy(fmt.Errorf("waiting behind %s: %w", awaited[0], err))
		}
		if err != nil {
			return false, err
		}
		if behind != awaited[0] {
			behind = awaited[0]
			c.observeWait(ctx, s, behind, watches)
		}
		own := watches[len(awaited):]
		if c.Revocable && len(own) > 0 && own[0].Revoked {
			return false, ErrRevoked
		}
		fired, stop := driver.First(watches...)
		select {
		case <-fired:
		case <-c.Session.Done():
			err = c.Session.Err()
		case <-ctx.Done():
		}
		stop()
		if err := ctx.Err(); err != nil { // first: what ends a call may end its session as well
			return false, Busy(fmt.Errorf("waiting behind %s: %w", behind, err))
		}
		if err != nil {
			return false, err
		}
		events := c.fired(watches, make([]driver.Event, len(watches)), len(own))
		if len(own) == 0 {
			return false, nil
		}
		again, next := c.next(s.view, s.self, awaited, events)
		if next == looks {
			queue, err := c.Session.List(ctx, c.Queue)
			if err != nil {
				return false, err
			}
			s.view.listed(queue)
			if _, err := c.blocking(queue, s.self); err != nil {
				return false, err
			}
			again, next = c.next(s.view, s.self, awaited, c.fired(watches, events, len(own)))
		}
		// Other waiters also tell the view what they see, so the own node must be looked
		// at after the view.
		if next == lists || next == holds || own[0].Fired() != 0 {
			return next == holds && own[0].Fired() == 0, nil
		}
		awaited = again
	}
}

// fired returns the events of watches, the last on the claim's own node if own is 1, and
// tells the observer which are new since before.
func (c *Claim) fired(watches []*driver.Watch, before []driver.Event, own int) []driver.Event {
	events := make([]driver.Event, len(watches))
	for i, w := range watches {
		events[i] = w.Fired()
		isOwn := i == len(watches)-own
		if c.Observer != nil && events[i] != before[i] && (!isOwn || events[i] == driver.Unnoticed) {
			c.Observer.Woken(events[i], i == 0)
		}
	}
	return events
}

// awaited returns the contenders to watch, the nearest obstacle first. A nearest obstacle
// of the same session waits itself for the earlier ones, or has done so. Otherwise the
// second nearest is watched as well: when the second leaves, most likely as the holder, it
// is time to look what else is left (see next), and the answer is known when the nearest
// leaves. So the removal of a node wakes at most two contenders.
//
// Any contender in the way of a semaphore's permits may make room.
func (c *Claim) awaited(view *View, obstacles []driver.Node) []driver.Node {
	if c.Kind == driver.Permit {
		return obstacles
	}
	n := len(obstacles)
	awaited := []driver.Node{obstacles[n-1]} // a copy, which does not keep a listing in memory
	if n > 1 && !view.isOwn(awaited[0]) {
		awaited = append(awaited, obstacles[n-2])
	}
	return awaited
}

// step is what a waiter does next.
type step int

const (
	waits step = iota // for those returned
	looks             // lists the queue, and waits on: the nearest is still there
	lists             // the queue
	holds             // the lock
)

// next decides what to do after events about the awaited contenders, if the claim's own
// node is there.
//
// The lock is granted if all possibly blocking contenders have been seen to leave: watches
// are set on them and on the own node, and fire in the order of the changes, so the own
// node was there when the last one left. No contender can have come between, because
// numbers only grow. A deleted Write may have left a Read with the same number, so the
// deletion is no proof; nor is a node missing before the watch, because a Read may have
// taken the place.
func (c *Claim) next(view *View, self driver.Node, awaited []driver.Node, events []driver.Event) ([]driver.Node, step) {
	for i, node := range awaited {
		if events[i] == driver.Deleted && node.Kind != driver.Convertible {
			view.gone(node)
		} else if events[i] != 0 {
			return nil, lists
		}
	}
	obstacles, known := view.blocking(c.Rule, self)
	switch {
	case !known:
		return nil, lists
	case len(obstacles) == 0:
		return nil, holds
	}
	again := c.awaited(view, obstacles)
	if c.Kind != driver.Permit && again[0] == awaited[0] && len(again) > 1 && !slices.Contains(awaited, again[1]) {
		return again, looks
	}
	return again, waits
}

// observeWait tells the observer what the claim waits for and, if the observer wants to
// know, the holder. watches are on behind and others, the last on the own node. They have
// been set by then, so the request for the holder delays no event by more than a round
// trip.
func (c *Claim) observeWait(ctx context.Context, s blockedState, behind driver.Node, watches []*driver.Watch) {
	if c.Observer == nil {
		return
	}
	w := Wait{Queue: c.Queue, Behind: behind, Data: watches[0].Data, Holder: s.head}
	if s.self != (driver.Node{}) {
		w.Created = watches[len(watches)-1].Created
	}
	if c.Kind == driver.Guard { // the first guard waits for permits itself, or is about to get them
		w.Holder = driver.Node{}
	}
	if !c.Observer.Waiting(w) || w.Holder.Name == "" || w.Holder == w.Behind {
		return
	}
	if node, data := findHolder(ctx, c.Session, c.Queue, w.Holder); node.Name != "" {
		c.Observer.Holder(node, data)
	}
}
