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

// workload is what the clients of a campaign do.
type workload struct {
	Timeout      time.Duration // of sessions
	Workers      int           // of each client
	Locks        int
	Kinds        []string // of locks; each turn draws one of them
	MinPermits   int      // that are acquired of a semaphore
	LongHolds    float64  // percentage of the holds of each kind's first lock that last from MinLong to MaxLong
	MinLong      time.Duration
	MaxLong      time.Duration
	IgnoreLosses bool // clients believe that they hold a lock until they unlock it, as if there were no lease
}

// options are the options of a campaign.
type options struct {
	workload
	Duration  time.Duration
	Seed      uint64
	Clients   int
	Reads     func(client int) float64 // percentage of readers
	Grace     time.Duration            // for a client that was told to end
	ClockRate float64                  // of all clients; 0 leaves clockRates in place

	faults []fault
	log    io.Writer // receives all events of clients
}

func defaultOptions() options {
	const timeout = 6 * tick
	return options{
		workload: workload{
			Timeout: timeout, Workers: 4, Locks: 3,
			Kinds:      []string{exclusive, exclusive, exclusive, exclusive, readWrite, semaphore, plain},
			MinPermits: 1, LongHolds: 50, MinLong: timeout / 2, MaxLong: 3 * timeout,
		},
		Seed: 1, Clients: 4, Reads: func(int) float64 { return 60 },
		Grace: 2 * shutdownTimeout, faults: faults, log: io.Discard,
	}
}

// campaign is one run.
type campaign struct {
	options
	out      io.Writer
	begin    instant
	history  *history
	ensemble *zktest.RealEnsemble
	proxies  [][]*zktest.Proxy // of each client, to each member
	homes    []atomic.Int64    // the member that each client has last connected to

	mu      sync.Mutex
	clients []*process // the current ones
	starts  int
}

// run runs a campaign, and writes its progress and its result to out. The error
// says why there is no result.
func run(ctx context.Context, out io.Writer, o options) (found report, err error) {
	c := &campaign{options: o, out: out, begin: now(), history: newHistory(o.log)}
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
	c.history.update(func(rec *record) { rec.begin = c.begin })
	if err := c.injectFaults(ctx, c.faults); err != nil {
		return found, err
	}
	c.history.update(func(rec *record) { rec.end = now() })
	c.logf("the end")
	c.endClients(syscall.SIGTERM)
	time.Sleep(c.Timeout + 4*tick) // until the remaining sessions have expired
	leaked, err := c.leakedNodes()
	if err != nil {
		return found, fmt.Errorf("looking for leaked nodes: %w", err)
	}
	c.history.update(func(rec *record) {
		rec.leaked = leaked
		found = check(rec)
		summarize(out, rec, found)
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
	at, granted := c.history.nextGrant()
	if at == never {
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
	fmt.Fprintf(c.out, "%8.3fs %s\n", now().since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}
