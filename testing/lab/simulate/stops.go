package main

// This file has the faults of machines: stops of a process with its clocks.

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A stopped machine holds up everything the process says and hears (machineConn), and the
// process's workers and the contexts of Do at their next look at the time (now). The
// machine's clocks stand still. One thing is not modeled: the library's own timers, and the
// deadlines of other contexts, fire while the machine stands still, and the work started by
// them goes on until asking for a connection or an answer.
//
// stop is a fault of a machine, reported by the system or not (as in a virtual machine
// stopped from outside, where the wall clock jumps).
type stop struct {
	reported  bool
	cutBefore bool // the network goes before the machine stops
	cutAfter  bool // the network comes back later than the machine
	corrected bool // the wall clock stands still as well, and is corrected later
	often     bool // the machine stops again and again
}

const (
	// Each of several stops in a row is too short to be shown at once by a clock read 20
	// times a second and compared with the wall clock.
	leastPause, mostPause = 20 * time.Millisecond, 60 * time.Millisecond
)

func (k stop) begin(b *bubble, s step) (string, func()) {
	i := b.target(s)
	if i.stops {
		return i.name + ", which is stopped already", nil
	}
	i.stops = true
	var begin, end workload.Instant // of all stops
	var sum time.Duration           // of their lengths
	over := false
	halt := func() {
		if !over && i.suspend() && begin == workload.Never {
			begin = b.now()
		}
	}
	wake := func() {
		if d := i.resume(k); d > 0 {
			sum, end = sum+d, b.now()
		}
	}
	first := time.Duration(s.Amount * float64(s.Lasts))
	switch {
	case k.cutBefore:
		b.server.Partition(i.selector(), zktest.Both)
		b.later(first, halt)
	case k.often:
		if s.Amount > 0.5 { // the lease runs out
			b.server.Partition(i.selector(), zktest.Both)
		}
		k.repeat(b, s, halt, wake, func() bool { return over })
	default:
		halt()
		if k.cutAfter {
			b.server.Partition(i.selector(), zktest.Both)
			b.later(max(first, s.Lasts/2), wake)
		} else if k.corrected {
			b.later(first, wake)
		}
	}
	return i.name, func() {
		wake()
		over, i.stops = true, false
		if k.cutBefore || k.cutAfter || k.often && s.Amount > 0.5 {
			b.server.HealOnly(i.selector(), zktest.Both)
		}
		if k.corrected {
			i.machine.SetWallClock(sum)
			end = b.now()
			b.history.Update(func(rec *workload.Record) {
				rec.Hidden = append(rec.Hidden, workload.Span{Process: i.name, Begin: begin, End: end})
			})
		}
		if !k.reported {
			// See driver/zookeeper, lease.go.
			jump := workload.Jump{Span: workload.Span{Process: i.name, Begin: begin, End: end.Add(b.longest)}, By: sum}
			b.history.Update(func(rec *workload.Record) { rec.Jumps = append(rec.Jumps, jump) })
			end = end.Add(min(sum, b.longest))
		}
		b.excuse(i.name, begin, end)
	}
}

// repeat stops the machine briefly, again and again, until the fault is over.
func (k stop) repeat(b *bubble, s step, halt, wake func(), isOver func() bool) {
	if isOver() {
		return
	}
	halt()
	b.later(leastPause+time.Duration(s.Amount*float64(mostPause-leastPause)), func() {
		wake()
		b.later(mostPause, func() { k.repeat(b, s, halt, wake, isOver) })
	})
}

// suspend stops the process and the machine's clocks, and holds up the connections.
func (i *instance) suspend() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.suspended.IsZero() {
		return false
	}
	i.suspended = time.Now()
	i.machine.Stop()
	i.server.Partition(i.selector(), zktest.Both)
	return true
}

// resume returns for how long the machine was stopped, or 0.
func (i *instance) resume(k stop) (d time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.suspended.IsZero() {
		return 0
	}
	d = time.Since(i.suspended)
	i.stoodStill, i.suspended = i.stoodStill+d, time.Time{}
	if k.corrected {
		i.machine.SetWallClock(-d)
	}
	i.machine.Resume(k.reported)
	i.server.HealOnly(i.selector(), zktest.Both)
	i.changed.Broadcast()
	return d
}

// awake waits until the process runs, and returns how long the process has stood still so
// far. It reports false if the process was killed.
func (i *instance) awake() (stoodStill time.Duration, alive bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for !i.suspended.IsZero() && !i.dead {
		i.changed.Wait()
	}
	return i.stoodStill, !i.dead
}

// now returns the time when the process runs. In a killed process, the goroutine ends.
func (i *instance) now() workload.Instant {
	if _, alive := i.awake(); !alive {
		runtime.Goexit()
	}
	return i.bubble.now()
}

// machineConn is a connection of a machine. While the machine is stopped, the process reads
// nothing, and deadlines come no nearer. (Writes are held up: see suspend.)
type machineConn struct {
	net.Conn
	*instance
	deadlines sync.Mutex
	deadline  time.Time // for reads
}

func (c *machineConn) Read(p []byte) (int, error) {
	for {
		before, _ := c.awake()
		n, err := c.Conn.Read(p)
		after, _ := c.awake()
		if n > 0 || after == before || !errors.Is(err, os.ErrDeadlineExceeded) || !c.extend(after-before) {
			return n, err
		}
	}
}

// extend postpones the deadline. It reports false if the deadline has passed nevertheless.
func (c *machineConn) extend(d time.Duration) bool {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.deadline = c.deadline.Add(d); time.Until(c.deadline) <= 0 {
		return false
	}
	return c.Conn.SetReadDeadline(c.deadline) == nil
}

func (c *machineConn) SetReadDeadline(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.deadline = t
	return c.Conn.SetReadDeadline(t)
}

func (c *machineConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
