package bubble

// This file has the test of the detector.

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Without Enter, this crashes within a second with the race detector.
func TestTimersThatFireAtOnceDoNotCrashTheRaceDetector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer Enter()()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50_000 {
					<-time.After(0)
				}
			})
		}
		wg.Wait()
	})
}
