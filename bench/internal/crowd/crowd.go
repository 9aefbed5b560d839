// Package crowd measures what it costs a process that many of its goroutines wait.
package crowd

import (
	"runtime"
	"time"
)

// Cost is the cost of a crowd.
type Cost struct {
	Time  time.Duration // until all wait
	Heap  int64         // bytes of the heap and of stacks
	Bytes int64         // from the server
}

// Gather starts n goroutines at once that call wait, and returns when waiting reports
// that all wait. The function received returns how many bytes have come from the server.
func Gather(n int, wait func(), waiting func() bool, received func() int64) Cost {
	heap, bytes := inUse(), received()
	start := time.Now()
	for range n {
		go wait()
	}
	for !waiting() {
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(start)
	return Cost{took, inUse() - heap, received() - bytes}
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools had kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
