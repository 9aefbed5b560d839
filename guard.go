package lockpool

import (
	"context"
	"errors"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// guardAfter is how long a lock is held before its node is watched. Most locks
// are let go sooner, and are spared the request.
const guardAfter = 20 * time.Millisecond

// guardPause is the pause after a server has answered with an error that says
// nothing of the node, such as "throttled".
const guardPause = 100 * time.Millisecond

// watchOver watches the node of a hold, which somebody may remove: a person who
// breaks the lock, or who cleans up. It is called by the hold's timer and ends
// with the hold.
func (p *Pool) guard(h *hold) {
	if !p.begin() {
		return
	}
	defer p.work.Done()
	for {
		watch, err := h.watchNode(h.alive)
		if h.alive.Err() != nil {
			return
		}
		if err != nil {
			watch = driver.NewWatch()
			time.AfterFunc(guardPause, func() { watch.Fire(driver.Interrupted) })
		}
		select {
		case <-watch.Done():
			if watch.Fired() == driver.Unnoticed {
				p.telemetry.rescued(h.alive, h.kind, h.name)
			}
		case <-h.alive.Done():
			return
		}
	}
}

// look watches the hold's node and learns its token. It ends the hold if the
// node is gone, or can not be seen any more.
func (h *hold) watchNode(ctx context.Context) (*driver.Watch, error) {
	node, err := h.currentNode(ctx)
	if err != nil {
		return nil, err
	}
	watches, err := h.session.Watch(ctx, h.queue, node)
	if err == nil {
		h.token.CompareAndSwap(0, watches[0].Created)
		if watches[0].Revoked {
			h.revoke()
		}
		if e := watches[0].Fired(); e != driver.Deleted && e != driver.Missing {
			return watches[0], nil
		}
		if h.replaced(node) {
			return h.watchNode(ctx)
		}
		err = driver.ErrRemoved
	}
	return nil, h.endIfLost(err)
}

// stands asks the service whether the hold's node stands.
func (h *hold) verify(ctx context.Context) error {
	node, err := h.currentNode(ctx)
	if err == nil {
		err = h.session.Verify(ctx, h.queue, node)
	}
	if errors.Is(err, driver.ErrRemoved) && h.replaced(node) {
		return h.verify(ctx)
	}
	return h.endIfLost(err)
}

// weigh ends the hold if err, of a question about its node, means that it is
// lost. It returns the error for the user.
func (h *hold) endIfLost(err error) error {
	removed, unseen := errors.Is(err, driver.ErrRemoved), errors.Is(err, driver.ErrNoPermission)
	if !removed && !unseen && !errors.Is(err, driver.ErrSessionLost) {
		return err // there was no answer
	}
	if cause := lostWith(err); h.end(cause) {
		if unseen || removed && h.kind != driver.Plain {
			// What stands of it we could not see go, or it is the rest of several nodes.
			_ = h.removeNode(h.alive) // goes on in the background
		}
		h.reportEnd(cause)
	}
	return h.err()
}
