package memory

// This file reads, breaks and revokes contenders, and lists locks.

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/lockpool/lockpool/driver"
)

// contender returns a node with its details.
func (e *entry) contender() driver.Contender {
	return driver.Contender{Node: e.Node, Session: e.session.id, Created: e.created, Joined: e.joined, Data: e.data, Version: e.version + 1}
}

// others returns the existing parts of a semaphore of the name.
func (st *Store) others(name string) (others []string) {
	for _, part := range []string{driver.Leases, driver.Guards} {
		if st.queues[name+"/"+part] != nil {
			others = append(others, part)
		}
	}
	if st.limits[name] != nil {
		others = append(others, driver.Limit)
	}
	return others
}

// Data implements driver.Session.
func (s *session) Data(ctx context.Context, queue string, node driver.Node) ([]byte, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	e, _, err := s.find(queue, node)
	if err != nil {
		return nil, err
	}
	return e.data, nil
}

// Inspect implements driver.Inspector.
func (s *session) Inspect(ctx context.Context, queue string, want func(driver.Node) bool) (found []driver.Contender, others []string, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, nil, err
	}
	defer s.mu.Unlock()
	for _, e := range s.queue(queue).entries {
		c := driver.Contender{Node: e.Node}
		if want == nil || want(e.Node) {
			c = e.contender()
		}
		found = append(found, c)
	}
	return found, s.others(queue), nil
}

// Queues implements driver.Inspector.
func (s *session) Queues(ctx context.Context, prefix string) (names []string, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for queue := range s.queues {
		name := driver.LockOf(queue)
		if name == prefix || prefix == "" || strings.HasPrefix(name, prefix+"/") {
			names = append(names, name)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, driver.Waits+"/") })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Break implements driver.Breaker.
func (s *session) Break(ctx context.Context, queue string, node driver.Node) error {
	err := s.begin(ctx)
	if err == nil {
		err = s.remove(queue, node, nil)
		s.mu.Unlock()
	}
	if err == nil {
		logBroken(queue, node, s)
	}
	return err
}

// Revoke implements driver.Revoker.
func (s *session) Revoke(ctx context.Context, queue string, node driver.Node, _ bool) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	e, _, err := s.find(queue, node)
	if err == nil && !e.revoked {
		e.revoked = true
		s.fire(&e.watchers, driver.Changed, nil)
	}
	return err
}

// Verify implements driver.Session.
func (s *session) Verify(ctx context.Context, nodes ...driver.Located) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	return s.verify(nodes)
}

// verify is Verify with mu held.
func (st *Store) verify(nodes []driver.Located) error {
	for _, n := range nodes {
		if e, _, err := st.find(n.Queue, n.Node); err != nil || n.Version != 0 && n.Version != e.version+1 {
			return driver.ErrRemoved
		}
	}
	return nil
}

// LeaveIf implements driver.Session.
func (s *session) LeaveIf(ctx context.Context, node driver.Located, others ...driver.Located) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.verify(others); err != nil {
		return err
	}
	return s.remove(node.Queue, node.Node, s)
}

// Rewrite implements driver.Session.
func (s *session) Rewrite(ctx context.Context, queue string, node driver.Node, data []byte) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	e, _, err := s.find(queue, node)
	if err == nil {
		e.data, e.version = bytes.Clone(data), e.version+1
		s.fire(&e.watchers, driver.Changed, nil)
	}
	return err
}
