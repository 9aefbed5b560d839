package etcd

// This file has joining, listing, changing and leaving a queue.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

// listing is the operation to list all keys below the name of a queue's lock.
func (s *session) listing(queue string, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(s.prefix+driver.LockOf(queue)+"/", append([]clientv3.OpOption{clientv3.WithPrefix()}, opts...)...)
}

// read returns the contents below the name of a queue's lock: the keys, and the values of
// changed contenders.
func (s *session) read(ctx context.Context, queue string) (c contents, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Do(ctx, s.listing(queue, clientv3.WithKeysOnly()))
		if err != nil {
			return err
		}
		c, err = s.complete(ctx, conn, queue, got.Get().Kvs)
		return err
	})
	return c, err
}

// complete parses a listing. The value of a contender says whether it was downgraded.
func (s *session) complete(ctx context.Context, conn *connection, queue string, kvs []*mvccpb.KeyValue) (contents, error) {
	if slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return kv.Version > 1 }) {
		got, err := conn.kv.Do(ctx, s.listing(queue))
		if err != nil {
			return contents{}, err
		}
		kvs = got.Get().Kvs
	}
	return s.parse(driver.LockOf(queue), kvs), nil
}

// Join implements driver.Session.
func (s *session) Join(ctx context.Context, queue string, r driver.Request) (driver.Joined, error) {
	name := s.keyName(queue, r)
	key := s.prefix + queue + "/" + name
	done, got, late, err := change{
		session: s, creates: key, value: newValue(time.Now(), r.Data), ops: []clientv3.Op{s.listing(queue, clientv3.WithKeysOnly())},
		look: []clientv3.Op{clientv3.OpGet(key)}, happened: func(a []answer) bool { return len(a[0]) > 0 },
	}.commit(ctx)
	switch {
	case late:
		s.undo(ctx, func(ctx context.Context, conn *connection) error {
			_, err := s.afterFence(ctx, conn, clientv3.OpDelete(key))
			return s.removed(key, err)
		})
		return driver.Joined{}, err
	case err != nil:
		return driver.Joined{}, err
	case !done:
		return driver.Joined{}, fmt.Errorf("etcd: %s exists, although no other client makes keys of that name", key)
	}
	joined, err := s.joined(ctx, queue, name, got)
	if err != nil {
		s.remove(ctx, key)
		return driver.Joined{}, err
	}
	s.keys.update(key, func(k *ownKey) { k.joined = createdAt(joined.Node) })
	return joined, nil
}

// joined returns the result of Join for a created node.
func (s *session) joined(ctx context.Context, queue, name string, got []answer) (driver.Joined, error) {
	var c contents
	err := s.ask(ctx, func(ctx context.Context, conn *connection) (err error) {
		if got == nil {
			listed, err := conn.kv.Do(ctx, s.listing(queue, clientv3.WithKeysOnly()))
			if err != nil {
				return err
			}
			got = []answer{nil, listed.Get().Kvs}
		}
		if c, err = s.complete(ctx, conn, queue, got[1]); err == nil {
			conn.watches.limitSeen(driver.LockOf(queue), c.limit)
		}
		return err
	})
	if err != nil {
		return driver.Joined{}, err
	}
	if err := c.checkKind(queue, false); err != nil {
		return driver.Joined{}, err
	}
	nodes := nodesOf(c.queue(queue))
	i := slices.IndexFunc(nodes, func(n driver.Node) bool { return keyOf(n) == name })
	if i < 0 {
		return driver.Joined{}, driver.ErrRemoved
	}
	return driver.Joined{Node: nodes[i], Queue: nodes}, nil
}

// remove removes a key of the session, in the background if the context ends.
func (s *session) remove(ctx context.Context, key string) {
	s.undo(ctx, func(ctx context.Context, conn *connection) error {
		_, err := conn.kv.Delete(ctx, key)
		return s.removed(key, err)
	})
}

// removed returns the error of a removal of a key that the session has created.
func (s *session) removed(key string, err error) error {
	if err == nil {
		s.keys.add(key, -1)
	}
	return err
}

// List implements driver.Session.
func (s *session) List(ctx context.Context, queue string) ([]driver.Node, error) {
	c, err := s.read(ctx, queue)
	return nodesOf(c.queue(queue)), err
}

// Size implements driver.Sizer.
func (s *session) Size(ctx context.Context, queue string) (n int, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Do(ctx, s.listing(queue, clientv3.WithCountOnly()))
		if err == nil {
			n = int(got.Get().Count)
		}
		return err
	})
	return n, err
}

// get returns the key of a node, or ErrRemoved.
func (s *session) get(ctx context.Context, queue string, node driver.Node) (kv *mvccpb.KeyValue, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Get(ctx, s.key(queue, node))
		if err != nil {
			return err
		}
		kv = only(got.Kvs)
		return nil
	})
	if err == nil && !isNode(kv, node) {
		err = driver.ErrRemoved
	}
	return kv, err
}

func only(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// isNode reports whether a key is the node's.
func isNode(kv *mvccpb.KeyValue, node driver.Node) bool {
	if kv == nil || kv.CreateRevision != createdAt(node) {
		return false
	}
	was := node.Kind == driver.Shared && node.Private != ""
	return was == (kv.Version > 1 && isShared(kv))
}

// Data implements driver.Session.
func (s *session) Data(ctx context.Context, queue string, node driver.Node) ([]byte, error) {
	kv, err := s.get(ctx, queue, node)
	if err != nil {
		return nil, err
	}
	return decodeValue(kv).data, nil
}

// exists is the condition that a node exists and, unless version is 0, has the version.
func (s *session) exists(queue string, node driver.Node, version int64) clientv3.Cmp {
	if version != 0 {
		return clientv3.Compare(clientv3.ModRevision(s.key(queue, node)), "=", version)
	}
	return clientv3.Compare(clientv3.CreateRevision(s.key(queue, node)), "=", createdAt(node))
}

// Leave implements driver.Session. The request begins on the caller's goroutine: waking
// another goroutine takes a tenth of the time of the request.
func (s *session) Leave(ctx context.Context, queue string, node driver.Node) error {
	l := &leaving{session: s, of: watchedNode{queue, node}, key: s.key(queue, node)}
	l.alone = s.keys.leaving(l.key, node)
	err := l.remove(ctx)
	if err != nil && ctx.Err() != nil && s.task(func() { _ = l.end(l.remove(context.Background())) }) {
		return s.noAnswer(ctx)
	}
	return l.end(err)
}

// leaving is the removal of a node of the session.
type leaving struct {
	*session
	of          watchedNode
	key         string
	alone       bool // no other client uses the key, and no other call of Leave removes the node
	maybe, byUs bool // whether the node was perhaps removed before, and was certainly removed by the session
}

func (l *leaving) remove(ctx context.Context) error {
	maybe, err := l.try(ctx, func(ctx context.Context, conn *connection) error {
		if !l.alone {
			got, err := conn.kv.Txn(ctx).If(l.exists(l.of.queue, l.of.node, 0)).Then(clientv3.OpDelete(l.key)).Commit()
			l.byUs = err == nil && got.Succeeded
			return err
		}
		got, err := conn.kv.Delete(ctx, l.key)
		l.byUs = err == nil && got.Deleted > 0
		return err
	})
	l.maybe = l.maybe || maybe
	return err
}

// end ends the removal and returns the error of Leave.
func (l *leaving) end(err error) error {
	l.mu.Lock()
	conn := l.current
	l.mu.Unlock()
	if conn != nil && l.byUs {
		conn.watches.left(l.of)
	}
	l.keys.update(l.key, func(k *ownKey) { k.removing-- })
	if conn != nil {
		conn.watches.again() // there may be events that wait for the removal
	}
	l.noteRefusal(err)
	if err != nil {
		return err
	}
	if l.alone || l.byUs || l.of.node.Kind == driver.Plain {
		l.keys.add(l.key, -1)
	}
	if l.alone && !l.maybe {
		l.usedKeys.put(l.of.queue, keyOf(l.of.node))
	}
	if !l.byUs && !l.maybe {
		return driver.ErrRemoved
	}
	return nil
}

// mostChecked is how many nodes Verify accepts: servers take 128 operations in one transaction.
const mostChecked = 120

// Verify implements driver.Session.
func (s *session) Verify(ctx context.Context, nodes ...driver.Located) error {
	if len(nodes) > mostChecked {
		return fmt.Errorf("etcd: %w: %d, and at most %d", driver.ErrTooMany, len(nodes), mostChecked)
	}
	ops := make([]clientv3.Op, len(nodes))
	for i, n := range nodes {
		ops[i] = clientv3.OpGet(s.key(n.Queue, n.Node))
	}
	return s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return err
		}
		for i, a := range answers(got, 0) {
			kv := only(a)
			if !isNode(kv, nodes[i].Node) || nodes[i].Version != 0 && nodes[i].Version != kv.ModRevision {
				return errGone
			}
		}
		return nil
	})
}

// LeaveIf implements driver.Session.
func (s *session) LeaveIf(ctx context.Context, node driver.Located, others ...driver.Located) error {
	if len(others) >= mostChecked {
		return fmt.Errorf("etcd: %w: %d, and at most %d", driver.ErrTooMany, len(others), mostChecked-1)
	}
	key, on := s.key(node.Queue, node.Node), []clientv3.Cmp{s.exists(node.Queue, node.Node, 0)}
	for _, other := range others {
		on = append(on, s.exists(other.Queue, other.Node, other.Version))
	}
	sent := 0
	return s.ask(ctx, func(ctx context.Context, conn *connection) error {
		sent++
		got, err := conn.kv.Txn(ctx).If(on...).Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit()
		if err != nil || got.Succeeded {
			return err
		}
		if sent > 1 && !isNode(only(answers(got, 0)[0]), node.Node) { // carried out before
			return nil
		}
		return errGone
	})
}

// Rewrite implements driver.Session.
func (s *session) Rewrite(ctx context.Context, queue string, node driver.Node, data []byte) error {
	_, err := s.update(ctx, queue, node, func(kv *mvccpb.KeyValue) ([]byte, error) {
		if !isNode(kv, node) { // Downgrade has put another one in place
			return nil, errGone
		}
		return marked(kv, 0, append([]byte{}, data...))
	})
	return err
}

// update changes the value of a node. The change may be repeated, so to returns nil for a
// value already changed. maybe is as from try.
func (s *session) update(ctx context.Context, queue string, node driver.Node, to func(kv *mvccpb.KeyValue) ([]byte, error)) (maybe bool, err error) {
	key, full := s.key(queue, node), error(nil)
	return s.try(ctx, func(ctx context.Context, conn *connection) error {
		for {
			got, err := conn.kv.Get(ctx, key)
			if err != nil {
				return err
			}
			kv := only(got.Kvs)
			if kv == nil || kv.CreateRevision != createdAt(node) {
				return errGone
			}
			value, err := to(kv)
			if err != nil || value == nil {
				return err
			}
			if bytes.Equal(value, kv.Value) { // perhaps by an earlier attempt
				conn.watches.changed(watchedNode{queue, node}, value)
				return nil
			}
			if full != nil {
				return full
			}
			put, err := conn.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)).
				Then(clientv3.OpPut(key, string(value), clientv3.WithIgnoreLease())).Commit()
			if isFull(err) { // perhaps carried out, if the request filled the database
				full = err
				continue
			}
			if err != nil {
				return err
			}
			if put.Succeeded {
				conn.watches.changed(watchedNode{queue, node}, value)
				return nil
			}
		}
	})
}

// Downgrade implements driver.Downgrader. The key keeps the place in the queue; the value
// says that the node is shared.
func (s *session) Downgrade(queue string, node driver.Node, data []byte) (driver.Node, error) {
	if data == nil {
		data = []byte{}
	}
	maybe, err := s.update(context.Background(), queue, node, func(kv *mvccpb.KeyValue) ([]byte, error) {
		if isShared(kv) {
			return nil, nil
		}
		return marked(kv, markShared, data)
	})
	if maybe && errors.Is(err, driver.ErrNoPermission) { // the right was withdrawn meanwhile
		err = fmt.Errorf("%w: %v", driver.ErrUndecided, err)
	}
	if err != nil {
		return driver.Node{}, err
	}
	return downgraded(node), nil
}

// Revoke implements driver.Revoker.
func (s *session) Revoke(ctx context.Context, queue string, node driver.Node, _ bool) error {
	_, err := s.update(ctx, queue, node, func(kv *mvccpb.KeyValue) ([]byte, error) {
		if !isNode(kv, node) { // Downgrade has put another one in place
			return nil, errGone
		}
		if mark := decodeValue(kv).mark; mark == 0 || mark&markRevoked != 0 { // other programs do not look for requests
			return nil, nil
		}
		return marked(kv, markRevoked, nil)
	})
	return err
}

// Break implements driver.Breaker. Only the value of the key says whether Downgrade has put
// another node in place.
func (s *session) Break(ctx context.Context, queue string, node driver.Node) error {
	key, gone := s.key(queue, node), false
	maybe, err := s.try(ctx, func(ctx context.Context, conn *connection) error {
		for {
			got, err := conn.kv.Get(ctx, key)
			if err != nil {
				return err
			}
			kv := only(got.Kvs)
			if gone = !isNode(kv, node); gone {
				return nil
			}
			done, err := conn.kv.Txn(ctx).If(s.exists(queue, node, kv.ModRevision)).Then(clientv3.OpDelete(key)).Commit()
			if err != nil || done.Succeeded {
				return err
			}
		}
	})
	if err == nil && gone && !maybe {
		return driver.ErrRemoved
	}
	return err
}

// TryCreate implements driver.PlainLocker.
func (s *session) TryCreate(ctx context.Context, name string, data []byte) (node driver.Node, created bool, err error) {
	key := s.prefix + name + "/" + plainName
	value := newValue(time.Now(), data)
	ours := func(kv *mvccpb.KeyValue) bool {
		return kv != nil && decodeValue(kv).number == decodeValue(&mvccpb.KeyValue{Value: value}).number
	}
	var found *mvccpb.KeyValue
	list := s.listing(name, clientv3.WithKeysOnly())
	done, got, late, err := change{
		session: s, creates: key, value: value, ops: []clientv3.Op{clientv3.OpGet(key), list},
		other: []clientv3.Op{clientv3.OpGet(key)},
		look:  []clientv3.Op{clientv3.OpGet(key)}, happened: func(a []answer) bool {
			found = only(a[0])
			return ours(found)
		},
	}.commit(ctx)
	switch {
	case late:
		s.undo(ctx, func(ctx context.Context, conn *connection) error {
			got, err := s.afterFence(ctx, conn, clientv3.OpGet(key))
			if err == nil && ours(only(got)) {
				return s.deletePlain(ctx, conn, key, got[0].CreateRevision)
			}
			return s.removed(key, err) // or never created
		})
		return driver.Node{}, false, err
	case err != nil:
		return driver.Node{}, false, err
	case !done:
		return plainNode(got[0][0].CreateRevision), false, nil
	}
	var c contents
	if got != nil {
		found = got[1][0]
		c = s.parse(name, got[2])
	} else if c, err = s.read(ctx, name); err != nil {
		s.removePlain(ctx, key, found.CreateRevision)
		return driver.Node{}, false, err
	}
	if err := c.checkKind(name, true); err != nil {
		s.removePlain(ctx, key, found.CreateRevision)
		return driver.Node{}, false, err
	}
	return plainNode(found.CreateRevision), true, nil
}

// removePlain removes the key of a plain lock if the key was created at revision created,
// in the background if the context ends.
func (s *session) removePlain(ctx context.Context, key string, created int64) {
	s.undo(ctx, func(ctx context.Context, conn *connection) error { return s.deletePlain(ctx, conn, key, created) })
}

func (s *session) deletePlain(ctx context.Context, conn *connection, key string, created int64) error {
	_, err := conn.kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", created)).Then(clientv3.OpDelete(key)).Commit()
	return s.removed(key, err)
}
