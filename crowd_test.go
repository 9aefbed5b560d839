package lockpool_test

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

	"github.com/lockpool/lockpool/testing/zktest"
)

var crowd = flag.Int("crowd", 2500, "how many goroutines wait in TestManyWaitersCostNoSession")

// Each of the waiters lists the whole queue when it joins, and all do so again
// after a reconnect. That must not keep their sessions from proving that they
// live.
func TestManyWaitersCostNoSession(t *testing.T) { // measures time: not beside others
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	proxy := zktest.StartProxy(t, own.Addr())
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	b.ctx = ctx
	holder := b.lock(b.pool(), "a")
	b.addr = proxy.Addr()
	var told bytes.Buffer
	cfg := b.config()
	cfg.Logger = slog.New(slog.NewTextHandler(&told, nil))
	p := b.poolWith(cfg)
	unrelated := b.lock(p, "unrelated")

	waiting, giveUp := context.WithCancel(b.ctx)
	defer giveUp()
	var all sync.WaitGroup
	var granted atomic.Int32
	clock := time.Now()
	for range *crowd {
		all.Go(func() {
			l, err := p.Lock(waiting, "a")
			if err == nil {
				granted.Add(1)
				err = l.Unlock(b.ctx)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	children := func() int {
		_, stat, err := b.admin.Exists(b.chroot + "/a")
		require.NoError(t, err)
		return int(stat.NumChildren)
	}
	// Every waiter but the first watches the one before it.
	watching := func() bool {
		return unrelated.Depth() == 0 || children() == *crowd+1 && b.stat(own, "zk_watch_count") >= *crowd
	}
	for !watching() {
		require.NoError(t, b.ctx.Err())
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("%d wait after %v", *crowd, time.Since(clock))
	require.NotZero(t, unrelated.Depth(), "an unrelated lock was lost while they queued")

	clock = time.Now()
	proxy.Cut(zktest.Selector{})
	b.until(func() bool { return b.stat(own, "zk_watch_count") < *crowd/2 || unrelated.Depth() == 0 }, "the cut")
	for !watching() {
		require.NoError(t, b.ctx.Err())
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("they wait again after %v", time.Since(clock))
	require.NotZero(t, unrelated.Depth(), "an unrelated lock was lost after the reconnect")
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("%d MB in use, %d MB at the most", memory.HeapInuse>>20, memory.HeapSys>>20)
	require.Less(t, memory.HeapInuse, uint64(100<<20), "waiters keep listings")

	b.unlock(holder)
	b.until(func() bool { return granted.Load() > 100 }, "that the lock is passed on")
	clock = time.Now()
	giveUp()
	all.Wait()
	t.Logf("they gave up after %v", time.Since(clock))
	require.NoError(t, unrelated.Verify(b.ctx))
	b.unlock(unrelated)
	require.NoError(t, p.Close())
	require.NotContains(t, told.String(), "session lost")
}
