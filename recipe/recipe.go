// Package recipe implements the lock algorithms of lockpool on the interfaces of package
// driver: a [Rule] for each kind of lock, and one waiting loop.
//
// The recipe is ZooKeeper's own: join the queue with a node of the session, list the queue,
// and while other contenders block, watch the nearest of the blocking nodes, so the removal
// of a node wakes only the contenders concerned
// (https://zookeeper.apache.org/doc/current/recipes.html, "Locks"). Expressing a recipe as
// a predicate over the sorted queue is Apache Curator's idea (LockInternalsDriver).
package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	Limit    int // of a driver.Permit: the limit stated by the node; 0 for none
	Rule     Rule
	Views    *Views   // of the session; nil if the claim's view is not shared
	Data     []byte   // stored in the node
	Observer Observer // may be nil

	Revocable bool // the wait ends with ErrRevoked when the node is revoked

	// Kept, if not nil, reports whether a contender with the data keeps the lock, perhaps
	// without using the lock, and so answers to a claim that joins behind: by leaving or, if the
	// lock is used, by changing the data. Try waits for the answer, for at most keptPatience.
	Kept func(data []byte) bool

	// Admit, if not nil, is called with the contenders before the claim's node, if one of them
	// blocks, until Admit returns nil. After an error for a listed queue, the claim ends.
	Admit func(before []driver.Node) error

	// Node is the node of an earlier claim in the queue, continued by this one, or zero if
	// the claim is to join.
	Node driver.Node

	// PassOn, if not nil, is called when the claim fails because the context has ended. If
	// PassOn returns true, the node stays in the queue for another claim.
	PassOn func(driver.Node) bool
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
	Holder  driver.Node // the first in the queue, perhaps Behind; zero if the first holds nothing (a guard)
	Created int64       // Watch.Created of the claim's own node; 0 without a node
}

// Acquire waits until the rule grants the lock and returns the holding node. If Acquire
// returns an error, no node is left behind, unless PassOn returned true; if the context ended
// the wait, the error wraps the context's error and names the awaited node.
func (c *Claim) Acquire(ctx context.Context) (driver.Node, error) {
	return c.acquire(ctx, c.wait)
}

// Try is Acquire without waiting: if another contender blocks, the error wraps ErrBusy and
// names the contender.
func (c *Claim) Try(ctx context.Context) (driver.Node, error) {
	return c.acquire(ctx, c.failBusy)
}

// onBlocked handles the blocking contenders, and returns what the claim does next: list the
// queue, or hold the lock.
type onBlocked func(context.Context, *state) (step, error)

func (c *Claim) failBusy(ctx context.Context, x *state) (step, error) {
	if c.Kept != nil && !x.asked {
		x.asked = true
		if gone, err := c.awaitKept(ctx, x); gone || err != nil {
			return lists, err
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrBusy, x.awaited[0])
}

// keptPatience bounds how long a try waits for the answers of contenders that keep a lock
// without using it. An answer takes three round trips.
const keptPatience = 100 * time.Millisecond

// awaitKept waits until the contenders in the way have left, if all keep the lock without using it,
// and reports whether they have.
func (c *Claim) awaitKept(ctx context.Context, x *state) (gone bool, err error) {
	obstacles, known := x.view.blocking(c.Rule, x.self)
	if !known || len(obstacles) == 0 {
		return known, nil
	}
	obstacles = slices.Clone(obstacles)
	slices.Reverse(obstacles) // the awaited one first: of several, mostly a waiter, which keeps nothing
	var watches []*driver.Watch
	for _, n := range slices.Compact([]int{1, len(obstacles)}) {
		watches, err = c.Session.Watch(ctx, c.Queue, obstacles[:n]...)
		switch {
		case err != nil && ctx.Err() != nil:
			return false, Busy(fmt.Errorf("waiting behind %s: %w", x.awaited[0], err))
		case errors.Is(err, driver.ErrNoPermission): // a try need not read what is in the way
			return false, nil
		case err != nil:
			return false, err
		}
		if next, _ := c.answered(watches); next == fails {
			return false, nil
		}
	}
	c.observeWait(ctx, x, watches[0].Data, 0)
	patience := time.NewTimer(keptPatience)
	defer patience.Stop()
	for {
		next, present := c.answered(watches)
		if next != waits {
			return next == lists, nil
		}
		late := false
		fired, stop := driver.First(present...)
		select {
		case <-fired:
		case <-patience.C:
			late = true
		case <-ctx.Done():
		}
		stop()
		if err := ctx.Err(); err != nil {
			return false, Busy(fmt.Errorf("waiting behind %s: %w", x.awaited[0], err))
		}
		if late {
			return false, nil
		}
	}
}

// answered takes in the events of the watches. present are the watches that have not fired.
func (c *Claim) answered(watches []*driver.Watch) (next step, present []*driver.Watch) {
	events := make([]driver.Event, len(watches))
	for i, w := range watches {
		if events[i] = w.Fired(); events[i] == 0 {
			present = append(present, w)
		}
	}
	return answered(events, func(i int) bool { return c.Kept(watches[i].Data) }), present
}

// acquire joins the queue, and calls blocked until the rule grants the lock.
func (c *Claim) acquire(ctx context.Context, blocked onBlocked) (node driver.Node, err error) {
	x := &state{claim: c, view: c.Views.open(c.Queue)}
	defer c.Views.close(c.Queue, x.view)
	joined := driver.Joined{Node: c.Node}
	if c.Node == (driver.Node{}) {
		if joined, err = c.Session.Join(ctx, c.Queue, driver.Request{Kind: c.Kind, Permits: c.Permits, Limit: c.Limit, Data: c.Data}); err != nil {
			return driver.Node{}, err
		}
	}
	granted := false
	defer func() {
		if granted || ctx.Err() != nil && c.PassOn != nil && c.PassOn(joined.Node) {
			return
		}
		// After an error, or a panic of the observer. Leave removes the node even if the
		// context has ended. The node stays until the session ends only if the service
		// refuses the removal.
		left := c.Session.Leave(ctx, c.Queue, joined.Node)
		if left == nil {
			x.view.gone(joined.Node)
		}
		if errors.Is(left, driver.ErrNoPermission) {
			err = fmt.Errorf("%w; and then %w", err, left)
		}
	}()
	next, err := x.join(joined)
	for err == nil && next != holds {
		if next == waits {
			next, err = blocked(ctx, x)
		} else if queue, failed := c.Session.List(ctx, c.Queue); failed != nil {
			err = failed
		} else {
			next, err = x.list(queue)
		}
	}
	if err != nil {
		return driver.Node{}, err
	}
	granted = true
	return joined.Node, nil
}

// wait waits until the lock is granted, or until the queue must be listed again.
func (c *Claim) wait(ctx context.Context, x *state) (step, error) {
	interrupted := false
	for behind := (driver.Node{}); ; {
		watched := x.awaited
		if x.self != (driver.Node{}) { // waiters for a plain lock have no node
			watched = append(slices.Clip(watched), x.self) // another client may remove self
		}
		watches, err := c.Session.Watch(ctx, c.Queue, watched...)
		if err != nil && ctx.Err() != nil && !interrupted {
			return 0, Busy(fmt.Errorf("waiting behind %s: %w", x.awaited[0], err))
		}
		if err != nil {
			return 0, err
		}
		own := watches[len(x.awaited):]
		if behind != x.awaited[0] {
			behind = x.awaited[0]
			created := int64(0)
			if len(own) > 0 {
				created = own[0].Created
			}
			c.observeWait(ctx, x, watches[0].Data, created)
		}
		if c.Revocable && len(own) > 0 && own[0].Revoked {
			return 0, ErrRevoked
		}
		fired, stop := driver.First(watches...)
		select {
		case <-fired:
		case <-c.Session.Done():
			err = c.Session.Err()
		case <-ctx.Done():
		}
		stop()
		if err := ctx.Err(); err != nil { // first: the end of a call may end the session as well
			return 0, Busy(fmt.Errorf("waiting behind %s: %w", behind, err))
		}
		if err != nil {
			return 0, err
		}
		events := c.fired(watches, make([]driver.Event, len(watches)), len(own))
		if len(own) == 0 {
			return lists, nil
		}
		if interrupted = slices.Contains(events, driver.Interrupted); interrupted {
			behind, x.head = driver.Node{}, driver.Node{} // what is awaited is not known any longer
		}
		isThere := func() bool { return own[0].Fired() == 0 }
		if queue := watches[0].Queue; driver.Place(queue, x.self) >= 0 && isThere() {
			return x.list(queue)
		}
		next := x.fired(events, isThere)
		if next == looks {
			queue, err := c.Session.List(ctx, c.Queue)
			if err != nil {
				return 0, err
			}
			next, err = x.look(queue, c.fired(watches, events, len(own)), isThere)
			if err != nil {
				return 0, err
			}
		}
		if next != waits {
			return next, nil
		}
	}
}

// fired returns the events of watches, the last on the claim's own node if own is 1, and
// tells the observer of the events new since before.
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

// observeWait tells the observer what the claim waits for and, if the observer wants to
// know, the holder. data is stored in the nearest obstacle, and created is the own node's order
// number, or 0. The watches are already set, so the request for the holder delays no event by
// more than a round trip.
func (c *Claim) observeWait(ctx context.Context, x *state, data []byte, created int64) {
	if c.Observer == nil {
		return
	}
	w := Wait{Queue: c.Queue, Behind: x.awaited[0], Data: data, Created: created, Holder: x.head}
	if c.Kind == driver.Guard { // the first guard waits for permits itself, or is about to get them
		w.Holder = driver.Node{}
	}
	if !c.Observer.Waiting(w) || w.Holder.Name == "" || w.Holder == w.Behind {
		return
	}
	if node, data := FindHolder(ctx, c.Session, c.Queue, w.Holder); node.Name != "" {
		c.Observer.Holder(node, data)
	}
}
