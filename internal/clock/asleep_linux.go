package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// Go's monotonic clock is CLOCK_MONOTONIC. CLOCK_BOOTTIME is the same, and goes
// on while the machine is suspended (clock_getres(2)).
const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// leastSleep is less than any suspension takes, and more than the difference of
// the clocks varies by when it is read.
const leastSleep = time.Millisecond

// What was read first may be too little, see look.
func init() {
	for range 5 {
		look()
	}
}

// look looks how long the system was suspended. What comes between the two
// readings makes it less, never more; so it is the most that was ever read.
func look() {
	boot, ok := read(clockBoottime)
	mono, ok2 := read(clockMonotonic)
	for ok && ok2 {
		last := slept.Load()
		if boot-mono-time.Duration(last) < leastSleep || slept.CompareAndSwap(last, int64(boot-mono)) {
			return
		}
	}
}

func read(clock uintptr) (time.Duration, bool) {
	var t syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano()), errno == 0
}
