//go:build linux

package campaign

// This file has the main function of campaigns.

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

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

// Main is the command that runs campaigns on an engine, with the flags of the program. It
// returns the exit code: 0 only if nothing was found.
func Main(e Engine) int {
	o, all := DefaultOptions(), slices.Concat(faults, e.Faults)
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
	o.Faults = slices.DeleteFunc(all, func(f Fault) bool { return !strings.Contains(f.Name, *only) })
	if len(o.Faults) == 0 {
		fmt.Fprintf(os.Stderr, "torture: no fault has a name that contains %q\n", *only)
		return 2
	}
	if *file != "" {
		f, err := os.Create(*file)
		if err != nil {
			fmt.Fprintln(os.Stderr, "torture:", err)
			return 2
		}
		defer f.Close()
		o.Log = f
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	found, err := Run(ctx, os.Stdout, e, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		return 2
	}
	if !found.Clean() {
		return 1
	}
	return 0
}
