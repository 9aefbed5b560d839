package driver

import (
	"context"
	"sync"
)

// Event is what happened to a watched node.
type Event int

const (
	// Deleted: the node was removed, and not changed before. If it was of the session that
	// watches it, then that session has removed it itself, and was not over at that moment.
	Deleted Event = iota + 1
	// Missing: the node is gone. It was gone before it could be watched, and another may
	// have taken its place (Session.Downgrade); or it was of the session that watches it,
	// and the session may be over. The caller must list the queue again.
	Missing
	// Changed: the node's data was changed.
	Changed
	// Unnoticed: the node is gone, or another has taken its place. The service did not
	// report that; a check by the driver found it. The caller must list the queue
	// again.
	Unnoticed
	// Interrupted: the connection broke, so a change may have been missed. The caller
	// must list the queue again.
	Interrupted
)

// Watch is a watch on one node, shared by all its waiters. Drivers set its fields
// before they return it. They are zero if the node was gone before it could be
// watched.
type Watch struct {
	// Created orders nodes by their creation: it is larger for a node that was created
	// later, in any queue, whatever happened to the queues and the service in between. It
	// is positive and less than 1<<53: fencing tokens have room for ten more bits.
	Created int64

	// Data is the data stored in the node.
	Data []byte

	// Revoked reports that the node's contender has been asked to give up the lock
	// (Session.Revoke).
	Revoked bool

	pending context.Context // until it fires
	fire    context.CancelFunc
	once    sync.Once
	event   Event
}

// NewWatch returns a watch that has not fired. Drivers call it.
func NewWatch() *Watch {
	w := new(Watch)
	w.pending, w.fire = context.WithCancel(context.Background())
	return w
}

// Fire ends the wait of all waiters with e. Only the first call has an effect. Drivers
// call it.
func (w *Watch) Fire(e Event) {
	w.once.Do(func() {
		w.event = e
		w.fire()
	})
}

// Done returns a channel that is closed when the watch has fired.
func (w *Watch) Done() <-chan struct{} { return w.pending.Done() }

// Fired returns the event, or 0 if the watch has not fired.
func (w *Watch) Fired() Event {
	select {
	case <-w.pending.Done():
		return w.event
	default:
		return 0
	}
}

// First returns a channel that is closed when one of the watches has fired. The caller
// must call stop when it no longer needs the channel.
func First(watches []*Watch) (fired <-chan struct{}, stop func()) {
	if len(watches) == 1 {
		return watches[0].Done(), func() {}
	}
	waiting, end := context.WithCancel(context.Background())
	var detach []func() bool
	for _, w := range watches {
		detach = append(detach, context.AfterFunc(w.pending, end))
	}
	return waiting.Done(), func() {
		for _, detach := range detach {
			detach()
		}
		end()
	}
}

// Before returns a context that ends with ctx or when the watch fires. A nil
// watch never fires.
func (w *Watch) Before(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	if w == nil {
		return ctx, end
	}
	detach := context.AfterFunc(w.pending, end)
	return ctx, func() { detach(); end() }
}
