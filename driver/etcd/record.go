package etcd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

func (s *Session) recordsOf(name string) string     { return s.prefix + driver.Records + "/" + name + "/" }
func (s *Session) recordKey(r driver.Record) string { return s.recordsOf(r.Name) + r.Key }

// record decodes a record. Its time is by the clock of the client that created it.
func (s *Session) record(name string, kv *mvccpb.KeyValue) driver.Record {
	r := driver.Record{Name: name, Key: strings.TrimPrefix(string(kv.Key), s.recordsOf(name)), Created: kv.CreateRevision}
	if len(kv.Value) >= 8 {
		r.Finished, r.Data = time.Unix(0, int64(binary.BigEndian.Uint64(kv.Value))), kv.Value[8:]
	}
	return r
}

// Finish implements driver.Recorder.
func (s *Session) Finish(ctx context.Context, queue string, node driver.Node, keep bool, r driver.Record) error {
	key, record := s.key(queue, node), s.recordKey(r)
	ops := []clientv3.Op{clientv3.OpPut(record, string(recordValue(time.Now(), r.Data)))}
	if !keep {
		ops = append(ops, clientv3.OpDelete(key))
		s.own.leaving(key)
	}
	done, got, late, err := change{
		session: s, on: []clientv3.Cmp{s.exists(queue, node, 0), clientv3.Compare(clientv3.CreateRevision(record), "=", 0)},
		ops: ops, other: []clientv3.Op{clientv3.OpGet(key)},
		look: []clientv3.Op{clientv3.OpGet(record)}, happened: func(a []*answer) bool {
			kv := only(a[0].kvs)
			return kv != nil && bytes.Equal(s.record(r.Name, kv).Data, r.Data)
		},
	}.commit(ctx)
	if !keep {
		s.own.left(s, watchedNode{queue, node}, done)
		if done {
			s.own.claim(key, node)
			s.keys.add(key, -1)
		}
	}
	switch {
	case late:
		return fmt.Errorf("%w: %w", driver.ErrUndecided, err)
	case err != nil, done:
		return err
	case !isNode(only(got[0].kvs), node):
		return driver.ErrRemoved
	}
	return driver.ErrRecorded
}

// Settle implements driver.Recorder.
func (s *Session) Settle(ctx context.Context, queue string, node driver.Node, r driver.Record) (recorded bool, err error) {
	key := s.key(queue, node)
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		get := clientv3.OpGet(s.recordKey(r))
		got, err := conn.kv.Txn(ctx).If(s.exists(queue, node, 0)).Then(clientv3.OpDelete(key), get).Else(get).Commit()
		if err != nil {
			return err
		}
		all := answers(got, 0)
		kv := only(all[len(all)-1].kvs)
		recorded = kv != nil && bytes.Equal(s.record(r.Name, kv).Data, r.Data)
		return nil
	})
	return recorded, err
}

// Record implements driver.Recorder.
func (s *Session) Record(ctx context.Context, name, key string) (r driver.Record, found bool, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Get(ctx, s.recordsOf(name)+key)
		if err != nil {
			return err
		}
		if kv := only(got.Kvs); kv != nil {
			r, found = s.record(name, kv), true
		}
		return nil
	})
	return r, found, err
}

// Records implements driver.Recorder.
func (s *Session) Records(ctx context.Context, name string) (found []driver.Record, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Get(ctx, s.recordsOf(name), clientv3.WithPrefix())
		if err != nil {
			return err
		}
		found = nil
		for _, kv := range got.Kvs {
			found = append(found, s.record(name, kv))
		}
		return nil
	})
	slices.SortFunc(found, func(a, b driver.Record) int { return cmp.Compare(a.Created, b.Created) })
	return found, err
}

// Forget implements driver.Recorder.
func (s *Session) Forget(ctx context.Context, name string, keys ...string) error {
	return s.ask(ctx, func(ctx context.Context, conn *connection) error {
		if len(keys) == 0 {
			_, err := conn.kv.Delete(ctx, s.recordsOf(name), clientv3.WithPrefix())
			return err
		}
		for _, key := range keys {
			if _, err := conn.kv.Delete(ctx, s.recordsOf(name)+key); err != nil {
				return err
			}
		}
		return nil
	})
}

// ForgetOld implements driver.Recorder. The time of the given record stands for now, and a
// key has the time at which old ones were last removed.
func (s *Session) ForgetOld(ctx context.Context, r driver.Record, keep time.Duration) error {
	marker := s.prefix + forgotten + "/" + r.Name
	first := append(clientv3.WithFirstCreate(), clientv3.WithPrefix())
	return s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Txn(ctx).Then(clientv3.OpGet(s.recordKey(r)), clientv3.OpGet(marker), clientv3.OpGet(s.recordsOf(r.Name), first...)).Commit()
		if err != nil {
			return err
		}
		all := answers(got, 0)
		given, last := only(all[0].kvs), only(all[1].kvs)
		if given == nil {
			return nil
		}
		now, since := s.record(r.Name, given).Finished, last
		if since == nil {
			since = only(all[2].kvs) // before which there was nothing to remove
		}
		if now.Sub(s.record(r.Name, since).Finished) < keep/4 {
			return nil
		}
		mark := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(marker), "=", 0)}
		if last != nil {
			mark[0] = clientv3.Compare(clientv3.ModRevision(marker), "=", last.ModRevision)
		}
		marked, err := conn.kv.Txn(ctx).If(mark...).Then(clientv3.OpPut(marker, string(recordValue(now, nil)))).Commit()
		if err != nil || !marked.Succeeded { // another caller removes them
			return err
		}
		records, err := conn.kv.Get(ctx, s.recordsOf(r.Name), clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range records.Kvs {
			if old := s.record(r.Name, kv); now.Sub(old.Finished) > keep {
				if _, err := conn.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision)).Then(clientv3.OpDelete(string(kv.Key))).Commit(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
