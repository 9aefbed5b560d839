package driver

// This file has watches and their events.

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
)

// Event is what happened to a watched node.
type Event int

const (
	// Deleted: the node was removed, and not changed before. A node of the watching session
	// was removed by the session itself, alive at the moment.
	Deleted Event = iota + 1
	// Missing: the node is gone. Either the node was gone before the watch, and another may
	// have taken the place (Downgrader); or the node was one of the watching session, and
	// the session may be over. The caller must list the queue again.
	Missing
	// Changed: the node's data was changed.
	Changed
	// Unnoticed: the node is gone, or another has taken the place. A check by the driver
	// found the change, unreported by the service. The caller must list the queue again.
	Unnoticed
	// Interrupted: the connection broke, so a change may have been missed. The caller
	// must watch the node again, or list the queue.
	Interrupted
)

// String returns the event as one word.
func (e Event) String() string {
	return [...]string{"nothing", "deleted", "missing", "changed", "unnoticed", "interrupted"}[e]
}

// Watch is a watch on one node, shared by all waiters. Drivers set the fields before they
// return a Watch. The fields are zero if the node was gone before the watch.
type Watch struct {
	// Created orders nodes by their creation: a node created later has a larger number, in
	// any queue, regardless of changes to queues and service in between. Created is
	// positive and less than 1<<53: fencing tokens have room for ten more bits.
	Created int64

	// Data is the data stored in the node; empty if a revocation has replaced it.
	Data []byte

	// Revoked reports whether the node's contender has been asked to give up the lock
	// (Revoker).
	Revoked bool

	// Queue, if not nil, is the queue at some moment after the call of Session.Watch, for a
	// node found to be Missing: the caller need not list the queue.
	Queue []Node

	event atomic.Int32 // an Event, or 0 until the watch fires
	mu    sync.Mutex   // held while the event is set
	calls list.List    // of func(), to be called when the watch fires
}

// NewWatch returns an unfired watch, for drivers.
func NewWatch() *Watch { return new(Watch) }

// Fire ends the wait of all waiters with e. Only the first call has an effect. Fire is for
// drivers.
func (w *Watch) Fire(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Fired() != 0 {
		return
	}
	w.event.Store(int32(e))
	for call := w.calls.Front(); call != nil; call = w.calls.Front() {
		w.calls.Remove(call).(func())()
	}
}

// Fired returns the event, or 0 if the watch has not fired.
func (w *Watch) Fired() Event { return Event(w.event.Load()) }

// OnFire has f called when the watch fires, on the firing goroutine, or at once if the
// watch has fired. f must not block, nor use the watch. After stop, f is not called any
// longer.
func (w *Watch) OnFire(f func()) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Fired() != 0 {
		f()
		return func() {}
	}
	call := w.calls.PushBack(f)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls.Remove(call) // nothing if already called
	}
}

// First returns a channel. The channel receives a value when one of the watches has fired.
// The caller must call stop when the channel is no longer needed.
func First(watches ...*Watch) (fired <-chan struct{}, stop func()) {
	first := make(chan struct{}, 1)
	stops := make([]func(), 0, 4) // on the stack, as a rule
	for _, w := range watches {
		stops = append(stops, w.OnFire(func() {
			select {
			case first <- struct{}{}:
			default:
			}
		}))
	}
	return first, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// Before returns a context ending with ctx or when the watch fires. A nil watch never
// fires.
func (w *Watch) Before(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	if w == nil {
		return ctx, end
	}
	stop := w.OnFire(end)
	return ctx, func() { stop(); end() }
}
