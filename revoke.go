package lockpool

import (
	"context"
	"errors"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// Revoke asks those who hold the lock of that name to let it go. It is a request:
// a holder that does not listen, or does not want to, keeps the lock (see
// [Pool.Break]). Those who listen are told at once, or as soon as they begin to:
// lockpool's by [Revocable] and [Lock.Revoked], Curator's by makeRevocable.
//
// With nodes, by the names that [Pool.Queue] gave, it asks these contenders
// instead, whether they hold the lock or wait for it. Nobody there, or nobody any
// more, is no error.
func (p *Pool) Revoke(ctx context.Context, name string, nodes ...string) error {
	err := p.checkName(name)
	for _, node := range nodes {
		if err == nil {
			err = p.checkNode(node)
		}
	}
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, m *session) error {
			asked := func(c contender) bool {
				return slices.Contains(nodes, c.Node.Name) || len(nodes) == 0 && c.holds
			}
			for {
				found, _, err := inspect(ctx, m, name)
				if err != nil {
					return err
				}
				var gone []contender
				for _, c := range slices.DeleteFunc(found, func(c contender) bool { return !asked(c) }) {
					switch err := m.Revoke(ctx, c.queue, c.Node); {
					case errors.Is(err, driver.ErrRemoved):
						gone = append(gone, c)
					case err != nil:
						return err
					}
				}
				if len(gone) == 0 {
					return nil
				}
				asked = func(c contender) bool { // one that shares the lock now has another node
					return slices.ContainsFunc(gone, func(old contender) bool { return old.queue == c.queue && old.Seq == c.Seq && old.Session == c.Session })
				}
			}
		})
	}
	if err != nil {
		return &LockError{opRevoke, name, err}
	}
	return nil
}

// Revoked returns a channel that is closed when somebody asks for the lock back
// (see [Pool.Revoke]), also if that was before this call. It is not closed by
// unlocking. A lock that was taken with [Revocable] says it by its contexts, too.
//
// ZooKeeper's way to ask is to write __REVOKE__ into the lock's node, as Curator
// does. Entries into a lock that is held are asked together.
func (l *Lock) Revoked() <-chan struct{} {
	l.hold.handle.pool.startGuard(l.hold)
	return l.hold.revoked.Done()
}

// watchNow makes the watch over a hold begin, unless it has.
func (p *Pool) startGuard(h *hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.guard.Stop() {
		h.guard.Reset(0)
	}
}

// mayBeRevoked makes the contexts of a hold end when it is revoked.
func (h *hold) makeRevocable() {
	h.mu.Lock()
	h.revocable = true
	if h.isRevoked() {
		h.endContexts(ErrRevoked)
	}
	h.mu.Unlock()
	h.handle.pool.startGuard(h)
}

// revoke tells everyone that somebody has asked for the lock.
func (h *hold) revoke() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isRevoked() {
		return
	}
	h.ask()
	if h.revocable {
		h.endContexts(ErrRevoked)
	}
}

func (h *hold) isRevoked() bool { return h.revoked.Err() != nil }

// endContexts is called with mu held; a canceled context calls nothing of ours on
// this goroutine.
func (h *hold) endContexts(cause error) {
	for c := range h.contexts {
		c.cancel(cause)
	}
}
