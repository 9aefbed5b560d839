// Quickstart shows lockpool at work: three processes, the services of a shop,
// all want to change order 42, and the lock orders/42 lets them in one at a
// time. In the end it draws who waited for how long.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -zookeeper HOST:PORT
//
// How the services use lockpool is in worker.go. This file starts them, as
// copies of this program, and tells them what to do.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	workerEnv = "LOCKPOOL_QUICKSTART_WORKER" // which service a copy of this program is
	patience  = 12 * time.Second             // for the whole story, which takes about 6 s
)

const usage = `usage: quickstart [-zookeeper HOST:PORT]

Shows processes that contend for a lock. Without -zookeeper they use an
embedded ZooKeeper server, which this program starts.
`

func main() {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	var address string
	flag.Func("zookeeper", "`HOST:PORT` of a running server", func(value string) error {
		address = value
		if strings.ContainsAny(value, "/?") {
			return errors.New("not of the form HOST:PORT")
		}
		_, err := zookeeper.ParseDSN(value)
		return err
	})
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(flag.CommandLine.Output(), "unexpected argument %q\n%s", flag.Arg(0), usage)
		os.Exit(2)
	}

	if name := os.Getenv(workerEnv); name != "" {
		// Ctrl-C reaches every process of the terminal, but it is the parent
		// who tells a worker to stop, by closing its standard input.
		signal.Ignore(os.Interrupt, syscall.SIGTERM)
		work(name, address)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := demo(ctx, address); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, address string) (err error) {
	if address == "" {
		server, err := zktest.Run(ctx, zktest.Logger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		address = server.Addr()
		fmt.Printf("An embedded ZooKeeper, for trying things out and never for production, serves on %s.\n\n", address)
	}
	ctx, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done after %s", patience))
	defer stop()
	spans, err := runShop(ctx, address)
	if err != nil && ctx.Err() != nil { // it only follows from that
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	if err != nil {
		return err
	}
	fmt.Print("\n", waterfall(spans))
	return nil
}

// story is what happens.
func (s *shop) story(ctx context.Context, address string) error {
	services := []string{"billing", "shipping", "refunds"}
	for _, name := range services {
		if err := s.start(ctx, name, address); err != nil {
			return fmt.Errorf("starting %s: %w", name, err)
		}
	}
	_ = s.pipe.Close() // the services have it; the reports end when all of them have
	if err := s.await(ready, len(services)); err != nil {
		return err
	}

	// Billing holds the lock, and the others deal with that in three ways.
	s.tell("billing", "charge")
	if err := s.await(inside, 1); err != nil {
		return err
	}
	s.tell("shipping", "ship")
	s.tell("refunds", "look")
	s.tell("refunds", "refund")
	if err := s.await(done, 4); err != nil {
		return err
	}

	// Then all of them at the same time.
	const rounds = 3
	for range rounds {
		for _, name := range services {
			s.tell(name, "update")
		}
	}
	return s.await(done, rounds*len(services))
}

// shop is the services, each a process, as seen by the one that started them.
type shop struct {
	begin   time.Time
	reports *json.Decoder // from all services, in the order in which things happen
	pipe    *os.File      // the end of it that they write to
	stdins  map[string]io.Writer
	running sync.WaitGroup
	end     context.CancelCauseFunc // called when one of them has ended
	spans   []span
}

// runShop returns what the services have traced. When it returns all of them
// have ended.
func runShop(ctx context.Context, address string) ([]span, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	defer in.Close()
	ctx, end := context.WithCancelCause(ctx)
	s := &shop{begin: time.Now(), reports: json.NewDecoder(out), pipe: in, stdins: map[string]io.Writer{}, end: end}
	err = s.story(ctx, address)
	if err != io.EOF {
		end(nil)
	}
	s.running.Wait()
	if err == io.EOF { // all have ended, and this is why
		err = context.Cause(ctx)
	}
	return s.spans, err
}

// start starts a service. When ctx ends its standard input is closed, and the
// process is killed if it does not stop then.
func (s *shop) start(ctx context.Context, name, address string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, exe, "-zookeeper", address)
	cmd.Env = append(os.Environ(), workerEnv+"="+name)
	cmd.Stdout, cmd.Stderr = s.pipe, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = stdin.Close
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	s.stdins[name] = stdin
	s.running.Go(func() {
		_ = cmd.Wait() // the state says what it says
		s.end(fmt.Errorf("%s has ended: %s", name, cmd.ProcessState))
	})
	return nil
}

// tell gives a service a job, to be done after those it has already.
func (s *shop) tell(service, job string) {
	_, _ = fmt.Fprintln(s.stdins[service], job) // if it has ended, await says so
}

// await prints what the services say and keeps their spans, until n of them
// have come to the state.
func (s *shop) await(state string, n int) error {
	for n > 0 {
		var r report
		if err := s.reports.Decode(&r); err != nil {
			return err
		}
		if r.Span != nil {
			s.spans = append(s.spans, *r.Span)
		}
		if r.Say != "" {
			fmt.Printf("%5.2f s  %-8s  %s\n", time.Since(s.begin).Seconds(), r.Service, r.Say)
		}
		if r.Failure != "" {
			return fmt.Errorf("%s: %s", r.Service, r.Failure)
		}
		if r.State == state {
			n--
		}
	}
	return nil
}
