package lockpool_test

// This file tests that the contexts of calls and of locks leak nothing.

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// 2,000 attempts at a held lock leak neither memory nor goroutines nor watches.
func TestTwoThousandTimeoutsLeakNothing(t *testing.T) {
	locktest.Once(t)
	own := zktest.StartReal(t) // in its own process, because this one's heap is measured
	b := locktest.NewOn(t, own).AtService()
	b.Ctx = context.Background() // it takes longer than other tests
	p := b.Pool()
	holder := b.Lock(p, "a")
	attempts := func(each int) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range each {
					ctx, cancel := context.WithTimeout(b.Ctx, 5*time.Millisecond)
					_, err := p.Lock(ctx, "a")
					cancel()
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				}
			})
		}
		wg.Wait()
	}
	attempts(20)
	before, goroutines := heap(), runtime.NumGoroutine()
	attempts(250)
	b.AwaitQueue("a", 1)
	require.LessOrEqual(t, b.Stat(own, "zk_watch_count"), 2, "all waiters share one on the holder's node, and one is on the queue")
	b.Until(func() bool { return runtime.NumGoroutine() <= goroutines }, "the goroutines have ended")
	require.InDelta(t, before, heap(), 200<<10)
	b.Unlock(holder)
	b.Until(func() bool { return b.Stat(own, "zk_watch_count") <= 1 }, "the watch on the holder's node goes with the node")
}

// A service may pass Context the context of its own lifetime.
func TestLockContextsAreFreedWithTheLock(t *testing.T) {
	b := locktest.New(t)
	h := b.Handle(b.Pool())
	lifetime, cancel := context.WithCancel(context.Background())
	defer cancel()
	use := func(n int) {
		for range n {
			l := b.Lock(h, "a")
			for range 100 {
				_ = l.Context(lifetime)
			}
			b.Unlock(l)
		}
	}
	use(10)
	before := heap()
	const more = 100
	use(more)
	require.Less(t, (heap()-before)/(100*more), 100, "bytes for each context")
	require.NoError(t, h.Close(b.Ctx))
}
