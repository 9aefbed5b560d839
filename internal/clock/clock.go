// Package clock provides the clock for leases. The clock keeps running while the machine is
// suspended. Tests can simulate machines with clocks at a wrong rate, or stopped, to see
// how much a lease tolerates.
package clock

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Clock measures the time since its start: Go's monotonic clock, stopped on most systems
// while the machine is suspended, plus the suspensions reported by the system. Virtual time
// (testing/synctest) is thus left alone.
type Clock struct {
	start   time.Time
	before  state    // at the start
	machine *Machine // nil for the machine of this process
}

// Start starts a clock, on the context's Machine if there is one.
func Start(ctx context.Context) Clock {
	m, _ := ctx.Value(machineKey{}).(*Machine)
	now := time.Now()
	measureSuspension(now)
	return Clock{now, m.read(), m}
}

// Now returns the time since the start. On Linux, a call after the wall clock has moved
// takes two system calls.
func (c Clock) Now() time.Duration {
	elapsed, _ := c.Read()
	return elapsed
}

// Read returns Now and Skew, and reads the system's clock once for both.
func (c Clock) Read() (elapsed, skew time.Duration) {
	now := time.Now()
	if c.machine == nil { // what happens to a simulated one is known
		measureSuspension(now)
	}
	m := c.machine.read()
	return c.elapsed(now.Sub(c.start), m), c.skew(now, m)
}

// AtLeast is Now without system calls. AtLeast counts only suspensions seen by an earlier
// Now of any clock, and so may return less than Now.
func (c Clock) AtLeast() time.Duration {
	return c.elapsed(time.Since(c.start), c.machine.read())
}

// elapsed returns the time since the start if d has passed on Go's clock.
func (c Clock) elapsed(d time.Duration, m state) time.Duration {
	d -= m.stopped - c.before.stopped
	if m.rate != 0 {
		d = time.Duration(float64(d) * m.rate)
	}
	return d + m.suspended - c.before.suspended
}

// Span returns how long a timer must run for d to pass on the clock. While the machine is
// stopped, Span returns at least stoppedSpan, so that a wait for a time that does not come
// does not spin.
func (c Clock) Span(d time.Duration) time.Duration {
	m := c.machine.read()
	if m.rate != 0 {
		d = time.Duration(math.Ceil(float64(d) / m.rate))
	}
	if m.still {
		d = max(d, stoppedSpan)
	}
	return d
}

const stoppedSpan = 50 * time.Millisecond

// Skew returns how far the wall clock has moved ahead of this clock since the start, as of
// the last call of Now. The skew drifts slowly while the wall clock is being corrected. A
// jump means that the wall clock was set, or that this clock has missed time: the system
// does not report suspensions, or the machine is a virtual machine stopped from outside.
func (c Clock) Skew() time.Duration {
	return c.skew(time.Now(), c.machine.read())
}

func (c Clock) skew(now time.Time, m state) time.Duration {
	return now.Round(0).Sub(c.start.Round(0)) + (m.set - c.before.set) -
		(now.Sub(c.start) - (m.stopped - c.before.stopped)) - (m.suspended - c.before.suspended)
}

// Suspended returns how long the machine has been suspended since the start, as of the
// last call of Now.
func (c Clock) Suspended() time.Duration { return c.machine.read().suspended - c.before.suspended }

// Blame adds to the cause of a session's end that the machine was stopped meanwhile: for
// how long according to the system, or else that the wall clock has jumped.
func Blame(cause error, suspended time.Duration, jumped bool) error {
	switch {
	case suspended > 0:
		return fmt.Errorf("the machine was suspended for %v: %w", suspended.Round(time.Millisecond), cause)
	case jumped:
		return fmt.Errorf("the wall clock has jumped, as after a stop of the machine: %w", cause)
	}
	return cause
}

// suspended is how long the system is known to have been suspended, in
// nanoseconds.
var suspended atomic.Int64

// Machine is a simulated machine for tests: a test can suspend the machine, set the wall
// clock, and make the clocks run at a wrong rate. A nil Machine is the machine of this
// process.
type Machine struct {
	mu      sync.Mutex
	state   state
	stopped time.Time // when Stop was called; zero if the machine runs
}

// state is the state of a machine's clocks.
type state struct {
	suspended time.Duration // in total, as reported by the system
	stopped   time.Duration // for how long the monotonic clock stood still, although Go's ran
	set       time.Duration // how far the wall clock has jumped ahead
	rate      float64       // of all clocks; 0 means 1
	still     bool          // all clocks stand still
}

func (m *Machine) read() (s state) {
	if m != nil {
		m.mu.Lock()
		s = m.state
		if !m.stopped.IsZero() {
			s.still = true
			s.stopped += time.Since(m.stopped)
			s.set -= time.Since(m.stopped)
		}
		m.mu.Unlock()
	}
	s.suspended += time.Duration(suspended.Load())
	return s
}

// SetRate makes the machine's clocks run at a rate: at 0.97 they lose three seconds in a
// hundred. Call SetRate before a clock is started.
func (m *Machine) SetRate(rate float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.rate = rate
}

// Suspend suspends the machine for d: the monotonic clock stops for d, and the other clocks
// do not.
func (m *Machine) Suspend(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.suspended, m.state.set = m.state.suspended+d, m.state.set+d
}

// Stop stops all clocks of the machine until Resume, like a lasting suspension: in the
// virtual time of testing/synctest, Go's clock cannot stop for one machine. Timers of Go
// fire nevertheless.
func (m *Machine) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = time.Now()
}

// Resume ends Stop. If the system reports the suspension, the clock of leases advances by
// the length of the suspension, and otherwise only the wall clock does, as in a virtual
// machine stopped from outside.
func (m *Machine) Resume(reported bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := time.Since(m.stopped)
	m.stopped = time.Time{}
	m.state.stopped += d
	if reported {
		m.state.suspended += d
	}
}

// SetWallClock sets the wall clock forward by d, or back if d is negative.
func (m *Machine) SetWallClock(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.set += d
}

// On returns a copy of ctx. With the copy, Start starts clocks on m.
func (m *Machine) On(ctx context.Context) context.Context {
	return context.WithValue(ctx, machineKey{}, m)
}

type machineKey struct{}
