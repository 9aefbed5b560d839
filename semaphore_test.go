package lockpool_test

// This file tests semaphores.

import (
	"fmt"
	"math"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestRemovalOfOneLeaseLosesAllPermits(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	held := b.Acquire(p.Semaphore("s", 3), 3)
	_, err := held.Token(b.Ctx)
	require.NoError(t, err)
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/leases/"+b.Children("s/leases")[1], -1))
	<-held.Lost()
	require.ErrorIs(t, held.Unlock(b.Ctx), lockpool.ErrLockLost)
	b.Until(func() bool { return len(b.Children("s/leases")) == 0 }, "the other leases are removed")
}

// A call that does not wait must not wait forever for a guard whose holder does nothing.
func TestTryAcquireGivesUpOnAStuckGuard(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		b.Unlock(b.Acquire(p.Semaphore("s", 1), 1))
		guard, err := b.Admin.CreateProtectedEphemeralSequential(b.Chroot+"/s/locks/lock-", nil, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		second, err := b.Admin.CreateProtectedEphemeralSequential(b.Chroot+"/s/locks/lock-", nil, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		began := time.Now()
		_, err = p.Semaphore("s", 1).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
		require.ErrorIs(t, err, lockpool.ErrLocked)
		require.ErrorContains(t, err, path.Base(guard))
		require.NoError(t, b.Admin.Delete(second, -1))
		require.Less(t, time.Since(began), 5*time.Second)
		got := make(chan error)
		go func() {
			permits, err := p.Semaphore("s", 1).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
			if err == nil {
				err = permits.Unlock(b.Ctx)
			}
			got <- err
		}()
		b.AwaitQueue("s/locks", 2)
		require.NoError(t, b.Admin.Delete(guard, -1))
		require.NoError(t, <-got, "a guard that is released soon is awaited")
	})
}

// With three waiters, without any fault, a holder's lease is younger than the
// guard's node of a waiter. It must still be recognized as a holder.
func TestPermitHolderIsListedAndRevoked(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	first := b.Acquire(p.Semaphore("s", 1), 1)
	w1 := b.EnqueueForPermits(p.Semaphore("s", 1), 1, 1)
	w2 := b.EnqueueForPermits(p.Semaphore("s", 1), 1, 2)
	w3 := b.EnqueueForPermits(others.Semaphore("s", 1), 1, 3)
	b.Unlock(first)
	second := w1.Granted()
	b.AwaitQueue("s/leases", 2) // w2 has the guard, and a lease younger than w3's guard node
	b.Unlock(second)
	holder := w2.Granted()
	b.AwaitQueue("s/leases", 2) // w3 has the guard and waits
	q, err := p.Queue(b.Ctx, "s")
	require.NoError(t, err)
	require.NoError(t, p.Revoke(b.Ctx, "s"))
	b.AwaitRevocation(holder)
	b.Unlock(holder)
	b.Unlock(w3.Granted())
	var got []string
	for _, c := range q.Contenders {
		got = append(got, fmt.Sprint(c.Holds, " ", c.Permits))
	}
	require.Equal(t, []string{"true 1", "false 1"}, got)
}

// A request that cannot be sent is rejected before the guard is taken and before
// memory is allocated for it.
func TestOversizedAcquireIsRejectedBeforeAnythingIsSent(t *testing.T) {
	b, own := locktest.NewEmbedded(t)
	p := b.Pool()
	require.NoError(t, p.Ping(b.Ctx))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sent := locktest.Requests(own, func() {
		for limit, n := range map[int]int{1 << 24: 1 << 24, 0: math.MaxInt} {
			_, err := p.Semaphore("s", limit).Acquire(b.Ctx, n)
			require.ErrorContains(t, err, "ask for at most")
		}
	})
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(16), "MB for a rejected request")
	require.NotContains(t, fmt.Sprint(sent), b.Chroot+"/s")
}

// The reply to the transaction that creates the leases is lost, and one lease is
// removed before the session looks for them.
func TestRemainingLeasesAreRemovedWhenOneIsMissing(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others := b.Pool(), b.Pool()
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/s/leases/", Ops: []zktest.Op{zktest.OpMulti}},
		Do:    zktest.DropAfterApply(),
	})
	own.Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}},
		Do: zktest.Call(func(zktest.Request) {
			var leases []string
			for path := range own.State().Nodes {
				if strings.HasPrefix(path, b.Chroot+"/s/leases/") {
					leases = append(leases, path)
				}
			}
			for _, path := range leases {
				if strings.HasSuffix(path, "1") {
					_ = own.Delete(path)
				}
			}
		}),
		Skip: 2, // the first connections of the pools
	})
	require.NoError(t, others.Ping(b.Ctx))
	require.NoError(t, p.Ping(b.Ctx))
	permits := b.Acquire(p.Semaphore("s", 3), 3)
	b.Unlock(permits)
	b.Until(func() bool { return len(b.Children("s/leases")) == 0 }, "no lease is left")
}
