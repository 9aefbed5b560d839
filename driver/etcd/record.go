package etcd

// This file has the records of finished runs.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

func (s *session) recordsOf(name string) string     { return s.prefix + driver.Records + "/" + name + "/" }
func (s *session) recordKey(r driver.Record) string { return s.recordsOf(r.Name) + r.Key }

// record decodes a record. The time is by the creating client's clock.
func (s *session) record(name string, kv *mvccpb.KeyValue) driver.Record {
	r := driver.Record{Name: name, Key: strings.TrimPrefix(string(kv.Key), s.recordsOf(name)), Created: kv.CreateRevision}
	if len(kv.Value) >= 8 {
		r.Finished, r.Data = time.Unix(0, int64(binary.BigEndian.Uint64(kv.Value))), kv.Value[8:]
	}
	return r
}

// recordLease is the lease of the session's records for a while. Servers remove the records
// when the lease ends, so no client looks for old records or compares clocks. (An election
// prolongs all leases, and so keeps records longer.)
type recordLease struct {
	id    clientv3.LeaseID
	until time.Duration // by session.clock
	left  int           // how many more records the lease may have: servers remove all at once
}

// leaseFor returns a lease for a record to be kept for the time keep. Records of a quarter
// of this time share a lease. The lease ends with the last record, and lasts longer by a
// session's longest wait for an answer.
func (s *session) leaseFor(ctx context.Context, keep time.Duration) (clientv3.LeaseID, error) {
	const mostRecords = 1000
	keep = min(keep, longestLease) // no sum overflows
	s.mu.Lock()
	l, now := s.recordLeases[keep], s.clock.Now()
	if l != nil && now < l.until && l.left > 0 {
		l.left--
		s.mu.Unlock()
		return l.id, nil
	}
	s.mu.Unlock()
	l = &recordLease{id: clientv3.LeaseID(rand.Int64N(1<<62) + 1), until: now + keep/4, left: mostRecords - 1}
	seconds := (keep + keep/4 + s.cfg().TTL + time.Second) / time.Second
	maybe, err := s.try(ctx, func(ctx context.Context, conn *connection) error {
		_, err := conn.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(l.id), TTL: int64(seconds)})
		if isLeaseExists(err) { // the answer to an earlier request was lost
			return nil
		}
		return err
	})
	if err != nil && (maybe || isFull(err)) { // perhaps granted, and of no use
		s.undo(ctx, func(ctx context.Context, conn *connection) error { return conn.revoke(ctx, l.id) })
	}
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recordLeases == nil {
		s.recordLeases = map[time.Duration]*recordLease{}
	}
	maps.DeleteFunc(s.recordLeases, func(_ time.Duration, l *recordLease) bool { return l.until <= now })
	s.recordLeases[keep] = l
	return l.id, nil
}

// longestLease is less than the longest lease granted by servers, 285 years.
const longestLease = 200 * 365 * 24 * time.Hour

// Finish implements driver.Recorder.
func (s *session) Finish(ctx context.Context, queue string, node driver.Node, r driver.Record) error {
	lease, err := s.leaseFor(ctx, r.Keep)
	if err != nil {
		return err
	}
	key, record := s.key(queue, node), s.recordKey(r)
	done, got, late, err := change{
		session: s, on: []clientv3.Cmp{s.exists(queue, node, 0), clientv3.Compare(clientv3.CreateRevision(record), "=", 0)},
		ops:   []clientv3.Op{clientv3.OpPut(record, string(recordValue(time.Now(), r.Data)), clientv3.WithLease(lease))},
		other: []clientv3.Op{clientv3.OpGet(key)},
		look:  []clientv3.Op{clientv3.OpGet(record)}, happened: func(a []answer) bool {
			kv := only(a[0])
			return kv != nil && bytes.Equal(s.record(r.Name, kv).Data, r.Data)
		},
	}.commit(ctx)
	switch {
	case done: // even if the session is over by now
		return nil
	case late:
		return fmt.Errorf("%w: %w", driver.ErrUndecided, err)
	case err != nil:
		return err
	case !isNode(only(got[0]), node):
		return driver.ErrRemoved
	}
	return driver.ErrRecorded
}

// Settle implements driver.Recorder.
func (s *session) Settle(ctx context.Context, queue string, node driver.Node, r driver.Record) (recorded bool, err error) {
	key := s.key(queue, node)
	err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
		get := clientv3.OpGet(s.recordKey(r))
		got, err := conn.kv.Txn(ctx).If(s.exists(queue, node, 0)).Then(clientv3.OpDelete(key), get).Else(get).Commit()
		if err != nil {
			return err
		}
		all := answers(got, 0)
		kv := only(all[len(all)-1])
		recorded = kv != nil && bytes.Equal(s.record(r.Name, kv).Data, r.Data)
		return nil
	})
	return recorded, err
}

// Record implements driver.Recorder.
func (s *session) Record(ctx context.Context, name, key string) (r driver.Record, found bool, err error) {
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
func (s *session) Records(ctx context.Context, name string) (found []driver.Record, err error) {
	const atATime = 1000
	from, end := s.recordsOf(name), clientv3.GetPrefixRangeEnd(s.recordsOf(name))
	for more := true; more && err == nil; {
		err = s.ask(ctx, func(ctx context.Context, conn *connection) error {
			got, err := conn.kv.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(atATime))
			if err != nil {
				return err
			}
			for _, kv := range got.Kvs {
				found = append(found, s.record(name, kv))
				from = string(kv.Key) + "\x00"
			}
			more = got.More
			return nil
		})
	}
	slices.SortFunc(found, func(a, b driver.Record) int { return cmp.Compare(a.Created, b.Created) })
	return found, err
}

// Forget implements driver.Recorder. A late request would remove the record of a later run,
// so each is a change, not carried out after the call.
func (s *session) Forget(ctx context.Context, name string, keys ...string) error {
	all := []clientv3.Op{clientv3.OpDelete(s.recordsOf(name), clientv3.WithPrefix())}
	if len(keys) > 0 {
		all = nil
		for _, key := range keys {
			all = append(all, clientv3.OpDelete(s.recordsOf(name)+key))
		}
	}
	for ops := range slices.Chunk(all, mostMoved) {
		if err := s.commitRepeatable(ctx, ops...); err != nil {
			return err
		}
	}
	return nil
}
