package lockpool_test

// This file tests many waiters and contenders.

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

var crowd = flag.Int("crowd", 2500, "how many goroutines wait in TestManyWaitersCostNoSession")

// Each waiter lists the whole queue when it joins, and again after a reconnection.
// These listings must not delay the requests that keep the sessions' leases.
func TestManyWaitersCostNoSession(t *testing.T) { // measures time, so not parallel
	own := locktest.StartServer(t)
	b := locktest.NewOn(t, own).AtService()
	proxy := zktest.StartProxy(t, own.Addr())
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	b.Ctx = ctx
	const timeout = 20 * time.Second // the server has the same processors, and the race detector
	holder := b.Lock(b.PoolWithTimeout(timeout), "a")
	b.Addr = proxy.Addr()
	var log bytes.Buffer
	cfg := b.Config()
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	cfg.SessionTimeout = timeout
	p := b.PoolWith(cfg)
	unrelated := b.Lock(p, "unrelated")

	waiting, giveUp := context.WithCancel(b.Ctx)
	defer giveUp()
	var all sync.WaitGroup
	var granted atomic.Int32
	clock := time.Now()
	for range *crowd {
		all.Go(func() {
			l, err := p.Lock(waiting, "a")
			if err == nil {
				granted.Add(1)
				err = l.Unlock(b.Ctx)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	children := func() int {
		_, stat, err := b.Admin.Exists(b.Chroot + "/a")
		require.NoError(t, err)
		return int(stat.NumChildren)
	}
	// Every waiter but the first watches the one before it.
	watching := func() bool {
		return unrelated.Depth() == 0 || children() == *crowd+1 && b.Stat(own, "zk_watch_count") >= *crowd
	}
	for !watching() {
		require.NoError(t, b.Ctx.Err())
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d wait after %v", *crowd, time.Since(clock))
	require.NotZero(t, unrelated.Depth(), "an unrelated lock was lost while they queued")

	clock = time.Now()
	proxy.Cut(zktest.Selector{})
	b.Until(func() bool { return b.Stat(own, "zk_watch_count") < *crowd/2 || unrelated.Depth() == 0 }, "the waiters have lost their connections")
	for !watching() {
		require.NoError(t, b.Ctx.Err())
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("they wait again after %v", time.Since(clock))
	require.NotZero(t, unrelated.Depth(), "an unrelated lock was lost after the reconnect")
	var memory runtime.MemStats
	runtime.GC()
	runtime.GC() // sweeps what earlier tests have left
	runtime.ReadMemStats(&memory)
	t.Logf("%d MB live, %d MB at the most", memory.HeapAlloc>>20, memory.HeapSys>>20)
	require.Less(t, memory.HeapAlloc, uint64(100<<20), "waiters keep their listings in memory") // spans of earlier tests do not count

	b.Unlock(holder)
	b.Until(func() bool { return granted.Load() > 100 }, "the lock is passed on")
	clock = time.Now()
	giveUp()
	all.Wait()
	t.Logf("they gave up after %v", time.Since(clock))
	require.NoError(t, unrelated.Verify(b.Ctx))
	b.Unlock(unrelated)
	require.NoError(t, p.Close())
	require.NotContains(t, log.String(), "session lost")
}

func TestTenThousandContendersAreAwaited(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	b.Unlock(b.Lock(p, "a"))
	remove := b.CreateContenders("a", 10_000)
	_, err := p.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.Enqueue(p, "a", 10_001)
	remove()
	b.Unlock(w.Granted())
}
