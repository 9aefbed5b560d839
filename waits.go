package lockpool

// This file has Waits, the graph of the waits in all queues.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// WaitGraph tells who waits for whom, as [Pool.Waits] has read lock by lock: the states of
// two locks may be of two moments.
type WaitGraph struct {
	// Queues are the locks with a holder or a waiter, sorted by name, as from Pool.Queue.
	// Beside the holder of a plain lock are the waiters with other locks (see
	// WithDeadlockCheck); Pool.Break and Pool.Revoke do not know their nodes.
	Queues []Queue

	Parties []Party // in the order of the queues

	// Deadlocks has, for each deadlock, the indices in Parties of the parties in cycles of
	// waits. They can go on only if one gives up.
	Deadlocks [][]int

	// Unread are the names of locks without the right to read, or with such a node. The
	// locks and their contenders are in none of the above.
	Unread []string
}

// Party is a handle, of any process, as far as the nodes tell: what a handle holds is known
// while the handle waits for something else. A handle without a wait is a party for each
// held lock, and a contender of another client for each node. A node shared by several
// handles of a pool, such as readers, may be with several parties.
type Party struct {
	Origin // of the awaited lock or else of the held one

	Wait  *Contender  // nil without a wait
	Holds []Contender // the held locks among the read ones; on a cycle, what the call before waits for

	// For has the indices of the awaited parties: the nearest in the way, without the
	// parties in the way of these as well. For is empty if none was seen, for example just
	// before the grant.
	For []int
}

// Waits returns who waits for whom, over all locks below prefix, such as orders; the empty
// prefix means all. Waiters in this pool's memory are shown as in [Pool.Queue]. Waits only
// reads, all nodes there, with a bounded number of requests under way. A lock that comes
// free meanwhile is left out, and a lock without the right to read is in Unread.
func (p *Pool) Waits(ctx context.Context, prefix string) (g WaitGraph, err error) {
	if prefix != "" {
		err = p.checkName(prefix)
	}
	if err == nil {
		err = p.withSession(ctx, func(ctx context.Context, s *session) error {
			inspector, err := driver.Offer[driver.Inspector](s.Session)
			if err != nil {
				return err
			}
			names, err := inspector.Queues(ctx, prefix)
			if err != nil {
				return err
			}
			names = slices.DeleteFunc(names, func(name string) bool { return p.checkName(name) != nil })
			locks, err := p.readLocks(ctx, s, names)
			if err != nil {
				return err
			}
			g = p.waitGraph(locks, sync.OnceValue(func() crowds { return p.crowdsOf(ctx, s) }))
			return nil
		})
	}
	if err != nil {
		return WaitGraph{}, fmt.Errorf("lockpool: waits below %q: %w", prefix, err)
	}
	return g, nil
}

// readLocks reads the named locks.
func (p *Pool) readLocks(ctx context.Context, s *session, names []string) ([]lockRead, error) {
	const readers = 4 // each makes many reads at a time
	parent := ctx
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	locks := make([]lockRead, len(names))
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(readers, len(names)) {
		all.Go(func() { // ends when all locks are read, or ctx ends
			for i := next.Add(1) - 1; i < int64(len(names)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				var err error
				if locks[i], err = p.readLock(ctx, s, names[i]); err != nil {
					fail(err)
				}
			}
		})
	}
	all.Wait()
	return locks, cmp.Or(parent.Err(), context.Cause(ctx))
}

// lockRead is what was read of a lock.
type lockRead struct {
	name    string
	queues  []waitgraph.Queue // nil without the right to read
	foreign []string
	local   inMemory
}

// readLock reads a lock.
func (p *Pool) readLock(ctx context.Context, s *session, name string) (l lockRead, err error) {
	l.name = name
	inspector, err := driver.Offer[driver.Inspector](s.Session)
	if err != nil {
		return l, err
	}
	before := p.turnsOf(name)
	queues, others, err := readWaits(ctx, s, name, func(queue string, _ headOf) ([]driver.Contender, []string, error) {
		return inspector.Inspect(ctx, queue, nil)
	})
	switch {
	case errors.Is(err, driver.ErrNoPermission):
		return l, nil
	case err != nil:
		return l, err
	}
	l.queues, l.foreign = queues, foreignOf(others)
	l.local = p.localWaiters(name, before)
	return l, nil
}

// waitGraph finds the parties among the contenders of locks.
func (p *Pool) waitGraph(locks []lockRead, reports func() crowds) WaitGraph {
	var queues []waitgraph.Queue
	for _, l := range locks {
		queues = append(queues, l.queues...)
	}
	graph := waitgraph.New(queues)
	found := map[string][]*waitgraph.Contender{}
	for _, c := range graph.Shown() {
		found[c.Lock] = append(found[c.Lock], c)
	}
	g, all := WaitGraph{}, []*shown(nil)
	byNode := map[*waitgraph.Contender]*shown{}
	for _, l := range locks {
		q := Queue{Name: l.name, Foreign: l.foreign, Contenders: describe(found[l.name], l.local, p.turnsOf(l.name))}
		addCrowds(&q, reports)
		switch {
		case l.queues == nil:
			g.Unread = append(g.Unread, l.name)
		case len(q.Contenders) > 0:
			g.Queues = append(g.Queues, q)
		}
		var before *shown
		for i := range q.Contenders {
			c := &shown{Contender: &q.Contenders[i], before: before}
			if !c.Local {
				c.node, found[l.name] = found[l.name][0], found[l.name][1:]
				byNode[c.node] = c
			}
			before, all = c, append(all, c)
		}
	}
	g.addParties(all, byNode)
	for _, waits := range graph.Deadlocks() {
		g.Deadlocks = append(g.Deadlocks, partiesOf(waits, byNode))
	}
	return g
}

// shown is a contender of a wait graph.
type shown struct {
	*Contender
	node    *waitgraph.Contender // nil in memory
	before  *shown               // in its queue
	parties []int                // of the contender
}

// addParties finds the parties of the contenders, and whom the parties wait for.
func (g *WaitGraph) addParties(all []*shown, byNode map[*waitgraph.Contender]*shown) {
	named := map[*waitgraph.Contender]bool{}
	for _, c := range all {
		if c.node != nil {
			for _, held := range c.node.Holds {
				named[held] = true
			}
		}
	}
	for _, c := range all {
		if named[c.node] {
			continue // with the waiters that name the node
		}
		party := Party{Origin: c.Origin}
		c.parties = []int{len(g.Parties)}
		if c.Holds {
			party.Holds = []Contender{*c.Contender}
		} else {
			wait := *c.Contender
			party.Wait = &wait
		}
		if c.node != nil {
			for _, node := range c.node.Holds {
				if held := byNode[node]; held != nil {
					party.Holds = append(party.Holds, *held.Contender)
					held.parties = append(held.parties, len(g.Parties))
				}
			}
		}
		g.Parties = append(g.Parties, party)
	}
	for _, c := range all {
		switch {
		case c.Holds:
			continue
		case c.node != nil:
			g.Parties[c.parties[0]].For = partiesOf(c.node.For, byNode, c.parties...)
		case c.before != nil: // its pool's node, or another one in memory
			g.Parties[c.parties[0]].For = slices.Clone(c.before.parties)
		}
	}
}

// partiesOf returns the parties of contenders, except some.
func partiesOf(contenders []*waitgraph.Contender, byNode map[*waitgraph.Contender]*shown, except ...int) (parties []int) {
	for _, c := range contenders {
		if c.Lease() != nil {
			c = c.Lease()
		}
		parties = append(parties, byNode[c].parties...)
	}
	slices.Sort(parties)
	return slices.DeleteFunc(slices.Compact(parties), func(p int) bool { return slices.Contains(except, p) })
}
