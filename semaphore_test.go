package lockpool_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestSemaphoreGrantsUpToItsLimit(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	var held []*lockpool.Lock
	for i := range 3 {
		pool := []*lockpool.Pool{p, others}[i%2]
		held = append(held, b.Acquire(pool.Semaphore("s", 3), 1))
	}
	require.Len(t, b.Children("s/leases"), 3)
	require.Empty(t, b.Children("s/locks"))
	_, err := others.Semaphore("s", 3).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	require.ErrorIs(t, err, lockpool.ErrLocked)
	fourth := b.EnqueueForPermits(p.Semaphore("s", 3), 1, 1)
	_, err = others.Semaphore("s", 3).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	require.ErrorIs(t, err, lockpool.ErrLocked, "a caller waits")
	fourth.StillWaits()
	b.Unlock(held[1])
	b.Unlock(fourth.Granted())
	one, err := others.Semaphore("s", 3).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	require.NoError(t, err)
	b.Unlock(one)
	b.Unlock(held[0])
	b.Unlock(held[2])
	require.ErrorIs(t, held[2].Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.Empty(t, b.Children("s/leases"))
	require.Empty(t, b.Children("s/locks"))
}

func TestInvalidAcquireIsRejected(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	for _, bad := range []struct {
		name     string
		limit, n int
		text     string
	}{
		{"s", 3, 0, "ask for at least one"},
		{"s", 3, -1, "ask for at least one"},
		{"s", 3, 4, "more than the limit of 3"},
		{"s", -1, 1, "limit -1 is not between"},
		{"/s", 3, 1, "begins with a slash"},
		{"s", 100_000, 50_000, "ask for at most"},
	} {
		_, err := p.Semaphore(bad.name, bad.limit).Acquire(b.Ctx, bad.n)
		require.ErrorContains(t, err, bad.text)
		_, err = p.Semaphore(bad.name, bad.limit).Acquire(b.Ctx, bad.n, lockpool.WaitAtMost(0))
		require.ErrorContains(t, err, bad.text)
	}
	require.ErrorContains(t, p.Semaphore("s", 0).SetLimit(b.Ctx, -1), "limit -1 is not between")
	require.ErrorIs(t, p.Semaphore("s/", 0).SetLimit(b.Ctx, 1), lockpool.ErrInvalidName)
	require.ErrorContains(t, p.Semaphore("s", 1).Do(b.Ctx, 1, nil), "function is nil")
	require.Empty(t, b.Children("s/leases"))
}

func TestPermitsAreReentrant(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	sem := p.Semaphore("s", 3)
	held := b.Acquire(sem, 2)
	ctx := held.Context(b.Ctx)
	inner, err := sem.Acquire(ctx, 1)
	require.NoError(t, err)
	require.Len(t, b.Children("s/leases"), 2)
	_, err = sem.Acquire(ctx, 3)
	require.ErrorIs(t, err, lockpool.ErrUpgrade)
	_, err = p.Lock(ctx, "s")
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	own := b.Acquire(sem, 1) // its context carries no holder
	require.Len(t, b.Children("s/leases"), 3)
	b.Unlock(own)
	token, err := held.Token(b.Ctx)
	require.NoError(t, err)
	require.Positive(t, token)
	b.Unlock(held)
	require.NoError(t, inner.Verify(b.Ctx))
	b.Unlock(inner)
	require.Empty(t, b.Children("s/leases"))

	require.NoError(t, sem.Do(b.Ctx, 3, func(ctx context.Context) error {
		return sem.Do(ctx, 3, func(context.Context) error { return nil })
	}))
	h := b.Handle(p)
	one, err := h.Semaphore("s", 3).Acquire(b.Ctx, 1)
	require.NoError(t, err)
	same, err := h.Semaphore("s", 3).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	require.NoError(t, err)
	require.Len(t, b.Children("s/leases"), 1)
	b.Unlock(one)
	b.Unlock(same)
	require.NoError(t, h.Close(b.Ctx))
}

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
		began := time.Now()
		_, err = p.Semaphore("s", 1).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
		require.ErrorIs(t, err, lockpool.ErrLocked)
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

func TestQueueTellsPermitHoldersAndWaitersApart(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(lockpool.WithOwner("billing")), b.Pool()
	first, second := b.Acquire(p.Semaphore("s", 4), 1), b.Acquire(others.Semaphore("s", 4), 2)
	w := b.EnqueueForPermits(p.Semaphore("s", 4), 2, 1)
	b.AwaitQueue("s/leases", 5)
	behind := b.EnqueueForPermits(others.Semaphore("s", 4), 1, 2)
	_, err := b.Admin.Create(b.Chroot+"/s/note", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	q, err := others.Queue(b.Ctx, "s")
	require.NoError(t, err)
	require.Equal(t, []string{"note"}, q.Foreign)
	var got []string
	for _, c := range q.Contenders {
		got = append(got, fmt.Sprint(c.Kind, " ", c.Holds, " ", c.Permits, " ", c.Owner))
	}
	require.Equal(t, []string{"semaphore true 1 billing", "semaphore true 2 lockpool.test", "semaphore false 2 billing", "semaphore false 0 lockpool.test"}, got)
	names, err := p.List(b.Ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"s"}, names)

	// A waiter whose node is removed queues again; a holder has lost its permits.
	require.NoError(t, p.Break(b.Ctx, "s", q.Contenders[1].Node))
	<-second.Lost()
	got2 := w.Granted()
	b.Unlock(behind.Granted())
	b.Unlock(got2)
	b.Unlock(first)
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/note", -1))
}

// The four writes create the guard and the leases, and remove both.
func TestFreePermitsCostFourWrites(t *testing.T) {
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	sem := b.Pool().Semaphore("s", 5)
	b.Unlock(b.Acquire(sem, 3))
	var writes atomic.Int32
	own.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.Pass(), Match: zktest.Match{Where: func(r zktest.Request) bool {
		if r.Op == zktest.OpCreate || r.Op == zktest.OpDelete || r.Op == zktest.OpMulti && r.Paths[0] != "/" {
			writes.Add(1)
		}
		return true
	}}})
	b.Unlock(b.Acquire(sem, 3))
	require.Equal(t, int32(4), writes.Load())
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
	asked := true
	select {
	case <-holder.Revoked():
	case <-time.After(time.Second):
		asked = false
	}
	b.Unlock(holder)
	b.Unlock(w3.Granted())
	var got []string
	for _, c := range q.Contenders {
		got = append(got, fmt.Sprint(c.Holds, " ", c.Permits))
	}
	require.True(t, asked, "Revoke reached no holder")
	require.Equal(t, []string{"true 1", "false 1"}, got)
}

// A request that cannot be sent is rejected before the guard is taken and before
// memory is allocated for it.
func TestOversizedAcquireIsRejectedBeforeAnythingIsSent(t *testing.T) {
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	p := b.Pool()
	require.NoError(t, p.Ping(b.Ctx))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := p.Semaphore("s", 1<<24).Acquire(b.Ctx, 1<<24)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "ask for at most")
	sent := 0
	for _, r := range own.Trace() {
		if r.Kind == zktest.Requested && strings.Contains(r.String(), b.Chroot+"/s") {
			sent++
		}
	}
	t.Logf("%d MB, %d requests", (after.TotalAlloc-before.TotalAlloc)>>20, sent)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(16), "MB for a rejected request")
	require.Zero(t, sent, "requests")
}

// A huge number is an error, not a panic that leaves the guard behind.
func TestHugeAcquireIsAnError(t *testing.T) {
	t.Parallel()
	b := locktest.NewOn(t, zktest.Start(t))
	p := b.Pool()
	sem := p.Semaphore("s", 0)
	require.NoError(t, sem.SetLimit(b.Ctx, 5))
	held := b.Acquire(sem, 1)
	defer b.Unlock(held)
	h := b.Handle(poolThatMayHang(b))
	require.NotPanics(t, func() {
		_, err := h.Semaphore("s", 0).Acquire(b.Ctx, math.MaxInt, lockpool.WaitAtMost(0))
		require.Error(t, err)
	})
}

// poolThatMayHang returns a pool whose Close may hang, as it did after a panic.
func poolThatMayHang(b *locktest.Bench) *lockpool.Pool {
	p, err := lockpool.Open("zookeeper", b.Addr+b.Chroot)
	require.NoError(b, err)
	b.Cleanup(func() {
		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		select {
		case <-closed:
		case <-time.After(8 * time.Second):
			b.Error("Close hangs")
		}
	})
	return p
}

// The reply to the transaction that creates the leases is lost, and one lease is
// removed before the session looks for them.
func TestRemainingLeasesAreRemovedWhenOneIsMissing(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
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
