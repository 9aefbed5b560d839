// Package clock is the time that leases are measured with: the time that has
// really passed, also while the machine was suspended. It can be made to run
// wrong, for the tests of how much of that a lease bears.
package clock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// rate is set before the first use, if ever.
var rate = 1.0

// Distort makes all clocks run at the given rate, such as 0.97, which is a clock
// that loses three seconds in a hundred. Call it before anything else; it is
// for tests.
func Distort(r float64) { rate = r }

// Span is how long a timer must run for d to pass by this clock.
func Span(d time.Duration) time.Duration {
	if rate == 1 {
		return d
	}
	return time.Duration(float64(d) / rate)
}

// Clock measures from its start. It is Go's monotonic clock, which on most
// systems stands still while the machine is suspended, and what the system says
// of how long that was. So time that is not the system's (testing/synctest) is
// left as it is.
type Clock struct {
	start       time.Time
	asleep, set time.Duration // at the start
	machine     *Machine      // nil for the one that we run on
}

// Start starts a clock, on the machine of the context if it has one.
func Start(ctx context.Context) Clock {
	m, _ := ctx.Value(machineKey{}).(*Machine)
	look()
	asleep, set := m.read()
	return Clock{time.Now(), asleep, set, m}
}

// Now is the time since the start. It costs two system calls on Linux.
func (c Clock) Now() time.Duration {
	look()
	return c.AtLeast()
}

// AtLeast is Now without a system call: it knows of a suspension after a call of
// Now, of any clock, and is too little until then.
func (c Clock) AtLeast() time.Duration {
	d := time.Since(c.start)
	if rate != 1 {
		d = time.Duration(float64(d) * rate)
	}
	return d + c.Suspended()
}

// Skew is by how much the wall clock has moved ahead of this one since the
// start, as of the last call of Now. It changes slowly when the wall clock is
// being corrected. A jump means that the wall clock was set, or that time has
// passed that this clock does not know of: the machine was suspended on a system
// that does not tell, or it is a virtual one that was stopped from outside.
func (c Clock) Skew() time.Duration {
	now := time.Now()
	asleep, set := c.machine.read()
	return now.Round(0).Sub(c.start.Round(0)) + (set - c.set) - now.Sub(c.start) - (asleep - c.asleep)
}

// Suspended is how much of the time since the start, as of the last call of Now,
// the machine was suspended.
func (c Clock) Suspended() time.Duration {
	asleep, _ := c.machine.read()
	return asleep - c.asleep
}

// slept is how long the system is known to have been suspended.
var slept atomic.Int64

// Machine is a machine for tests, which let things happen to it.
type Machine struct {
	mu          sync.Mutex
	asleep, set time.Duration
}

// read returns how long the machine was suspended, and by how much its wall clock
// has gone ahead otherwise than by itself.
func (m *Machine) read() (asleep, set time.Duration) {
	asleep = time.Duration(slept.Load())
	if m == nil {
		return asleep, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return asleep + m.asleep, m.set
}

// Suspend suspends the machine for d: when it wakes its monotonic clock has stood
// still, and its other clocks have not.
func (m *Machine) Suspend(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asleep, m.set = m.asleep+d, m.set+d
}

// SetWallClock sets the wall clock forward by d, or back if d is negative.
func (m *Machine) SetWallClock(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set += d
}

// On returns a context with which clocks are started on m.
func (m *Machine) On(ctx context.Context) context.Context {
	return context.WithValue(ctx, machineKey{}, m)
}

type machineKey struct{}
