//go:build linux

package main

// This file has the faults that only etcd has.

import (
	"context"
	"fmt"
	"math/rand/v2"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
)

// faults are the faults of etcd only. Both need a leader, so they are faults of servers:
// one at a time.
var faults = []campaign.Fault{
	{Name: "move the leader", Target: campaign.Servers, Lasts: workload.Moment, Begin: moveLeader},
	{Name: "remove a session", Target: campaign.Servers, Lasts: workload.Moment, Begin: removeSession},
}

func moveLeader(run *campaign.Campaign, r *rand.Rand) (string, func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c := run.Cluster.(*cluster)
	leader, err := c.Leader(ctx)
	if err != nil {
		return "", nil, err
	}
	next := c.members[(leader+1+r.IntN(campaign.Members-1))%campaign.Members]
	_, err = c.members[leader].admin.MoveLeader(ctx, next.id)
	return "to " + next.client(), nil, err
}

func removal(at workload.Instant, kv *mvccpb.KeyValue) workload.Removal {
	return workload.NewRemoval(at, string(kv.Key[len(prefix)+1:]), kv.CreateRevision)
}

// removeSession revokes the lease of a session as a stranger, so that its nodes are gone
// before their owner knows.
func removeSession(run *campaign.Campaign, r *rand.Rand) (string, func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c := run.Cluster.(*cluster)
	admin := c.members[0].admin
	sessions, err := admin.Get(ctx, prefix+"/.sessions/", clientv3.WithPrefix())
	if err != nil || len(sessions.Kvs) == 0 {
		return "", nil, err
	}
	lease := clientv3.LeaseID(sessions.Kvs[r.IntN(len(sessions.Kvs))].Lease)
	c.ends.remove(lease)
	at := campaign.Now()
	revoked, err := admin.Revoke(ctx, lease)
	if err != nil {
		return "", nil, err
	}
	before, err := admin.Get(ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(revoked.Header.Revision-1))
	if err != nil {
		return "", nil, err
	}
	run.Update(func(rec *workload.Record) {
		for _, kv := range before.Kvs {
			if clientv3.LeaseID(kv.Lease) == lease {
				rec.Removals = append(rec.Removals, removal(at, kv))
			}
		}
	})
	return fmt.Sprintf("%x", lease), nil, nil
}
