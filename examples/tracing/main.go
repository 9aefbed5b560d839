// Tracing shows what lockpool reports to a tracing tool: which requests waited for a
// lock, for how long, and behind which request of which process.
//
//	go run ./examples/tracing
//	go run ./examples/tracing -svg waterfall.svg
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 go run ./examples/tracing
//
// Three processes, the services of a shop, serve requests for the same locks. Their spans
// are drawn in the terminal. If OTEL_EXPORTER_OTLP_ENDPOINT names an OpenTelemetry
// collector (or Jaeger, or anything else with OTLP over HTTP), they are also sent there.
//
// The file telemetry.go shows how a service sets up tracing, and service.go has the
// requests. This file starts the services, as copies of this program, and sends them the
// requests. The other files draw.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/lockpool/lockpool/examples/internal/demo"
	"github.com/lockpool/lockpool/examples/internal/process"
	"github.com/lockpool/lockpool/examples/internal/spans"
)

const usage = `usage: tracing [-zookeeper HOST:PORT] [-svg FILE]

Shows which requests wait for which others in processes that contend for locks.
Without -zookeeper they use an embedded ZooKeeper server, which this program
starts. With -svg the picture is also written to a file. If the environment
variable OTEL_EXPORTER_OTLP_ENDPOINT is set, for example to
http://localhost:4318, the spans are sent there.
`

const timeout = 20 * time.Second // for the whole story of about 2 s

func main() {
	address := demo.ZooKeeperFlag()
	var picture string
	flag.Func("svg", "`FILE` for the picture", func(value string) error {
		picture = value
		if value == "" {
			return errors.New("the name of the file is empty")
		}
		return nil
	})
	demo.ParseFlags(usage)
	if worker := process.Self(); worker != nil {
		runWorker(worker, *address)
		return
	}
	demo.Main("tracing", func(ctx context.Context) error { return run(ctx, *address, picture) })
}

func run(ctx context.Context, address, picture string) (err error) {
	var file *os.File
	if picture != "" { // a bad name is reported before the story, not after
		if file, err = os.OpenFile(picture, os.O_WRONLY|os.O_CREATE, 0o666); err != nil {
			return err
		}
		defer file.Close()
	}
	server, err := demo.OpenServer(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	shop := &shop{reported: map[[2]string]bool{}}
	err = process.Run(ctx, timeout, func(services *process.Group) error {
		shop.services = services
		return shop.story(server.Address)
	})
	var unsent *exportError
	if err != nil && !errors.As(err, &unsent) {
		return err
	}
	requests := analyze(shop.spans)
	fmt.Printf("\n%s\n%s", chart(requests).Text(), summary(requests))
	if err == nil && endpoint() != "" {
		fmt.Printf("%d spans were sent to %s.\n", len(shop.spans), endpoint())
	}
	if file != nil {
		n, failed := file.WriteString(chart(requests).SVG())
		if failed == nil { // the file may have existed, and been longer
			failed = file.Truncate(int64(n))
		}
		err = errors.Join(err, failed, file.Close())
	}
	return err
}

// shop is the services, each a process, as seen by the starting process.
type shop struct {
	services *process.Group
	reported map[[2]string]bool // by state, and by request or service
	spans    []spans.Span
}

// story sends the services their requests. A waiting request is sent once the awaited one
// holds the lock, and a holder keeps the lock until the waiters wait, and for some time
// longer. So the story is the same on slow machines.
func (s *shop) story(address string) error {
	services := []string{"orders", "billing", "warehouse"}
	if err := s.services.Start([]string{"-zookeeper", address}, services...); err != nil {
		return err
	}
	if err := s.await(ready, services...); err != nil {
		return err
	}
	fmt.Println("Three processes serve requests that need the same locks ...")
	var sent []string
	for i, next := range []struct {
		service, request, state string
		release                 []int // requests above, after keeping their locks for long enough
	}{
		0:  {"billing", "POST /refunds", holding, nil},
		1:  {"orders", "PUT /orders/{id}", waiting, nil},
		2:  {"warehouse", "POST /shipments", waiting, nil},
		3:  {"orders", "GET /orders/{id}", waiting, []int{0, 1, 2}}, // gives up
		4:  {"billing", "POST /transfers", holding, nil},            // two locks
		5:  {"orders", "POST /orders", waiting, []int{4}},
		6:  {"warehouse", "GET /prices", holding, nil}, // shares a lock
		7:  {"orders", "GET /quotes", holding, nil},    // with this one
		8:  {"billing", "PUT /prices", waiting, nil},
		9:  {"billing", "GET /prices", waiting, []int{6, 7, 8}}, // after the writer of its own process
		10: {"warehouse", "POST /labels", holding, nil},         // two permits
		11: {"orders", "POST /labels", holding, nil},
		12: {"billing", "POST /labels", waiting, []int{3, 5, 9, 10, 11, 12}},
	} {
		id := fmt.Sprint(i)
		sent = append(sent, id)
		s.services.Send(next.service, job{ID: id, Request: next.request})
		if err := s.await(next.state, id); err != nil {
			return err
		}
		for _, i := range next.release {
			for _, service := range services {
				s.services.Send(service, job{Release: fmt.Sprint(i)})
			}
		}
		time.Sleep(30 * time.Millisecond) // keeps the requests apart in the picture
	}
	if err := s.await(done, sent...); err != nil {
		return err
	}
	s.services.Finish()
	return s.await(closed, services...)
}

// await keeps the spans of the services until all of the IDs, of services or of
// requests, have reported the state.
func (s *shop) await(state string, ids ...string) error {
	var unsent error
	for _, id := range ids {
		for !s.reported[[2]string{state, id}] {
			var r report
			service, err := s.services.Receive(&r)
			if err != nil {
				return err
			}
			if r.Failure != "" {
				return fmt.Errorf("%s: %s", service, r.Failure)
			}
			if r.Unsent != "" && unsent == nil { // the other services report the same
				unsent = &exportError{service, r.Unsent}
			}
			if r.Span != nil {
				s.spans = append(s.spans, *r.Span)
			}
			s.reported[[2]string{r.State, r.ID}] = true
		}
	}
	return unsent
}

// exportError is a failure to send spans to the collector. The shop nevertheless
// has all of them.
type exportError struct{ service, text string }

func (e *exportError) Error() string {
	return fmt.Sprintf("the spans of %s could not be sent to %s: %s", e.service, endpoint(), e.text)
}
