package lockpool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// Revoke asks the holders of the lock of that name to release it. A holder that does
// not listen, or does not want to, keeps the lock (see [Pool.Break]). Holders that
// listen are told at once, or as soon as they begin to: lockpool's by [Revocable] and
// [Lock.Revoked], Curator's by makeRevocable.
//
// With the names of nodes that [Pool.Queue] returned, it asks these contenders
// instead, whether they hold the lock or wait for it. It is no error if there is no
// such contender, or not any more.
func (p *Pool) Revoke(ctx context.Context, name string, nodes ...string) error {
	err := p.checkNodes(name, nodes...)
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, s *session) error { return revoke(ctx, s, name, nodes) })
	}
	return lockError(opRevoke, name, err)
}

func revoke(ctx context.Context, s *session, name string, nodes []string) error {
	asked := func(c contender) bool {
		return slices.Contains(nodes, c.Node.Name) || len(nodes) == 0 && c.holds
	}
	for {
		found, _, err := inspect(ctx, s, name)
		if err != nil {
			return err
		}
		var gone []contender
		for _, c := range found {
			if !asked(c) {
				continue
			}
			err := s.Revoke(ctx, c.queue, c.Node)
			switch {
			case errors.Is(err, driver.ErrRemoved):
				gone = append(gone, c)
			case err != nil:
				return err
			}
		}
		if len(gone) == 0 {
			return nil
		}
		asked = func(c contender) bool { return slices.ContainsFunc(gone, c.isDowngradeOf) }
	}
}

// isDowngradeOf reports whether c is a contender whose node was old: a downgrade
// replaces the node.
func (c contender) isDowngradeOf(old contender) bool {
	return old.queue == c.queue && old.Seq == c.Seq && old.Session == c.Session
}

// Break takes the lock, or the place in its queue, from a contender. node is the name
// of its node, from [Pool.Queue]. It is for a contender that is stuck, and is logged. A
// holder of lockpool is told that it has lost the lock, and a waiter queues again. A
// holder that does not listen continues its work beside the next holder. If the
// contender has gone already, the error is ErrNotHeld.
func (p *Pool) Break(ctx context.Context, name, node string) error {
	err := p.checkNodes(name, node)
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, s *session) error { return breakLock(ctx, s, name, node) })
	}
	if errors.Is(err, driver.ErrRemoved) {
		err = fmt.Errorf("%w: %s has gone", ErrNotHeld, node)
	}
	return lockError(opBreak, name, err)
}

func breakLock(ctx context.Context, s *session, name, node string) error {
	found, _, err := inspect(ctx, s, name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(found, func(c contender) bool { return c.Node.Name == node })
	if i < 0 {
		return driver.ErrRemoved
	}
	return s.Break(ctx, found[i].queue, found[i].Node)
}

// checkNodes checks the name of a lock and of contenders' nodes.
func (p *Pool) checkNodes(name string, nodes ...string) error {
	if err := p.checkName(name); err != nil {
		return err
	}
	for _, node := range nodes {
		if !p.connector.IsContender(node) {
			return fmt.Errorf("%q is not the name of a contender's node: take it from Queue", node)
		}
	}
	return nil
}
