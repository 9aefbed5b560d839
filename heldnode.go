package lockpool

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// heldNode is the node of a hold. A downgrade replaces it.
type heldNode struct {
	session *session
	queue   string
	data    []byte       // stored in it
	token   atomic.Int64 // 0 until the node has been watched
	guard   *time.Timer  // guarded by Pool.mu

	mu        sync.Mutex
	node      driver.Node
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

// replaced reports whether another node has replaced this one, or is about to.
func (n *heldNode) replaced(node driver.Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.replacing != nil || n.node != node
}

// watch watches the node and learns the token. The error is driver.ErrRemoved if the
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
		n.token.CompareAndSwap(0, watch.Created)
		if e := watch.Fired(); e != driver.Deleted && e != driver.Missing {
			return watch, nil
		}
		if !n.replaced(node) {
			return nil, driver.ErrRemoved
		}
	}
}

// verify asks the service whether the node exists.
func (n *heldNode) verify(ctx context.Context) error {
	for {
		node, err := n.current(ctx)
		if err == nil {
			err = n.session.Verify(ctx, n.queue, node)
		}
		if !errors.Is(err, driver.ErrRemoved) || !n.replaced(node) {
			return err
		}
	}
}

// beginReplace returns a function that replaces the node, which was exclusive, with a
// shared one. Until that is done, current waits for it. alive ends with the hold.
func (n *heldNode) beginReplace() func(alive context.Context) error {
	replaced := make(chan struct{})
	n.mu.Lock()
	old := n.node
	n.replacing = replaced
	n.mu.Unlock()
	return func(alive context.Context) error {
		node := old
		err := n.learnToken(alive)
		if err == nil {
			node, err = n.session.Downgrade(n.queue, old, nodedata.WithToken(n.data, n.token.Load()))
		}
		n.mu.Lock()
		if err == nil {
			n.node = node
		}
		n.replacing = nil
		n.mu.Unlock()
		close(replaced)
		return err
	}
}

// learnToken learns the token from the first node: the node that replaces it may be
// newer than those of later holders.
func (n *heldNode) learnToken(alive context.Context) error {
	first := n.node
	for n.token.Load() == 0 {
		watches, err := n.session.Watch(alive, n.queue, first)
		switch {
		case err == nil && watches[0].Created != 0:
			n.token.CompareAndSwap(0, watches[0].Created)
		case err == nil && watches[0].Fired() == driver.Missing:
			return driver.ErrRemoved
		case alive.Err() != nil, errors.Is(err, driver.ErrSessionLost), errors.Is(err, driver.ErrNoPermission):
			return err
		default: // not an answer
			select {
			case <-time.After(lookAgainDelay):
			case <-alive.Done():
			}
		}
	}
	return nil
}
