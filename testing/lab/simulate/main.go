// Command simulate runs lockpool against an ensemble in virtual time, with random faults,
// and checks the guarantees of locks.
//
//	go run ./testing/lab/simulate [-years 0.01] [-seed 1]
//
// The whole stack runs, and the real protocol: pools, the driver, the ZooKeeper client, and
// the embedded ensemble of zktest, in bubbles of testing/synctest. A bubble has a few
// processes on a new cluster and lasts some hours of virtual time; everything random in a
// bubble is drawn from the seed and the bubble's number. Go's scheduler is not, so a seed
// may need several runs to bring a violation back.
//
// The checks are the same as in testing/lab/torture, and some possible only in virtual
// time: see package workload. On a violation, the command shortens the bubble's schedule as
// far as possible, and prints the schedule with a timeline. The last line of the output is
//
//	violations=0 leaked_nodes=0 stuck_waiters=0 grants=... kept_turns=... asked_back=... faults=... losses=... breaks=... deadlocks=... starved=... victim_in_a_row=... rescues=... virtual=... real=...
//
// and only if the first three are 0 is the exit code 0. kept_turns counts the turns of kept
// locks, and asked_back the kept locks that other processes wanted. starved is the longest time a
// victim of deadlocks tried again, at once, until the victim had all locks, and
// victim_in_a_row how often in succession a caller was the victim, at most.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

func main() {
	if os.Getenv(childEnv) != "" {
		runChild() // does not return
	}
	os.Exit(command())
}

func command() int {
	var o options
	flag.Float64Var(&o.Years, "years", 0.001, "virtual time in all, in years of 365 days")
	flag.Uint64Var(&o.Seed, "seed", 1, "seed of everything that is drawn")
	flag.IntVar(&o.Parallel, "parallel", runtime.NumCPU(), "bubbles at the same time, each in a process of its own")
	flag.IntVar(&o.Pools, "pools", 0, "pools in each bubble; 0 draws 3 to 20, mostly 5")
	flag.DurationVar(&o.Interval, "interval", time.Minute, "mean virtual time between two faults; 0 means no faults")
	flag.StringVar(&o.Only, "only", "", "inject only the faults whose names contain `text`")
	flag.BoolVar(&o.IgnoreLosses, "ignore-losses", false, "let holders ignore the loss of locks; there must be violations")
	flag.BoolVar(&o.StopAtFirst, "stop-at-first", false, "end at the first violation, without shortening its schedule")
	flag.StringVar(&o.State, "state", "", "`file` for the bubbles that are finished; the same command goes on after them")
	flag.StringVar(&o.Replay, "replay", "", "run only the schedule in `file`")
	flag.IntVar(&o.Bubble, "bubble", -1, "run only the bubble with this `number`")
	flag.StringVar(&o.Out, "out", ".", "`directory` for the schedules and timelines of violations")
	flag.DurationVar(&o.Limit, "limit", 20*time.Minute, "real time after which a bubble is stuck")
	flag.IntVar(&o.Shrink, "shrink", 100, "`runs` for shortening a schedule with a violation, at most")
	flag.Parse()
	if flag.NArg() > 0 || o.Years <= 0 || o.Parallel < 1 || o.Pools < 0 || o.Interval < 0 || o.Shrink < 0 {
		fmt.Fprintln(os.Stderr, "simulate: takes only flags, and numbers must be positive; -help lists them")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	sum, err := run(ctx, os.Stdout, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		return 2
	}
	if !sum.clean() {
		return 1
	}
	return 0
}
