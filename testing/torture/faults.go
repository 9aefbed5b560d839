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

	"github.com/lockpool/lockpool/testing/zktest"
)

// fault is one thing that can go wrong. begin lets it happen and returns to
// what exactly, and what undoes it.
type fault struct {
	name  string
	on    target
	lasts length
	begin func(c *campaign, r *rand.Rand) (what string, heal func() error, err error)
}

// target is what a fault happens to. Two faults at a time have different ones.
type target int

const (
	servers target = iota
	clients
	connections
)

// length is how long a fault lasts, compared with the session timeout.
type length int

const (
	moment length = iota // it is over when it has happened
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
		return c.pauseClient(c.someone(r))
	}},
	{"kill a client", clients, moment, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.replaceClient(c.someone(r), syscall.SIGKILL)
	}},
	{"stop a client", clients, moment, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.replaceClient(c.someone(r), syscall.SIGTERM)
	}},

	{"reset the connections of a client", connections, moment, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.disturb(c.someone(r), func(p *zktest.Proxy) { p.Reset(all) })
	}},
	{"half open connections of a client", connections, long, func(c *campaign, r *rand.Rand) (string, func() error, error) {
		return c.disturb(c.someone(r), func(p *zktest.Proxy) { p.HalfOpen(all) })
	}},
	{"freeze the connections of a client", connections, short, freeze(zktest.Both)},
	{"freeze the connections of a client for long", connections, long, freeze(zktest.Both)},
	{"freeze what a client sends", connections, long, freeze(zktest.Inbound)},
	{"freeze what a client receives", connections, long, freeze(zktest.Outbound)},
	{"reset all connections", connections, moment, func(c *campaign, _ *rand.Rand) (string, func() error, error) {
		for i := range c.proxies {
			_, _, _ = c.disturb(i, func(p *zktest.Proxy) { p.Reset(all) })
		}
		return "", nil, nil
	}},
}

// all selects every connection.
var all zktest.Selector

// torment lets faults happen, each as often as the others, until the time is up,
// with a time to recover after each. That they are healed is certain.
func (c *campaign) torment(ctx context.Context, table []fault) error {
	r := rand.New(rand.NewPCG(c.Seed, 0))
	var deck []fault
	draw := func(fits func(fault) bool) (fault, bool) {
		i := slices.IndexFunc(deck, fits)
		if i < 0 {
			return fault{}, false
		}
		f := deck[i]
		deck = slices.Delete(deck, i, i+1)
		return f, true
	}
	for end := time.Now().Add(c.Duration); time.Now().Before(end) && ctx.Err() == nil; {
		if len(deck) == 0 {
			deck = slices.Clone(table)
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		first, _ := draw(func(fault) bool { return true })
		round := []fault{first}
		if chance(r, 33) {
			if second, ok := draw(func(f fault) bool { return f.on != first.on }); ok {
				round = append(round, second)
			}
		}
		errs := make([]error, len(round))
		var wg sync.WaitGroup
		for i, f := range round {
			own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			delay := time.Duration(i) * between(r, 0, c.Timeout)
			wg.Go(func() { // ends when the fault is healed
				sleep(ctx, delay)
				errs[i] = c.inflict(ctx, f, own)
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		c.recover(ctx)
		sleep(ctx, between(r, c.Timeout/3, c.Timeout))
	}
	return nil
}

// inflict lets one fault happen and heals it.
func (c *campaign) inflict(ctx context.Context, f fault, r *rand.Rand) error {
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
		c.say("%s, for %s", description, lasts.Round(time.Millisecond))
	} else {
		c.say("%s", description)
	}
	sleep(ctx, lasts)
	if heal != nil {
		err = heal()
	}
	c.history.note(func(rec *record) { rec.faults = append(rec.faults, span{description, begin, now()}) })
	if err != nil {
		return fmt.Errorf("healing %s: %w", description, err)
	}
	return nil
}

// recover waits for a grant after everything was healed.
func (c *campaign) recover(ctx context.Context) {
	healed := now()
	c.history.note(func(rec *record) { rec.healed = append(rec.healed, healed) })
	patience := time.After(recovery)
	for {
		last, another := c.history.nextGrant()
		if last >= healed {
			return
		}
		select {
		case <-another:
		case <-patience: // the check finds it
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

// leader returns the index of the member that leads, or of any if none does.
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
	panic("the leader is no member")
}

// follower returns the index of a follower, if possible of one that a client is
// connected to that has much to lose.
func (c *campaign) follower(r *rand.Rand) int {
	leader, home := c.leader(), int(c.homes[c.someone(r)].Load())
	if home != leader {
		return home
	}
	return (leader + 1 + r.IntN(members-1)) % members
}

// someone returns the index of a client, in most cases the one that holds a lock
// for the longest time: it has the most to lose.
func (c *campaign) someone(r *rand.Rand) int {
	anyone := r.IntN(c.Clients)
	if holder := c.history.longestHolder(); chance(r, 70) {
		for i := range c.Clients {
			if c.client(i).name == holder {
				return i
			}
		}
	}
	return anyone
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
		for n, i := range which { // at once: one may need the other
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
		c.history.note(func(rec *record) { rec.pauses = append(rec.pauses, span{p.name, begin, end}) })
		return err
	}, nil
}

// replaceClient ends a client and starts another in its place.
func (c *campaign) replaceClient(i int, sig syscall.Signal) (string, func() error, error) {
	p := c.client(i)
	p.end(sig)
	return p.name, nil, c.startClient(i)
}

// disturb does something to the connections of a client.
func (c *campaign) disturb(i int, how func(p *zktest.Proxy)) (string, func() error, error) {
	for _, p := range c.proxies[i] {
		how(p)
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
		return c.disturb(c.someone(r), func(p *zktest.Proxy) { p.Partition(all, dir) })
	}
}
