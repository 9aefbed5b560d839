package lockpool_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Who made its lease when others stood behind it for the guard holds, once it was
// granted: with three waiters this happens without any fault.
func TestHolderOfPermitsIsShownAndAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	first := b.acquire(p.Semaphore("s", 1), 1)
	w1 := b.awaitPermits(p.Semaphore("s", 1), 1, 1)
	w2 := b.awaitPermits(p.Semaphore("s", 1), 1, 2)
	w3 := b.awaitPermits(others.Semaphore("s", 1), 1, 3)
	b.release(first)
	second := b.obtained(w1)
	b.queued("s/leases", 2) // w2 has the guard, and a lease that is younger than the guard's node of w3
	b.release(second)
	holder := b.obtained(w2)
	b.queued("s/leases", 2) // w3 waits with the guard
	q, err := p.Queue(b.ctx, "s")
	require.NoError(t, err)
	require.NoError(t, p.Revoke(b.ctx, "s"))
	asked := true
	select {
	case <-holder.Revoked():
	case <-time.After(time.Second):
		asked = false
	}
	b.release(holder)
	b.release(b.obtained(w3))
	var got []string
	for _, c := range q.Contenders {
		got = append(got, fmt.Sprint(c.Holds, " ", c.Permits))
	}
	require.True(t, asked, "Revoke asked nobody")
	require.Equal(t, []string{"true 1", "false 1"}, got)
}

// A limit that was lowered before the lease was made, and whose event came
// before the reply, grants nothing any more.
func TestLimitThatWasLoweredBeforeTheGrantCounts(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	over := 0
	const turns = 40
	for i := range turns {
		name := fmt.Sprint("s", i)
		p, others := b.pool(), b.pool()
		sem := others.Semaphore(name, 0)
		require.NoError(t, sem.SetLimit(b.ctx, 2))
		first := b.acquire(sem, 1)
		var lowered atomic.Bool
		fault := own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.chroot + "/" + name + "/leases/", Ops: zktest.Creates},
			Do: zktest.Call(func(zktest.Request) { // an operator lowers it, and has the answer, before the lease is made
				lowered.Store(own.Set(b.chroot+"/"+name+"/limit", []byte{0, 0, 0, 1}) == nil)
			}),
		})
		second, err := p.Semaphore(name, 0).TryAcquire(b.ctx, 1)
		require.NoError(t, fault.Wait(b.ctx))
		require.True(t, lowered.Load())
		if err == nil {
			over++
			b.release(second)
		} else {
			require.ErrorIs(t, err, lockpool.ErrLocked)
		}
		b.release(first)
		require.NoError(t, p.Close())
		require.NoError(t, others.Close())
	}
	require.Zero(t, over, "of %d grants were over the limit when they were made", turns)
}

// What can not be sent is refused before the guard is taken, and before memory
// is taken for it.
func TestTooManyPermitsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	require.NoError(t, p.Ping(b.ctx))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := p.Semaphore("s", 1<<24).Acquire(b.ctx, 1<<24)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "ask for at most")
	sent := 0
	for _, r := range own.Trace() {
		if r.Kind == zktest.Requested && strings.Contains(r.String(), b.chroot+"/s") {
			sent++
		}
	}
	t.Logf("%d MB, %d requests", (after.TotalAlloc-before.TotalAlloc)>>20, sent)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(16), "MB for a request that is refused")
	require.Zero(t, sent, "requests")
}

// An absurd number is an error, not a panic that leaves the guard taken.
func TestAbsurdNumberOfPermitsIsAnError(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, zktest.Start(t).Addr())
	p := b.pool()
	sem := p.Semaphore("s", 0)
	require.NoError(t, sem.SetLimit(b.ctx, 5))
	held := b.acquire(sem, 1)
	defer b.release(held)
	s := b.session(b.leakyPool())
	require.NotPanics(t, func() {
		_, err := s.Semaphore("s", 0).TryAcquire(b.ctx, math.MaxInt)
		require.Error(t, err)
	})
}

// leakyPool is one that the test does not close: it hangs after a panic.
func (b *bench) leakyPool() *lockpool.Pool {
	p, err := lockpool.Open("zookeeper", b.addr+b.chroot)
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

// The reply to the creation of several leases is lost, and somebody removes one of
// them before they are looked for.
func TestRestOfLeasesIsRemovedWhenOneIsGone(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(), b.pool()
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/s/leases/", Ops: []zktest.Op{zktest.OpMulti}},
		Do:    zktest.DropAfterApply(),
	})
	own.Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}},
		Do: zktest.Call(func(zktest.Request) {
			var leases []string
			for path := range own.State().Nodes {
				if strings.HasPrefix(path, b.chroot+"/s/leases/") {
					leases = append(leases, path)
				}
			}
			for _, path := range leases {
				if strings.HasSuffix(path, "1") {
					_ = own.Delete(path)
				}
			}
		}),
		Skip: 2, // the pools' own
	})
	require.NoError(t, others.Ping(b.ctx))
	require.NoError(t, p.Ping(b.ctx))
	permits := b.acquire(p.Semaphore("s", 3), 3)
	b.release(permits)
	b.until(func() bool { return len(b.children("s/leases")) == 0 }, "a lease is left behind, for as long as the session lives")
}

// Who waits for a higher limit waits.
func TestWhoWaitsForAHigherLimitIsCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	sem := p.Semaphore("s", 0)
	require.NoError(t, sem.SetLimit(b.ctx, 1))
	w := b.beginPermits(sem, 2)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it is counted")
	w.cancel()
	<-w.done
	require.NoError(t, b.admin.Delete(b.chroot+"/s/limit", -1))
}
