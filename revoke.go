package lockpool

// This file revokes and breaks locks.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// Revoke asks the holders of the named lock to release the lock. A holder that does not
// listen for requests, or ignores them, keeps the lock (see [Pool.Break]). A listening
// holder is notified at once, or on beginning to listen: with [Revocable] or [Lock.Revoked]
// in lockpool, with makeRevocable in Curator.
//
// Given names of nodes from [Pool.Queue], Revoke asks the contenders instead, holders or
// waiters. The handles of a pool may share a node (see [WithLocalTurns]), which then stands
// for the present holders. A missing contender is not an error. A holder whose lock has
// become shared since is found by the earlier name of the node.
//
// A lockpool contender's node keeps its data, and says that the contender was revoked. The
// data in the node of another client is lost, because the client wants nothing else there.
func (p *Pool) Revoke(ctx context.Context, name string, nodes ...string) error {
	local := func(node string) bool { return strings.HasPrefix(node, localPrefix) }
	stored := slices.DeleteFunc(slices.Clone(nodes), local)
	err := p.checkNodes(name, stored...)
	if err == nil {
		p.revokeLocally(name, nodes)
	}
	if err == nil && (len(stored) > 0 || len(nodes) == 0) {
		err = p.withSession(ctx, func(ctx context.Context, s *session) error { return revoke(ctx, s, name, stored) })
	}
	return lockError(opRevoke, name, err)
}

func revoke(ctx context.Context, s *session, name string, nodes []string) error {
	revoker, err := driver.Offer[driver.Revoker](s.Session)
	if err != nil {
		return err
	}
	asked := func(c *waitgraph.Contender) bool { return isOneOf(c, nodes) || len(nodes) == 0 && !c.Waits }
	_, err = forEach(ctx, s, name, asked, func(c *waitgraph.Contender) error {
		return revoker.Revoke(ctx, c.Queue, c.Node, c.Record.IsOurs())
	})
	return err
}

// isOneOf reports whether a contender has, or had before a downgrade, a node of one of the
// names.
func isOneOf(c *waitgraph.Contender, nodes []string) bool {
	was := c.Record.Was
	return slices.Contains(nodes, c.Node.Name) || was != "" && slices.Contains(nodes, was)
}

// forEach does something with the contenders for a lock that are asked for. If it returns
// ErrRemoved, a downgrade may have replaced the node, which is then looked for. done is
// whether it was done with any.
func forEach(ctx context.Context, s *session, name string, asked func(*waitgraph.Contender) bool, do func(*waitgraph.Contender) error) (done bool, err error) {
	for {
		found, _, err := inspect(ctx, s, name)
		if err != nil {
			return done, err
		}
		var gone []string
		for _, c := range found {
			if !asked(c) {
				continue
			}
			err := do(c)
			switch {
			case errors.Is(err, driver.ErrRemoved):
				gone = append(gone, c.Node.Name)
			case err != nil:
				return done, err
			default:
				done = true
			}
		}
		if len(gone) == 0 {
			return done, nil
		}
		asked = func(c *waitgraph.Contender) bool { return isOneOf(c, gone) }
	}
}

// Break takes the lock, or the place in its queue, from a contender. node is the name
// of its node, from [Pool.Queue]. Break is meant for a contender that is stuck, and is
// logged. A lockpool holder is notified that it has lost the lock, and a lockpool
// waiter queues again. A holder that does not listen continues to work alongside the
// next holder. If the contender is already gone, the error is ErrNotHeld.
func (p *Pool) Break(ctx context.Context, name, node string) error {
	err := p.checkNodes(name, node)
	if strings.HasPrefix(node, localPrefix) {
		err = fmt.Errorf("%s cannot be broken, because it waits without a node: revoke it", node)
	}
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, s *session) error { return breakLock(ctx, s, name, node) })
	}
	if errors.Is(err, driver.ErrRemoved) {
		err = fmt.Errorf("%w: %s is gone", ErrNotHeld, node)
	}
	return lockError(opBreak, name, err)
}

func breakLock(ctx context.Context, s *session, name, node string) error {
	breaker, err := driver.Offer[driver.Breaker](s.Session)
	if err != nil {
		return err
	}
	asked := func(c *waitgraph.Contender) bool { return isOneOf(c, []string{node}) }
	done, err := forEach(ctx, s, name, asked, func(c *waitgraph.Contender) error { return breaker.Break(ctx, c.Queue, c.Node) })
	if err == nil && !done {
		return driver.ErrRemoved
	}
	return err
}

// checkNodes checks the name of a lock and of contenders' nodes.
func (p *Pool) checkNodes(name string, nodes ...string) error {
	if err := p.checkName(name); err != nil {
		return err
	}
	for _, node := range nodes {
		if !p.connector.IsContender(node) {
			return fmt.Errorf("%q is not the name of a contender's node: use one that Queue returns", node)
		}
	}
	return nil
}
