//go:build linux

package main

// This file watches the ends of sessions at the servers.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
)

// ends keeps when the servers have ended sessions. Holders must know before, unless a stranger
// has revoked the lease.
type ends struct {
	ctx      context.Context // of the watches
	cancel   context.CancelFunc
	watching sync.WaitGroup

	mu      sync.Mutex
	all     map[clientv3.LeaseID]end
	removed map[clientv3.LeaseID]bool // by a stranger
	stale   int                       // how often a former leader was stopped for longer than the TTL
}

// end is the end of a session, and the session's keys.
type end struct {
	at   workload.Instant // the first time when a member has told of the end
	keys []*mvccpb.KeyValue
}

func newEnds() *ends {
	e := &ends{all: map[clientv3.LeaseID]end{}, removed: map[clientv3.LeaseID]bool{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// watch follows the ends by what one member tells.
func (e *ends) watch(admin *clientv3.Client) {
	watch := admin.Watch(e.ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(1))
	e.watching.Go(func() { // ends with close
		for got := range watch {
			byRevision := map[int64][]*mvccpb.KeyValue{}
			for _, ev := range got.Events {
				if ev.Type == mvccpb.DELETE && ev.PrevKv != nil {
					byRevision[ev.Kv.ModRevision] = append(byRevision[ev.Kv.ModRevision], ev.PrevKv)
				}
			}
			for _, keys := range byRevision {
				e.add(keys)
			}
		}
	})
}

// add notes the end of a session, if keys were removed at once by such an end.
func (e *ends) add(keys []*mvccpb.KeyValue) {
	i := slices.IndexFunc(keys, func(kv *mvccpb.KeyValue) bool { return strings.HasPrefix(string(kv.Key), prefix+"/.sessions/") })
	if i < 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	lease := clientv3.LeaseID(keys[i].Lease)
	if _, known := e.all[lease]; !known {
		e.all[lease] = end{campaign.Now(), keys}
	}
}

// remove notes a stranger's coming revocation of a lease.
func (e *ends) remove(lease clientv3.LeaseID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removed[lease] = true
}

// staleLeader notes that a former leader, stopped for longer than the TTL, is about to go
// on: such a member may end known leases (etcd issue 15247).
func (e *ends) staleLeader() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stale++
}

// record adds the ends to the record.
func (e *ends) record(rec *workload.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sessions := 0
	for lease, end := range e.all {
		if e.removed[lease] || end.at > rec.End { // when clients close theirs
			continue
		}
		sessions++
		told := workload.SessionEnd{At: end.at}
		for _, kv := range end.keys {
			told.Orders = append(told.Orders, kv.CreateRevision)
		}
		rec.Ends = append(rec.Ends, told)
	}
	rec.Notes = append(rec.Notes, fmt.Sprintf("sessions that the servers have ended: %d; members that had led were stopped for longer than the TTL %d times",
		sessions, e.stale))
}

func (e *ends) close() {
	e.cancel()
	e.watching.Wait()
}
