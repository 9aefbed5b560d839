package lockpool_test

// This file has the benchmark of a lock.

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// With -server real, the allocations are those of the client alone.
func BenchmarkLockAndUnlock(b *testing.B) {
	for _, workers := range []int{1, 64} {
		b.Run("workers="+strconv.Itoa(workers), func(b *testing.B) {
			h := locktest.New(b)
			p := h.Pool()
			handles := make([]*lockpool.Handle, workers)
			for i := range handles {
				handles[i] = h.Handle(p)
			}
			lockAndUnlock(b, h, handles, 20*workers) // from then on, queues need not be listed
			b.ReportAllocs()
			b.ResetTimer()
			lockAndUnlock(b, h, handles, b.N)
		})
	}
}

// lockAndUnlock has each handle take a lock of its own, n times in all.
func lockAndUnlock(b *testing.B, h *locktest.Bench, handles []*lockpool.Handle, n int) {
	var all sync.WaitGroup
	errs := make([]error, len(handles))
	for i, handle := range handles {
		all.Go(func() {
			name := strconv.Itoa(i)
			for turn := i; turn < n && errs[i] == nil; turn += len(handles) {
				var l *lockpool.Lock
				if l, errs[i] = handle.Lock(h.Ctx, name); errs[i] == nil {
					errs[i] = l.Unlock(h.Ctx)
				}
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(b, err)
	}
}
