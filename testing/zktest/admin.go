package zktest

// This file has changes of nodes by the test itself.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// errNoLeader is the error of changes made by the server itself.
var errNoLeader = errors.New("no member leads the ensemble")

// ReapContainers deletes now the nodes deleted by ZooKeeper once per container interval:
// containers after the deletion of the last child, and TTL nodes without children, not
// changed within their TTL.
func (s *Server) ReapContainers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reap()
}

func (s *Server) reap() {
	if s.closed || s.lead.ended {
		return
	}
	now := s.unixMilli()
	for _, path := range slices.Sorted(maps.Keys(s.tree)) {
		n := s.tree[path]
		if len(n.children.list) > 0 {
			continue
		}
		if n.kind == container && n.created > 0 || n.kind == ttl && now-n.mtime > n.ttl {
			x := s.begin(0, nil)
			x.delete(path, -1)
			s.propose(x, nil, nil)
		}
	}
}

// Create creates a persistent node with all permissions for all clients. The parent must
// exist. Create, Delete and Set need no session.
func (s *Server) Create(path string, data []byte) error {
	return s.administer(func(x *txn) Code {
		_, code := x.create(part{op: OpCreate, path: path, data: data, acl: []acl{{identity: worldAnyone, perms: permAll}}}, false)
		return code
	}, "creating", path)
}

// Delete deletes a node, regardless of ACL and version.
func (s *Server) Delete(path string) error {
	return s.administer(func(x *txn) Code { return x.delete(path, -1) }, "deleting", path)
}

// Set changes a node's data, regardless of ACL and version.
func (s *Server) Set(path string, data []byte) error {
	return s.administer(func(x *txn) Code { _, code := x.setData(path, data, -1); return code }, "setting", path)
}

func (s *Server) administer(do func(*txn) Code, doing, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("zktest: %s %q: %w", doing, path, errClosed)
	}
	if s.lead.ended {
		return fmt.Errorf("zktest: %s %q: %w", doing, path, errNoLeader)
	}
	x := s.begin(0, nil)
	code := do(x)
	s.propose(x, nil, nil)
	if code != OK {
		return fmt.Errorf("zktest: %s %q: %w", doing, path, code)
	}
	return nil
}

// SetSequence sets the number of the next sequential child of parent, from 0 to 2147483647,
// the last number. The number is the count of all children ever created there. After the
// last number the count no longer changes: creating the same name again is ErrNodeExists,
// and another prefix gets the same number. (A real server may also give out negative
// numbers if requests come fast.)
func (s *Server) SetSequence(parent string, next int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("zktest: setting the sequence of %q: %w", parent, errClosed)
	}
	if next < 0 {
		return fmt.Errorf("zktest: the sequence number %d is negative", next)
	}
	if s.tree[parent] == nil {
		return fmt.Errorf("zktest: setting the sequence of %q: %w", parent, ErrNoNode)
	}
	s.tree[parent].created = next
	for _, rep := range s.replicas {
		if n := rep.tree[parent]; n != nil {
			n.created = next
		}
	}
	s.notifyChange()
	return nil
}
