package memory

// This file has the queues of a store: joining, leaving, and the holders of plain locks.

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// queue is a queue with a contender. The holder of a plain lock is the only contender of a
// queue.
type queue struct {
	entries []*entry      // in order
	listed  []driver.Node // the nodes, or nil if not made yet; callers have slices of the list
	next    int64         // sequence number; an emptied queue begins again
}

// entry is a node, or the limit set for a semaphore.
type entry struct {
	driver.Node
	session  *session
	created  int64
	joined   time.Time
	data     []byte
	version  int64
	revoked  bool
	limit    int
	watchers watchers
}

// queue returns the queue of the name, or an empty one, not to be changed.
func (st *Store) queue(name string) *queue {
	if q := st.queues[name]; q != nil {
		return q
	}
	return new(queue)
}

// nodes returns the nodes in the queue. The result is never changed, and has no room for
// more elements.
func (q *queue) nodes() []driver.Node {
	if q.listed == nil {
		for _, e := range q.entries {
			q.listed = append(q.listed, e.Node)
		}
	}
	return slices.Clip(q.listed)
}

// isPlain reports whether the holder of a plain lock is in the queue.
func (q *queue) isPlain() bool { return len(q.entries) > 0 && q.entries[0].Kind == driver.Plain }

// find returns the entry of a node and the index in the queue. The error is ErrRemoved if
// there is no such node.
func (st *Store) find(queue string, node driver.Node) (e *entry, i int, err error) {
	q := st.queue(queue)
	i, found := slices.BinarySearchFunc(q.entries, node.Seq, func(e *entry, seq int64) int { return cmp.Compare(e.Seq, seq) })
	if !found || q.entries[i].Node != node {
		return nil, 0, driver.ErrRemoved
	}
	return q.entries[i], i, nil
}

// add adds a node of a session to the end of a queue.
func (st *Store) add(name string, s *session, node driver.Node, data []byte) (driver.Node, error) {
	q := st.queues[name]
	if q == nil {
		q = new(queue)
		st.queues[name] = q
	}
	st.order++
	node.Name, node.Seq = nodeName(node.Kind, st.order), q.next
	q.next++
	if len(q.listed) == len(q.entries) {
		q.listed = append(q.listed, node) // beyond what callers have
	}
	q.entries = append(q.entries, &entry{Node: node, session: s, created: st.order, joined: time.Now(), data: bytes.Clone(data)})
	st.changed(name)
	return node, nil
}

// remove removes a node, and tells the watchers. by is the asking session, or nil. The
// error is ErrRemoved if there is no such node.
func (st *Store) remove(name string, node driver.Node, by *session) error {
	e, i, err := st.find(name, node)
	if err != nil {
		return err
	}
	q := st.queues[name]
	switch {
	case len(q.entries) == 1:
		delete(st.queues, name)
	case i == 0:
		q.entries[0] = nil
		q.entries, q.listed = q.entries[1:], q.listed[min(1, len(q.listed)):]
	default:
		q.entries, q.listed = slices.Delete(q.entries, i, i+1), nil
	}
	st.fire(&e.watchers, driver.Deleted, func(watcher *session) driver.Event {
		if watcher == e.session && watcher != by {
			return driver.Missing
		}
		return driver.Deleted
	})
	st.changed(name)
	return nil
}

// checkKind returns an error if another kind of lock than the queue's is in use under the
// name. plain says that the queue is to have the holder of a plain lock.
func (st *Store) checkKind(queue string, plain bool) error {
	name := driver.LockOf(queue)
	semaphore := name != queue
	switch q := st.queue(name); {
	case q.isPlain() && !plain:
		return fmt.Errorf("%w: a plain lock is held", driver.ErrKind)
	case len(q.entries) > 0 && !q.isPlain() && (plain || semaphore):
		return fmt.Errorf("%w: a queue with %d contenders", driver.ErrKind, len(q.entries))
	}
	if semaphore {
		return nil
	}
	for _, part := range partsOf(name)[1:] {
		if n := len(st.queue(part).entries); n > 0 {
			return fmt.Errorf("%w: a semaphore with %d contenders in %s", driver.ErrKind, n, part)
		}
	}
	return nil
}

// Join implements driver.Session.
func (s *session) Join(ctx context.Context, queue string, r driver.Request) (driver.Joined, error) {
	if err := s.begin(ctx); err != nil {
		return driver.Joined{}, err
	}
	defer s.mu.Unlock()
	if err := s.checkKind(queue, false); err != nil {
		return driver.Joined{}, err
	}
	if r.Kind == driver.Guard {
		r.Kind = driver.Exclusive
	}
	node, err := s.add(queue, s, driver.Node{Kind: r.Kind, Permits: r.Permits, Limit: r.Limit}, r.Data)
	return driver.Joined{Node: node, Queue: s.queue(queue).nodes()}, err
}

// TryCreate implements driver.PlainLocker.
func (s *session) TryCreate(ctx context.Context, name string, data []byte) (node driver.Node, created bool, err error) {
	if err := s.begin(ctx); err != nil {
		return driver.Node{}, false, err
	}
	defer s.mu.Unlock()
	if err := s.checkKind(name, true); err != nil {
		return driver.Node{}, false, err
	}
	if q := s.queue(name); q.isPlain() {
		return q.entries[0].Node, false, nil
	}
	node, err = s.add(name, s, driver.Node{Kind: driver.Plain}, data)
	return node, err == nil, err
}

// List implements driver.Session.
func (s *session) List(ctx context.Context, queue string) ([]driver.Node, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return s.queue(queue).nodes(), nil
}

// Leave implements driver.Session.
func (s *session) Leave(ctx context.Context, queue string, node driver.Node) error {
	s.mu.Lock()
	if s.err != nil || s.resumed == nil {
		defer s.mu.Unlock()
		return s.leave(queue, node)
	}
	left := make(chan error, 1)
	s.later = append(s.later, func() { left <- s.leave(queue, node) })
	s.mu.Unlock()
	select {
	case err := <-left:
		return err
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave removes a node of the session, unless the session is over. It is called with mu
// held.
func (s *session) leave(queue string, node driver.Node) error {
	if s.err != nil {
		return s.err
	}
	return s.remove(queue, node, s)
}

// Downgrade implements driver.Downgrader.
func (s *session) Downgrade(queue string, node driver.Node, data []byte) (driver.Node, error) {
	if err := s.begin(context.Background()); err != nil {
		return driver.Node{}, err
	}
	defer s.mu.Unlock()
	e, i, err := s.find(queue, node)
	if err != nil {
		return driver.Node{}, err
	}
	s.order++
	read := driver.Node{Name: nodeName(driver.Shared, s.order), Kind: driver.Shared, Seq: node.Seq}
	q := s.queues[queue]
	q.entries[i] = &entry{Node: read, session: e.session, created: s.order, joined: time.Now(), data: bytes.Clone(data), revoked: e.revoked}
	q.listed = nil
	s.fire(&e.watchers, driver.Changed, nil)
	s.changed(queue)
	return read, nil
}
