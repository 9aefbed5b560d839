// Package recipe holds the lock algorithms of lockpool, on the driver contract
// alone: a [Rule] per kind of lock, and one loop that waits.
//
// The recipe is ZooKeeper's own: join the queue with a node that lives as long
// as the session, list the queue, and if somebody is in the way watch that one
// node and no other, so that each going wakes only who it concerns
// (https://zookeeper.apache.org/doc/current/recipes.html, "Locks").
// That a recipe is a predicate over the sorted queue is Apache Curator's idea
// (LockInternalsDriver).
package recipe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// ErrBusy is returned by [Claim.Try] when somebody is in the way.
var ErrBusy = errors.New("held by another")

// ErrRevoked is returned to a waiter that was asked to give up, if it may be.
var ErrRevoked = errors.New("revoked")

// Claim is one attempt to take the lock of a queue.
type Claim struct {
	Session  driver.Session
	Queue    string
	Kind     driver.Kind
	Permits  int // of a driver.Permit
	Limit    int // of a driver.Permit: as its node states it; 0 for none
	Rule     Rule
	Data     []byte   // stored in the node
	Observer Observer // may be nil

	Revocable bool // a request to give the lock back ends the wait for it
}

// Observer is told what a claim goes through, on the claiming goroutine.
type Observer interface {
	// Queued: our node stands in the queue at this place, 0 being the head. It is
	// told when it has joined, and whenever it has looked again.
	Queued(self driver.Node, place, length int)
	// Waiting is called before the claim goes to sleep. It reports whether Holder is
	// to be called, which costs a request if the holder is not the node waited for.
	Waiting(Wait) (wantHolder bool)
	// Holder is called after Waiting with the node that holds the lock and what is
	// stored in it, unless that is Wait.Behind or cannot be found.
	Holder(node driver.Node, data []byte)
	// Woken: what happened to what it waited for, or went unnoticed of its own node.
	Woken(driver.Event)
}

// Wait is what a claim waits for.
type Wait struct {
	Queue  string
	Behind driver.Node // whose going is waited for; the first of several
	Data   []byte      // stored in it; nil if a request to give the lock back has replaced it
	Holder driver.Node // the first in the queue, which holds the lock; it may be Behind. A guard holds none.
}

// Acquire waits until the rule grants the lock and returns the node that holds
// it. On any error no node stays behind; if the context ended the wait, the
// error wraps the context's and names the node that was in the way.
func (c Claim) Acquire(ctx context.Context) (driver.Node, error) {
	return c.take(ctx, c.wait)
}

// Try is Acquire without waiting: if somebody is in the way, the error wraps
// ErrBusy and names them.
func (c Claim) Try(ctx context.Context) (driver.Node, error) {
	return c.take(ctx, busy)
}

// standing is where a claim stands when somebody is in the way.
type standing struct {
	head, self driver.Node
	obstacles  []driver.Node // and enough: what a Rule returned
	enough     bool
}

// blocked says what to do about obstacles: it returns true if the lock is
// granted without looking again.
type blocked func(ctx context.Context, s standing) (granted bool, err error)

func busy(_ context.Context, s standing) (bool, error) {
	return false, fmt.Errorf("%w: %s", ErrBusy, s.obstacles[0])
}

// take is the recipe.
func (c Claim) take(ctx context.Context, blocked blocked) (node driver.Node, err error) {
	self, queue, err := c.Session.Join(ctx, c.Queue, c.Kind, c.Permits, c.Limit, c.Data)
	if err != nil {
		return driver.Node{}, err
	}
	granted := false
	defer func() {
		if granted {
			return
		}
		// After an error, or a panic of the observer. Leave sees to the node also
		// if nobody waits for it any more. Only if the service refuses does the
		// node stay, until the session ends.
		if left := c.Session.Leave(ctx, c.Queue, self); errors.Is(left, driver.ErrNoPermission) {
			err = fmt.Errorf("%w; and then %w", err, left)
		}
	}()
	for {
		place := driver.Place(queue, self)
		if place < 0 {
			return driver.Node{}, driver.ErrRemoved // by somebody else; join again
		}
		if c.Observer != nil {
			c.Observer.Queued(self, place, len(queue))
		}
		if err := c.orderly(queue, place); err != nil {
			return driver.Node{}, err
		}
		obstacles, enough := c.Rule(queue, place)
		if len(obstacles) == 0 {
			granted = true
			return self, nil
		}
		// A copy, because what is in the queue would keep all of it for as long as
		// the wait lasts, and among n waiters that is n² nodes.
		granted, err = blocked(ctx, standing{queue[0], self, slices.Clone(obstacles), enough})
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

// orderly reports an error if the numbers of the queue do not tell who came
// first. At the end of ZooKeeper's counter they go negative, or repeat, and
// every client that goes by them grants twice.
func (c Claim) orderly(queue []driver.Node, place int) error {
	self := queue[place]
	tied := func(i int) bool { return i >= 0 && i < len(queue) && queue[i].Seq == self.Seq }
	if self.Seq >= 0 && self.Seq < math.MaxInt32 && !tied(place-1) && !tied(place+1) {
		return nil
	}
	return fmt.Errorf("%w: own number is %d; remove the node of the lock %q while nobody holds or waits, which starts them anew",
		driver.ErrSequenceExhausted, self.Seq, c.Queue)
}

// wait sleeps until something happens to an obstacle, or to our own node, which
// somebody may remove. It reports true if that alone grants the lock: an obstacle
// that was enough was deleted, and our own node stood at that moment, which can be
// told because watches fire in the order of the changes. A Write that goes may
// leave a Read with the same number, so it never counts; nor does a node that was
// missing before it could be watched, because a Read may have taken its place.
func (c Claim) wait(ctx context.Context, s standing) (bool, error) {
	obstacles, watched := s.obstacles, s.obstacles
	if s.self != (driver.Node{}) { // a lock without a queue has no waiters' nodes
		watched = append(slices.Clip(obstacles), s.self)
	}
	watches, err := c.Session.Watch(ctx, c.Queue, watched...)
	if err != nil && ctx.Err() != nil {
		return false, fmt.Errorf("waiting behind %s: %w", obstacles[0], err)
	}
	if err != nil {
		return false, err
	}
	if c.Observer != nil {
		data := watches[0].Data
		if watches[0].Revoked {
			data = nil // it is the request
		}
		w := Wait{c.Queue, obstacles[0], data, s.head}
		if c.Kind == driver.Guard { // which waits for permits itself, or is about to get them
			w.Holder = driver.Node{}
		}
		if c.Observer.Waiting(w) && w.Holder != w.Behind && w.Holder.Name != "" {
			if node, data := findHolder(ctx, c.Session, c.Queue, w.Holder); node.Name != "" {
				c.Observer.Holder(node, data)
			}
		}
	}
	own := watches[len(obstacles):]
	if c.Revocable && len(own) > 0 && own[0].Revoked {
		return false, ErrRevoked
	}
	first, forget := driver.First(watches)
	defer forget()
	select {
	case <-first:
	case <-c.Session.Done():
		return false, c.Session.Err()
	case <-ctx.Done():
		return false, fmt.Errorf("waiting behind %s: %w", obstacles[0], ctx.Err())
	}
	deleted := false
	for i, w := range watches {
		if event := w.Fired(); event != 0 {
			deleted = deleted || i < len(obstacles) && event == driver.Deleted
			if c.Observer != nil && (i < len(obstacles) || event == driver.Unnoticed) {
				c.Observer.Woken(event)
			}
		}
	}
	return deleted && s.enough && obstacles[0].Kind != driver.Write && len(own) > 0 && own[0].Fired() == 0, nil
}
