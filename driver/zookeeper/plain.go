package zookeeper

// This file takes and releases plain locks.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// TryCreate implements driver.PlainLocker.
func (s *session) TryCreate(ctx context.Context, name string, data []byte) (driver.Node, bool, error) {
	path := s.path(name)
	r, err := runInSlot(ctx, s, func() (tryCreateResult, error) { return s.tryCreate(ctx, path, data) }, func(r tryCreateResult) {
		if r.created {
			_ = s.removePlain(path, r.node) // fails only when the session is over
		}
	})
	return r.node, r.created, err
}

type tryCreateResult struct {
	node    driver.Node
	created bool // node is the caller's, and not another holder's
}

func (s *session) tryCreate(ctx context.Context, path string, data []byte) (r tryCreateResult, err error) {
	var made []string
	defer func() {
		if err != nil {
			s.removeContainers(made)
		}
	}()
	guid := s.newGUID()
	own := driver.Node{Kind: driver.Plain, Name: znode.GUIDPrefix + guid}
	data = append([]byte(plainPrefix(guid)), data...)
	var last error
	for tries := 0; ; {
		if err := s.pauseBeforeRecreating(ctx, tries, last); err != nil {
			return tryCreateResult{}, err
		}
		err := s.createPlain(path, own, data)
		last = err
		switch {
		case err == nil:
			return tryCreateResult{own, true}, nil
		case errors.Is(err, zk.ErrNodeExists):
			holder, err := s.readHolder(ctx, path)
			if err != nil || holder != (driver.Node{}) {
				return tryCreateResult{node: holder}, err
			}
			continue
		case err == errNotCreated:
			err = nil
		case errors.Is(err, zk.ErrNoNode):
			err = s.createContainers(ctx, parent(path), &made)
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			err = plainLockError(parent(path))
		default:
			err = explainError(err, "creating "+path, "CREATE", parent(path))
		}
		if err != nil {
			return tryCreateResult{}, err
		}
		tries++
	}
}

// createPlain sends one create, finds out the outcome, and records the node.
func (s *session) createPlain(path string, node driver.Node, data []byte) error {
	claims := s.claims.on(path)
	turn := claims.create()
	err := s.requests.Create(path, data, zk.FlagEphemeral, s.cfg.ACL)
	if answer := err; err != nil && !isRefused(err) {
		err = s.findCreatedPlain(path, node)
		if err == errNotCreated && isAnswer(answer) {
			err = answer
		}
	}
	claims.created(err == nil)
	if err == nil {
		s.plainNodes.add(path, plainNode{name: node.Name, since: s.expiry.now(), claims: claims, turn: turn})
	}
	return err
}

func plainLockError(path string) error {
	return fmt.Errorf("%w: a plain lock is held at %s", driver.ErrKind, path)
}

// readHolder returns the node of the plain lock's holder, or the zero Node if there is no
// holder.
func (s *session) readHolder(ctx context.Context, path string) (driver.Node, error) {
	q, err := s.get(ctx, path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return driver.Node{}, nil
	case err != nil:
		return driver.Node{}, explainError(err, "reading "+path, "READ", path)
	case znode.IsPlain(&q.stat):
		return znode.PlainNode(q.data, &q.stat), nil
	}
	l, err := s.list(ctx, path)
	if err != nil {
		return driver.Node{}, err
	}
	return driver.Node{}, fmt.Errorf("%w: %s", driver.ErrKind, describeUse(path, l.children()))
}

// describeUse says what a node with these children is used for.
func describeUse(path string, children []string) string {
	switch n := len(znode.Contenders(children)); {
	case n > 0:
		return fmt.Sprintf("a queue with %d contenders is at %s", n, path)
	case isSemaphore(children):
		return fmt.Sprintf("a semaphore is at %s", path)
	case len(children) > 0:
		return fmt.Sprintf("%s has other nodes below it, such as %s", path, slices.Min(children))
	}
	return fmt.Sprintf("an empty node is at %s: ZooKeeper removes it within minutes if it is left from a queue; otherwise remove it", path)
}

// findCreatedPlain determines the outcome of a create whose reply was lost: nil means
// that the node exists.
func (s *session) findCreatedPlain(path string, node driver.Node) error {
	for n, unclear := 0, 0; ; n++ {
		if err := s.pause(context.Background(), n); err != nil {
			return err
		}
		created, err := s.isPlainAt(path, node, true)
		switch {
		case created:
			s.requests.acquit()
			return nil
		case err == nil:
			return errNotCreated
		case errors.Is(err, driver.ErrSessionLost):
			return err
		case !isFinal(err, &unclear):
			continue
		}
		s.reapLater(func() bool {
			created, err := s.isPlainAt(path, node, true)
			if created {
				s.plainNodes.add(path, plainNode{name: node.Name})
				_ = s.removePlain(path, node) // fails only if the node goes with the session
			}
			return err == nil
		})
		return explainError(err, "looking for a node whose creation was not confirmed", "READ", path)
	}
}

// removePlain deletes the session's node of a plain lock. Another holder's node may have
// the name by now, and a delete cannot depend on the owner, so removePlain reads the node
// first unless ownsPlain is certain, and again before repeating a delete; and a delete does not
// wait for another connection. The error is ErrRemoved if the node was gone before the first
// delete.
func (s *session) removePlain(path string, node driver.Node) error {
	sent := false
	for n, unclear := 0, 0; ; n++ {
		reading, err := s.removePlainOnce(path, node, &sent)
		switch {
		case err == nil:
			s.plainNodes.forget(path, node)
			if !sent {
				return driver.ErrRemoved
			}
			return nil
		case isFinal(err, &unclear):
			explained := explainError(err, "deleting "+path, "DELETE", parent(path))
			if reading {
				explained = explainError(err, "checking the owner of "+path+" before deleting it", "READ", path)
			}
			return s.cannotRemove(err, explained, func() error {
				_, err := s.removePlainOnce(path, node, &sent)
				if err == nil {
					s.plainNodes.forget(path, node)
				}
				return err
			})
		}
		if err := s.pause(context.Background(), n); err != nil {
			return err
		}
	}
}

// removePlainOnce sends a delete, unless the node is gone. sent is set if the delete may have been
// carried out. reading says that the error is of the read before.
func (s *session) removePlainOnce(path string, node driver.Node, sent *bool) (reading bool, err error) {
	claims := s.claims.on(path)
	alone := claims.delete()
	defer claims.deleted()
	owns, certain := s.ownsPlain(path, node)
	// An answer also shows that the session is alive: a missing node was not removed by the
	// end of the session before the delete.
	if *sent || owns && (!certain || !alone) {
		if owns, err = s.isPlainAt(path, node, false); err != nil {
			return true, err
		}
	}
	if !owns {
		return false, nil
	}
	q := deleteRequest(path, -1)
	q.atOnce = true
	err = s.requests.do(q)
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	*sent = *sent || q.isSent() && !isRefused(err)
	return false, err
}
