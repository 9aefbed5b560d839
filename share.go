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
func (h *hold) share() func(ctx context.Context) error {
	failed := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	if err := h.failure(); err != nil {
		return failed(err)
	}
	moving := make(chan struct{})
	h.mu.Lock()
	old := h.node
	h.moving = moving
	h.mu.Unlock()
	var err error
	if !h.session.pool.background(func() { // ends when the service has answered, or with the session
		var node driver.Node
		if err = h.learnToken(old); err == nil {
			node, err = h.home.Share(h.queue, old, withToken(h.data, h.token.Load()))
		}
		h.mu.Lock()
		if err == nil {
			h.node = node
		}
		h.moving = nil
		h.mu.Unlock()
		if !errors.Is(err, driver.ErrNoPermission) { // then it is still alone, and held
			err = h.weigh(err)
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
		watches, err := h.home.Watch(h.living, h.queue, first)
		switch {
		case err == nil:
		case h.living.Err() != nil, errors.Is(err, driver.ErrSessionLost), errors.Is(err, driver.ErrNoPermission):
			return err
		default: // no answer, such as "throttled"
			select {
			case <-time.After(guardPause):
			case <-h.living.Done():
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
func (h *hold) settled(ctx context.Context) (driver.Node, error) {
	for {
		h.mu.Lock()
		node, moving := h.node, h.moving
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
	return h.moving != nil || h.node != node
}

// leaveQueue removes the hold's node. ctx bounds the wait, never whether it
// happens.
func (h *hold) leaveQueue(ctx context.Context) error {
	node, err := h.settled(ctx)
	if err == nil {
		return h.home.Leave(ctx, h.queue, node)
	}
	h.session.pool.background(func() { // ends when the node is gone, or with the session
		if node, err := h.settled(context.Background()); err == nil {
			_ = h.home.Leave(ctx, h.queue, node)
		}
	})
	return err
}
