//go:build linux

package campaign

// This file has the faults of every engine.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

// Fault is a kind of fault. Begin injects the fault, and returns where, and how to heal the
// fault: nil if there is nothing to heal.
type Fault struct {
	Name   string
	Target Target
	Lasts  workload.Length
	Begin  func(c *Campaign, r *rand.Rand) (what string, heal func() error, err error)
}

// Target is what a fault is injected into. Faults at the same time have different
// targets.
type Target int

const (
	Servers Target = iota
	Clients
	Connections
)

// faults are the faults of every engine.
var faults = []Fault{
	{"kill the leader", Servers, workload.Short, members(leader, Cluster.Kill, Cluster.Restart)},
	{"kill a follower", Servers, workload.Long, members(follower, Cluster.Kill, Cluster.Restart)},
	{"kill the leader and a follower", Servers, workload.Long, members(leaderAndFollower, Cluster.Kill, Cluster.Restart)},
	{"kill both followers", Servers, workload.Short, members(followers, Cluster.Kill, Cluster.Restart)},
	{"pause the leader", Servers, workload.Short, members(leader, Cluster.Pause, Cluster.Resume)},
	{"pause the leader for long", Servers, workload.Long, members(leader, Cluster.Pause, Cluster.Resume)},
	{"pause a follower", Servers, workload.Short, members(follower, Cluster.Pause, Cluster.Resume)},
	{"pause a follower for long", Servers, workload.Long, members(follower, Cluster.Pause, Cluster.Resume)},
	{"isolate the leader", Servers, workload.Short, members(leader, Cluster.Isolate, reunite)},
	{"isolate the leader for long", Servers, workload.Long, members(leader, Cluster.Isolate, reunite)},
	{"isolate a follower", Servers, workload.Short, members(follower, Cluster.Isolate, reunite)},
	{"isolate a follower for long", Servers, workload.Long, members(follower, Cluster.Isolate, reunite)},

	{"pause a process", Clients, workload.Long, onClient((*Campaign).pauseClient)},
	{"kill a process", Clients, workload.Moment, onClient(replace(syscall.SIGKILL))},
	{"stop a process", Clients, workload.Moment, onClient(replace(syscall.SIGTERM))},

	{"reset connections", Connections, workload.Moment, onClient(disturb(Link.Reset))},
	{"half-open connections", Connections, workload.Long, onClient(disturb(Link.HalfOpen))},
	{"freeze connections", Connections, workload.Short, onClient(freeze(true, true))},
	{"freeze connections for long", Connections, workload.Long, onClient(freeze(true, true))},
	{"freeze what a process sends", Connections, workload.Long, onClient(freeze(true, false))},
	{"freeze what a process receives", Connections, workload.Long, onClient(freeze(false, true))},
	{"lose replies to a process", Connections, workload.Short, onClient(loseReplies)},
	{"reset all connections", Connections, workload.Moment, func(c *Campaign, _ *rand.Rand) (string, func() error, error) {
		for i := range c.links {
			_, _, _ = c.Disturb(i, Link.Reset)
		}
		return "", nil, nil
	}},
}

// injectFaults injects the faults of a table, each as often as the others, until the time
// is up. It lets the clients recover after each round of faults, and returns with all
// faults healed.
func (c *Campaign) injectFaults(ctx context.Context, table []Fault) error {
	r := rand.New(rand.NewPCG(c.Seed, 0))
	deck := workload.Deck[Fault]{All: table}
	for end := time.Now().Add(c.Duration); time.Now().Before(end) && ctx.Err() == nil; {
		round := []Fault{deck.Deal(r)}
		if chance(r, 33) { // at the same time, one with another target
			second := deck.DealFirst(r, func(f Fault) bool { return f.Target != round[0].Target })
			if second.Target != round[0].Target {
				round = append(round, second)
			}
		}
		errs := make([]error, len(round))
		var wg sync.WaitGroup
		for i, f := range round {
			own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			delay := time.Duration(i) * workload.Between(r, 0, c.Timeout)
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
		sleep(ctx, workload.Between(r, c.Timeout/3, c.Timeout))
	}
	return nil
}

// inject injects a fault, and heals the fault when the time is over.
func (c *Campaign) inject(ctx context.Context, f Fault, r *rand.Rand) error {
	begin, lasts := now(), f.Lasts.Draw(r, c.Timeout, c.Timeout)
	what, heal, err := f.Begin(c, r)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	description := workload.Describe(f.Name, what)
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
		if f.Target != Servers && what != "" {
			rec.Single = append(rec.Single, workload.Span{Process: what, Begin: begin, End: end})
		}
	})
	if err != nil {
		return fmt.Errorf("healing %s: %w", description, err)
	}
	return nil
}

// awaitRecovery waits for a grant after all faults have been healed.
func (c *Campaign) awaitRecovery(ctx context.Context) {
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
		case <-timeout: // reported by the check
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

// leader returns the index of the leader, or of any member without a leader.
func leader(c *Campaign, _ *rand.Rand) []int {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	i, err := c.Cluster.Leader(ctx)
	if err != nil {
		i = 0
	}
	return []int{i}
}

// follower returns the index of a follower, preferably of the member that the client of
// anyClient is connected to.
func follower(c *Campaign, r *rand.Rand) []int {
	leader, home := leader(c, r)[0], int(c.homes[c.anyClient(r)].Load())
	if home != leader {
		return []int{home}
	}
	return []int{(leader + 1 + r.IntN(Members-1)) % Members}
}

func leaderAndFollower(c *Campaign, r *rand.Rand) []int {
	return append(leader(c, r), follower(c, r)...)
}

func followers(c *Campaign, r *rand.Rand) []int {
	leader := leader(c, r)[0]
	return []int{(leader + 1) % Members, (leader + 2) % Members}
}

// anyClient returns the index of a client, in most cases of the longest holder of a lock:
// this client has the most to lose.
func (c *Campaign) anyClient(r *rand.Rand) int {
	random := r.IntN(c.Clients)
	if holder := c.LongestHolder(); holder >= 0 && chance(r, 70) {
		return holder
	}
	return random
}

// LongestHolder returns the index of the client holding a lock for the longest time, or -1
// if there is none.
func (c *Campaign) LongestHolder() int {
	name := c.history.LongestHolder()
	for i := range c.Clients {
		if c.client(i).name == name {
			return i
		}
	}
	return -1
}

// members is a fault of some members, all of which end the fault at once: a member may need the
// others to start.
func members(which func(*Campaign, *rand.Rand) []int, begin, end func(Cluster, int) error) func(*Campaign, *rand.Rand) (string, func() error, error) {
	return func(c *Campaign, r *rand.Rand) (string, func() error, error) {
		all, names := which(c, r), []string{}
		for _, i := range all {
			names = append(names, c.Cluster.Addr(i))
			if err := begin(c.Cluster, i); err != nil {
				return "", nil, err
			}
		}
		return strings.Join(names, " and "), func() error {
			errs := make([]error, len(all))
			var wg sync.WaitGroup
			for n, i := range all {
				wg.Go(func() { errs[n] = end(c.Cluster, i) })
			}
			wg.Wait()
			return errors.Join(errs...)
		}, nil
	}
}

func reunite(c Cluster, _ int) error { return c.Heal() }

// onClient is a fault of the client of anyClient.
func onClient(begin func(c *Campaign, client int) (string, func() error, error)) func(*Campaign, *rand.Rand) (string, func() error, error) {
	return func(c *Campaign, r *rand.Rand) (string, func() error, error) { return begin(c, c.anyClient(r)) }
}

func (c *Campaign) pauseClient(i int) (string, func() error, error) {
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

// replace ends a client's process and starts another one.
func replace(sig syscall.Signal) func(*Campaign, int) (string, func() error, error) {
	return func(c *Campaign, i int) (string, func() error, error) {
		p := c.client(i)
		p.end(sig)
		return p.name, nil, c.startClient(i)
	}
}

// Disturb injects a fault into the connections of a client.
func (c *Campaign) Disturb(i int, inject func(Link)) (string, func() error, error) {
	for _, l := range c.links[i] {
		inject(l)
	}
	return c.client(i).name, func() error {
		for _, l := range c.links[i] {
			l.Heal()
		}
		return nil
	}, nil
}

func disturb(inject func(Link)) func(*Campaign, int) (string, func() error, error) {
	return func(c *Campaign, i int) (string, func() error, error) { return c.Disturb(i, inject) }
}

func freeze(requests, replies bool) func(*Campaign, int) (string, func() error, error) {
	return disturb(func(l Link) { l.Hold(requests, replies) })
}

// loseReplies has servers carry out the requests of a client, and the client never learn of
// the effects.
func loseReplies(c *Campaign, i int) (string, func() error, error) {
	what, heal, err := freeze(false, true)(c, i)
	return what, func() error {
		_, _, _ = c.Disturb(i, Link.Reset)
		return heal()
	}, err
}

// chance reports true in the given percentage of cases.
func chance(r *rand.Rand, percent float64) bool { return r.Float64()*100 < percent }
