//go:build linux

package main

// This file tests the campaign: short runs, planted losses, and the reading of ends.

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
)

func TestMain(m *testing.M) {
	runMember()
	campaign.RunClient(engine)
	m.Run()
}

// runCampaign runs a campaign and returns the report and the last line of output.
func runCampaign(t *testing.T, change func(*campaign.Options)) (workload.Report, string) {
	o := campaign.DefaultOptions()
	change(&o)
	var out strings.Builder
	found, err := campaign.Run(t.Context(), &out, engine, o)
	t.Log("\n" + out.String())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return found, lines[len(lines)-1]
}

func TestCampaignFindsNoViolation(t *testing.T) {
	t.Parallel()
	found, last := runCampaign(t, func(o *campaign.Options) { o.Duration = 20 * time.Second })
	require.Equal(t, "violations=0 leaked_nodes=0 stuck_waiters=0", last)
	for _, kind := range []string{workload.Exclusive, workload.Plain} {
		require.Equal(t, 1, found.MaxHolders[workload.NameOf(kind, 1)], kind)
	}
}

// A holder cut off for longer than the TTL, ignoring the end of the lease, overlaps with
// the next one: the campaign finds the overlap.
func TestCampaignDetectsClientsWithoutLease(t *testing.T) {
	t.Parallel()
	found, _ := runCampaign(t, func(o *campaign.Options) {
		o.Clients, o.Workers, o.Locks, o.Kinds = 2, 2, 1, []string{workload.Exclusive}
		o.LongHolds, o.MinLong, o.MaxLong = 100, 4*o.Timeout, 4*o.Timeout // longer than the fault
		o.Rush = 0                                                        // in a rush, the first holder has another lock
		o.Duration, o.IgnoreLosses = 5*time.Second, true
		o.Faults = []campaign.Fault{{
			Name: "freeze the connections of the holder", Target: campaign.Connections, Lasts: workload.Longer,
			Begin: func(c *campaign.Campaign, _ *rand.Rand) (string, func() error, error) {
				return c.Disturb(c.LongestHolder(), func(l campaign.Link) { l.Hold(true, true) })
			},
		}}
	})
	require.NotEmpty(t, found.Violations)
	require.Contains(t, found.Violations[0], "exceeded its limit")
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
