// Package bubble keeps the race detector alive in bubbles of testing/synctest.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

var (
	mu       sync.Mutex
	entered  int // bubbles not left yet
	outside  int // processors used otherwise
	detector bool
)

// Enter is called in a bubble before the bubble's goroutines use timers, and leave when
// they no longer do. With the race detector, the program uses one processor in between: all
// timers of a bubble share one context of the detector, and two firing at the same time on
// two processors corrupt the context, so that the program crashes at some later time
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

// Inside reports whether the caller runs in a bubble, whose time begins at midnight of
// January 1, 2000.
func Inside() bool { return time.Now().UTC().Year() < 2020 }

// RaceDetector reports whether the program has the race detector.
func RaceDetector() bool { return detector }

// Running reports whether the program uses one processor because of a bubble.
func Running() bool {
	mu.Lock()
	defer mu.Unlock()
	return entered > 0
}

// Parallel is t.Parallel for a test in a bubble. With the race detector Parallel does
// nothing: beside bubbles keeping the one processor busy, the runtime looks at the network
// every 10 ms only, so a test on the network would wait for seconds.
func Parallel(t *testing.T) {
	if !detector {
		t.Parallel()
	}
}
