package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// generations are the bits in which the leases of one session differ.
const generations = 1<<16 - 1

// sessionOf returns the session of a lease.
func sessionOf(lease int64) clientv3.LeaseID { return clientv3.LeaseID(lease) &^ generations }

// mostMoved is how many keys one transaction moves to another lease.
const mostMoved = 100

var errTerm = errors.New("another leader was elected meanwhile")

// renew grants the session a lease of the present term, if it has none, and moves its keys to
// that. They keep their revisions of creation, and so their places. See lease for the reason.
//
// First it raises the fence: afterward no key is created with an earlier lease, so those that
// are known then are all that there are. The session's own key comes last: if an earlier lease
// ends before that, so does the session.
func (s *session) renew(ctx context.Context, conn *connection, within time.Duration) error {
	term, outlived := s.lease.outlived()
	if !outlived {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, errSilent)
	defer cancel()
	s.generation++
	id := s.id | clientv3.LeaseID(s.generation&generations)
	ttl, sent := s.cfg().TTL, s.clock.Now()
	granted, err := conn.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(ttl / time.Second)})
	if err != nil {
		return err
	}
	if granted.Header.RaftTerm != term {
		_ = conn.revoke(ctx, id)
		return errTerm
	}
	ttl = max(ttl, time.Duration(granted.TTL)*time.Second)
	others := s.lease.replace(id)
	if _, err := s.raiseFence(ctx, conn); err != nil {
		return err
	}
	for keys := range slices.Chunk(s.keys.all(), mostMoved) {
		for _, other := range others {
			if err := s.move(ctx, keys, other, id); err != nil {
				return err
			}
		}
	}
	if err := s.moveSession(ctx, id); err != nil {
		return err
	}
	s.lease.granted(term, sent, ttl)
	_ = conn.revoke(ctx, others...) // or they expire
	return nil
}

// moveSession moves the session's own key to a lease.
func (s *session) moveSession(ctx context.Context, to clientv3.LeaseID) error {
	key := s.sessionKey()
	_, got, _, err := change{
		session: s, ops: []clientv3.Op{putLease(key, to), clientv3.OpGet(key)},
		look: []clientv3.Op{clientv3.OpGet(key)}, happened: func(a []*answer) bool { return a[0].kvs[0].Lease == int64(to) },
	}.commit(ctx)
	if got != nil {
		s.fence.raise(got[1].kvs[0].Version)
	}
	return err
}

// move moves keys of the session from one lease to another.
func (s *session) move(ctx context.Context, keys []string, from, to clientv3.LeaseID) error {
	var ops []clientv3.Op
	for _, key := range keys {
		isOf := clientv3.Compare(clientv3.LeaseValue(key), "=", from)
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{isOf}, []clientv3.Op{putLease(key, to)}, nil))
	}
	_, _, _, err := change{session: s, ops: ops, happened: func([]*answer) bool { return false }}.commit(ctx)
	return err
}

// putLease changes the lease of a key, and nothing else.
func putLease(key string, lease clientv3.LeaseID) clientv3.Op {
	return clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(lease))
}

// ownKeys are the keys that the session has created, or tries to, with how often: that of a
// plain lock may be created again before the removal of the one before has been noticed. A
// key that is gone may be among them.
type ownKeys struct {
	mu  sync.Mutex
	num map[string]int
}

func (o *ownKeys) add(key string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.num == nil {
		o.num = map[string]int{}
	}
	if o.num[key] += n; o.num[key] <= 0 {
		delete(o.num, key)
	}
}

func (o *ownKeys) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.num))
}
