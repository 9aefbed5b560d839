package lockpool_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clock measures how long something takes, and meanwhile the machine: a
// goroutine that does nothing but sleep shows how late threads are run. On a
// machine that shares its processors, that was seen to be 0.1 s and more.
type clock struct {
	start time.Time
	stop  chan struct{}
	late  chan time.Duration
}

func startClock() *clock {
	c := &clock{start: time.Now(), stop: make(chan struct{}), late: make(chan time.Duration)}
	go func() {
		const nap = time.Millisecond
		var late time.Duration
		for {
			began := time.Now()
			select {
			case <-time.After(nap):
				late = max(late, time.Since(began)-nap)
			case <-c.stop:
				c.late <- max(late, time.Since(began)-nap)
				return
			}
		}
	}()
	return c
}

// took stops the clock and requires that it ran for at least atLeast and at
// most atMost. What comes late three times in a row, as a call does that is
// woken by its deadline, by the end of its grace and by its goroutine, is not
// blamed for the machine.
func (c *clock) took(t testing.TB, atLeast, atMost time.Duration, what string) {
	t.Helper()
	elapsed := time.Since(c.start)
	close(c.stop)
	late := <-c.late
	require.GreaterOrEqual(t, elapsed, atLeast, what)
	require.LessOrEqual(t, elapsed, atMost+3*late, "%s (the machine itself was up to %v late)", what, late)
}
