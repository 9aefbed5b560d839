package lockpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// WaitGraph tells who waits for whom. It is what [Pool.Waits] has read, lock by lock, so
// what it says of two locks may have been true at two moments.
type WaitGraph struct {
	// Queues are the locks that have a holder or a waiter, sorted by name, as from
	// Pool.Queue. Beside the holder of a plain lock are those that wait for it while they
	// hold other locks (see WithDeadlockCheck); Pool.Break and Pool.Revoke do not know their
	// nodes.
	Queues []Queue

	Parties []Party // in the order of the queues

	// Deadlocks has, for each deadlock, the indices in Parties of those that wait for each
	// other in cycles. They can go on only if one of them gives up.
	Deadlocks [][]int

	// Unread are the names of locks that could not be read, because the right to do so is
	// missing on them or on one of their nodes. They and their contenders are in none of
	// the above.
	Unread []string
}

// Party is a handle, of any process, as far as the nodes tell: what a handle holds is known
// while it waits for something else. A handle that waits for nothing is a party for each
// lock that it holds, and so is a contender of another client for each of its nodes. A
// holder's node that several handles of a pool share, such as readers, may be with several
// parties.
type Party struct {
	Origin // of what it waits for or else of what it holds

	Wait  *Contender  // nil if it waits for nothing
	Holds []Contender // its locks among those that were read; on a cycle, what the call before it waits for

	// For has the indices of those that it waits for: the nearest that are in its way, and
	// not those that are in the way of these as well. It is empty if that was not seen, for
	// example for whoever is about to be granted the lock.
	For []int
}

// Waits returns who waits for whom, over all locks below prefix, such as orders; the empty
// prefix means all. Those that wait in this pool's memory are shown as in [Pool.Queue]. It
// only reads, all nodes there, with a bounded number of requests under way. A lock that
// comes free meanwhile is left out, and one that cannot be read for want of rights is in
// Unread.
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
			if err == nil {
				g = p.waitGraph(locks)
			}
			return err
		})
	}
	if err != nil {
		return WaitGraph{}, fmt.Errorf("lockpool: waits below %q: %w", prefix, err)
	}
	return g, nil
}

// readLocks reads the locks of these names.
func (p *Pool) readLocks(ctx context.Context, s *session, names []string) ([]lockRead, error) {
	const readers = 4 // each makes many reads at a time
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
	return locks, context.Cause(ctx)
}

// lockRead is a lock as it was read.
type lockRead struct {
	name    string
	queues  []waitgraph.Queue // nil if the right to read it is missing
	foreign []string
	local   []Contender // those that wait in memory, behind that node
	behind  string
}

// readLock reads a lock.
func (p *Pool) readLock(ctx context.Context, s *session, name string) (l lockRead, err error) {
	l.name = name
	inspector, err := driver.Offer[driver.Inspector](s.Session)
	if err != nil {
		return l, err
	}
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
	l.local, l.behind = p.localWaiters(name)
	return l, nil
}

// waitGraph finds the parties among the contenders of locks.
func (p *Pool) waitGraph(locks []lockRead) WaitGraph {
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
		q := Queue{Name: l.name, Foreign: l.foreign, Contenders: describe(found[l.name], newestByNode(p.holdsOf(l.name)), l.local, l.behind)}
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
	node    *waitgraph.Contender // nil if it waits in memory
	before  *shown               // in its queue
	parties []int                // that it belongs to
}

// addParties finds out to whom the contenders belong, and for whom these wait.
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
			continue // with those that name it
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

// partiesOf returns the parties that contenders belong to, except some.
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
