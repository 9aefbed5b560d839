// Command herd shows the herd effect: what one release of a lock costs when
// many wait for it. It counts at the server the wake-ups (watch events) that it
// sends and the requests that it gets, for four locks:
//
//   - the textbook's bad queue, in which everybody watches the list (children.go)
//   - the one node that everybody watches and tries to create (onenode.go)
//   - go-zookeeper's own Lock
//   - lockpool
//
// From the repository's root:
//
//	go run ./bench/herd [-server embedded|real] [-waiters 10,100,1000] [-o herd.svg]
//
// All stand in the queue behind a holder, each with a session of its own, as
// separate processes have. Then the holder lets go, and so does everyone who
// gets the lock, until all have had it. The figures are what the server counted
// meanwhile, for each of the waiters.
//
// A holder lets go when all the others wait again, as after any hold that is
// longer than their stampede; the figures then do not depend on luck. With
// -at-once it does not wait for that, and the slow of the herd miss releases.
//
// The figures are exact. The server's own counters are read while nothing is
// under way, and the sessions' timeout is a day, so that they send nothing that
// the locks do not need.
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

// settings are what the flags say.
type settings struct {
	server  string
	waiters []int // ascending
	output  string
	hold    time.Duration
	atOnce  bool
}

// mostWaiters is as many sessions as one process and one server can be asked to
// have. Each has two file descriptors and two buffers.
const mostWaiters = 5000

func parse(args []string, help io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("herd", flag.ContinueOnError)
	flags.SetOutput(help)
	flags.StringVar(&s.server, "server", "embedded", "`which` server: embedded (needs only Go) or real (needs ZooKeeper and Java)")
	waiters := flags.String("waiters", "10,100,1000", "how many wait: `numbers`, separated by commas")
	flags.StringVar(&s.output, "o", "herd.svg", "the `file` for the picture; empty for none")
	flags.DurationVar(&s.hold, "hold", 0, "how long each holds the lock at least")
	flags.BoolVar(&s.atOnce, "at-once", false, "let go also while others are still on their way back to waiting")
	if err := flags.Parse(args); err != nil {
		return s, flag.ErrHelp // which it has said
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q: there are only flags, see -help", flags.Arg(0))
	}
	if s.server != "embedded" && s.server != "real" {
		return s, fmt.Errorf("-server is embedded or real, not %q", s.server)
	}
	for number := range strings.SplitSeq(*waiters, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 1 || n > mostWaiters {
			return s, fmt.Errorf("-waiters takes numbers from 1 to %d such as 10,100,1000, and %q is none", mostWaiters, number)
		}
		s.waiters = append(s.waiters, n)
	}
	slices.Sort(s.waiters)
	s.waiters = slices.Compact(s.waiters)
	if s.output != "" && filepath.Ext(s.output) != ".svg" {
		return s, fmt.Errorf("-o names an SVG file, herd.svg for instance, not %q", s.output)
	}
	if s.hold < 0 {
		return s, fmt.Errorf("-hold is not negative, as %s is", s.hold)
	}
	return s, nil
}

func run(ctx context.Context, args []string, out, help io.Writer) (err error) {
	s, err := parse(args, help)
	if err != nil {
		return err
	}
	var picture *os.File
	if s.output != "" {
		// Now, to know that it can be written before minutes have passed.
		if picture, err = os.CreateTemp(filepath.Dir(s.output), ".herd-*.svg"); err != nil {
			return fmt.Errorf("-o %s: %w", s.output, err)
		}
		defer func() {
			_ = picture.Close()
			_ = os.Remove(picture.Name()) // unless it has become the output
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
	if err := writeTable(out, s.waiters, results); err != nil || picture == nil {
		return err
	}
	if err := draw(picture, results); err != nil {
		return err
	}
	return errors.Join(picture.Chmod(0o644), os.Rename(picture.Name(), s.output))
}
