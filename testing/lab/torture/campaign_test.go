//go:build linux

package main

// This file tests the campaign on ZooKeeper: short runs, leaked nodes and planted losses.

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
	"github.com/lockpool/lockpool/testing/zktest"
)

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
	found, last := runCampaign(t, func(o *campaign.Options) { o.Duration = 25 * time.Second })
	require.Equal(t, "violations=0 leaked_nodes=0 stuck_waiters=0", last)
	require.True(t, found.Clean()) // a lock never shared is a violation, once enough requests fit beside a holder
	for _, kind := range []string{workload.Exclusive, workload.Plain} {
		require.Equal(t, 1, found.MaxHolders[workload.NameOf(kind, 1)], kind)
	}
}

// Directories may be left, and do not count.
func TestLeakedNodesOfEachKindOfLockAreFound(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := zktest.Start(t)
	conn, _, err := zk.Connect([]string{server.ConnectString()}, time.Minute, zk.WithLogger(noLogger{}), zk.WithLogInfo(false))
	require.NoError(t, err)
	defer conn.Close()
	leaked := func() []string {
		leaked, err := nodesBelowChroot(conn, campaign.DefaultOptions().Directories(chroot))
		require.NoError(t, err)
		return leaked
	}
	require.Empty(t, leaked())
	opts := map[string][]lockpool.LockOption{workload.ReadWrite: {lockpool.Shared()}, workload.Plain: {lockpool.Plain()}}
	for layout, twins := range map[zookeeper.Layout]int{zookeeper.LayoutCurator: 0, zookeeper.LayoutKazoo: 1} {
		pool, err := lockpool.Open("zookeeper", fmt.Sprintf("%s%s?layout=%s", server.ConnectString(), chroot, layout))
		require.NoError(t, err)
		for kind, nodes := range map[string]int{workload.Exclusive: 1 + twins, workload.ReadWrite: 1 + twins, workload.Semaphore: 2, workload.Plain: 1} {
			var l *lockpool.Lock
			if name := workload.NameOf(kind, 1); kind == workload.Semaphore {
				l, err = pool.Semaphore(name, 3).Acquire(ctx, 2)
			} else {
				l, err = pool.Lock(ctx, name, opts[kind]...)
			}
			require.NoError(t, err)
			require.Len(t, leaked(), nodes, "%s: %q", kind, leaked())
			require.NoError(t, l.Unlock(ctx))
			require.Empty(t, leaked(), kind)
		}
		require.NoError(t, pool.Close())
	}
	guard := chroot + "/" + workload.NameOf(workload.Semaphore, 1) + "/locks/_c_00000000-0000-0000-0000-000000000000-lock-0000000007"
	_, err = conn.Create(guard, nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	require.Len(t, leaked(), 1)
	require.Contains(t, leaked()[0], guard)
}

// A holder is cut off for longer than its session timeout, while another client waits. With
// a lease the holder stops in time. Without one the campaign finds a violation: a client
// may ignore the loss, or have too slow a clock for the lease ever to end. (A campaign
// takes half a minute, so for the other kinds there are only the records of check_test.go; a
// writer may also have downgraded before the fault, and then nothing is wrong.)
func TestCampaignDetectsClientsWithoutLease(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*campaign.Options)
		clean  bool
	}{
		{"with lease", func(*campaign.Options) {}, true},
		{"ignoring losses", func(o *campaign.Options) { o.IgnoreLosses = true }, false},
		{"with slow clocks", func(o *campaign.Options) { o.ClockRate = 0.1 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // each has a separate ensemble, and mostly waits
			found, last := runCampaign(t, func(o *campaign.Options) {
				o.Clients, o.Workers, o.Locks, o.Kinds = 2, 2, 1, []string{workload.Exclusive}
				o.LongHolds, o.MinLong, o.MaxLong = 100, 4*o.Timeout, 4*o.Timeout // longer than the fault
				o.Rush = 0                                                        // or the first holder may have an own lock
				o.Duration = 5 * time.Second
				o.Faults = []campaign.Fault{{Name: "freeze the connections of the holder", Target: campaign.Connections, Lasts: workload.Longer, Begin: freezeHolder}}
				c.change(o)
			})
			require.Equal(t, c.clean, found.Clean(), last)
			if !c.clean {
				require.NotEmpty(t, found.Violations)
				require.Contains(t, found.Violations[0], "exceeded its limit")
				require.NotContains(t, last, "violations=0")
			}
		})
	}
}

func freezeHolder(c *campaign.Campaign, _ *rand.Rand) (string, func() error, error) {
	return c.Disturb(c.LongestHolder(), func(l campaign.Link) { l.Hold(true, true) })
}
