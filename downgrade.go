package lockpool

// This file has downgrades: an exclusive hold becomes a shared one, under another node.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// downgrade begins to make an exclusive hold a shared one. The caller, which holds
// handle.mu, must then call the returned function, which waits for the downgrade until its
// context ends; the downgrade then continues in the background.
func (h *hold) downgrade() (finish func(context.Context) error) {
	failed := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	if err := h.life.failure(); err != nil {
		return failed(err)
	}
	p := h.handle.pool
	if !p.begin() {
		return failed(fmt.Errorf("%w: %w", ErrNotHeld, ErrPoolClosed))
	}
	h.cost.alone = time.Since(h.life.began)
	replace := h.tenancy.beginDowngrade(h.turn)
	done := make(chan struct{})
	var err error
	carryOut := func() {
		defer p.work.Done()
		defer close(done)
		err = replace(h.life.after(&h.life.finished))
		if errors.Is(err, driver.ErrNoPermission) { // still exclusive, and held
			return
		}
		err = h.endIfLost(err)
		if cause := h.life.err(); cause != nil && !errors.Is(cause, ErrLockLost) {
			err = nil // the whole lock was released meanwhile
		}
	}
	return func(ctx context.Context) error {
		go carryOut() // ends when the service has answered, or with the session
		if lost := h.checkEntry(ctx); lost != nil {
			return lost
		}
		ctx, cancel := beyondHolds(ctx)
		defer cancel()
		select {
		case <-done:
			return err
		case <-ctx.Done():
			return fmt.Errorf("shared, but the server has not confirmed it yet: %w", ctx.Err())
		}
	}
}

// beginDowngrade is heldNode.beginReplace for the one holder, a writer. Afterward other
// readers may have turns.
func (t *tenancy) beginDowngrade(turn int) func(alive context.Context) error {
	freeze := func(frozen bool) {
		t.pool.local.change(&t.turns, func() { t.turns.frozen, t.turns.shared = frozen, !frozen })
	}
	freeze(true)
	replace := t.beginReplace(turn)
	return func(alive context.Context) error {
		err := replace(alive)
		if err == nil {
			freeze(false)
		}
		return err
	}
}

// beginReplace returns a function to replace the exclusive node with a shared one. The
// shared node stores the token of the turn and the name of the old node. current waits for
// the replacement. alive ends with the hold.
func (n *heldNode) beginReplace(turn int) func(alive context.Context) error {
	replaced := make(chan struct{})
	n.mu.Lock()
	old := n.node
	n.replacing = replaced
	n.mu.Unlock()
	return func(alive context.Context) error {
		node := old
		err := n.learnCreated(alive)
		if err == nil {
			token, _ := packToken(n.created.Load(), turn) // 0 if there is none
			node, err = n.session.Session.(driver.Downgrader).Downgrade(n.queue, old, nodedata.Downgraded(n.data, token, old.Name))
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

// learnCreated learns the order number of the first node: the replacing node may be newer
// than the nodes of later holders.
func (n *heldNode) learnCreated(alive context.Context) error {
	first := n.node
	for n.created.Load() == 0 {
		watches, err := n.session.Watch(alive, n.queue, first)
		switch {
		case err == nil && watches[0].Created != 0:
			n.created.CompareAndSwap(0, watches[0].Created)
		case err == nil && watches[0].Fired() == driver.Missing:
			return driver.ErrRemoved
		case alive.Err() != nil:
			return alive.Err()
		case errors.Is(err, driver.ErrSessionLost), errors.Is(err, driver.ErrNoPermission):
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
