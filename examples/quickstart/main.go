// Quickstart shows lockpool at work: three processes, the services of a shop,
// all want to change order 42, and the lock orders/42 admits them one at a time.
// In the end it draws which of them waited, and for how long.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -zookeeper HOST:PORT
//
// The services, and all that they do with lockpool, are in worker.go. This file
// starts them, as copies of this program, and tells them what to do.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/examples/internal/demo"
	"github.com/lockpool/lockpool/examples/internal/process"
	"github.com/lockpool/lockpool/examples/internal/spans"
)

const usage = `usage: quickstart [-zookeeper HOST:PORT]

Shows processes that contend for a lock. Without -zookeeper they use an
embedded ZooKeeper server, which this program starts.
`

const timeout = 12 * time.Second // for the whole story, which takes about 6 s

func main() {
	address := demo.ZooKeeperFlag()
	demo.ParseFlags(usage)
	if worker := process.Self(); worker != nil {
		runWorker(worker, *address)
		return
	}
	demo.Main("quickstart", func(ctx context.Context) error { return run(ctx, *address) })
}

func run(ctx context.Context, address string) (err error) {
	server, err := demo.OpenServer(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	shop := &shop{begin: time.Now()}
	err = process.Run(ctx, timeout, func(services *process.Group) error {
		shop.services = services
		return shop.story(server.Address)
	})
	if err != nil {
		return err
	}
	fmt.Print("\n", waterfall(shop.spans))
	return nil
}

// shop is the services, each a process, as seen by the one that started them.
type shop struct {
	services *process.Group
	begin    time.Time
	spans    []spans.Span
}

// story makes the services contend for the lock.
func (s *shop) story(address string) error {
	services := []string{"billing", "shipping", "refunds"}
	if err := s.services.Start([]string{"-zookeeper", address}, services...); err != nil {
		return err
	}
	if err := s.await(ready, len(services)); err != nil {
		return err
	}

	// Billing holds the lock, and the others deal with that in three ways.
	s.services.Send("billing", "charge")
	if err := s.await(holding, 1); err != nil {
		return err
	}
	s.services.Send("shipping", "ship")
	s.services.Send("refunds", "look")
	s.services.Send("refunds", "refund")
	if err := s.await(done, 4); err != nil {
		return err
	}

	// Then all of them contend for it at the same time.
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
