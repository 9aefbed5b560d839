package lockpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
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
	Owner string // as in Contender
	Host  string
	PID   int

	Holds []Stand // its locks among those that were read
	Wait  *Stand  // nil if it waits for nothing

	// For has the indices in Parties of those that it waits for: the nearest that are in
	// its way, and not those that are in the way of these as well. It is empty if that
	// was not seen, for example for whoever is about to be granted the lock.
	For []int
}

// Stand is a place in the queue of a lock.
type Stand struct {
	Lock string
	Contender
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
				held := map[string][]*hold{}
				for _, h := range p.allHolds() {
					held[h.name] = append(held[h.name], h)
				}
				for i := range locks {
					l := &locks[i]
					l.Contenders = describe(l.found, newestByNode(held[l.Name]), l.local, l.behind)
				}
				g = newWaitGraph(locks)
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
	Queue
	unread bool
	queues []lockQueue
	found  []contender // those of Queue that have nodes
	local  []Contender // those that wait in memory, behind that node
	behind string
}

// readLock reads a lock.
func (p *Pool) readLock(ctx context.Context, s *session, name string) (l lockRead, err error) {
	l.Name = name
	inspector, err := driver.Offer[driver.Inspector](s.Session)
	if err != nil {
		return l, err
	}
	l.queues, err = readQueues(ctx, s, name, func(queue string) ([]driver.Contender, []string, error) {
		return inspector.Inspect(ctx, queue, nil)
	})
	switch {
	case errors.Is(err, driver.ErrNoPermission):
		l.unread = true
		return l, nil
	case err != nil:
		return l, err
	}
	queue := func(name string) (q lockQueue) {
		if i := slices.IndexFunc(l.queues, func(q lockQueue) bool { return q.queue == name }); i >= 0 {
			q = l.queues[i]
		}
		return q
	}
	l.found, l.Foreign, err = lookAt(name, func(name string, _ headOf) ([]driver.Contender, []string, error) {
		q := queue(name)
		return q.contenders, q.others, nil
	})
	for _, c := range queue(waitsFor(name)).contenders {
		l.found = append(l.found, contender{c, waitsFor(name), driver.Plain.String(), false})
	}
	l.local, l.behind = p.localWaiters(name)
	return l, err
}

// spot is where a contender stands.
type spot struct {
	Stand
	queue   []*spot   // of the lock
	index   int       // in it
	writer  *spot     // the nearest before it in its queue that is no reader; nil if there is none
	node    contender // empty if it waits in memory
	parties []int     // whose place it is
	holds   []*spot   // of a waiter: what its handle holds
	named   bool      // of a holder: it is among those
}

// newWaitGraph finds the parties among the contenders of locks.
func newWaitGraph(locks []lockRead) (g WaitGraph) {
	var spots []*spot
	at := map[waitgraph.Ref]*spot{}
	stuck := newGraph()
	for _, l := range locks {
		switch {
		case l.unread:
			g.Unread = append(g.Unread, l.Name)
		case len(l.Contenders) > 0:
			g.Queues = append(g.Queues, l.Queue)
			spots = append(spots, l.spots(at)...)
			if slices.ContainsFunc(l.Contenders, func(c Contender) bool { return !c.Holds }) { // otherwise it is on no cycle
				for _, q := range l.queues {
					stuck.add(q)
				}
			}
		}
	}
	g.addParties(spots, at)
	g.addEdges(spots)
	for _, refs := range waitgraph.Stuck(stuck.queues) {
		var deadlock []int
		for _, ref := range refs {
			if w := at[ref]; w != nil { // not the guard of one that waits for permits
				deadlock = append(deadlock, w.parties...)
			}
		}
		slices.Sort(deadlock)
		g.Deadlocks = append(g.Deadlocks, slices.Compact(deadlock))
	}
	return g
}

// addParties finds out whose places the spots are.
func (g *WaitGraph) addParties(spots []*spot, at map[waitgraph.Ref]*spot) {
	for _, w := range spots {
		if w.Holds {
			continue
		}
		for _, h := range nodedata.Parse(w.node.Data).Holds {
			if held := at[refTo(h)]; held != nil && held.Holds && !slices.Contains(w.holds, held) {
				held.named = true
				w.holds = append(w.holds, held)
			}
		}
	}
	for _, c := range spots {
		if c.named {
			continue // with that party
		}
		party := Party{Owner: c.Owner, Host: c.Host, PID: c.PID}
		if c.Holds {
			party.Holds = []Stand{c.Stand}
		} else {
			party.Wait = &c.Stand
		}
		for _, held := range c.holds {
			party.Holds = append(party.Holds, held.Stand)
			held.parties = append(held.parties, len(g.Parties))
		}
		c.parties = []int{len(g.Parties)}
		g.Parties = append(g.Parties, party)
	}
}

// addEdges finds out for whom the parties wait.
func (g *WaitGraph) addEdges(spots []*spot) {
	for _, w := range spots {
		if w.Holds {
			continue
		}
		me := w.parties[0]
		var others []int
		for _, o := range w.inTheWay() {
			others = append(others, o.parties...)
		}
		slices.Sort(others)
		g.Parties[me].For = slices.DeleteFunc(slices.Compact(others), func(other int) bool { return other == me })
	}
}

// spots returns the spots of the lock's contenders, and adds them to at.
func (l *lockRead) spots(at map[waitgraph.Ref]*spot) []*spot {
	queue, found, writer := make([]*spot, len(l.Contenders)), 0, (*spot)(nil)
	for i, c := range l.Contenders {
		s := &spot{Stand: Stand{l.Name, c}, queue: queue, index: i, writer: writer}
		queue[i] = s
		if c.Local {
			continue
		}
		s.node = l.found[found]
		found++
		ref := s.node.ref(l.Name)
		at[ref] = s
		if was := nodedata.Parse(s.node.Data).Was; was != "" {
			at[waitgraph.Ref{Queue: ref.Queue, Node: was}] = s
		}
		if s.node.queue == l.Name && s.node.Kind != driver.Shared {
			writer = s
		}
	}
	return queue
}

// ref names a contender of the lock of that name in a graph.
func (c contender) ref(name string) waitgraph.Ref {
	if c.queue == waitsFor(name) {
		return waitgraph.Ref{Queue: name, Node: c.Name}
	}
	return waitgraph.Ref{Queue: c.queue, Node: c.Name}
}

// inTheWay returns those that a waiter waits for, without those that these wait for.
func (w *spot) inTheWay() (others []*spot) {
	before := w.queue[:w.index]
	if len(before) == 0 {
		return nil
	}
	last := before[len(before)-1]
	switch {
	case w.Local: // its pool's node, or another one in memory
		return []*spot{last}
	case w.node.queue == waitsFor(w.Lock): // the holder: they do not wait for each other
		return before[:1]
	case w.node.queue == w.Lock+"/"+driver.Guards: // who waits with the guard, or for it
		if last.Holds {
			return nil
		}
		return []*spot{last}
	case w.node.Kind == driver.Shared:
		o := w.writer
		for o != nil && o.node.Seq == w.node.Seq { // they share the lock
			o = o.writer
		}
		if o == nil {
			return nil
		}
		return []*spot{o}
	}
	for _, o := range slices.Backward(before) {
		switch {
		case o.node.queue != w.node.queue: // or in memory
		case o.node.Kind == driver.Permit:
			others = append(others, o)
		case o.node.Seq == w.node.Seq: // they share the lock
		case o.node.Kind == driver.Shared:
			others = append(others, o)
		case others == nil:
			return []*spot{o} // all others are in its way
		default:
			return others // and it is in the way of these
		}
	}
	return others
}
