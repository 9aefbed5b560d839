package clock

// This file measures suspensions on Linux.

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Go's monotonic clock is CLOCK_MONOTONIC. CLOCK_BOOTTIME is the same clock, but also runs
// while the machine is suspended (clock_getres(2)).
const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// minSuspension is shorter than any suspension, and longer than the jitter of
// reading the two clocks one after the other.
const minSuspension = time.Millisecond

// A single measurement may be too small; see measure.
func init() {
	for range 5 {
		measure()
	}
}

var (
	origin = time.Now()
	moved  atomic.Int64 // how far the wall clock had moved ahead of Go's clock before the last measurement
)

// measureSuspension measures if the wall clock has moved against Go's clock since the last
// measurement: the end of a suspension sets the wall clock ahead by as much. To read these two
// clocks takes no system call.
func measureSuspension(now time.Time) {
	ahead := now.Round(0).Sub(origin.Round(0)) - now.Sub(origin)
	if (ahead - time.Duration(moved.Load())).Abs() >= minSuspension/2 {
		measure()
		moved.Store(int64(ahead)) // afterward, because no other call may rely on a measurement under way
	}
}

// measure updates suspended. A delay between the two readings makes the difference smaller,
// never larger, so the largest difference seen is kept.
func measure() {
	boot, ok := read(clockBoottime)
	mono, ok2 := read(clockMonotonic)
	for ok && ok2 {
		last := suspended.Load()
		if boot-mono-time.Duration(last) < minSuspension || suspended.CompareAndSwap(last, int64(boot-mono)) {
			return
		}
	}
}

func read(clock uintptr) (time.Duration, bool) {
	var t syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano()), errno == 0
}
