package ensemble

// This file has what the tests share.

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

var cuts = flag.Int("cuts", 3, "how often a follower is partitioned from the others")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	tick = 500 * time.Millisecond
	// timeout is the shortest session timeout granted by the servers. It brings the lease
	// as close to its limits as possible.
	timeout = 2 * tick
	// patience is how long tests wait for what must happen before they fail.
	patience = 2 * time.Minute
)

func start(t *testing.T, opts ...zktest.RealOption) *zktest.RealEnsemble {
	return zktest.StartRealEnsemble(t, 3, append(opts, zktest.Separated(), zktest.TickTime(tick))...)
}

// open returns a pool of one session on the given servers, closed at the end of the test.
// The pool keeps locks.
func open(t *testing.T, session time.Duration, servers ...string) *lockpool.Pool {
	connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: servers, Chroot: "/locks", SessionTimeout: session})
	require.NoError(t, err)
	return locktest.Open(t, connector, lockpool.WithMaxSessions(1), lockpool.WithKeptLocks(0, time.Hour))
}

// follower returns the index of a follower, other than last if there is a choice.
func follower(e *zktest.RealEnsemble, leader *zktest.RealServer, last int) (i int) {
	for n := 1; n <= e.Len(); n++ {
		if i = (last + n) % e.Len(); e.Member(i) != leader {
			break
		}
	}
	return i
}

func index(e *zktest.RealEnsemble, s *zktest.RealServer) (i int) {
	for e.Member(i) != s {
		i++
	}
	return i
}

// awaitSynced waits until all other members follow a leader, and returns it. A restarted
// member may not be in sync yet: with another member cut off, the leader would have no
// majority.
func awaitSynced(t *testing.T, ctx context.Context, e *zktest.RealEnsemble) (leader *zktest.RealServer) {
	require.Eventually(t, func() bool {
		var err error
		if leader, err = e.Leader(ctx); err != nil {
			return false
		}
		n, err := leader.Stat(ctx, "zk_synced_followers")
		return err == nil && int(n) == e.Len()-1
	}, patience, 20*time.Millisecond)
	return leader
}
