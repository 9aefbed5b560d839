package lockpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockpool/lockpool/driver"
)

// share makes the hold, which was alone, one that others who read may share. It
// waits for that until ctx ends, and no longer, but it happens all the same.
func (h *hold) share(ctx context.Context) error {
	if err := h.err(); err != nil {
		return err
	}
	moving := make(chan struct{})
	h.mu.Lock()
	old := h.node
	h.moving = moving
	h.mu.Unlock()
	var err error
	h.session.pool.work.Go(func() { // ends when the service has answered, or with the session
		var node driver.Node
		node, err = h.home.Share(h.queue, old, h.data)
		h.mu.Lock()
		if err == nil {
			h.node = node
		}
		h.moving = nil
		h.mu.Unlock()
		if !errors.Is(err, driver.ErrNoPermission) { // then it is still alone, and held
			err = h.weigh(err)
		}
		close(moving)
	})
	select {
	case <-moving:
		return err
	case <-ctx.Done():
		return fmt.Errorf("shared, which the server has not confirmed yet: %w", ctx.Err())
	}
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
	h.session.pool.work.Go(func() { // ends when the node is gone, or with the session
		if node, err := h.settled(context.Background()); err == nil {
			_ = h.home.Leave(ctx, h.queue, node)
		}
	})
	return err
}
