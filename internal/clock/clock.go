// Package clock is the time that leases are measured with. It can be made to
// run wrong, for the campaigns that test how much of that a lease bears.
package clock

import "time"

// rate is set before the first use, if ever.
var rate = 1.0

// Distort makes the clock run at the given rate, such as 0.97, which is a clock
// that loses three seconds in a hundred. Call it before anything else; it is
// for tests.
func Distort(r float64) { rate = r }

// Since is time.Since by this clock: monotonic, so it does not jump.
func Since(t time.Time) time.Duration {
	d := time.Since(t)
	if rate == 1 {
		return d
	}
	return time.Duration(float64(d) * rate)
}

// Span is how long a timer must run for d to pass by this clock.
func Span(d time.Duration) time.Duration {
	if rate == 1 {
		return d
	}
	return time.Duration(float64(d) / rate)
}
