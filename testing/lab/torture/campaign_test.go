//go:build linux

package main

// This file tests the campaign on ZooKeeper: short runs, leaked nodes and planted losses.

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign"
	"github.com/lockpool/lockpool/testing/lab/torture/campaign/campaigntest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestCampaignFindsNoViolation(t *testing.T) {
	t.Parallel()
	campaigntest.FindsNoViolation(t, engine)
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
	for name, change := range map[string]func(*campaign.Options){
		"with lease":       func(*campaign.Options) {},
		"ignoring losses":  func(o *campaign.Options) { o.IgnoreLosses = true },
		"with slow clocks": func(o *campaign.Options) { o.ClockRate = 0.1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each has a separate ensemble, and mostly waits
			campaigntest.FindsOverlap(t, engine, name != "with lease", change)
		})
	}
}
