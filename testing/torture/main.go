//go:build linux

// Command torture runs campaigns of faults against locks on a real ensemble of
// three servers, and checks what the clients saw.
//
//	go run ./testing/torture [-duration 10m] [-seed 1]
//
// Several processes contend for a few locks, while servers and clients are
// killed, paused and cut off, as the seed says. There are locks of all kinds, in
// two layouts. All write down when they believe to hold a lock and what they did
// to a register that is fenced by the locks' tokens. At the end, no lock may have
// had more holders at once than its kind allows, the tokens must have grown, the
// registers must be linearizable, who listens must have heard that somebody asked
// for the lock, every node must be gone, and every call must have returned in
// time. The last line is
//
//	violations=0 leaked_nodes=0 stuck_waiters=0
//
// and the exit code is 0 only if it is this one. Every fault happens to this
// machine's own processes and connections; nothing leaves the machine. It needs
// Linux, and what zktest needs for real servers and for separating them.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if config := os.Getenv(clientEnv); config != "" {
		os.Exit(runClient(config))
	}
	os.Exit(command())
}

func command() int {
	o := usual()
	flag.DurationVar(&o.Duration, "duration", 10*time.Minute, "how long there are faults")
	flag.Uint64Var(&o.Seed, "seed", 1, "which faults there are, and when")
	flag.IntVar(&o.Clients, "clients", o.Clients, "processes that contend")
	flag.IntVar(&o.Workers, "workers", o.Workers, "goroutines of each that do")
	flag.IntVar(&o.Locks, "locks", o.Locks, "exclusive locks that they contend for; of the other kinds there are two at the most")
	kinds := flag.String("kinds", strings.Join(o.Kinds, ","), "`kinds` of locks, which are drawn as often as they stand here")
	flag.BoolVar(&o.Heedless, "heedless", false, "let clients ignore that they lose locks, which must be found out")
	only := flag.String("only", "", "only faults with this `text` in their names")
	file := flag.String("log", "", "`file` for all that clients say")
	flag.Parse()
	if flag.NArg() > 0 || o.Duration <= 0 || o.Clients < 1 || o.Workers < 1 || o.Locks < 1 {
		fmt.Fprintln(os.Stderr, "torture: there are only flags, and they are positive; -help lists them")
		return 2
	}
	o.Kinds = strings.Split(*kinds, ",")
	for _, kind := range o.Kinds {
		if ways[kind] == nil {
			fmt.Fprintf(os.Stderr, "torture: there is no kind of lock %q: there are %q\n", kind, slices.Sorted(maps.Keys(ways)))
			return 2
		}
	}
	o.faults = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !strings.Contains(f.name, *only) })
	if len(o.faults) == 0 {
		fmt.Fprintf(os.Stderr, "torture: no fault has %q in its name; faults.go lists them\n", *only)
		return 2
	}
	o.log = io.Discard
	if *file != "" {
		f, err := os.Create(*file)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		defer f.Close()
		o.log = f
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	found, err := run(ctx, os.Stdout, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		return 2
	}
	if !found.clean() {
		return 1
	}
	return 0
}
