package lockpool

// This file has the node of a tenancy.

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// heldNode is the node of a tenancy. A downgrade replaces it.
type heldNode struct {
	session *session
	queue   string
	data    []byte       // stored in the node
	created atomic.Int64 // the order number, the base of tokens; 0 until the node has been watched

	mu        sync.Mutex
	node      driver.Node
	watching  *driver.Watch // the newest, or nil
	unfollow  func()        // ends the callback of a watch
	replacing chan struct{} // closed when the replacement is over; nil if there is none
}

// lookAgainDelay is the pause after an answer that says nothing about the node, such
// as "throttled".
const lookAgainDelay = 100 * time.Millisecond

// current returns the node. It waits for a replacement until ctx ends.
func (n *heldNode) current(ctx context.Context) (driver.Node, error) {
	for {
		n.mu.Lock()
		node, replacing := n.node, n.replacing
		n.mu.Unlock()
		if replacing == nil {
			return node, nil
		}
		select {
		case <-replacing:
		case <-ctx.Done():
			return driver.Node{}, ctx.Err()
		}
	}
}

// nodeNow returns the node, perhaps about to be replaced.
func (n *heldNode) nodeNow() driver.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.node
}

// replaced reports whether another node has replaced the named one, or is about to.
func (n *heldNode) replaced(node string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.replacing != nil || n.node.Name != node
}

// watch watches the node and learns its order number. The error is driver.ErrRemoved if the
// node is gone.
func (n *heldNode) watch(ctx context.Context) (*driver.Watch, error) {
	for {
		node, err := n.current(ctx)
		if err != nil {
			return nil, err
		}
		watches, err := n.session.Watch(ctx, n.queue, node)
		if err != nil {
			return nil, err
		}
		watch := watches[0]
		n.created.CompareAndSwap(0, watch.Created)
		n.mu.Lock()
		n.watching = watch
		n.mu.Unlock()
		switch e := watch.Fired(); {
		case e == driver.Interrupted: // not an answer, even if the node existed before
		case e != driver.Deleted && e != driver.Missing && e != driver.Unnoticed:
			return watch, nil
		case !n.replaced(node.Name):
			return nil, driver.ErrRemoved
		}
	}
}

// onFire has act called, on a goroutine, when the watch on the node fires.
func (n *heldNode) onFire(watch *driver.Watch, act func()) {
	unfollow := watch.OnFire(func() { go act() })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unfollow = unfollow
}

// unwatch ends what onFire has begun.
func (n *heldNode) unwatch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unfollow != nil {
		n.unfollow()
	}
}

// isWatched reports whether the node has been seen to exist since the grant, so that the
// service would have told of a later removal, as soon as the event arrives.
func (n *heldNode) isWatched() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.watching != nil && n.watching.Fired() == 0
}

// verify asks the service whether the node exists.
func (n *heldNode) verify(ctx context.Context) error {
	for {
		node, err := n.current(ctx)
		if err == nil {
			err = n.session.Verify(ctx, driver.Located{Queue: n.queue, Node: node})
		}
		if !errors.Is(err, driver.ErrRemoved) || !n.replaced(node.Name) {
			return err
		}
	}
}
