//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/simulate/workload"
	"github.com/lockpool/lockpool/testing/zktest"
)

// fault is a kind of fault. begin injects it, and returns what it was injected
// into and how to heal it.
type fault struct {
	name   string
	target target
	lasts  length
	begin  func(c *campaign, r *rand.Rand) (what string, heal func() error, err error)
}

// target is what a fault is injected into. Faults at the same time have different
// targets.
type target int

const (
	servers target = iota
	clients
	connections
)

// length is how long a fault lasts, relative to the session timeout.
type length int

const (
	moment length = iota // it is over at once
	short
	long
)

func (l length) draw(r *rand.Rand, timeout time.Duration) time.Duration {
	switch l {
	case short:
		return between(r, timeout/10, timeout*2/3)
	case long:
		return between(r, timeout*3/2, timeout*5/2)
	default:
		return 0
	}
}

var faults = []fault{
	{"kill the leader", servers, short, func(c *campaign, _ *rand.Rand) (string, func() error, error) {
		return c.killServers(c.leader())
	}},
	{"kill a follower", servers, long, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.killServers(c.follower(r))
	}},
	{"kill the leader and a follower", servers, long, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.killServers(c.leader(), c.follower(r))
	}},
	{"kill both followers", servers, short, func(c *campaign, _ *rand.Rand) (string, func() error, error) {
		leader := c.leader()
		return c.killServers((leader+1)%members, (leader+2)%members)
	}},
	{"pause the leader", servers, short, pauseLeader},
	{"pause the leader for long", servers, long, pauseLeader},
	{"pause a follower", servers, short, pauseFollower},
	{"pause a follower for long", servers, long, pauseFollower},
	{"isolate the leader", servers, short, isolateLeader},
	{"isolate the leader for long", servers, long, isolateLeader},
	{"isolate a follower", servers, short, isolateFollower},
	{"isolate a follower for long", servers, long, isolateFollower},

	{"pause a client", clients, long, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.pauseClient(c.anyClient(r))
	}},
	{"kill a client", clients, moment, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.replaceClient(c.anyClient(r), syscall.SIGKILL)
	}},
	{"stop a client", clients, moment, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.replaceClient(c.anyClient(r), syscall.SIGTERM)
	}},

	{"reset the connections of a client", connections, moment, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.disturb(c.anyClient(r), func(p *zktest.Proxy) { p.Reset(all) })
	}},
	{"half-open the connections of a client", connections, long, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.disturb(c.anyClient(r), func(p *zktest.Proxy) { p.HalfOpen(all) })
	}},
	{"freeze the connections of a client", connections, short, freeze(zktest.Both)},
	{"freeze the connections of a client for long", connections, long, freeze(zktest.Both)},
	{"freeze a client's outgoing traffic", connections, long, freeze(zktest.Inbound)},
	{"freeze a client's incoming traffic", connections, long, freeze(zktest.Outbound)},
	{"reset all connections", connections, moment, func(c *campaign, _ *rand.Rand) (string, func() error, error) {
		for i := range c.proxies {
			_, _, _ = c.disturb(i, func(p *zktest.Proxy) { p.Reset(all) })
		}
		return "", nil, nil
	}},
}

// all selects every connection.
var all zktest.Selector

// injectFaults injects the faults of a table, each as often as the others, until
// the time is up. It lets the clients recover after each round of faults, and has
// healed all faults when it returns.
func (c *campaign) injectFaults(ctx context.Context, table []fault) error {
	r := rand.New(rand.NewPCG(c.Seed, 0))
	var deck []fault
	for end := time.Now().Add(c.Duration); time.Now().Before(end) && ctx.Err() == nil; {
		if len(deck) == 0 {
			deck = slices.Clone(table)
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		var round []fault
		round, deck = drawRound(r, deck)
		errs := make([]error, len(round))
		var wg sync.WaitGroup
		for i, f := range round {
			own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			delay := time.Duration(i) * between(r, 0, c.Timeout)
			wg.Go(func() { // ends when the fault is healed
				sleep(ctx, delay)
				errs[i] = c.inject(ctx, f, own)
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		c.awaitRecovery(ctx)
		sleep(ctx, between(r, c.Timeout/3, c.Timeout))
	}
	return nil
}

// drawRound draws the next fault from the deck, and sometimes a second one with
// another target. It returns the rest of the deck.
func drawRound(r *rand.Rand, deck []fault) (round, rest []fault) {
	round, rest = []fault{deck[0]}, deck[1:]
	if !chance(r, 33) {
		return round, rest
	}
	i := slices.IndexFunc(rest, func(f fault) bool { return f.target != round[0].target })
	if i < 0 {
		return round, rest
	}
	return append(round, rest[i]), slices.Delete(rest, i, i+1)
}

// inject injects a fault, and heals it when its time is over.
func (c *campaign) inject(ctx context.Context, f fault, r *rand.Rand) error {
	begin, lasts := now(), f.lasts.draw(r, c.Timeout)
	what, heal, err := f.begin(c, r)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	description := f.name
	if what != "" {
		description += ": " + what
	}
	if lasts > 0 {
		c.logf("%s, for %s", description, lasts.Round(time.Millisecond))
	} else {
		c.logf("%s", description)
	}
	sleep(ctx, lasts)
	if heal != nil {
		err = heal()
	}
	c.history.Update(func(rec *workload.Record) {
		end := now()
		rec.Faults = append(rec.Faults, workload.Span{Process: description, Begin: begin, End: end})
		if f.target != servers && what != "" {
			rec.Single = append(rec.Single, workload.Span{Process: what, Begin: begin, End: end})
		}
	})
	if err != nil {
		return fmt.Errorf("healing %s: %w", description, err)
	}
	return nil
}

// awaitRecovery waits for a grant after all faults have been healed.
func (c *campaign) awaitRecovery(ctx context.Context) {
	healed := now()
	c.history.Update(func(rec *workload.Record) { rec.Healed = append(rec.Healed, healed) })
	timeout := time.After(limits.Recovery)
	for {
		last, next := c.history.NextGrant()
		if last >= healed {
			return
		}
		select {
		case <-next:
		case <-timeout: // the check reports it
			return
		case <-ctx.Done():
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// leader returns the index of the leader, or of any member if there is none.
func (c *campaign) leader() int {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	s, err := c.ensemble.Leader(ctx)
	if err != nil {
		return 0
	}
	for i := range members {
		if c.ensemble.Member(i) == s {
			return i
		}
	}
	panic("torture: the leader is not a member")
}

// follower returns the index of a follower, preferably of the one that the client
// of anyClient is connected to.
func (c *campaign) follower(r *rand.Rand) int {
	leader, home := c.leader(), int(c.homes[c.anyClient(r)].Load())
	if home != leader {
		return home
	}
	return (leader + 1 + r.IntN(members-1)) % members
}

// anyClient returns the index of a client, in most cases of the one that has held a
// lock for the longest time: it has the most to lose.
func (c *campaign) anyClient(r *rand.Rand) int {
	random := r.IntN(c.Clients)
	if holder := c.history.LongestHolder(); chance(r, 70) {
		for i := range c.Clients {
			if c.client(i).name == holder {
				return i
			}
		}
	}
	return random
}

func (c *campaign) killServers(which ...int) (string, func() error, error) {
	var names []string
	for _, i := range which {
		names = append(names, c.ensemble.Member(i).Addr())
		if err := c.ensemble.Member(i).Kill(); err != nil {
			return "", nil, err
		}
	}
	return strings.Join(names, " and "), func() error {
		errs := make([]error, len(which))
		var wg sync.WaitGroup
		for n, i := range which { // all at once: a member may need the others to start
			wg.Go(func() { errs[n] = c.ensemble.Member(i).Start(context.Background()) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}, nil
}

func pauseLeader(c *campaign, _ *rand.Rand) (string, func() error, error) {
	return c.pauseServer(c.leader())
}

func pauseFollower(c *campaign, r *rand.Rand) (string, func() error, error) {
	return c.pauseServer(c.follower(r))
}

func (c *campaign) pauseServer(i int) (string, func() error, error) {
	s := c.ensemble.Member(i)
	return s.Addr(), s.Resume, s.Pause()
}

func isolateLeader(c *campaign, _ *rand.Rand) (string, func() error, error) {
	return c.isolate(c.leader())
}

func isolateFollower(c *campaign, r *rand.Rand) (string, func() error, error) {
	return c.isolate(c.follower(r))
}

func (c *campaign) isolate(i int) (string, func() error, error) {
	return c.ensemble.Member(i).Addr(), c.ensemble.Heal, c.ensemble.Isolate(i)
}

func (c *campaign) pauseClient(i int) (string, func() error, error) {
	p := c.client(i)
	begin := now()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return "", nil, err
	}
	return p.name, func() error {
		err := p.cmd.Process.Signal(syscall.SIGCONT)
		end := now()
		c.history.Update(func(rec *workload.Record) {
			rec.Pauses = append(rec.Pauses, workload.Span{Process: p.name, Begin: begin, End: end})
		})
		return err
	}, nil
}

// replaceClient ends a client's process and starts another one.
func (c *campaign) replaceClient(i int, sig syscall.Signal) (string, func() error, error) {
	p := c.client(i)
	p.end(sig)
	return p.name, nil, c.startClient(i)
}

// disturb injects a fault into the connections of a client.
func (c *campaign) disturb(i int, inject func(p *zktest.Proxy)) (string, func() error, error) {
	for _, p := range c.proxies[i] {
		inject(p)
	}
	return c.client(i).name, func() error {
		for _, p := range c.proxies[i] {
			p.Heal()
		}
		return nil
	}, nil
}

func freeze(dir zktest.Direction) func(c *campaign, r *rand.Rand) (string, func() error, error) {
	return func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.disturb(c.anyClient(r), func(p *zktest.Proxy) { p.Partition(all, dir) })
	}
}

// chance reports true in that percentage of cases.
func chance(r *rand.Rand, percent float64) bool { return r.Float64()*100 < percent }

// between returns a duration from least to most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}
