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
// The circle of a wait is looked for in the largest stuck set from which all dependencies
// lead to that wait, so it is the same for all waits on it, whatever else each of them
// knows. What a wait depends on and what does not depend on it has to be resolved first,
// by others.
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
	Created   int64  // order in which they asked; a lease asks when its guard lets it
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

// A Step is a wait on a circle. Held is what the handle that waits holds and what the step
// before it waits for; it is zero if that one only stands behind the contender in a queue.
type Step struct {
	Queue     string
	Contender Contender
	Held      Ref
}

// Find decides whether the wait is to end because of a deadlock: whether it is on a circle
// and, if all on its circles that asked later are told before, still the one that asked
// last of those that can be told. It then returns the shortest such circle, which begins
// with the wait, each step waiting for the next. The circle stands as long as all nodes of
// the proof exist.
func Find(queues []Queue, ask string) (circle []Step, proof []Ref, victim bool) {
	g := newGraph(queues)
	mine := slices.IndexFunc(g.nodes, func(n node) bool { return n.waits && n.Ask == ask })
	if mine < 0 || ask == "" {
		return nil, nil, false
	}
	for {
		c := g.component(mine)
		last := g.last(c)
		if last < 0 {
			return nil, nil, false
		}
		if g.nodes[last].Ask == ask {
			return g.steps(c, mine), g.proof(c, mine), true
		}
		for i, n := range g.nodes {
			g.gone[i] = g.gone[i] || n.waits && n.Ask == g.nodes[last].Ask
		}
	}
}

// Last returns the ask of the first of the victims among those that wait for one another
// together with the wait of that ask, or nothing if it is on no circle.
func Last(queues []Queue, ask string) string {
	g := newGraph(queues)
	mine := slices.IndexFunc(g.nodes, func(n node) bool { return n.waits && n.Ask == ask })
	if mine < 0 || ask == "" {
		return ""
	}
	if last := g.last(g.component(mine)); last >= 0 {
		return g.nodes[last].Ask
	}
	return ""
}

// Stuck returns the contenders that wait for one another, those of each deadlock by
// themselves. Each of them is on a circle.
func Stuck(queues []Queue) (deadlocks [][]Ref) {
	g := newGraph(queues)
	known := make([]bool, len(g.nodes))
	for i, n := range g.nodes {
		if !n.waits || known[i] || len(n.holds) == 0 { // every circle passes through one that holds something
			continue
		}
		var refs []Ref
		for j, l := range g.component(i) {
			if l.reached && g.nodes[j].waits {
				known[j] = true
				refs = append(refs, g.nodes[j].ref)
			}
		}
		if refs != nil {
			deadlocks = append(deadlocks, refs)
		}
	}
	return deadlocks
}

// graph has the contenders of all queues, those of one queue after those of another. Sets
// of them have the same indices.
type graph struct {
	queues []Queue
	first  []int // of each queue, and the number of all
	nodes  []node
	gone   []bool
}

type node struct {
	*Contender
	ref     Ref
	queue   int
	waits   bool
	holds   []int // of a wait: the contenders that cannot leave before it ends
	keepers []int // the waits whose handles hold it
}

func newGraph(queues []Queue) *graph {
	g := &graph{queues: queues}
	at := map[Ref]int{}
	guards := map[string]int{}
	for q, queue := range queues {
		g.first = append(g.first, len(g.nodes))
		for i := range queue.Contenders {
			c := &queue.Contenders[i]
			ref := Ref{queue.Name, c.Name}
			at[ref] = len(g.nodes)
			if name, ok := strings.CutSuffix(queue.Name, "/"+driver.Guards); ok && i == 0 && c.Kind == driver.Guard {
				guards[name+"/"+driver.Leases] = len(g.nodes)
			}
			g.nodes = append(g.nodes, node{Contender: c, ref: ref, queue: q})
		}
	}
	g.first = append(g.first, len(g.nodes))
	g.gone = make([]bool, len(g.nodes))
	everybody := slices.Repeat([]bool{true}, len(g.nodes))
	for q := range queues {
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
			n.waits = ok && n.Ask != "" && g.nodes[guard].Ask == n.Ask && n.Permits <= alone.limit && before.exhaust(n.Contender)
			if n.waits {
				g.link(i, guard)
			}
		})
	}
	for i, n := range g.nodes {
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

// settle changes the set until each contender is in it for which the rule says so. The rule
// is monotonic: only removes or only adds.
func (g *graph) settle(set []bool, rule func(i int, before prefix) bool) []bool {
	changed := slices.Repeat([]bool{true}, len(g.queues))
	for slices.Contains(changed, true) {
		for q := range g.queues {
			if !changed[q] {
				continue
			}
			changed[q] = false
			g.scan(q, set, func(i int, before prefix) {
				if is := rule(i, before); is != set[i] {
					set[i] = is
					for _, held := range g.nodes[i].holds {
						changed[g.nodes[held].queue] = true
					}
				}
			})
		}
	}
	return set
}

// stuck returns the largest stuck set among those given.
func (g *graph) stuck(among []bool) []bool {
	set := slices.Clone(among)
	return g.settle(set, func(i int, before prefix) bool {
		switch n := g.nodes[i]; {
		case !set[i]:
			return false
		case !n.waits:
			return slices.ContainsFunc(n.keepers, func(k int) bool { return set[k] })
		case n.Kind == driver.Permit:
			return before.exhaust(n.Contender)
		default:
			return before.blocks(n.Contender)
		}
	})
}

// leading returns those of the set whose dependencies lead to the wait, within the set.
func (g *graph) leading(among []bool, wait int) []bool {
	set := make([]bool, len(among))
	return g.settle(set, func(i int, before prefix) bool {
		n := g.nodes[i]
		return among[i] && (i == wait || n.waits && before.blocks(n.Contender) ||
			!n.waits && slices.ContainsFunc(n.keepers, func(k int) bool { return set[k] }))
	})
}

// way tells how a contender was reached: over is what the wait at from waits for.
type way struct {
	reached    bool
	from, over int
}

// component returns the contenders that are on circles through the wait: those reached, by
// the shortest way. It returns nil if there are none.
func (g *graph) component(wait int) []way {
	among := make([]bool, len(g.nodes))
	for i := range among {
		among[i] = !g.gone[i]
	}
	for {
		set := g.stuck(among)
		if !set[wait] {
			return nil
		}
		if among = g.leading(set, wait); slices.Equal(among, set) {
			break
		}
	}
	reached := make([]way, len(g.nodes))
	seen := map[[2]int]int{} // by queue and whether only writers block: up to which place it was looked at
	for next := []int{wait}; len(next) > 0; next = next[1:] {
		from := next[0]
		key := [2]int{g.nodes[from].queue, int(g.nodes[from].Kind)}
		for o := max(seen[key], g.first[key[0]]); o < from; o++ {
			if !among[o] || !g.blocks(o, from) {
				continue
			}
			waits := g.nodes[o].keepers
			if g.nodes[o].waits {
				waits = []int{o}
			} else {
				reached[o] = way{true, from, o}
			}
			for _, w := range waits {
				if among[w] && !reached[w].reached {
					reached[w] = way{true, from, o}
					next = append(next, w)
				}
			}
		}
		seen[key] = max(seen[key], from)
	}
	return reached
}

// blocks reports whether one contender is among those that block another behind it.
func (g *graph) blocks(o, c int) bool {
	p := prefix{any: true, holder: o == g.first[g.nodes[o].queue], writer: math.MaxInt64}
	if g.nodes[o].Kind != driver.Shared {
		p.writer = int64(g.nodes[o].Seq)
	}
	return p.blocks(g.nodes[c].Contender)
}

// last returns the wait of a component that asked last, or -1. It must hold something that
// others of the component wait for: a wait that only stands before them in a queue may hold
// nothing at all, and then does not look. (Such a wait has joined its queue before those. But
// it may have joined the leases of a semaphore after all others had asked.)
func (g *graph) last(component []way) int {
	last := -1
	for i, l := range component {
		n := g.nodes[i]
		if !l.reached || !n.waits || n.Ask == "" || n.Unchecked ||
			!slices.ContainsFunc(n.holds, func(h int) bool { return component[h].reached && g.nodes[h].Kind != driver.Guard }) {
			continue
		}
		if last < 0 || cmp.Or(cmp.Compare(n.Created, g.nodes[last].Created), strings.Compare(n.Ask, g.nodes[last].Ask)) > 0 {
			last = i
		}
	}
	return last
}

// steps returns the shortest circle.
func (g *graph) steps(component []way, mine int) (circle []Step) {
	for w := mine; ; {
		n, over := g.nodes[w], g.nodes[component[w].over]
		step := Step{Queue: n.ref.Queue, Contender: *n.Contender}
		if !over.waits && over.Kind != driver.Guard {
			step.Held = over.ref
		}
		circle = append(circle, step)
		if w = component[w].from; w == mine {
			slices.Reverse(circle[1:])
			return circle
		}
	}
}

// proof returns the nodes that make the shortest circle stand: those on it and, for a wait
// for permits, also all others that leave too few, with what makes these stuck.
func (g *graph) proof(component []way, mine int) (refs []Ref) {
	to := map[int]way{} // on the circle: which wait comes next, and over what
	for w, done := mine, false; !done; done = w == mine {
		l := component[w]
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
			if !component[o].reached || !g.blocks(o, next[0]) || ok && n.Kind != driver.Permit && o != on.over {
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
				next = append(next, keepers[slices.IndexFunc(keepers, func(k int) bool { return component[k].reached })])
			}
			if n.Kind != driver.Permit {
				break
			}
		}
	}
	return refs
}
