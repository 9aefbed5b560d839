// Tracing shows what lockpool tells a tracing tool: who waited for a lock, for
// how long, and behind which request of which process.
//
//	go run ./examples/tracing
//	go run ./examples/tracing -svg waterfall.svg
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 go run ./examples/tracing
//
// Three processes, the services of a shop, serve requests that need the same
// locks. Their spans go to the OpenTelemetry collector (or Jaeger, or whatever
// takes OTLP over HTTP) that OTEL_EXPORTER_OTLP_ENDPOINT names, if it does, and
// are drawn in the terminal.
//
// How a service sets up its tracing is in telemetry.go, and its requests are in
// service.go. This file starts the services, as copies of this program, and sends
// them the requests. The others draw.
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
	serviceEnv = "LOCKPOOL_TRACING_SERVICE" // which service a copy of this program is
	patience   = 20 * time.Second           // for the whole story, which takes about 2 s
)

const usage = `usage: tracing [-zookeeper HOST:PORT] [-svg FILE]

Shows who waits for whom among processes that contend for locks. Without
-zookeeper they use an embedded ZooKeeper server, which this program starts.
With -svg the picture is also written to a file. If the environment variable
OTEL_EXPORTER_OTLP_ENDPOINT is set, such as to http://localhost:4318, the spans
are sent there.
`

func main() {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	var address, picture string
	flag.Func("zookeeper", "`HOST:PORT` of a running server", func(value string) error {
		address = value
		if strings.ContainsAny(value, "/?") {
			return errors.New("not of the form HOST:PORT")
		}
		_, err := zookeeper.ParseDSN(value)
		return err
	})
	flag.Func("svg", "`FILE` for the picture", func(value string) error {
		picture = value
		if value == "" {
			return errors.New("the name of the file is empty")
		}
		return nil
	})
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(flag.CommandLine.Output(), "unexpected argument %q\n%s", flag.Arg(0), usage)
		os.Exit(2)
	}

	if name := os.Getenv(serviceEnv); name != "" {
		// Ctrl-C reaches every process of the terminal, but it is the parent
		// who tells a service to stop, by closing its standard input.
		signal.Ignore(os.Interrupt, syscall.SIGTERM)
		serve(name, address)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := demo(ctx, address, picture); err != nil {
		fmt.Fprintln(os.Stderr, "tracing:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, address, picture string) (err error) {
	var file *os.File
	if picture != "" { // better now than when there is something to lose
		if file, err = os.OpenFile(picture, os.O_WRONLY|os.O_CREATE, 0o666); err != nil {
			return err
		}
		defer file.Close()
	}
	if address == "" {
		server, err := zktest.Run(ctx, zktest.Logger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		address = server.Addr()
		fmt.Printf("An embedded ZooKeeper, for trying things out and never for production, serves on %s.\n", address)
	}
	ctx, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done after %s", patience))
	defer stop()
	spans, err := runShop(ctx, address)
	if err != nil && ctx.Err() != nil { // it only follows from that
		return fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	if err != nil && spans == nil {
		return err
	}
	requests := understand(spans)
	fmt.Printf("\n%s\n%s", waterfall(requests), summary(requests))
	if err == nil && exporting() != "" {
		fmt.Printf("The spans, %d of them, are at %s.\n", len(spans), exporting())
	}
	if file != nil {
		n, failed := file.WriteString(svg(requests))
		if failed == nil { // it may have been there, and longer
			failed = file.Truncate(int64(n))
		}
		err = errors.Join(err, failed, file.Close())
	}
	return err
}

// story is what happens. Each request that is to wait is sent when the one that
// it is to wait for holds its lock; and who holds one works for as long as it
// takes until those who are to wait do, and then some. So it happens like this on
// slow machines, too.
func (s *shop) story(ctx context.Context, address string) error {
	services := []string{"orders", "billing", "warehouse"}
	for _, name := range services {
		if err := s.start(ctx, name, address); err != nil {
			return fmt.Errorf("starting %s: %w", name, err)
		}
	}
	_ = s.pipe.Close() // the services have it; the reports end when all of them have
	if err := s.await(ready, services...); err != nil {
		return err
	}
	fmt.Println("Three processes serve requests that need the same locks ...")
	var sent []string
	for i, next := range []struct {
		service, request, state string
		release                 []int // of those above: who has been waited for enough
	}{
		0:  {"billing", "POST /refunds", inside, nil},
		1:  {"orders", "PUT /orders/{id}", waiting, nil},
		2:  {"warehouse", "POST /shipments", waiting, nil},
		3:  {"orders", "GET /orders/{id}", waiting, []int{0, 1, 2}}, // gives up
		4:  {"billing", "POST /transfers", inside, nil},             // two locks
		5:  {"orders", "POST /orders", waiting, []int{4}},
		6:  {"warehouse", "GET /prices", inside, nil}, // they share a lock
		7:  {"orders", "GET /quotes", inside, nil},
		8:  {"billing", "PUT /prices", waiting, nil},
		9:  {"warehouse", "GET /prices", waiting, []int{6, 7, 8}},
		10: {"warehouse", "POST /labels", inside, nil}, // two can print labels at one time
		11: {"orders", "POST /labels", inside, nil},
		12: {"billing", "POST /labels", waiting, []int{3, 5, 9, 10, 11, 12}},
	} {
		id := fmt.Sprint(i)
		sent = append(sent, id)
		s.tell(next.service, job{ID: id, Request: next.request})
		if err := s.await(next.state, id); err != nil {
			return err
		}
		for _, i := range next.release {
			for _, service := range services {
				s.tell(service, job{Release: fmt.Sprint(i)})
			}
		}
		time.Sleep(30 * time.Millisecond) // customers take their time
	}
	if err := s.await(done, sent...); err != nil {
		return err
	}
	for _, stdin := range s.stdins { // that is all; the services send what they have not sent yet
		_ = stdin.Close()
	}
	return s.await(closed, services...)
}

// shop is the services, each a process, as seen by the one that started them.
type shop struct {
	reports *json.Decoder // from all services, in the order in which things happen
	pipe    *os.File      // the end of it that they write to
	stdins  map[string]io.WriteCloser
	running sync.WaitGroup
	end     context.CancelCauseFunc // called when one of them has ended too early
	seen    map[[2]string]bool      // state and whose it is
	spans   []span
}

// runShop returns what the services have traced. When it returns all of them
// have ended. If there are spans beside the error, they are all there.
func runShop(ctx context.Context, address string) ([]span, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	defer in.Close()
	ctx, end := context.WithCancelCause(ctx)
	s := &shop{reports: json.NewDecoder(out), pipe: in, stdins: map[string]io.WriteCloser{},
		seen: map[[2]string]bool{}, end: end}
	err = s.story(ctx, address)
	if err != io.EOF {
		end(nil)
	}
	s.running.Wait()
	if err == io.EOF { // all have ended, and this is why
		err = context.Cause(ctx)
	}
	var lost *exportError
	if err != nil && !errors.As(err, &lost) {
		return nil, err
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
	cmd.Env = append(os.Environ(), serviceEnv+"="+name)
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
	s.running.Go(func() { // ends with the process
		_ = cmd.Wait() // the state says what it says
		if !cmd.ProcessState.Success() {
			s.end(fmt.Errorf("%s has ended: %s", name, cmd.ProcessState))
		}
	})
	return nil
}

// tell sends a service a request.
func (s *shop) tell(service string, j job) {
	_ = json.NewEncoder(s.stdins[service]).Encode(j) // if it has ended, await says so
}

// await keeps the spans of the services until all of these, services or requests,
// have come to the state.
func (s *shop) await(state string, ids ...string) error {
	var lost error
	for _, id := range ids {
		for !s.seen[[2]string{state, id}] {
			var r report
			if err := s.reports.Decode(&r); err != nil {
				return err
			}
			if r.Failure != "" {
				return fmt.Errorf("%s: %s", r.Service, r.Failure)
			}
			if r.Unsent != "" && lost == nil { // the others will say the same
				lost = &exportError{r.Service, r.Unsent}
			}
			if r.Span != nil {
				s.spans = append(s.spans, *r.Span)
			}
			s.seen[[2]string{r.State, r.ID}] = true
		}
	}
	return lost
}

// exportError says that spans have not come to where they should.
type exportError struct{ service, text string }

func (e *exportError) Error() string {
	return fmt.Sprintf("the spans of %s could not be sent to %s: %s", e.service, exporting(), e.text)
}
