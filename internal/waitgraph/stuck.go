package waitgraph

import (
	"math"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// stuck returns the largest stuck set among those given: it takes away whoever can go on, as
// long as there is one.
func (g *graph) stuck(among []bool) []bool {
	s := settling{graph: g, set: slices.Clone(among), keepers: make([]int, len(g.nodes)), heads: make([]head, len(g.queues))}
	for i, n := range g.nodes {
		if !s.set[i] {
			continue
		}
		for _, held := range n.holds {
			s.keepers[held]++
		}
	}
	for i, n := range g.nodes {
		if !n.waits && s.keepers[i] == 0 {
			s.free = append(s.free, i)
		}
	}
	for q := range g.queues {
		s.heads[q] = head{first: g.first[q], writer: g.first[q], changed: true}
		s.release(q)
	}
	for s.settle(); s.checkPermits(); s.settle() {
	}
	return s.set
}

// settling is the work of stuck.
type settling struct {
	*graph
	set     []bool
	keepers []int // of a holder: how many waits in the set hold it
	heads   []head
	free    []int // can go on, and are to be taken away
	permits []int // queues with a wait for permits that have changed
}

// head is how far a queue is known to be out of the set.
type head struct {
	first, writer int  // the first in the set, and the first that is no reader
	changed       bool // since permits were checked
}

// settle takes away those that can go on, except waits for permits.
func (s *settling) settle() {
	for len(s.free) > 0 {
		i := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		if !s.set[i] {
			continue
		}
		s.set[i] = false
		for _, held := range s.nodes[i].holds {
			if s.keepers[held]--; s.keepers[held] == 0 {
				s.free = append(s.free, held)
			}
		}
		s.heads[s.nodes[i].queue].changed = true
		s.release(s.nodes[i].queue)
	}
}

// release finds those that nobody in the queue blocks any longer.
func (s *settling) release(q int) {
	h, end := &s.heads[q], s.graph.first[q+1]
	for ; h.first < end && !s.set[h.first]; h.first++ {
		if n := s.nodes[h.first]; n.Kind == driver.Plain && h.first == s.graph.first[q] { // the holder
			for i := h.first + 1; i < end; i++ {
				s.wakes(i, driver.Plain)
			}
		}
	}
	if h.first < end && s.nodes[h.first].Kind != driver.Shared && s.nodes[h.first].Kind != driver.Plain {
		s.wakes(h.first, s.nodes[h.first].Kind)
	}
	for ; h.writer < end && (!s.set[h.writer] || s.nodes[h.writer].Kind == driver.Shared); h.writer++ {
		s.wakes(h.writer, driver.Shared)
	}
	for i := h.writer + 1; i < end && s.nodes[i].Seq == s.nodes[h.writer].Seq; i++ { // the same holder, downgraded
		s.wakes(i, driver.Shared)
	}
}

// wakes notes that a wait of that kind can go on.
func (s *settling) wakes(i int, kind driver.Kind) {
	if n := s.nodes[i]; s.set[i] && n.waits && n.Kind == kind {
		s.free = append(s.free, i)
	}
}

// checkPermits finds waits for permits that can go on. It reports whether there are any.
func (s *settling) checkPermits() bool {
	for q := range s.queues {
		first := s.graph.first[q]
		if !s.heads[q].changed || first == s.graph.first[q+1] || s.nodes[first].Kind != driver.Permit {
			continue
		}
		s.heads[q].changed = false
		s.scan(q, s.set, func(i int, before prefix) {
			if n := s.nodes[i]; s.set[i] && n.waits && !before.exhaust(n.Contender) {
				s.free = append(s.free, i)
			}
		})
	}
	return len(s.free) > 0
}

// deadlock returns the deadlock among those given that a wait is in, or nil.
func (g *graph) deadlock(among []bool, wait int) []bool {
	if wait < 0 {
		return nil
	}
	of := g.deadlocks(among)
	if of[wait] == 0 {
		return nil
	}
	d := make([]bool, len(of))
	for i := range d {
		d[i] = of[i] == of[wait]
	}
	return d
}

// deadlocks returns the number of the deadlock among those given that each contender is in,
// or 0.
func (g *graph) deadlocks(among []bool) (of []int) {
	set := g.stuck(among)
	for again := slices.Contains(set, true); again || of == nil; {
		of, again = g.cycles(set), false
		for i, n := range g.nodes {
			if of[i] == 0 || !n.waits || n.Kind != driver.Permit {
				continue
			}
			before := prefix{limit: math.MaxInt}
			before.state(g.queues[n.queue].Limit)
			for o := g.first[n.queue]; o < i; o++ {
				if of[o] == of[i] {
					before.any = true
					before.permits += g.nodes[o].Permits
					before.state(g.nodes[o].Limit)
				}
			}
			if !before.exhaust(n.Contender) { // others may release enough
				set[i], again = false, true
			}
		}
	}
	return of
}

// cycles returns the number of the strongly connected component that each contender of the
// set is in, or 0 if it is on no cycle.
func (g *graph) cycles(set []bool) (of []int) {
	t := tarjan{graph: g, set: set, of: make([]int, len(g.nodes)), index: make([]int, 3*len(g.nodes)), low: make([]int, 3*len(g.nodes))}
	for i := range g.nodes {
		if set[i] && t.index[i] == 0 {
			t.visit(i)
		}
	}
	return t.of
}

// tarjan is Tarjan's algorithm. A wait depends on all before it in its queue, or on all that
// are no readers. So that there are not as many edges as pairs, the vertices are, for n
// contenders, these; then for each all up to it in its queue; and then for each all up to it
// that are no readers.
type tarjan struct {
	*graph
	set        []bool
	of         []int
	number     int // of the last component
	last       int // index
	index, low []int
	open       []int // visited vertices of components that are not complete
}

// visit visits what can be reached from a vertex.
func (t *tarjan) visit(root int) {
	type frame struct{ v, next int }
	enter := func(v int) frame {
		t.last++
		t.index[v], t.low[v] = t.last, t.last
		t.open = append(t.open, v)
		return frame{v, 0}
	}
	for path := []frame{enter(root)}; len(path) > 0; {
		f := &path[len(path)-1]
		to, more := t.edge(f.v, f.next)
		f.next++
		switch {
		case more && to < 0: // not in the set
		case more && t.index[to] == 0:
			path = append(path, enter(to))
		case more:
			t.low[f.v] = min(t.low[f.v], t.index[to]) // that of a complete one is larger than any
		default:
			v := f.v
			if path = path[:len(path)-1]; len(path) > 0 {
				under := path[len(path)-1].v
				t.low[under] = min(t.low[under], t.low[v])
			}
			if t.low[v] == t.index[v] {
				t.complete(v)
			}
		}
	}
}

// complete completes the component that begins with a vertex.
func (t *tarjan) complete(v int) {
	i := 0
	for i = len(t.open) - 1; t.open[i] != v; i-- {
	}
	members := 0
	for _, m := range t.open[i:] {
		t.index[m] = math.MaxInt
		if m < len(t.nodes) {
			members++
		}
	}
	if members > 1 {
		t.number++
		for _, m := range t.open[i:] {
			if m < len(t.nodes) {
				t.of[m] = t.number
			}
		}
	}
	t.open = t.open[:i]
}

// edge returns the vertex at the end of the k-th edge from another one, or -1 if that is not
// in the set, and whether there is such an edge.
func (t *tarjan) edge(v, k int) (to int, ok bool) {
	n := len(t.nodes)
	i, part := v%n, v/n
	c, first := t.nodes[i], t.first[t.nodes[i].queue]
	switch {
	case part == 0 && !c.waits:
		if k == len(c.keepers) {
			return 0, false
		}
		return t.member(c.keepers[k]), true
	case part == 0 && k > 0:
		return 0, false
	case part == 0 && c.Kind == driver.Plain:
		return t.member(first), true
	case part == 0:
		o := i - 1
		if part = 1; c.Kind == driver.Shared {
			for part = 2; o >= first && t.nodes[o].Seq == c.Seq; o-- { // the same holder, downgraded
			}
		}
		return part*n + o, o >= first
	case k == 0 && part == 2 && c.Kind == driver.Shared:
		return -1, true
	case k == 0:
		return t.member(i), true
	default:
		return v - 1, k == 1 && i > first
	}
}

func (t *tarjan) member(i int) int {
	if t.set[i] {
		return i
	}
	return -1
}
