package lockpool_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

// With -server real, the allocations are those of the client alone.
func BenchmarkLockAndUnlock(b *testing.B) {
	for _, workers := range []int{1, 64} {
		b.Run("workers="+strconv.Itoa(workers), func(b *testing.B) {
			h := locktest.New(b)
			p := h.Pool()
			var left atomic.Int64
			left.Store(int64(b.N))
			var ready, all sync.WaitGroup
			ready.Add(workers)
			start := make(chan struct{})
			for i := range workers {
				all.Go(func() {
					name := strconv.Itoa(i)
					handle := h.Handle(p)
					l, err := handle.Lock(h.Ctx, name)
					for range 20 { // until the queue need not be listed
						require.NoError(b, err)
						require.NoError(b, l.Unlock(h.Ctx))
						l, err = handle.Lock(h.Ctx, name)
					}
					ready.Done()
					<-start
					for err == nil && left.Add(-1) >= 0 {
						if err = l.Unlock(h.Ctx); err == nil {
							l, err = handle.Lock(h.Ctx, name)
						}
					}
					require.NoError(b, err)
					require.NoError(b, l.Unlock(h.Ctx))
				})
			}
			ready.Wait()
			b.ReportAllocs()
			b.ResetTimer()
			close(start)
			all.Wait()
		})
	}
}
