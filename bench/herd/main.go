// Command herd shows the herd effect: the cost of one release of a lock that
// many clients wait for. It counts the wake-ups (watch events) that the server
// sends and the requests that it receives, for four locks:
//
//   - the bad queue of textbooks, whose waiters all watch its children (children.go)
//   - one node that all waiters watch and try to create (onenode.go)
//   - go-zookeeper's own Lock
//   - lockpool
//
// From the repository's root:
//
//	go run ./bench/herd [-server embedded|real] [-waiters 10,100,1000] [-o herd.svg]
//
// The waiters queue behind a holder, each on a session of its own, like separate
// processes. Then the holder unlocks, and so does each waiter that is granted the
// lock, until all have had it. The figures are what the server counted meanwhile,
// divided by the number of waiters.
//
// A holder unlocks once all the others wait again, as after any hold that outlasts
// the stampede, so the figures do not depend on luck. With -at-once it does not
// wait for that, and slow waiters miss releases.
//
// The figures are exact: the server's counters are read while it is idle, and the
// session timeout is a day, so clients send nothing that the locks do not need.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "herd:", err)
		os.Exit(1)
	}
}

// settings are the values of the flags.
type settings struct {
	server  string
	waiters []int // ascending
	output  string
	hold    time.Duration
	atOnce  bool
}

// maxWaiters limits the sessions of one process and one server. Each takes two
// file descriptors and two buffers.
const maxWaiters = 5000

func parse(args []string, help io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("herd", flag.ContinueOnError)
	flags.SetOutput(help)
	flags.StringVar(&s.server, "server", "embedded", "`kind` of server: embedded (needs only Go) or real (needs ZooKeeper and Java)")
	waiters := flags.String("waiters", "10,100,1000", "comma-separated `numbers` of waiters")
	flags.StringVar(&s.output, "o", "herd.svg", "`file` for the plot; if empty, none is drawn")
	flags.DurationVar(&s.hold, "hold", 0, "minimum duration of each hold")
	flags.BoolVar(&s.atOnce, "at-once", false, "unlock even while other waiters have not set their watches again")
	if err := flags.Parse(args); err != nil {
		return s, flag.ErrHelp // Parse has printed the error
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q; -help lists the flags", flags.Arg(0))
	}
	if s.server != "embedded" && s.server != "real" {
		return s, fmt.Errorf("-server must be embedded or real, not %q", s.server)
	}
	for number := range strings.SplitSeq(*waiters, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 1 || n > maxWaiters {
			return s, fmt.Errorf("-waiters: %q is not a number from 1 to %d", number, maxWaiters)
		}
		s.waiters = append(s.waiters, n)
	}
	slices.Sort(s.waiters)
	s.waiters = slices.Compact(s.waiters)
	if s.output != "" && filepath.Ext(s.output) != ".svg" {
		return s, fmt.Errorf("-o must name a .svg file, not %q", s.output)
	}
	if s.hold < 0 {
		return s, fmt.Errorf("-hold must not be negative: %s", s.hold)
	}
	return s, nil
}

func run(ctx context.Context, args []string, out, help io.Writer) (err error) {
	s, err := parse(args, help)
	if err != nil {
		return err
	}
	var plot *os.File
	if s.output != "" {
		// Create the file now, so that an unwritable directory is reported before minutes
		// have passed.
		if plot, err = os.CreateTemp(filepath.Dir(s.output), ".herd-*.svg"); err != nil {
			return fmt.Errorf("-o %s: %w", s.output, err)
		}
		defer func() {
			_ = plot.Close()
			_ = os.Remove(plot.Name()) // fails if it has been renamed to the output
		}()
	}
	server, err := start(ctx, s.server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()

	var results []drained
	for _, k := range kinds {
		for _, n := range s.waiters {
			d, err := drain(ctx, server, k, n, s.hold, s.atOnce)
			if err != nil {
				return fmt.Errorf("%s, %d waiters: %w", k.name, n, err)
			}
			results = append(results, d)
		}
	}
	if err := writeTable(out, s.waiters, results); err != nil || plot == nil {
		return err
	}
	if err := draw(plot, results); err != nil {
		return err
	}
	return errors.Join(plot.Chmod(0o644), os.Rename(plot.Name(), s.output))
}
