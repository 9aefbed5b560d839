package main

// This file draws the schedule of a bubble: processes, servers and faults.

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

// schedule is everything drawn for a bubble before the beginning, to be printed, replayed
// and shrunk. Anything else depends on Go's scheduler.
type schedule struct {
	Seed      uint64 // of the run
	Bubble    int    // the number of the bubble
	Lasts     time.Duration
	Members   int // of the ensemble
	Tick      time.Duration
	Reap      time.Duration // interval between deletions of empty containers
	Longest   time.Duration // longest session timeout granted
	Load      workload.Config
	Processes []process
	Steps     []step // by time
}

// process is everything drawn for a process. The machine has the same number.
type process struct {
	Layout  zookeeper.Layout
	Timeout time.Duration // of the sessions
	Rate    float64       // of the machine's clocks
	Latency time.Duration // of the connections: the longest time of a packet, in each direction
	Workers int
	Seed    uint64
	Keeps   int           // kept locks at most (lockpool.WithKeptLocks); 0 without the option
	Unused  time.Duration // of a kept lock, at most

	Bystander bool // takes no locks, but revokes and breaks locks of others
}

// step is a fault.
type step struct {
	At, Lasts time.Duration
	Fault     string
	Process   int     // of the fault, from 0
	Member    int     // of the fault, from 1; a follower, if the fault is a follower's
	Holder    bool    // the fault is for the longest holder of a lock, if any
	Amount    float64 // from 0 to 1, of the fault's variable
}

// The timeouts of sessions, and the rates of clocks. A lease tolerates a difference of 5 %
// between clocks, almost used up by a slow clock.
const (
	minTimeout = 4 * time.Second
	maxTimeout = 30 * time.Second
	maxDrift   = 0.045
)

// mix is what a run varies.
type mix struct {
	Pools        int           // in each bubble; 0 draws 3 to 20
	Interval     time.Duration // mean time between faults; 0 means no faults
	IgnoreLosses bool
	Only         string // the faults with names containing Only
}

// draw draws the schedule of a bubble.
func draw(seed uint64, bubble int, m mix) schedule {
	r := rand.New(rand.NewPCG(seed, uint64(bubble)))
	s := schedule{
		Seed: seed, Bubble: bubble,
		Lasts:   workload.Between(r, time.Hour, 6*time.Hour).Truncate(time.Second),
		Members: []int{1, 3, 3, 3, 5}[r.IntN(5)],
		Tick:    []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 2 * time.Second}[r.IntN(4)],
		Reap:    workload.Between(r, 5*time.Second, time.Minute),
		Longest: []time.Duration{40 * time.Second, 40 * time.Second, 6 * time.Second}[r.IntN(3)],
		Load: workload.Config{
			Locks:      2 + r.IntN(3),
			MinPermits: 1, Reads: workload.Between(r, 30.0, 90.0),
			Pause: 17 * time.Second, Bursts: 30, Hold: 2 * time.Second,
			LongHolds: 30, Mixed: 3 * float64(1-bubble%2), RushEvery: 30 * time.Minute, Rush: 12 * time.Second,
			TangleEvery: 4 * time.Minute, Tangle: 15 * time.Second, Uses: true, IgnoreLosses: m.IgnoreLosses,
		},
	}
	s.Load.Kinds = []string{workload.Exclusive, workload.Exclusive, workload.Exclusive, workload.Exclusive,
		workload.ReadWrite, workload.Semaphore, workload.Plain}
	pools := m.Pools
	if pools == 0 {
		pools = 5
		if r.IntN(4) == 0 {
			pools = 3 + r.IntN(18)
		}
	}
	fragile := r.IntN(2) == 0
	s.Load.Processes = pools
	for range pools {
		p := process{
			Layout:  []zookeeper.Layout{zookeeper.LayoutCurator, zookeeper.LayoutKazoo}[r.IntN(2)],
			Timeout: workload.Between(r, minTimeout, maxTimeout).Truncate(time.Millisecond),
			Latency: []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 30 * time.Millisecond, 150 * time.Millisecond}[r.IntN(5)],
			Rate:    1, Workers: 2 + r.IntN(3), Seed: r.Uint64(),
		}
		if r.IntN(4) == 0 || fragile { // two ticks are the most fragile
			p.Timeout = max(minTimeout, 2*s.Tick)
		}
		switch r.IntN(3) {
		case 0:
			p.Rate = workload.Between(r, 1-maxDrift, 1+maxDrift)
		case 1: // a lease ends as late as possible
			p.Rate = 1 - maxDrift
		}
		s.Processes = append(s.Processes, p)
	}
	if r.IntN(2) == 0 {
		p := s.Processes[r.IntN(pools)]
		p.Bystander, p.Workers, p.Seed = true, 2, r.Uint64()
		if m.IgnoreLosses { // a break is a loss not brought back by any fault of the schedule
			p.Workers = 0
		}
		s.Processes = append(s.Processes, p)
	}
	s.drawSteps(r, m)
	for n := range s.Processes {
		p := &s.Processes[n]
		p.Keeps = []int{0, 1, 2, 1000}[r.IntN(4)]
		p.Unused = []time.Duration{100 * time.Millisecond, 5 * time.Second, time.Minute, time.Hour}[r.IntN(4)]
	}
	return s
}

// drawSteps draws the faults. Now and then there is none for a while, for the locks to
// recover.
func (s *schedule) drawSteps(r *rand.Rand, m mix) {
	var possible []fault
	for _, f := range faults {
		if f.members <= s.Members && strings.Contains(f.name, m.Only) {
			possible = append(possible, slices.Repeat([]fault{f}, max(1, f.often))...)
		}
	}
	if m.Interval == 0 || len(possible) == 0 {
		return
	}
	deck := workload.Deck[fault]{All: possible}
	for at := m.Interval; at < s.Lasts; {
		f := deck.Deal(r)
		st := step{
			At: at.Truncate(time.Millisecond), Fault: f.name,
			Process: r.IntN(len(s.Processes)), Member: 1 + r.IntN(s.Members), Holder: r.IntN(10) < 6, Amount: r.Float64(),
		}
		st.Lasts = f.lasts.Draw(r, s.Processes[st.Process].Timeout, s.longestTimeout()).Truncate(time.Millisecond)
		s.Steps = append(s.Steps, st)
		at += workload.Between(r, m.Interval/10, m.Interval*3/2)
		if r.IntN(8) == 0 {
			at += 2*s.longestTimeout() + m.Interval
		}
	}
}

func (s *schedule) longestTimeout() (longest time.Duration) {
	for _, p := range s.Processes {
		longest = max(longest, p.Timeout)
	}
	return longest
}

// write writes the schedule as a file for -replay.
func (s *schedule) write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(s)
}

func (st step) String() string {
	return fmt.Sprintf("%s %s for %s (process %d, holder %t, member %d, amount %.2f)", st.At, st.Fault, st.Lasts, st.Process, st.Holder, st.Member, st.Amount)
}
