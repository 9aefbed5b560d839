package locktest

// This file measures time on a machine that may be slow.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// Clock measures a duration and, meanwhile, how late the machine is: a sleeping goroutine
// shows how late threads are scheduled. On a machine with shared processors, delays of 0.1
// s and more have been seen.
type Clock struct {
	start time.Time
	stop  chan struct{}
	late  chan time.Duration
}

// StartClock starts a clock. [Clock.Took] or [Clock.Late] must be called to stop the clock.
func StartClock() *Clock {
	c := &Clock{start: time.Now(), stop: make(chan struct{}), late: make(chan time.Duration)}
	go func() { // ends with Late
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

// Took stops the clock and requires a duration from atLeast to atMost. Outside a bubble, Took
// allows for three late wake-ups in a row (a call ended by its deadline is woken by the
// deadline, by the end of the grace period and by the call's goroutine), and for half a second
// in which one thread, or the service, stood still.
func (c *Clock) Took(t testing.TB, atLeast, atMost time.Duration, what string) {
	t.Helper()
	elapsed := time.Since(c.start)
	late := c.Late()
	require.GreaterOrEqual(t, elapsed, atLeast, what)
	if !bubble.Inside() {
		atMost += 3*late + 500*time.Millisecond
	}
	require.LessOrEqual(t, elapsed, atMost, "%s (the machine itself was up to %v late)", what, late)
}

// Late stops the clock, and returns how late the machine was at most.
func (c *Clock) Late() time.Duration {
	close(c.stop)
	return <-c.late
}
