// Package recipe implements the lock algorithms of lockpool on the interfaces of
// package driver: a [Rule] for each kind of lock, and one loop that waits.
//
// The recipe is ZooKeeper's own: join the queue with a node that lives as long as the
// session, list the queue, and while another contender blocks, watch its node and no
// other, so that the removal of a node wakes only the contenders concerned
// (https://zookeeper.apache.org/doc/current/recipes.html, "Locks"). Expressing a recipe
// as a predicate over the sorted queue is Apache Curator's idea (LockInternalsDriver).
package recipe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// ErrBusy is returned by [Claim.Try] if another contender blocks.
var ErrBusy = errors.New("held by another")

// ErrRevoked is returned to a waiter with Claim.Revocable that was asked to give up the
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
	Data     []byte   // stored in the node
	Observer Observer // may be nil

	Revocable bool // the wait ends with ErrRevoked when the node is revoked
}

// Observer is notified of the progress of a claim, on the claiming goroutine.
type Observer interface {
	// Queued is called when the claim's node has joined the queue, and after each
	// later listing. place 0 is the head.
	Queued(self driver.Node, place, length int)
	// Waiting is called before the claim waits. It reports whether Holder should be
	// called, which costs a request if the holder is not the node waited for.
	Waiting(Wait) (wantHolder bool)
	// Holder is called after Waiting with the node that holds the lock and the data
	// stored in it, unless that is Wait.Behind or cannot be found.
	Holder(node driver.Node, data []byte)
	// Woken is called after a wait, for each awaited node that has changed, and for the
	// claim's own node if its removal went unnoticed.
	Woken(driver.Event)
}

// Wait is what a claim waits for.
type Wait struct {
	Queue  string
	Behind driver.Node // the node waited for; the first of several
	Data   []byte      // stored in Behind; nil if a revocation request has replaced it
	Holder driver.Node // the first in the queue, which may be Behind; zero if that one holds nothing (a guard)
}

// Acquire waits until the rule grants the lock and returns the node that holds it. If
// Acquire returns an error, no node is left behind; if the context ended the wait, the
// error wraps the context's error and names the node that was waited for.
func (c Claim) Acquire(ctx context.Context) (driver.Node, error) {
	return c.acquire(ctx, c.wait)
}

// Try is Acquire without waiting: if another contender blocks, the error wraps
// ErrBusy and names it.
func (c Claim) Try(ctx context.Context) (driver.Node, error) {
	return c.acquire(ctx, failBusy)
}

// blockedState is the state of a claim that other contenders block.
type blockedState struct {
	head, self driver.Node
	obstacles  []driver.Node // as a Rule returns them
	sufficient bool          // likewise
}

// onBlocked handles obstacles. It reports true if the lock is granted without another
// listing.
type onBlocked func(ctx context.Context, s blockedState) (granted bool, err error)

func failBusy(_ context.Context, s blockedState) (bool, error) {
	return false, fmt.Errorf("%w: %s", ErrBusy, s.obstacles[0])
}

// acquire joins the queue, and calls blocked until the rule grants the lock.
func (c Claim) acquire(ctx context.Context, blocked onBlocked) (node driver.Node, err error) {
	self, queue, err := c.Session.Join(ctx, c.Queue, c.Kind, c.Permits, c.Limit, c.Data)
	if err != nil {
		return driver.Node{}, err
	}
	granted := false
	defer func() {
		if granted {
			return
		}
		// After an error, or a panic of the observer. Leave removes the node even if
		// its context has ended. The node stays until the session ends only if the
		// service refuses to remove it.
		if left := c.Session.Leave(ctx, c.Queue, self); errors.Is(left, driver.ErrNoPermission) {
			err = fmt.Errorf("%w; and then %w", err, left)
		}
	}()
	for {
		place := driver.Place(queue, self)
		if place < 0 {
			return driver.Node{}, driver.ErrRemoved
		}
		if c.Observer != nil {
			c.Observer.Queued(self, place, len(queue))
		}
		if err := c.checkSequence(queue, place); err != nil {
			return driver.Node{}, err
		}
		obstacles, sufficient := c.Rule(queue, place)
		if len(obstacles) == 0 {
			granted = true
			return self, nil
		}
		// A slice of the queue would retain all of it for as long as the wait lasts:
		// n² nodes for n waiters.
		granted, err = blocked(ctx, blockedState{queue[0], self, slices.Clone(obstacles), sufficient})
		if err != nil {
			return driver.Node{}, err
		}
		if granted {
			return self, nil
		}
		if queue, err = c.Session.List(ctx, c.Queue); err != nil {
			return driver.Node{}, err
		}
	}
}

// checkSequence returns an error if sequence numbers do not order the queue. At the end
// of ZooKeeper's counter they become negative, or repeat, and every client that relies
// on them then grants a lock twice.
func (c Claim) checkSequence(queue []driver.Node, place int) error {
	self := queue[place]
	tied := func(i int) bool { return i >= 0 && i < len(queue) && queue[i].Seq == self.Seq }
	if self.Seq >= 0 && self.Seq < math.MaxInt32 && !tied(place-1) && !tied(place+1) {
		return nil
	}
	return fmt.Errorf("%w: own number is %d; to reset the numbers, remove the node of the lock %q while it has no holder and no waiter",
		driver.ErrSequenceExhausted, self.Seq, c.Queue)
}

// wait waits until an obstacle changes, or the claim's own node, which another client
// may remove. It reports true if that alone grants the lock: a sufficient obstacle was
// deleted, and the claim's own node existed at that moment, which is known because
// watches fire in the order of the changes. A deleted Write may have left a Read with
// the same number, so it never suffices; nor does a node that was missing before it
// could be watched, because a Read may have taken its place.
func (c Claim) wait(ctx context.Context, s blockedState) (bool, error) {
	obstacles, watched := s.obstacles, s.obstacles
	if s.self != (driver.Node{}) { // waiters for a plain lock have no node
		watched = append(slices.Clip(obstacles), s.self)
	}
	watches, err := c.Session.Watch(ctx, c.Queue, watched...)
	if err != nil && ctx.Err() != nil {
		return false, fmt.Errorf("waiting behind %s: %w", obstacles[0], err)
	}
	if err != nil {
		return false, err
	}
	c.observeWait(ctx, s, watches[0])
	own := watches[len(obstacles):]
	if c.Revocable && len(own) > 0 && own[0].Revoked {
		return false, ErrRevoked
	}
	fired, stop := driver.First(watches)
	defer stop()
	select {
	case <-fired:
	case <-c.Session.Done():
		return false, c.Session.Err()
	case <-ctx.Done():
		return false, fmt.Errorf("waiting behind %s: %w", obstacles[0], ctx.Err())
	}
	deleted := false
	for i, w := range watches {
		event, isObstacle := w.Fired(), i < len(obstacles)
		if event == 0 {
			continue
		}
		deleted = deleted || isObstacle && event == driver.Deleted
		if c.Observer != nil && (isObstacle || event == driver.Unnoticed) {
			c.Observer.Woken(event)
		}
	}
	return deleted && s.sufficient && obstacles[0].Kind != driver.Write && len(own) > 0 && own[0].Fired() == 0, nil
}

// observeWait tells the observer what the claim waits for and, if the observer wants to
// know, the holder. first is the watch on the first obstacle. All watches have been set
// by then, so the request for the holder delays no event by more than its round trip.
func (c Claim) observeWait(ctx context.Context, s blockedState, first *driver.Watch) {
	if c.Observer == nil {
		return
	}
	w := Wait{c.Queue, s.obstacles[0], first.Data, s.head}
	if first.Revoked {
		w.Data = nil // it is the revocation request
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
