package waitgraph

// This file finds deadlocks, their victims, and the cycles to report.

import (
	"cmp"
	"slices"
	"strings"
)

// This file has the deadlocks of a graph, their victims, and the proof of a cycle.

// Step is a wait on a cycle. Held is the hold of the waiting handle awaited by the step
// before; nil if the step before is only behind the wait in a queue.
type Step struct {
	*Contender
	Held *Contender
}

// Find decides whether a wait is to end because of a deadlock: whether the wait is in a
// deadlock even without the waits of the same deadlock that asked later and can end the
// deadlock. Find then returns the shortest cycle through the wait, beginning with the wait,
// each step waiting for the next. The cycle stands as long as all contenders of the proof
// exist.
func (g *Graph) Find(ask string) (cycle []Step, proof []*Contender) {
	set := g.lasting()
	of := g.deadlocks(set)
	mine := g.waitIn(of, ask)
	if mine == nil {
		return nil, nil
	}
	for _, c := range g.all {
		if c.mayEnd(of, of[mine.index]) && c.later(mine) {
			for _, other := range g.waits[c.Record.Ask] {
				set[other.index] = false
			}
		}
	}
	of = g.deadlocks(set)
	if !mine.mayEnd(of, of[mine.index]) {
		return nil, nil
	}
	w := walk{g, func(c *Contender) bool { return of[c.index] == of[mine.index] }, make([]way, len(g.all))}
	w.from(mine)
	cycle = w.cycle(mine)
	return cycle, w.proof(cycle)
}

// Last returns the ask of the victim of a wait's deadlock: the last to ask of the waits
// that can end the deadlock. Last returns nothing for a wait without a deadlock.
func (g *Graph) Last(ask string) string {
	of := g.deadlocks(g.lasting())
	mine := g.waitIn(of, ask)
	if mine == nil {
		return ""
	}
	var last *Contender
	for _, c := range g.all {
		if c.mayEnd(of, of[mine.index]) && (last == nil || c.later(last)) {
			last = c
		}
	}
	if last == nil {
		return ""
	}
	return last.Record.Ask
}

// Deadlocks returns the waits of each deadlock.
func (g *Graph) Deadlocks() (all [][]*Contender) {
	place := map[int]int{} // in all, by number
	of := g.deadlocks(g.lasting())
	for i, c := range g.all {
		if of[i] == 0 || !c.Waits {
			continue
		}
		at, ok := place[of[i]]
		if !ok {
			at = len(all)
			place[of[i]], all = at, append(all, nil)
		}
		all[at] = append(all[at], c)
	}
	return all
}

// waitIn returns the first wait of an ask in a deadlock, or nil.
func (g *Graph) waitIn(of []int, ask string) *Contender {
	i := slices.IndexFunc(g.waits[ask], func(c *Contender) bool { return of[c.index] != 0 })
	if i < 0 {
		return nil
	}
	return g.waits[ask][i]
}

// mayEnd reports whether the contender is a wait that can end a deadlock. The wait's handle
// must hold something awaited by others of the deadlock: a wait merely before them in a
// queue may hold nothing at all, and then does not look.
func (c *Contender) mayEnd(of []int, deadlock int) bool {
	return deadlock != 0 && of[c.index] == deadlock && c.Waits && c.Record.Ask != "" && !c.Record.Unchecked &&
		slices.ContainsFunc(c.Holds, func(h *Contender) bool { return of[h.index] == deadlock })
}

// later reports whether one wait has asked after another.
func (c *Contender) later(than *Contender) bool {
	return cmp.Or(cmp.Compare(c.asked, than.asked), strings.Compare(c.Record.Ask, than.Record.Ask)) > 0
}

// deadlocks returns, for each contender of a set, the number of the contender's deadlock,
// or 0.
func (g *Graph) deadlocks(set []bool) []int {
	set = slices.Clone(set)
	to := g.edges(set)
	for {
		t := tarjan{g, to, set, make([]int, len(g.all)), make([]visit, len(g.all)), nil, 0, 0}
		for i, c := range g.all {
			if set[i] && t.visits[i].index == 0 {
				t.visit(c)
			}
		}
		again := false
		for _, c := range g.leases {
			if t.of[c.index] == 0 {
				continue
			}
			if g.exhausting(c, func(o int) bool { return t.of[o] == t.of[c.index] }) == nil { // others may release enough
				set[c.index], again = false, true
			}
		}
		if !again {
			return t.of
		}
	}
}

// tarjan finds the strongly connected components of a set.
type tarjan struct {
	*Graph
	to     [][]*Contender
	set    []bool
	of     []int // the number of the component of each contender, or 0 without a cycle
	visits []visit
	open   []int // visited contenders of incomplete components
	last   int   // index
	number int   // of the last component
}

type visit struct {
	index, low int
	complete   bool
}

// visit visits what can be reached from a contender.
func (t *tarjan) visit(c *Contender) {
	t.last++
	v, at := &t.visits[c.index], len(t.open)
	v.index, v.low = t.last, t.last
	t.open = append(t.open, c.index)
	to := t.to[c.index]
	if !c.Waits {
		to = c.keepers
	}
	for _, next := range to {
		n := &t.visits[next.index]
		if !t.set[next.index] || n.complete {
			continue
		}
		if n.index == 0 {
			t.visit(next)
		}
		v.low = min(v.low, n.low)
	}
	if v.low < v.index {
		return
	}
	members := t.open[at:]
	if len(members) > 1 {
		t.number++
	}
	for _, m := range members {
		t.visits[m].complete = true
		if len(members) > 1 {
			t.of[m] = t.number
		}
	}
	t.open = t.open[:at]
}

// walk goes from a wait to the others of its deadlock, on the shortest ways.
type walk struct {
	*Graph
	in   func(*Contender) bool // the deadlock
	ways []way
}

// way tells how a wait was reached: from another one, waiting for over.
type way struct{ before, over *Contender }

// from walks from a wait until back at the wait.
func (w *walk) from(mine *Contender) {
	seen := map[[2]int]int{} // by part of all contenders and kind: looked at up to this index
	for next := []*Contender{mine}; len(next) > 0; next = next[1:] {
		c, ties := next[0], false
		part := [2]int{c.first, int(c.Node.Kind)}
		for _, over := range w.all[max(seen[part], c.first):max(seen[part], c.ends)] {
			switch {
			case !w.in(over):
			case !c.blocks(over):
				ties = ties || c.Seq == over.Seq
			default:
				for _, wait := range over.stuck() {
					if w.in(wait) && w.ways[wait.index].before == nil {
						w.ways[wait.index] = way{c, over}
						next = append(next, wait)
					}
				}
			}
		}
		if !ties { // others may go over ties, c may not
			seen[part] = max(seen[part], c.ends)
		}
	}
}

// stuck returns the waits to end before the contender goes.
func (c *Contender) stuck() []*Contender {
	if c.Waits {
		return []*Contender{c}
	}
	return c.keepers
}

// cycle returns the shortest cycle.
func (w *walk) cycle(mine *Contender) (cycle []Step) {
	for c := mine; ; {
		step := Step{Contender: c}
		if over := w.ways[c.index].over; over != c && !over.isGuard() {
			step.Held = over
		}
		cycle = append(cycle, step)
		if c = w.ways[c.index].before; c == mine {
			slices.Reverse(cycle[1:])
			return cycle
		}
	}
}

// proof returns the contenders on which a cycle depends: the contenders on the cycle and,
// for a wait for permits, also all others that leave too few permits, with the waits that
// keep the others stuck.
func (w *walk) proof(cycle []Step) (proof []*Contender) {
	next := map[*Contender]*Contender{} // on the cycle
	for i, step := range cycle {
		next[step.Contender] = cycle[(i+1)%len(cycle)].Contender
	}
	proven := map[*Contender]bool{nil: true}
	add := func(c *Contender) {
		if !proven[c] {
			proven[c] = true
			proof = append(proof, c)
		}
	}
	for todo := []*Contender{cycle[0].Contender}; len(todo) > 0; todo = todo[1:] {
		c := todo[0]
		if proven[c] {
			continue
		}
		add(c)
		add(c.guard)
		to, all := next[c], c.isLease()
		for _, over := range w.all[c.first:c.ends] {
			if !w.in(over) || !c.blocks(over) || to != nil && !all && over != w.ways[to.index].over {
				continue
			}
			waits := over.stuck()
			if to == nil || over != w.ways[to.index].over {
				waits = waits[slices.IndexFunc(waits, w.in):][:1]
			} else {
				waits = []*Contender{to}
			}
			todo = append(todo, waits...)
			if !over.Waits {
				add(over)
			}
			if !all {
				break
			}
		}
	}
	return proof
}
