// Package bubble keeps the race detector alive in bubbles of testing/synctest.
package bubble

import (
	"runtime"
	"sync"
)

var (
	mu       sync.Mutex
	entered  int // bubbles that have not been left
	outside  int // processors that the program uses otherwise
	detector bool
)

// Enter is called in a bubble before its goroutines use timers, and leave when they no
// longer do. With the race detector, the program uses one processor in between: all
// timers of a bubble share one context of the detector, and two that fire at the same
// time on two processors corrupt it, so that the program crashes at some later time
// (golang/go#78156).
func Enter() (leave func()) {
	if !detector {
		return func() {}
	}
	mu.Lock()
	defer mu.Unlock()
	if entered++; entered == 1 {
		outside = runtime.GOMAXPROCS(1)
	}
	return sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		if entered--; entered == 0 {
			runtime.GOMAXPROCS(outside)
		}
	})
}
