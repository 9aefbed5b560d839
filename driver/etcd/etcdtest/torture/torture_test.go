//go:build linux

package main

// This file tests the campaign: short runs, planted losses, and the reading of ends.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign/campaigntest"
)

func TestMain(m *testing.M) {
	runMember()
	campaign.RunClient(engine)
	m.Run()
}

func TestCampaignFindsNoViolation(t *testing.T) {
	t.Parallel()
	campaigntest.FindsNoViolation(t, engine)
}

// A holder cut off for longer than the TTL, ignoring the end of the lease, overlaps with
// the next one: the campaign finds the overlap.
func TestCampaignDetectsClientsWithoutLease(t *testing.T) {
	t.Parallel()
	campaigntest.FindsOverlap(t, engine, true, func(o *campaign.Options) { o.IgnoreLosses = true })
}

// Everything left is found: keys, and leases without keys.
func TestLeakedKeysAndLeasesAreFound(t *testing.T) {
	t.Parallel()
	c, err := start(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	leaked := func() []string {
		var rec workload.Record
		require.NoError(t, c.Look(t.Context(), workload.Config{}, &rec))
		return rec.Leaked
	}
	require.Empty(t, leaked())
	admin := c.(*cluster).members[0].admin
	_, err = admin.Put(t.Context(), prefix+"/lock-1/a", "x")
	require.NoError(t, err)
	lease, err := admin.Grant(t.Context(), 60)
	require.NoError(t, err)
	require.Len(t, leaked(), 2)
	require.Contains(t, leaked()[0], "/lock-1/a")
	_, err = admin.Delete(t.Context(), prefix+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = admin.Revoke(t.Context(), lease.ID)
	require.NoError(t, err)
	require.Empty(t, leaked())
}

// The end of a session is the driver's to foresee, unless brought about by a stranger.
func TestEndsOfSessions(t *testing.T) {
	e := newEnds()
	defer e.close()
	ended := func(lease int64) workload.Instant {
		e.add([]*mvccpb.KeyValue{
			{Key: []byte(prefix + "/lock-1/a"), CreateRevision: 10 * lease, Lease: lease},
			{Key: []byte(prefix + "/.sessions/a"), CreateRevision: lease, Lease: lease},
		})
		return e.all[clientv3.LeaseID(lease)].at
	}
	e.add([]*mvccpb.KeyValue{{Key: []byte(prefix + "/lock-1/b"), CreateRevision: 7, Lease: 1}}) // unlocked
	ended(1)
	e.remove(2)
	ended(2)
	rec := workload.Record{End: ended(3)}
	ended(4)
	e.record(&rec)
	require.Len(t, rec.Ends, 2)
	require.ElementsMatch(t, [][]int64{{10, 1}, {30, 3}}, [][]int64{rec.Ends[0].Orders, rec.Ends[1].Orders})
	require.Empty(t, rec.Removals)
	require.Contains(t, rec.Notes[0], "sessions that the servers have ended: 2;")
}
