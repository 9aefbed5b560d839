package etcd

// This file has the change to another lease after an election.

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

// generations are the bits by which the leases of one session differ.
const generations = 1<<16 - 1

// sessionOf returns the session of a lease.
func sessionOf(lease int64) clientv3.LeaseID { return clientv3.LeaseID(lease) &^ generations }

// mostMoved is how many keys one transaction moves to another lease.
const mostMoved = 100

var errTerm = errors.New("another leader was elected meanwhile")

// renew gives a session without a lease of the present term such a lease, and moves the
// session's keys to the lease (type lease has the reason). Keys keep their revisions of
// creation, and so their places.
//
// First renew raises the fence: afterward no key is created with an earlier lease, so s.keys
// has all keys. The session's own key is moved last: if an earlier lease ends before the move,
// the session ends with the lease.
func (s *session) renew(ctx context.Context, conn *connection, within time.Duration) error {
	term, outlived := s.lease.outlived()
	if !outlived {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, errSilent)
	defer cancel()
	s.generation++
	id := s.id | clientv3.LeaseID(s.generation&generations)
	sent := s.clock.Now()
	granted, err := conn.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(s.lease.ttl / time.Second)})
	if err != nil {
		return err
	}
	if granted.Header.RaftTerm != term {
		_ = conn.revoke(ctx, id)
		return errTerm
	}
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
	s.lease.granted(term, sent)
	_ = conn.revoke(ctx, others...) // without an answer, the leases expire
	return nil
}

// moveSession moves the session's own key to a lease.
func (s *session) moveSession(ctx context.Context, to clientv3.LeaseID) error {
	key := s.sessionKey()
	_, got, _, err := change{
		session: s, ops: []clientv3.Op{putLease(key, to), clientv3.OpGet(key)},
		look: []clientv3.Op{clientv3.OpGet(key)}, happened: func(a []answer) bool { return a[0][0].Lease == int64(to) },
	}.commit(ctx)
	if got != nil {
		s.fence.raise(got[1][0].Version)
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
	_, _, _, err := repeatable(s, ops).commit(ctx)
	return err
}

// putLease changes only the lease of a key.
func putLease(key string, lease clientv3.LeaseID) clientv3.Op {
	return clientv3.OpPut(key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(lease))
}

// ownKeys has the keys created by the session, begun creations included, and the keys being
// removed by the session.
type ownKeys struct {
	mu    sync.Mutex
	byKey map[string]ownKey
}

// ownKey is what the session has done with a key.
type ownKey struct {
	// creations counts those not undone. The key of a plain lock may be created again before
	// its removal has been noticed. A removed key may still be counted.
	creations int
	joined    int64 // when the last contender with the key was created, until claimed
	removing  int   // calls of Leave
}

// update changes what is known of a key.
func (o *ownKeys) update(key string, change func(*ownKey)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.byKey[key]
	change(&k)
	if k == (ownKey{}) {
		delete(o.byKey, key)
	} else {
		o.byKey[key] = k
	}
}

func (o *ownKeys) add(key string, n int) {
	o.update(key, func(k *ownKey) { k.creations = max(k.creations+n, 0) })
}

// all returns the keys to be moved to another lease.
func (o *ownKeys) all() (keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, k := range o.byKey {
		if k.creations > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// leaving begins a call of Leave. alone reports, once, that the node is the last one created by
// the session with the key. Other clients use the key of a plain lock, too.
func (o *ownKeys) leaving(key string, node driver.Node) (alone bool) {
	o.update(key, func(k *ownKey) {
		k.removing++
		if alone = k.joined == createdAt(node); alone {
			k.joined = 0
		}
	})
	return alone
}

func (o *ownKeys) isLeaving(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byKey[key].removing > 0
}
