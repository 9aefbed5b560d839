package etcd

// This file has reading contenders, the head of a queue, and limits.

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

// contender returns a node with its details.
func (e entry) contender() driver.Contender {
	v, session := decodeValue(e.kv), e.kv.Lease
	if v.mark != 0 {
		session = int64(sessionOf(session))
	}
	return driver.Contender{Node: e.node, Session: strconv.FormatInt(session, 16), Created: e.kv.CreateRevision, Joined: v.at, Data: v.data, Version: e.kv.ModRevision}
}

// inspect reads the contents below the name of a queue's lock, with all values.
func (s *session) inspect(ctx context.Context, queue string) (c contents, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Do(ctx, s.listing(queue))
		if err == nil {
			c = s.parse(driver.LockOf(queue), got.Get().Kvs)
		}
		return err
	})
	return c, err
}

// Inspect implements driver.Inspector.
func (s *session) Inspect(ctx context.Context, queue string, want func(driver.Node) bool) (found []driver.Contender, others []string, err error) {
	c, err := s.inspect(ctx, queue)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range c.queue(queue) {
		if want == nil || want(e.node) {
			found = append(found, e.contender())
		} else {
			found = append(found, driver.Contender{Node: e.node})
		}
	}
	if driver.LockOf(queue) == queue {
		others = c.parts()
	}
	return found, others, nil
}

// Queues implements driver.Inspector.
func (s *session) Queues(ctx context.Context, prefix string) (names []string, err error) {
	below := s.prefix
	if prefix != "" {
		below += prefix + "/"
	}
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Get(ctx, below, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		names = nil
		for _, kv := range got.Kvs {
			if queue, _, ok := s.placeOf(kv); ok {
				names = append(names, driver.LockOf(queue))
			}
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// placeOf returns the queue and the node of a contender's key.
func (s *session) placeOf(kv *mvccpb.KeyValue) (queue string, node driver.Node, ok bool) {
	rest := strings.TrimPrefix(string(kv.Key), s.prefix)
	first, _, _ := strings.Cut(rest, "/")
	i := strings.LastIndexByte(rest, '/')
	if i < 0 || slices.Contains([]string{driver.Records, driver.Waits, sessions}, first) {
		return "", node, false
	}
	node, ok = nodeOf(rest[i+1:], kv)
	return rest[:i], node, ok
}

// Follow implements driver.Follower.
func (s *session) Follow(ctx context.Context, queue string, head func([]driver.Node) (n int, complete bool)) (driver.Followed, error) {
	f, complete, err := s.head(ctx, queue, head)
	if err != nil || complete {
		return f, err
	}
	// The queue is watched before the next listing.
	joins, err := s.Watch(ctx, queue, driver.Node{})
	if err != nil {
		return driver.Followed{}, err
	}
	if f, _, err = s.head(ctx, queue, head); err == nil {
		f.Watches = append(f.Watches, joins...)
	}
	return f, err
}

// head returns the head of a queue, with watches on its contenders.
func (s *session) head(ctx context.Context, queue string, head func([]driver.Node) (n int, complete bool)) (f driver.Followed, complete bool, err error) {
	c, err := s.inspect(ctx, queue)
	if err != nil {
		return f, false, err
	}
	entries := c.queue(queue)
	n, complete := head(nodesOf(entries))
	for _, e := range entries[:n] {
		f.Contenders = append(f.Contenders, e.contender())
	}
	if driver.LockOf(queue) == queue {
		f.Others = c.parts()
	}
	if n > 0 {
		f.Watches, err = s.Watch(ctx, queue, nodesOf(entries[:n])...)
	}
	return f, complete && len(f.Others) == 0, err
}

// Limit implements driver.Limiter.
func (s *session) Limit(ctx context.Context, name string, given int) (limit int, watch *driver.Watch, err error) {
	guards := name + "/" + driver.Guards
	c, err := s.read(ctx, guards)
	if err != nil {
		return 0, nil, err
	}
	if err := c.checkKind(guards, false); err != nil {
		return 0, nil, err
	}
	if c.limit != nil {
		watches, err := s.watchLimit(ctx, name, c.limit)
		if err != nil {
			return 0, nil, err
		}
		if watches[0].Fired() != driver.Missing { // otherwise the limit was removed just now
			set, err := parseLimit(watches[0].Data)
			if err != nil {
				return 0, nil, err
			}
			if given == 0 {
				given = set
			}
			return min(given, set), watches[0], nil
		}
	}
	if given == 0 {
		return 0, nil, fmt.Errorf("%w: none was given, and none is set: pass one, or set it with SetLimit", driver.ErrLimit)
	}
	return given, nil, nil
}

// watchLimit watches the limit of a semaphore. The limit is not older than listed.
func (s *session) watchLimit(ctx context.Context, name string, listed *mvccpb.KeyValue) (found []*driver.Watch, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) (err error) {
		for outdated := true; outdated && err == nil; outdated = conn.watches.limitSeen(name, listed) {
			found, err = conn.watches.watch(ctx, s, name, []driver.Node{{Name: driver.Limit}})
		}
		return err
	})
	return found, err
}

func parseLimit(data []byte) (int, error) {
	n, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: %q is set, which is no number of permits", driver.ErrLimit, data)
	}
	return n, nil
}

// SetLimit implements driver.Limiter.
func (s *session) SetLimit(ctx context.Context, name string, limit int) error {
	guards := name + "/" + driver.Guards
	key := s.prefix + name + "/" + driver.Limit
	err := s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Txn(ctx).Then(s.listing(name, clientv3.WithKeysOnly())).Commit()
		if err != nil {
			return err
		}
		if err := s.parse(name, answers(got, 0)[0]).checkKind(guards, false); err != nil {
			return conclusion{err}
		}
		return nil
	})
	if err == nil { // a late request would undo a later change
		err = s.commitRepeatable(ctx, clientv3.OpPut(key, strconv.Itoa(limit)))
	}
	return err
}
