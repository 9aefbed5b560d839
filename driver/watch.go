package driver

import (
	"context"
	"sync"
)

// Event is what happened to a watched node.
type Event int

const (
	// Deleted: the node is gone, and was not changed before it went.
	Deleted Event = iota + 1
	// Missing: the node was gone before it could be watched. Another may have
	// taken its place (Session.Share): look again.
	Missing
	// Changed: the node stands, its data is another.
	Changed
	// Unnoticed: the node is gone, or another stands in its place. The driver was
	// not told, and found it by looking again. Look again.
	Unnoticed
	// Interrupted: the connection broke, so a change may have gone unseen.
	// Look again.
	Interrupted
)

// Watch is a watch on one node, shared by everyone who waits for it.
type Watch struct {
	// Created is larger for a node that was created later, whatever queue it
	// is in and whatever happened to queues and service in between. It is 0 if
	// the node was gone before it could be watched. Drivers set it before they
	// return the watch.
	Created int64

	// Data is what is stored in the node, under the same conditions.
	Data []byte

	// Revoked reports that somebody has asked for the lock back (Session.Revoke).
	Revoked bool

	pending context.Context // until it fires
	fire    context.CancelFunc
	once    sync.Once
	event   Event
}

// NewWatch returns a watch that has not fired. It is for drivers.
func NewWatch() *Watch {
	w := new(Watch)
	w.pending, w.fire = context.WithCancel(context.Background())
	return w
}

// Fire tells everyone that e happened. Only the first call counts. It is for
// drivers.
func (w *Watch) Fire(e Event) {
	w.once.Do(func() {
		w.event = e
		w.fire()
	})
}

// Done is closed when the watch has fired.
func (w *Watch) Done() <-chan struct{} { return w.pending.Done() }

// Fired returns what happened, or 0 if nothing has yet.
func (w *Watch) Fired() Event {
	select {
	case <-w.pending.Done():
		return w.event
	default:
		return 0
	}
}

// First returns a channel that is closed when the first of the watches has
// fired, and a function to call when that is of no interest any more.
func First(watches []*Watch) (<-chan struct{}, context.CancelFunc) {
	if len(watches) == 1 {
		return watches[0].Done(), func() {}
	}
	waiting, end := context.WithCancel(context.Background())
	var forget []func() bool
	for _, w := range watches {
		forget = append(forget, context.AfterFunc(w.pending, end))
	}
	return waiting.Done(), func() {
		for _, forget := range forget {
			forget()
		}
		end()
	}
}

// Before returns a context that ends with ctx or when the watch fires. A nil
// watch never does.
func (w *Watch) Before(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	if w == nil {
		return ctx, end
	}
	forget := context.AfterFunc(w.pending, end)
	return ctx, func() { forget(); end() }
}
