//go:build linux

// Command torture injects random faults into a real ensemble of three servers and
// its clients, and checks that locks keep their guarantees.
//
//	go run ./testing/torture [-duration 10m] [-seed 1]
//
// Several client processes contend for a few locks, of all kinds and in two
// layouts, while servers and clients are killed, paused and partitioned, as drawn
// from the seed. The clients record when they believe that they hold a lock, and
// their accesses to a register that is fenced by the lock's token. It is a
// violation if a lock had more holders at once than its kind allows, if a token did
// not grow, if a register was not linearizable, if a call was told of a deadlock
// that there was not, or not told of one, if a holder did not notice a revocation
// request, if a node of a contender is left, or if a call did not return in time.
// The last line of the output is
//
//	violations=0 leaked_nodes=0 stuck_waiters=0
//
// if there is no violation, and only then is the exit code 0. Faults happen only to
// processes and connections of this machine; nothing leaves it. The command needs
// Linux, and what zktest needs to start real servers and to separate them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/simulate/workload"
)

func main() {
	if config := os.Getenv(clientEnv); config != "" {
		os.Exit(runClient(config))
	}
	os.Exit(command())
}

func command() int {
	o := defaultOptions()
	flag.DurationVar(&o.Duration, "duration", 10*time.Minute, "how long faults are injected")
	flag.Uint64Var(&o.Seed, "seed", 1, "seed of the random faults")
	flag.IntVar(&o.Clients, "clients", o.Clients, "number of client processes")
	flag.IntVar(&o.Workers, "workers", o.Workers, "goroutines of each client that contend")
	flag.IntVar(&o.Locks, "locks", o.Locks, "number of exclusive locks; there are at most two of each other kind")
	names := flag.String("kinds", strings.Join(o.Kinds, ","), "comma-separated `kinds` of locks; each turn draws one of them")
	flag.BoolVar(&o.IgnoreLosses, "ignore-losses", false, "let clients ignore the loss of locks; the campaign must find violations")
	only := flag.String("only", "", "inject only the faults whose names contain `text`")
	file := flag.String("log", "", "`file` for the events of all clients")
	flag.Parse()
	if flag.NArg() > 0 || o.Duration <= 0 || o.Clients < 1 || o.Workers < 1 || o.Locks < 1 {
		fmt.Fprintln(os.Stderr, "torture: takes only flags, and numbers must be positive; -help lists them")
		return 2
	}
	o.Kinds = strings.Split(*names, ",")
	for _, name := range o.Kinds {
		if !slices.Contains(workload.Kinds(), name) {
			fmt.Fprintf(os.Stderr, "torture: unknown kind of lock %q; the kinds are %q\n", name, workload.Kinds())
			return 2
		}
	}
	o.faults = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !strings.Contains(f.name, *only) })
	if len(o.faults) == 0 {
		fmt.Fprintf(os.Stderr, "torture: no fault has a name that contains %q; faults.go lists them\n", *only)
		return 2
	}
	if *file != "" {
		f, err := os.Create(*file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
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
	if !found.Clean() {
		return 1
	}
	return 0
}
