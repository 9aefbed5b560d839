// Package shop is the body of the quickstart: three processes, the services of a shop, all
// want to change order 42, and the lock orders/42 admits them one at a time. In the end it
// draws which of them waited, and for how long.
//
// The services, and all their use of lockpool, are in worker.go. This file starts them, as
// copies of the program, and tells them what to do, on any coordination service: a program
// calls [Main] with the engines of the imported drivers.
package shop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/examples/internal/demo"
	"github.com/lockpool/lockpool/examples/internal/process"
	"github.com/lockpool/lockpool/examples/internal/spans"
)

const usage = `usage: quickstart [-driver %s] [-servers HOST:PORT]

Shows processes that contend for a lock. Without -servers they use a server that this
program starts. With -driver memory they need none, and are goroutines of one process.
`

const timeout = time.Minute // for the whole story of about 6 s

// Engine is a coordination service for the shop.
type Engine struct {
	Driver string // the driver's name for lockpool.Open

	// DSN returns the connect string for locks of their own, below a path with the ID.
	DSN func(servers string, id int) string

	// Check returns an error if servers cannot be the addresses of servers. It is nil for
	// an engine without servers.
	Check func(servers string) error

	// Start starts a server for the demonstration. It is nil for an engine without servers:
	// then the services are goroutines of this process.
	Start func(ctx context.Context) (servers string, stop func() error, err error)

	// Elsewhere, if not nil, runs another program with the driver.
	Elsewhere func(ctx context.Context, servers string) error
}

// Main is the main function of the quickstart. The first engine is used unless the command
// line names another one.
func Main(engines ...Engine) {
	var names []string
	for _, e := range engines {
		names = append(names, e.Driver)
	}
	usage := fmt.Sprintf(usage, strings.Join(names, "|"))
	engine := engines[0]
	flag.Func("driver", "the `NAME` of a driver", func(name string) error {
		i := slices.Index(names, name)
		if i < 0 {
			return fmt.Errorf("not one of %s", strings.Join(names, ", "))
		}
		engine = engines[i]
		return nil
	})
	servers := flag.String("servers", "", "`HOST:PORT` of running servers")
	demo.ParseFlags(usage)
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "servers" })
	if given {
		if err := engine.check(*servers); err != nil {
			fmt.Fprintf(os.Stderr, "invalid value %q for flag -servers: %v\n%s", *servers, err, usage)
			os.Exit(2)
		}
	}
	if worker := process.Self(); worker != nil {
		runWorker(worker, engine.Driver, engine.DSN(*servers, os.Getppid()))
		return
	}
	demo.Main("quickstart", func(ctx context.Context) error {
		if engine.Elsewhere != nil {
			return engine.Elsewhere(ctx, *servers)
		}
		return run(ctx, engine, *servers)
	})
}

func (e Engine) check(servers string) error {
	if e.Check == nil {
		return fmt.Errorf("%s has no servers", e.Driver)
	}
	return e.Check(servers)
}

func run(ctx context.Context, e Engine, servers string) (err error) {
	if servers == "" && e.Start != nil {
		var stop func() error
		if servers, stop, err = e.Start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	shop := &shop{begin: time.Now()}
	err = process.Run(ctx, timeout, func(services *process.Group) error {
		shop.services = services
		return shop.story(e, servers)
	})
	if err != nil {
		return err
	}
	fmt.Print("\n", draw(shop.spans))
	return nil
}

// shop is the services, each a process, as seen by the starting process.
type shop struct {
	services *process.Group
	begin    time.Time
	spans    []spans.Span
}

// story makes the services contend for the lock.
func (s *shop) story(e Engine, servers string) error {
	services := []string{"billing", "shipping", "refunds"}
	var err error
	if e.Start != nil {
		err = s.services.Start([]string{"-driver", e.Driver, "-servers", servers}, services...)
	} else {
		err = s.services.StartHere(func(w *process.Worker) { runWorker(w, e.Driver, e.DSN("", os.Getpid())) }, services...)
	}
	if err != nil {
		return err
	}
	if err := s.await(ready, len(services)); err != nil {
		return err
	}

	// Billing holds the lock, and the others deal with the wait in three ways.
	s.services.Send("billing", "charge")
	if err := s.await(holding, 1); err != nil {
		return err
	}
	s.services.Send("shipping", "ship")
	s.services.Send("refunds", "look")
	s.services.Send("refunds", "refund")
	if err := s.await(done, 2); err != nil { // of refunds
		return err
	}
	s.services.Send("billing", "charged")
	if err := s.await(done, 2); err != nil {
		return err
	}

	// Then all of them contend for the lock at the same time.
	const rounds = 3
	for range rounds {
		for _, name := range services {
			s.services.Send(name, "update")
		}
	}
	return s.await(done, rounds*len(services))
}

// await prints what the services say and keeps their spans, until n of them have
// reported the state.
func (s *shop) await(state string, n int) error {
	for n > 0 {
		var r report
		service, err := s.services.Receive(&r)
		if err != nil {
			return err
		}
		if r.Span != nil {
			s.spans = append(s.spans, *r.Span)
		}
		if r.Text != "" {
			fmt.Printf("%5.2f s  %-8s  %s\n", time.Since(s.begin).Seconds(), service, r.Text)
		}
		if r.Failure != "" {
			return fmt.Errorf("%s: %s", service, r.Failure)
		}
		if r.State == state {
			n--
		}
	}
	return nil
}
