package lockpool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// share makes the hold, which was alone, one that others who read may share. It
// returns what waits for that until a context ends, and no longer, but it
// happens all the same. It is called with the session's mutex held.
func (h *hold) downgrade() func(ctx context.Context) error {
	failed := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	if err := h.failure(); err != nil {
		return failed(err)
	}
	moving := make(chan struct{})
	h.mu.Lock()
	old := h.node
	h.downgrading = moving
	h.mu.Unlock()
	var err error
	if !h.handle.pool.background(func() { // ends when the service has answered, or with the session
		var node driver.Node
		if err = h.learnToken(old); err == nil {
			node, err = h.session.Downgrade(h.queue, old, withToken(h.data, h.token.Load()))
		}
		h.mu.Lock()
		if err == nil {
			h.node = node
		}
		h.downgrading = nil
		h.mu.Unlock()
		if !errors.Is(err, driver.ErrNoPermission) { // then it is still alone, and held
			err = h.endIfLost(err)
			if cause := h.err(); cause != nil && !errors.Is(cause, ErrLockLost) {
				err = nil // it was let go meanwhile, whole
			}
		}
		close(moving)
	}) {
		return failed(fmt.Errorf("%w: %w", ErrNotHeld, ErrPoolClosed))
	}
	return func(ctx context.Context) error {
		ctx, cancel := beyondHolds(ctx)
		defer cancel()
		select {
		case <-moving:
			return err
		case <-ctx.Done():
			return unconfirmed{fmt.Errorf("shared, which the server has not confirmed yet: %w", ctx.Err())}
		}
	}
}

// learnToken learns the token from the first node of a hold. The one that takes
// its place was created later than those of holders to come.
func (h *hold) learnToken(first driver.Node) error {
	for h.token.Load() == 0 {
		watches, err := h.session.Watch(h.alive, h.queue, first)
		switch {
		case err == nil:
		case h.alive.Err() != nil, errors.Is(err, driver.ErrSessionLost), errors.Is(err, driver.ErrNoPermission):
			return err
		default: // no answer, such as "throttled"
			select {
			case <-time.After(guardPause):
			case <-h.alive.Done():
			}
			continue
		}
		h.token.CompareAndSwap(0, watches[0].Created)
		if watches[0].Fired() == driver.Missing {
			return driver.ErrRemoved
		}
	}
	return nil
}

// settled returns the hold's node. If it is about to be another one, it waits
// for that until ctx ends.
func (h *hold) currentNode(ctx context.Context) (driver.Node, error) {
	for {
		h.mu.Lock()
		node, moving := h.node, h.downgrading
		h.mu.Unlock()
		if moving == nil {
			return node, nil
		}
		select {
		case <-moving:
		case <-ctx.Done():
			return driver.Node{}, ctx.Err()
		}
	}
}

// replaced reports whether the hold stands, or will stand, on another node.
func (h *hold) replaced(node driver.Node) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.downgrading != nil || h.node != node
}

// leaveQueue removes the hold's node. ctx bounds the wait, never whether it
// happens.
func (h *hold) removeNode(ctx context.Context) error {
	node, err := h.currentNode(ctx)
	if err == nil {
		return h.session.Leave(ctx, h.queue, node)
	}
	h.handle.pool.background(func() { // ends when the node is gone, or with the session
		if node, err := h.currentNode(context.Background()); err == nil {
			_ = h.session.Leave(ctx, h.queue, node)
		}
	})
	return err
}
