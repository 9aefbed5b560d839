//go:build linux

package campaign

// This file has a campaign: its options, clients and links.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

const (
	// Members is the number of servers.
	Members = 3
	// Tick is the servers' unit of time, if any.
	Tick = 500 * time.Millisecond
	// Timeout is the session timeout.
	Timeout = 6 * Tick

	startTimeout = 2 * time.Minute // until the first grant
)

// limits are how long things may take: no lease lasts longer than a session timeout.
var limits = workload.Limits{
	WakeUp: 250 * time.Millisecond, Overrun: 2 * time.Second, Recovery: 30 * time.Second, Revocation: Timeout,
	Cycle: 5 * time.Second, Lag: 500 * time.Millisecond, Settling: 2 * Timeout, Noted: 100 * time.Millisecond,
}

// Options are the options of a campaign.
type Options struct {
	workload.Config
	Duration  time.Duration
	Clients   int
	Workers   int                      // of each client
	Reads     func(client int) float64 // percentage of readers
	Grace     time.Duration            // for a client told to end
	ClockRate float64                  // of all clients; 0 leaves clockRates in place
	Faults    []Fault                  // nil stands for all, those of the engine included
	Log       io.Writer                // receives all events of clients; nil if none does
}

// DefaultOptions returns the default options of a campaign. The duration is missing.
func DefaultOptions() Options {
	return Options{
		Config: workload.Config{
			Seed: 1, Timeout: Timeout, Locks: 3,
			Kinds: []string{workload.Exclusive, workload.Exclusive, workload.Exclusive, workload.Exclusive,
				workload.ReadWrite, workload.Semaphore, workload.Plain},
			MinPermits: 1, Pause: 20 * time.Millisecond, Hold: 50 * time.Millisecond,
			LongHolds: 50, MinLong: Timeout / 2, MaxLong: 3 * Timeout,
			Mixed: 1, RushEvery: 10 * time.Second, Rush: 300 * time.Millisecond, TangleEvery: 7 * time.Second, Tangle: time.Second,
		},
		Clients: 4, Workers: 4, Reads: func(int) float64 { return 60 },
		Grace: 2 * workload.ShutdownTimeout,
	}
}

// Campaign is one run.
type Campaign struct {
	Options
	Cluster Cluster
	out     io.Writer
	begin   workload.Instant
	history *workload.History
	links   [][]Link       // of each client, to each member
	homes   []atomic.Int64 // the member of each client's last connection

	mu      sync.Mutex
	clients []*process // the current ones
	starts  int
}

// Run runs a campaign, and writes progress and result to out. The error says why there is
// no result.
func Run(ctx context.Context, out io.Writer, e Engine, o Options) (found workload.Report, err error) {
	o.Processes = o.Clients
	if o.Faults == nil {
		o.Faults = slices.Concat(faults, e.Faults)
	}
	c := &Campaign{Options: o, out: out, begin: now(), history: workload.NewHistory(o.Log)}
	c.clients, c.homes = make([]*process, c.Clients), make([]atomic.Int64, c.Clients)
	if c.Cluster, err = e.Start(ctx); err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, c.Cluster.Close()) }()
	defer c.closeLinks()
	defer c.endClients(syscall.SIGKILL)
	for i := range c.Clients {
		if err := c.startLinks(i); err != nil {
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
	if err := c.injectFaults(ctx, c.Faults); err != nil {
		return found, err
	}
	c.history.Update(func(rec *workload.Record) { rec.End = now() })
	c.logf("the end")
	c.endClients(syscall.SIGTERM)
	time.Sleep(limits.Settling) // until the remaining sessions have expired
	c.history.Update(func(rec *workload.Record) {
		if err = c.Cluster.Look(ctx, c.Config, rec); err != nil {
			err = fmt.Errorf("looking for leaked nodes: %w", err)
			return
		}
		found = workload.Check(rec)
		workload.Summarize(out, rec, found)
	})
	return found, err
}

// startLinks starts the links of a client. They keep track of the client's member.
func (c *Campaign) startLinks(client int) error {
	c.links = append(c.links, nil)
	for m := range Members {
		l, err := c.Cluster.Link(m, func() { c.homes[client].Store(int64(m)) })
		if err != nil {
			return err
		}
		c.links[client] = append(c.links[client], l)
	}
	return nil
}

func (c *Campaign) closeLinks() {
	for _, links := range c.links {
		for _, l := range links {
			_ = l.Close()
		}
	}
}

// Update changes the record of what has happened.
func (c *Campaign) Update(change func(*workload.Record)) { c.history.Update(change) }

// Now returns the time by the clock of records.
func Now() workload.Instant { return now() }

func (c *Campaign) firstGrant() <-chan struct{} {
	at, granted := c.history.NextGrant()
	if at == workload.Never {
		return granted
	}
	done := make(chan struct{})
	close(done)
	return done
}

// logf writes a line with the time since the beginning.
func (c *Campaign) logf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "%8.3fs %s\n", now().Since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}
