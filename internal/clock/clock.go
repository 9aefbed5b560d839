// Package clock provides the clock that measures leases, which keeps running while the
// machine is suspended. Tests can make it run at a wrong rate, to see how much of that
// a lease tolerates.
package clock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// rate is only written before the first use of a clock.
var rate = 1.0

// Distort makes all clocks of the process run at the given rate: at 0.97 a clock loses
// three seconds in a hundred. Distort is for tests and must be called before anything
// else in this package.
func Distort(r float64) { rate = r }

// Span returns how long a timer must run for d to pass on this package's clocks.
func Span(d time.Duration) time.Duration {
	if rate == 1 {
		return d
	}
	return time.Duration(float64(d) / rate)
}

// Clock measures the time since its start: Go's monotonic clock, which on most
// systems stops while the machine is suspended, plus the suspensions that the
// system reports. Virtual time (testing/synctest) is thus left alone.
type Clock struct {
	start          time.Time
	suspended, set time.Duration // at the start
	machine        *Machine      // nil for the machine of this process
}

// Start starts a clock, on the context's Machine if it has one.
func Start(ctx context.Context) Clock {
	m, _ := ctx.Value(machineKey{}).(*Machine)
	measureSuspension()
	suspended, set := m.read()
	return Clock{time.Now(), suspended, set, m}
}

// Now returns the time since the start. It costs two system calls on Linux.
func (c Clock) Now() time.Duration {
	measureSuspension()
	return c.AtLeast()
}

// AtLeast is Now without system calls. It counts only suspensions that an
// earlier Now of any clock has seen, and so may return less than Now.
func (c Clock) AtLeast() time.Duration {
	d := time.Since(c.start)
	if rate != 1 {
		d = time.Duration(float64(d) * rate)
	}
	return d + c.Suspended()
}

// Skew returns how far the wall clock has moved ahead of this clock since the start, as
// of the last call of Now. It drifts slowly while the wall clock is being corrected. A
// jump means that the wall clock was set, or that time has passed that this clock has
// missed: the system does not report suspensions, or the machine is a virtual machine
// that was stopped from outside.
func (c Clock) Skew() time.Duration {
	now := time.Now()
	suspended, set := c.machine.read()
	return now.Round(0).Sub(c.start.Round(0)) + (set - c.set) - now.Sub(c.start) - (suspended - c.suspended)
}

// Suspended returns how long the machine has been suspended since the start, as of the
// last call of Now.
func (c Clock) Suspended() time.Duration {
	suspended, _ := c.machine.read()
	return suspended - c.suspended
}

// suspended is how long the system is known to have been suspended, in
// nanoseconds.
var suspended atomic.Int64

// Machine is a simulated machine for tests, which can suspend it and set its
// wall clock. A nil Machine is the machine of this process.
type Machine struct {
	mu             sync.Mutex
	suspended, set time.Duration
}

// read returns the total time that the machine was suspended, and how far its wall
// clock has jumped ahead.
func (m *Machine) read() (total, set time.Duration) {
	total = time.Duration(suspended.Load())
	if m == nil {
		return total, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return total + m.suspended, m.set
}

// Suspend suspends the machine for d: its monotonic clock stops for that long,
// and its other clocks do not.
func (m *Machine) Suspend(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suspended, m.set = m.suspended+d, m.set+d
}

// SetWallClock sets the wall clock forward by d, or back if d is negative.
func (m *Machine) SetWallClock(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set += d
}

// On returns a copy of ctx that makes Start start clocks on m.
func (m *Machine) On(ctx context.Context) context.Context {
	return context.WithValue(ctx, machineKey{}, m)
}

type machineKey struct{}
