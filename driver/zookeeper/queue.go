package zookeeper

// This file lists a queue, removes and downgrades contenders, and verifies that nodes
// exist.

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// List implements driver.Session.
func (s *session) List(ctx context.Context, queue string) ([]driver.Node, error) {
	return s.contenders(ctx, s.path(queue))
}

// contenders returns the queue in dir, in order.
func (s *session) contenders(ctx context.Context, dir string) ([]driver.Node, error) {
	l, err := s.list(ctx, dir)
	if err != nil {
		return nil, err
	}
	return s.listed(ctx, dir, l)
}

// listed returns the queue of an answered listing.
func (s *session) listed(ctx context.Context, dir string, l *listing) ([]driver.Node, error) {
	if err := l.err(); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, s.explainListError(err, "listing", dir)
	}
	return l.contenders(), s.checkForeignContenders(ctx, dir, l.children(), l.contenders())
}

// Size implements driver.Sizer: the number of children is in the directory's stat.
func (s *session) Size(ctx context.Context, queue string) (int, error) {
	dir := s.path(queue)
	q, err := s.exists(ctx, dir)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return 0, nil
	case err != nil:
		return 0, explainError(err, "reading", "READ", dir)
	}
	return int(q.stat.NumChildren), nil
}

// Leave implements driver.Session.
func (s *session) Leave(ctx context.Context, queue string, node driver.Node) error {
	dir := s.path(queue)
	if node.Kind == driver.Plain {
		_, err := run(ctx, s, func() (struct{}, error) { return struct{}{}, s.removePlain(dir, node) }, nil)
		return err
	}
	if !s.begin() {
		return s.Err()
	}
	first := s.startRemoval(dir, node)
	if s.await(ctx, first.done) && first.err == nil {
		defer s.calls.done()
		s.fastpaths.left(dir, node)
		return nil
	}
	_, err := runBegun(ctx, s, func() (struct{}, error) { // calls s.calls.done at the end
		err := s.endRemoval(dir, node, first)
		if err == nil {
			s.fastpaths.left(dir, node)
		}
		return struct{}{}, err
	}, nil)
	return err
}

// remove deletes a contender of the session and returns when the contender is certainly
// gone. If the server refuses, the error says so and the contender goes with the session.
// The error is ErrRemoved if a node of the contender was already gone.
func (s *session) remove(dir string, node driver.Node) error {
	return s.endRemoval(dir, node, s.startRemoval(dir, node))
}

// startRemoval sends the first request to remove a contender.
func (s *session) startRemoval(dir string, node driver.Node) *request {
	first := dir + "/" + node.Name
	q := deleteRequest(first, -1)
	if nodeCount(node) > 1 {
		var ops []any
		for _, name := range nodeNames(node) {
			ops = append(ops, &zk.DeleteRequest{Path: dir + "/" + name, Version: -1})
		}
		q = multiRequest(ops...)
	}
	if w := s.watches.leaving(first); w != nil {
		q.noted = func(q *request) { s.noteLeft(w, q.err) }
	}
	return s.requests.send(q)
}

// endRemoval is remove, after startRemoval.
func (s *session) endRemoval(dir string, node driver.Node, first *request) error {
	paths := nodeNames(node)
	for i, name := range paths {
		paths[i] = dir + "/" + name
	}
	if len(paths) == 1 {
		return s.endRemovalOfOne(paths, true, first)
	}
	<-first.done
	if first.err == nil {
		return nil
	}
	// The delete may have been carried out, or one of the nodes was gone: delete each.
	untried := isRefused(first.err)
	var removed error
	for i, path := range paths {
		err := s.endRemovalOfOne(paths[i:], untried, s.requests.send(deleteRequest(path, -1)))
		if err != nil && err != driver.ErrRemoved {
			return err
		}
		removed = cmp.Or(removed, err)
	}
	return removed
}

// removeOne deletes a node. untried means that no delete was sent before: then a missing node
// was removed by another client, and the error is ErrRemoved.
func (s *session) removeOne(path string, untried bool) error {
	return s.endRemovalOfOne([]string{path}, untried, s.requests.send(deleteRequest(path, -1)))
}

// endRemovalOfOne is removeOne, for the first of the paths, after the delete q has been sent. If
// the first cannot be removed now, all are removed later.
func (s *session) endRemovalOfOne(paths []string, untried bool, q *request) error {
	path := paths[0]
	for n, unclear := 0, 0; ; n++ {
		<-q.done
		err := q.err
		switch {
		case errors.Is(err, zk.ErrNoNode) && untried:
			return driver.ErrRemoved
		case err == nil, errors.Is(err, zk.ErrNoNode):
			return nil
		case isFinal(err, &unclear):
			return s.cannotRemove(err, explainError(err, "deleting "+path, "DELETE", parent(path)), func() error {
				return s.deleteEach(paths)
			})
		}
		untried = untried && isRefused(err)
		if err := s.pause(context.Background(), n); err != nil {
			return err
		}
		q = s.requests.send(deleteRequest(path, -1))
	}
}

// deleteEach deletes nodes, which may be gone.
func (s *session) deleteEach(paths []string) error {
	for _, path := range paths {
		if err := s.requests.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return nil
}

// cannotRemove returns the error of a removal that is given up after the answer err: explained,
// which wraps ErrNoPermission if the server refuses the removal. The node goes with the session,
// unless a later try succeeds.
func (s *session) cannotRemove(err, explained error, try func() error) error {
	s.markUnremovable()
	if !isRefused(err) {
		s.reapLater(func() bool {
			err := try()
			return err == nil || isFinal(err, new(int)) || errors.Is(err, zk.ErrNoNode)
		})
	} else if !errors.Is(explained, driver.ErrNoPermission) {
		explained = fmt.Errorf("%w: %w", driver.ErrNoPermission, explained)
	}
	return explained
}

// Downgrade implements driver.Downgrader. Changing the data of the old node before
// removing it makes its watchers list the queue again: the deletion alone would grant
// them the lock.
func (s *session) Downgrade(queue string, node driver.Node, data []byte) (driver.Node, error) {
	if !s.begin() {
		return driver.Node{}, s.Err()
	}
	defer s.calls.done()
	read := s.cfg.Layout.naming().downgraded(node)
	ctx, dir, from, to := context.Background(), s.path(queue), s.path(queue, node.Name), s.path(queue, read.Name)
	stored, version, mayBeDone := data, int32(0), false
	for n, unclear := 0, 0; ; n++ {
		err := s.requests.Multi(s.downgradeOps(dir, node, read, stored, version)...)
		mayBeDone = mayBeDone || err != nil && !isRefused(err)
		if errors.Is(err, zk.ErrBadVersion) { // the data was changed: keep a revocation
			var raw []byte
			if raw, version, err = s.readNodeOf(ctx, from, node); err == nil {
				if _, revoked := znode.CutRevocation(raw); revoked {
					stored = withRevocation(data)
				}
				continue
			}
		}
		if errors.Is(err, zk.ErrNoNode) { // removed, or already downgraded and the reply was lost
			if _, err = s.exists(ctx, to); errors.Is(err, zk.ErrNoNode) {
				return driver.Node{}, driver.ErrRemoved
			}
		} else if isAnswer(err) && !isRefused(err) {
			unknown := s.insist(ctx, s.decideWrites)
			if unknown == nil {
				_, unknown = s.exists(ctx, to)
			}
			switch {
			case unknown == nil:
				return read, nil
			case !errors.Is(unknown, zk.ErrNoNode):
				err = unknown
			}
		}
		if err == nil {
			return read, nil
		}
		if isFinal(err, &unclear) {
			if mayBeDone {
				s.reapLater(func() bool { return s.undoDowngrade(dir, node, read) })
			}
			if errors.Is(err, zk.ErrNoAuth) {
				return driver.Node{}, fmt.Errorf("%w: sharing %s needs the rights CREATE and DELETE on %s, and WRITE on the node", driver.ErrNoPermission, from, dir)
			}
			return driver.Node{}, explainError(err, "sharing "+from, "CREATE", dir)
		}
		if err := s.pause(ctx, n); err != nil {
			return driver.Node{}, err
		}
	}
}

// undoDowngrade removes the new node if it has replaced the old one, and reports false if that is
// not known yet.
func (s *session) undoDowngrade(dir string, node, read driver.Node) bool {
	if s.decideWrites() != nil {
		return false
	}
	err := s.requests.do(existsRequest(dir + "/" + node.Name))
	if errors.Is(err, zk.ErrNoNode) {
		_ = s.remove(dir, read) // fails only if the node goes with the session
		return true
	}
	return err == nil
}

// downgradeOps returns the transaction to replace node with read.
func (s *session) downgradeOps(dir string, node, read driver.Node, data []byte, version int32) []any {
	replace := func(old, by string) []any {
		return []any{
			&zk.CreateRequest{Path: dir + "/" + by, Data: data, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral},
			&zk.DeleteRequest{Path: dir + "/" + old, Version: -1},
		}
	}
	ops := append([]any{&zk.SetDataRequest{Path: dir + "/" + node.Name, Data: data, Version: version}}, replace(node.Name, read.Name)...)
	if read.Private != node.Private {
		ops = append(ops, replace(node.Private, read.Private)...)
	}
	return ops
}

// Verify implements driver.Session with a transaction asserting that the nodes exist: a
// transaction requires a majority, while a server cut off from the majority still answers
// reads. The answer does not tell which of several nodes is gone.
func (s *session) Verify(ctx context.Context, nodes ...driver.Located) error {
	if len(nodes) == 0 {
		return nil
	}
	one := len(nodes) == 1
	first, dir := nodes[0].Node, s.path(nodes[0].Queue)
	path, err := s.removeIf(ctx, nil, nodes)
	switch {
	case isGone(err):
		if one {
			s.plainNodes.forget(dir, first)
		}
		return driver.ErrRemoved
	case errors.Is(err, errTooLarge):
		return fmt.Errorf("%w: %d", driver.ErrTooMany, len(nodes))
	case isAnswer(err) && one:
		s.plainNodes.markUncertain(dir, first)
	}
	return explainError(err, "checking "+path, "READ", path)
}

// LeaveIf implements driver.Session.
func (s *session) LeaveIf(ctx context.Context, node driver.Located, others ...driver.Located) error {
	path, err := s.removeIf(ctx, s.paths(node.Queue, node.Node), others)
	switch {
	case isGone(err):
		return driver.ErrRemoved
	case errors.Is(err, errTooLarge):
		return fmt.Errorf("%w: %d", driver.ErrTooMany, len(others))
	}
	return explainError(err, "leaving because of "+path, "READ, or DELETE on the directory,", path)
}

func isGone(err error) bool { return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion) }

// removeIf removes a contender's nodes if all others exist at one moment, and as they were
// seen. path is what an answer with an error is about.
func (s *session) removeIf(ctx context.Context, own []string, others []driver.Located) (path string, err error) {
	var ops []any
	var paths []string
	for _, path := range own {
		ops, paths = append(ops, &zk.DeleteRequest{Path: path, Version: -1}), append(paths, path)
	}
	for _, node := range others {
		version := int32(node.Version - 1) // of the first node, which has the data
		for _, path := range s.paths(node.Queue, node.Node) {
			ops, paths = append(ops, &zk.CheckVersionRequest{Path: path, Version: version}), append(paths, path)
			version = -1
		}
	}
	sent := 0
	q, err := s.ask(ctx, func() *request {
		sent++
		return s.requests.send(multiRequest(ops...))
	})
	if isAnswer(err) {
		path = paths[min(q.failed, len(paths)-1)] // a confused server may name any part
	}
	if len(own) > 0 && sent > 1 && isGone(err) { // perhaps it was carried out before
		if _, gone := s.exists(ctx, own[0]); errors.Is(gone, zk.ErrNoNode) {
			err = nil
		}
	}
	for _, node := range others {
		if err != nil || node.Kind != driver.Plain {
			continue
		}
		path = s.path(node.Queue) // the name may be another holder's by now
		if q, err = s.get(ctx, path); err == nil && !s.matchesPlain(path, node.Node, q.data, &q.stat) {
			err = zk.ErrNoNode
		}
	}
	return path, err
}
