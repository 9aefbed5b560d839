package clock

// This file measures suspensions on Linux.

import (
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

// A single measurement may be too small; see measureSuspension.
func init() {
	for range 5 {
		measureSuspension()
	}
}

// measureSuspension updates suspended. A delay between the two readings makes
// the difference smaller, never larger, so the largest difference seen is kept.
func measureSuspension() {
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
