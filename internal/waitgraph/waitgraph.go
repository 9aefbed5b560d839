// Package waitgraph finds deadlocks among the contenders of locks, and chooses who is to
// end them. Its functions are pure.
//
// The vertices of the graph are contenders. One that waits depends on those that block it
// by the rules of package recipe, and one that holds a lock on the waits of the handles
// that hold it. A set of contenders is stuck if none of them can go on before another of
// them does:
//
//   - a wait for exclusive or shared access, if one of those that block it is in the set;
//   - a wait for permits, if those in the set leave too few permits for it;
//   - a holder, if a handle that holds the lock waits with a contender in the set;
//   - the guard of a semaphore, if its own wait for permits is in the set.
//
// Contenders of other clients, and those that are not known, can always go on.
//
// A deadlock is a stuck set of which each depends on each, directly or through others of the
// set, so it is the same for all waits on it, whatever else each of them knows. What a wait
// depends on and what does not depend on it has to be resolved first, by others.
//
// All functions take time and memory in proportion to the number of contenders. (Deadlocks
// through permits that are within others take a round each.)
package waitgraph

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/lockpool/lockpool/driver"
)

// A Contender stands in a queue.
type Contender struct {
	driver.Node
	Was       string // the name of the node that this one has replaced, if there was one
	Created   int64  // order in which they asked; a wait for permits has asked with its guard
	Ask       string // identifies the wait, and is common to a guard and its lease; "" if unknown
	Holds     []Ref  // what the handle held that asked; it counts only while the contender waits
	Unchecked bool   // whoever asked does not look for deadlocks, and is no victim
	Foreign   bool   // of another client
}

// A Ref names a contender by its node. The queue is that of the lock or, for permits, that
// of the leases.
type Ref struct{ Queue, Node string }

// A Queue holds contenders in order. That of a lock without a queue has its holder first,
// and then those that wait for it, which do not block one another.
type Queue struct {
	Name       string // of the lock; for semaphores with /locks or /leases
	Limit      int    // of leases: the limit that is set, or 0
	Contenders []Contender
}

// A Step is a wait on a cycle. Held is what the handle that waits holds and what the step
// before it waits for; it is zero if that one only stands behind the contender in a queue.
type Step struct {
	Queue     string
	Contender Contender
	Held      Ref
}

// Find decides whether the wait is to end because of a deadlock: whether it is on a cycle
// even without all on its cycles that asked later and can be told. It then returns the shortest such cycle, which begins
// with the wait, each step waiting for the next. The cycle stands as long as all nodes of
// the proof exist.
func Find(queues []Queue, ask string) (cycle []Step, proof []Ref, victim bool) {
	g := newGraph(queues)
	mine, among := g.wait(ask), g.everybody()
	d := g.deadlock(among, mine)
	if d == nil {
		return nil, nil, false
	}
	for i := range g.nodes {
		if g.mayEnd(d, i) && g.later(i, mine) {
			for _, other := range g.asks[g.nodes[i].Ask] {
				among[other] = false
			}
		}
	}
	if d = g.deadlock(among, mine); d == nil || !g.mayEnd(d, mine) {
		return nil, nil, false
	}
	ways := g.ways(d, mine)
	return g.steps(ways, mine), g.proof(ways, mine), true
}

// Last returns the ask of the first of the victims among those that wait for one another
// together with the wait of that ask, or nothing if it is on no cycle.
func Last(queues []Queue, ask string) (last string) {
	g := newGraph(queues)
	d, at := g.deadlock(g.everybody(), g.wait(ask)), -1
	for i := range d {
		if g.mayEnd(d, i) && (at < 0 || g.later(i, at)) {
			at, last = i, g.nodes[i].Ask
		}
	}
	return last
}

// Stuck returns the contenders that wait for one another, those of each deadlock by
// themselves. Each of them is on a cycle.
func Stuck(queues []Queue) (deadlocks [][]Ref) {
	g := newGraph(queues)
	place := map[int]int{} // in the result, by number
	for i, d := range g.deadlocks(g.everybody()) {
		if d == 0 || !g.nodes[i].waits {
			continue
		}
		at, ok := place[d]
		if !ok {
			at = len(deadlocks)
			place[d], deadlocks = at, append(deadlocks, nil)
		}
		deadlocks[at] = append(deadlocks[at], g.nodes[i].ref)
	}
	return deadlocks
}

// graph has the contenders of all queues, those of one queue after those of another. Sets
// of them have the same indices.
type graph struct {
	queues []Queue
	first  []int // of each queue, and the number of all
	nodes  []node
	asks   map[string][]int // the waits of each ask
}

type node struct {
	*Contender
	ref     Ref
	queue   int
	asked   int64 // order
	waits   bool
	holds   []int // of a wait: the contenders that cannot leave before it ends
	keepers []int // the waits whose handles hold it
}

func newGraph(queues []Queue) *graph {
	g := &graph{queues: queues, asks: map[string][]int{}}
	at := map[Ref]int{}
	guards := map[string]int{}
	for q, queue := range queues {
		g.first = append(g.first, len(g.nodes))
		for i := range queue.Contenders {
			c := &queue.Contenders[i]
			ref := Ref{queue.Name, c.Name}
			at[ref] = len(g.nodes)
			if c.Was != "" {
				at[Ref{queue.Name, c.Was}] = len(g.nodes)
			}
			if name, ok := strings.CutSuffix(queue.Name, "/"+driver.Guards); ok && i == 0 && c.Kind == driver.Guard {
				guards[name+"/"+driver.Leases] = len(g.nodes)
			}
			g.nodes = append(g.nodes, node{Contender: c, ref: ref, queue: q, asked: c.Created})
		}
	}
	g.first = append(g.first, len(g.nodes))
	everybody := g.everybody()
	for q := range queues {
		leases := 0
		g.scan(q, everybody, func(i int, before prefix) {
			n := &g.nodes[i]
			n.waits = before.blocks(n.Contender) && !n.Foreign
			if n.Kind != driver.Permit || !n.waits {
				return
			}
			// Whoever waits for permits has the guard. Without it, the permits were granted
			// before the limit was lowered. A wait for more than the limit waits for that.
			guard, ok := guards[n.ref.Queue]
			alone := prefix{limit: math.MaxInt}
			alone.state(queues[q].Limit)
			alone.state(n.Limit)
			n.waits = ok && n.Ask != "" && g.nodes[guard].Ask == n.Ask && n.Permits <= alone.limit && before.exhaust(n.Contender) && leases == 0
			if n.waits { // a request has one
				leases++
				n.asked = g.nodes[guard].Created
				g.link(i, guard)
			}
		})
	}
	for i, n := range g.nodes {
		if n.waits && n.Ask != "" {
			g.asks[n.Ask] = append(g.asks[n.Ask], i)
		}
		for _, ref := range n.Holds { // even if a request to release the lock hides whose it is
			if held, ok := at[ref]; ok && n.waits && !g.nodes[held].waits {
				g.link(i, held)
			}
		}
	}
	return g
}

func (g *graph) link(wait, held int) {
	g.nodes[wait].holds = append(g.nodes[wait].holds, held)
	g.nodes[held].keepers = append(g.nodes[held].keepers, wait)
}

// prefix sums up those contenders of a set that are before a place in their queue.
type prefix struct {
	any     bool
	holder  bool  // of a lock without a queue
	writer  int64 // the lowest number of one that is not a reader
	permits int
	limit   int // the smallest that is set or stated
}

// scan visits the contenders of a queue in order. What visit changes in the set counts for
// those that follow.
func (g *graph) scan(queue int, set []bool, visit func(i int, before prefix)) {
	before := prefix{writer: math.MaxInt64, limit: math.MaxInt}
	before.state(g.queues[queue].Limit)
	for i := g.first[queue]; i < g.first[queue+1]; i++ {
		visit(i, before)
		if n := g.nodes[i]; set[i] {
			before.any = true
			before.holder = before.holder || i == g.first[queue]
			if n.Kind != driver.Shared {
				before.writer = min(before.writer, int64(n.Seq))
			}
			before.permits += n.Permits
			before.state(n.Limit)
		}
	}
}

func (p *prefix) state(limit int) {
	if limit > 0 {
		p.limit = min(p.limit, limit)
	}
}

// blocks reports whether one of them is among those that block c if anything does: recipe.RuleOf.
func (p prefix) blocks(c *Contender) bool {
	switch c.Kind {
	case driver.Shared:
		return p.writer < int64(c.Seq)
	case driver.Plain:
		return p.holder
	default:
		return p.any
	}
}

// exhaust reports whether they leave too few permits for c: recipe.Within.
func (p prefix) exhaust(c *Contender) bool {
	p.state(c.Limit)
	return p.any && p.permits+c.Permits > p.limit
}

// everybody returns the set of all contenders.
func (g *graph) everybody() []bool { return slices.Repeat([]bool{true}, len(g.nodes)) }

// wait returns the first wait of an ask, or -1.
func (g *graph) wait(ask string) int {
	if waits := g.asks[ask]; len(waits) > 0 {
		return waits[0]
	}
	return -1
}

// later reports whether one wait has asked after another.
func (g *graph) later(i, than int) bool {
	a, b := g.nodes[i], g.nodes[than]
	return cmp.Or(cmp.Compare(a.asked, b.asked), strings.Compare(a.Ask, b.Ask)) > 0
}

// mayEnd reports whether a contender of a deadlock is a wait that can end it. It must hold
// something that others of the deadlock wait for: a wait that only stands before them in a
// queue may hold nothing at all, and then does not look.
func (g *graph) mayEnd(d []bool, i int) bool {
	n := g.nodes[i]
	return d[i] && n.waits && n.Ask != "" && !n.Unchecked &&
		slices.ContainsFunc(n.holds, func(h int) bool { return d[h] && g.nodes[h].Kind != driver.Guard })
}

// blocks reports whether one contender is among those that block another behind it.
func (g *graph) blocks(o, c int) bool {
	p := prefix{any: true, holder: o == g.first[g.nodes[o].queue], writer: math.MaxInt64}
	if g.nodes[o].Kind != driver.Shared {
		p.writer = int64(g.nodes[o].Seq)
	}
	return p.blocks(g.nodes[c].Contender)
}

// way tells how a contender was reached: over is what the wait at from waits for.
type way struct {
	reached    bool
	from, over int
}

// ways returns the shortest ways from a wait to the others of its deadlock, and back to it.
func (g *graph) ways(d []bool, wait int) []way {
	ways := make([]way, len(g.nodes))
	seen := map[[2]int]int{} // by queue and whether only writers block: up to which place it was looked at
	for next := []int{wait}; len(next) > 0; next = next[1:] {
		from := next[0]
		key := [2]int{g.nodes[from].queue, int(g.nodes[from].Kind)}
		for o := max(seen[key], g.first[key[0]]); o < from; o++ {
			if !d[o] || !g.blocks(o, from) {
				continue
			}
			waits := g.nodes[o].keepers
			if g.nodes[o].waits {
				waits = []int{o}
			} else {
				ways[o] = way{true, from, o}
			}
			for _, w := range waits {
				if d[w] && !ways[w].reached {
					ways[w] = way{true, from, o}
					next = append(next, w)
				}
			}
		}
		seen[key] = max(seen[key], from)
	}
	return ways
}

// steps returns the shortest cycle.
func (g *graph) steps(ways []way, mine int) (cycle []Step) {
	for w := mine; ; {
		n, over := g.nodes[w], g.nodes[ways[w].over]
		step := Step{Queue: n.ref.Queue, Contender: *n.Contender}
		if !over.waits && over.Kind != driver.Guard {
			step.Held = over.ref
		}
		cycle = append(cycle, step)
		if w = ways[w].from; w == mine {
			slices.Reverse(cycle[1:])
			return cycle
		}
	}
}

// proof returns the nodes that make the shortest cycle stand: those on it and, for a wait
// for permits, also all others that leave too few, with what makes these stuck.
func (g *graph) proof(ways []way, mine int) (refs []Ref) {
	to := map[int]way{} // on the cycle: which wait comes next, and over what
	for w, done := mine, false; !done; done = w == mine {
		l := ways[w]
		to[l.from] = way{from: w, over: l.over}
		w = l.from
	}
	proven := map[int]bool{}
	prove := func(i int) (isNew bool) {
		isNew = !proven[i]
		if isNew {
			proven[i] = true
			refs = append(refs, g.nodes[i].ref)
		}
		return isNew
	}
	for next := []int{mine}; len(next) > 0; next = next[1:] {
		n := g.nodes[next[0]]
		if !prove(next[0]) {
			continue
		}
		for _, h := range n.holds {
			if n.Kind == driver.Permit && g.nodes[h].Kind == driver.Guard {
				prove(h)
			}
		}
		on, ok := to[next[0]]
		for o := g.first[n.queue]; o < next[0]; o++ {
			if !ways[o].reached || !g.blocks(o, next[0]) || ok && n.Kind != driver.Permit && o != on.over {
				continue
			}
			switch keepers := g.nodes[o].keepers; {
			case g.nodes[o].waits:
				next = append(next, o)
			case ok && o == on.over:
				prove(o)
				next = append(next, on.from)
			default:
				prove(o)
				next = append(next, keepers[slices.IndexFunc(keepers, func(k int) bool { return ways[k].reached })])
			}
			if n.Kind != driver.Permit {
				break
			}
		}
	}
	return refs
}
