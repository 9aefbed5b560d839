//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/simulate/workload"
	"github.com/lockpool/lockpool/testing/zktest"
)

const (
	members = 3
	tick    = 500 * time.Millisecond
	// syncLimit is the number of ticks after which members notice that they have
	// lost each other. It is longer than session timeouts, so that a follower that
	// is cut off from its leader goes on serving while sessions expire: leases are
	// made for that.
	syncLimit = "8"

	startTimeout = 30 * time.Second // until the first grant
)

// limits are how long things may take: no lease lasts longer than a session timeout.
var limits = workload.Limits{
	WakeUp: 250 * time.Millisecond, Overrun: 2 * time.Second, Recovery: 30 * time.Second, Revocation: 6 * tick,
	Circle: 5 * time.Second, Lag: 500 * time.Millisecond, Settling: 12 * tick,
}

// options are the options of a campaign.
type options struct {
	workload.Config
	Duration  time.Duration
	Clients   int
	Workers   int                      // of each client
	Reads     func(client int) float64 // percentage of readers
	Grace     time.Duration            // for a client that was told to end
	ClockRate float64                  // of all clients; 0 leaves clockRates in place

	faults []fault
	log    io.Writer // receives all events of clients; nil if none does
}

func defaultOptions() options {
	const timeout = 6 * tick
	return options{
		Config: workload.Config{
			Seed: 1, Timeout: timeout, Locks: 3,
			Kinds: []string{workload.Exclusive, workload.Exclusive, workload.Exclusive, workload.Exclusive,
				workload.ReadWrite, workload.Semaphore, workload.Plain},
			MinPermits: 1, Pause: 20 * time.Millisecond, Hold: 50 * time.Millisecond,
			LongHolds: 50, MinLong: timeout / 2, MaxLong: 3 * timeout,
			Mixed: 1, RushEvery: 10 * time.Second, Rush: 300 * time.Millisecond, TangleEvery: 7 * time.Second, Tangle: time.Second,
		},
		Clients: 4, Workers: 4, Reads: func(int) float64 { return 60 },
		Grace: 2 * workload.ShutdownTimeout, faults: faults,
	}
}

// campaign is one run.
type campaign struct {
	options
	out      io.Writer
	begin    workload.Instant
	history  *workload.History
	ensemble *zktest.RealEnsemble
	proxies  [][]*zktest.Proxy // of each client, to each member
	homes    []atomic.Int64    // the member that each client has last connected to

	mu      sync.Mutex
	clients []*process // the current ones
	starts  int
}

// run runs a campaign, and writes its progress and its result to out. The error
// says why there is no result.
func run(ctx context.Context, out io.Writer, o options) (found workload.Report, err error) {
	o.Processes = o.Clients
	c := &campaign{options: o, out: out, begin: now(), history: workload.NewHistory(now, o.log)}
	c.clients, c.homes = make([]*process, c.Clients), make([]atomic.Int64, c.Clients)
	c.ensemble, err = zktest.RunRealEnsemble(ctx, members, zktest.Separated(), zktest.TickTime(tick), zktest.MaxClientConns(0),
		zktest.Properties(map[string]string{"syncLimit": syncLimit}))
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, c.ensemble.Close()) }()
	defer c.closeProxies()
	defer c.endClients(syscall.SIGKILL)
	for i := range c.Clients {
		if err := c.startProxies(i); err != nil {
			return found, err
		}
		if err := c.startClient(i); err != nil {
			return found, err
		}
	}
	select {
	case <-c.firstGrant():
	case <-time.After(startTimeout):
		return found, fmt.Errorf("no lock was granted within %s, before any fault", startTimeout)
	case <-ctx.Done():
		return found, ctx.Err()
	}
	c.begin = now()
	c.history.Update(func(rec *workload.Record) { rec.Begin, rec.Limits = c.begin, limits })
	if err := c.injectFaults(ctx, c.faults); err != nil {
		return found, err
	}
	c.history.Update(func(rec *workload.Record) { rec.End = now() })
	c.logf("the end")
	c.endClients(syscall.SIGTERM)
	time.Sleep(c.Timeout + 4*tick) // until the remaining sessions have expired
	leaked, err := c.leakedNodes()
	if err != nil {
		return found, fmt.Errorf("looking for leaked nodes: %w", err)
	}
	c.history.Update(func(rec *workload.Record) {
		rec.Leaked = leaked
		found = workload.Check(rec)
		workload.Summarize(out, rec, found)
	})
	return found, nil
}

// startProxies starts the proxies through which a client connects. They keep
// track of the member that the client is connected to.
func (c *campaign) startProxies(client int) error {
	c.proxies = append(c.proxies, nil)
	for m := range members {
		p, err := zktest.RunProxy(c.ensemble.Member(m).Addr())
		if err != nil {
			return err
		}
		c.proxies[client] = append(c.proxies[client], p)
		p.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: math.MaxInt,
			Do: zktest.Call(func(zktest.Request) { c.homes[client].Store(int64(m)) }),
		})
	}
	return nil
}

func (c *campaign) closeProxies() {
	for _, proxies := range c.proxies {
		for _, p := range proxies {
			_ = p.Close()
		}
	}
}

func (c *campaign) firstGrant() <-chan struct{} {
	at, granted := c.history.NextGrant()
	if at == workload.Never {
		return granted
	}
	done := make(chan struct{})
	close(done)
	return done
}

// logf writes a line with the time since the beginning.
func (c *campaign) logf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "%8.3fs %s\n", now().Since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}
