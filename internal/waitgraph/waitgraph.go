// Package waitgraph is the waits-for graph of locks. The graph tells who waits for whom,
// which waits are in a deadlock, and which wait is the victim to end the deadlock. The
// functions are pure.
//
// The vertices of the graph are contenders: nodes in the queues of locks. A waiter has
// edges to the contenders that block the waiter by the rules of package recipe. A holder
// has edges to the waits of the same handle, for other locks. A request for permits has a
// guard while waiting, and also a lease once first among the guards; the guard has an edge
// to the lease, as long as the lease waits. A waiter of another client may give up at any
// time, and so is on no cycle.
//
// A deadlock is a strongly connected set: each contender waits for each other one, directly
// or through others of the set. So all waits of a deadlock find the same set. A wait for
// permits belongs to the set only if the set leaves too few permits.
//
// All functions take time and memory in proportion to the number of contenders. (Deadlocks
// through permits within others take a round each.)
package waitgraph

import (
	"cmp"
	"math"
	"slices"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// Contender is a contender for a lock, and the data of the node.
type Contender struct {
	driver.Contender
	Record nodedata.Record
	Lock   string
	Queue  string // of the contender's node
	Ended  bool   // the wait is known to have ended: the node is about to go

	// Set by New.
	Waits bool         // for the lock; otherwise the contender holds the lock
	Holds []*Contender // of a wait: the holds of the waiting handle
	For   []*Contender // of a wait: the nearest awaited contenders

	index       int
	asked       int64        // order of asking; a wait for permits has asked with the guard
	guard       *Contender   // of a lease: the guard, if still there
	lease       *Contender   // of a guard: the lease
	keepers     []*Contender // of a holder: the waits of the same handle
	first, ends int          // the obstacles are in this part of all contenders
	limit       int          // of a lease
}

// Waits returns the name of the queue of the nodes for nested waits on a plain lock.
func Waits(lock string) string { return driver.Waits + "/" + lock }

// Queue is one of the queues of a lock, in order.
type Queue struct {
	Lock, Name string
	Limit      int // of leases: the set limit, or 0
	Contenders []Contender
}

// Read returns a queue of a lock with the data of the contenders.
func Read(lock, name string, contenders []driver.Contender) Queue {
	q := Queue{Lock: lock, Name: name, Contenders: make([]Contender, len(contenders))}
	for i, c := range contenders {
		q.Contenders[i] = Contender{Contender: c, Record: nodedata.Parse(c.Data)}
	}
	return q
}

// Kind returns the kind of the wanted or held lock.
func (c *Contender) Kind() driver.Kind {
	switch c.Queue {
	case c.Lock:
		return c.Node.Kind
	case Waits(c.Lock):
		return driver.Plain
	}
	return driver.Permit
}

// Located returns the node, as read.
func (c *Contender) Located() driver.Located {
	return driver.Located{Queue: c.Queue, Node: c.Node, Version: c.Version}
}

func (c *Contender) isGuard() bool { return c.Queue == c.Lock+"/"+driver.Guards }
func (c *Contender) isLease() bool { return c.Queue == c.Lock+"/"+driver.Leases }

// Graph has all contenders of some locks.
type Graph struct {
	all    []*Contender // one queue after the other
	queues []span
	waits  map[string][]*Contender // by ask
	leases []*Contender            // waiting
}

// span is a queue in a graph.
type span struct{ first, end int }

// ref names a contender.
type ref struct{ queue, node string }

// New returns the graph of some queues, and changes nothing in them.
func New(queues []Queue) *Graph {
	g := &Graph{waits: map[string][]*Contender{}}
	at, spans := map[ref]*Contender{}, map[string]span{}
	for _, q := range queues {
		s := span{first: len(g.all)}
		for i := range q.Contenders {
			c := q.Contenders[i]
			c.Lock, c.Queue, c.limit = q.Lock, q.Name, cmp.Or(q.Limit, math.MaxInt)
			c.index, c.first, c.ends, c.asked = len(g.all), s.first, len(g.all), c.Created
			if age := c.Record.Age; age > 0 {
				c.asked = min(c.asked, age)
			}
			at[ref{q.Name, c.Name}] = &c
			if c.Record.Was != "" {
				at[ref{q.Name, c.Record.Was}] = &c
			}
			g.all = append(g.all, &c)
		}
		s.end = len(g.all)
		spans[q.Name] = s
		g.queues = append(g.queues, s)
	}
	for _, q := range queues {
		switch s := spans[q.Name]; q.Name {
		case Waits(q.Lock): // they wait for the holder, and not for each other
			holder := spans[q.Lock]
			for _, c := range g.all[s.first:s.end] {
				c.Waits, c.first, c.ends = true, holder.first, holder.end
			}
		case q.Lock + "/" + driver.Guards:
			leases := spans[q.Lock+"/"+driver.Leases]
			g.pair(g.all[s.first:s.end], g.all[leases.first:leases.end])
		}
	}
	to := g.edges(g.everybody())
	for i, c := range g.all {
		c.For = to[i]
		c.Waits = c.Waits || len(to[i]) > 0 || c.isGuard() && c.lease == nil
		if c.Waits && c.Record.Ask != "" {
			g.waits[c.Record.Ask] = append(g.waits[c.Record.Ask], c)
		}
	}
	for _, c := range g.all {
		for _, h := range c.Record.Holds { // even if a revocation hides the owner
			queue := h.Lock
			if h.Permits {
				queue += "/" + driver.Leases
			}
			held := at[ref{queue, h.Node}]
			if held != nil && c.Waits && !held.Waits && !slices.Contains(c.Holds, held) {
				c.Holds = append(c.Holds, held)
				held.keepers = append(held.keepers, c)
			}
		}
	}
	return g
}

// pair finds the guard of each lease: a call for permits has both until the grant.
// Curator's nodes do not name their caller, but a Curator session rarely makes two such
// calls at a time.
func (g *Graph) pair(guards, leases []*Contender) {
	byAsk := map[string]*Contender{}
	for _, guard := range guards {
		if ask := guard.Record.Ask; ask != "" {
			byAsk[ask] = guard
		}
	}
	for _, c := range leases {
		guard := byAsk[c.Record.Ask]
		if c.Record.Ask == "" && len(guards) > 0 && guards[0].Record.Ask == "" && guards[0].Session == c.Session && guards[0].Created < c.Created {
			guard = guards[0]
		}
		if guard == nil || guard.lease != nil {
			continue
		}
		c.Waits, c.guard, guard.lease = true, guard, c
		if guard == guards[0] { // Only the first guard adds leases. A wait for more permits than the limit waits for the limit.
			c.asked = guard.asked
			guard.keepers = []*Contender{c}
			if c.Permits <= c.permitted() {
				g.leases = append(g.leases, c)
			}
		}
	}
}

// permitted returns the limit for a lease.
func (c *Contender) permitted() int { return min(c.limit, cmp.Or(c.Limit, math.MaxInt)) }

// Shown returns the contenders in the order to show them: for a semaphore the leases, and
// then the guards of calls without leases.
func (g *Graph) Shown() (shown []*Contender) {
	var guards []*Contender
	for i, c := range g.all {
		if i > 0 && c.Lock != g.all[i-1].Lock {
			shown, guards = append(shown, guards...), nil
		}
		switch {
		case !c.isGuard():
			shown = append(shown, c)
		case c.lease == nil:
			guards = append(guards, c)
		}
	}
	return append(shown, guards...)
}

// Lease returns the lease of a guard, or nil.
func (c *Contender) Lease() *Contender { return c.lease }

// edges returns for each wait the nearest awaited contenders: the contenders of the set in
// the way, without contenders further ahead in the same queue, awaited by the nearest.
func (g *Graph) edges(set []bool) [][]*Contender {
	to := make([][]*Contender, len(g.all))
	for _, q := range g.queues {
		if q.first == q.end {
			continue
		}
		switch c := g.all[q.first]; c.Queue {
		case c.Lock + "/" + driver.Leases:
		case Waits(c.Lock):
			for i := q.first; i < q.end; i++ {
				to[i] = g.all[c.first:c.ends]
			}
		default:
			g.edgesOf(q, set, to)
		}
	}
	for _, c := range g.leases {
		to[c.index] = g.exhausting(c, func(o int) bool { return set[o] })
	}
	return to
}

// edgesOf is edges in a queue where all earlier contenders block each one but readers.
func (g *Graph) edgesOf(q span, set []bool, to [][]*Contender) {
	var readers []*Contender // since the last writer
	var writers []*Contender
	for i := q.first; i < q.end; i++ {
		c := g.all[i]
		if !set[i] {
			continue
		}
		last := len(writers) - 1
		if c.Node.Kind == driver.Shared {
			for last >= 0 && !recipe.Blocks(writers[last].Node, c.Node) {
				last--
			}
			if last >= 0 {
				to[i] = writers[last : last+1 : last+1]
			}
			readers = append(readers, c)
			continue
		}
		to[i] = readers
		if last >= 0 && (len(readers) == 0 || !recipe.Blocks(writers[last].Node, readers[0].Node)) {
			to[i] = append(to[i], writers[last])
		}
		writers, readers = append(writers, c), nil
	}
}

// exhausting returns the contenders of a set if they leave too few permits for a lease, or
// nothing.
func (g *Graph) exhausting(lease *Contender, in func(int) bool) (others []*Contender) {
	var nodes []driver.Node
	for _, c := range g.all[lease.first:lease.index] {
		if in(c.index) {
			others, nodes = append(others, c), append(nodes, c.Node)
		}
	}
	if len(recipe.Within(lease.permitted())(append(nodes, lease.Node), len(nodes))) == 0 {
		return nil
	}
	return others
}

// blocks reports whether a contender in the part of c's obstacles blocks c.
func (c *Contender) blocks(ahead *Contender) bool {
	return c.Queue != ahead.Queue || c.isLease() || recipe.Blocks(ahead.Node, c.Node)
}

// everybody returns the set of all contenders.
func (g *Graph) everybody() []bool { return slices.Repeat([]bool{true}, len(g.all)) }

// lasting returns the set without the waits known to end by themselves.
func (g *Graph) lasting() []bool {
	set := g.everybody()
	for i, c := range g.all {
		set[i] = !c.Waits || c.Record.IsOurs() && !c.Ended
	}
	return set
}
