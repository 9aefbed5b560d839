package waitgraph

// This file compares the graph with a simulation of random worlds of handles and locks.

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// world is what the graph describes: handles with locks, waiting for a lock, and going on
// by the rules of package recipe.
type world struct {
	r       *rand.Rand
	queues  map[string][]Contender
	owner   map[ref]int
	limits  map[string]int // of semaphores
	handles []handle
	seq     int64
}

type handle struct {
	foreign, unchecked bool
	holds              []ref
	wait               *wait
}

type wait struct {
	lock  string
	c     Contender // without a node
	nodes []ref
	asked int64
}

func (w *world) add(h int, queue string, c Contender) {
	w.seq++
	c.Seq, c.Created = w.seq, w.seq
	c.Name = fmt.Sprintf("n%d", w.seq)
	w.queues[queue] = append(w.queues[queue], c)
	w.owner[ref{queue, c.Name}] = h
	if len(w.handles[h].wait.nodes) == 0 {
		w.handles[h].wait.asked = w.seq
	}
	w.handles[h].wait.nodes = append(w.handles[h].wait.nodes, ref{queue, c.Name})
}

func (w *world) remove(at ref) {
	w.queues[at.queue] = slices.DeleteFunc(slices.Clone(w.queues[at.queue]), func(c Contender) bool { return c.Name == at.node })
	delete(w.owner, at)
}

func (w *world) clone() *world {
	c := *w
	c.queues, c.owner, c.handles = maps.Clone(w.queues), maps.Clone(w.owner), slices.Clone(w.handles)
	for i, h := range c.handles {
		if h.wait != nil {
			copied := *h.wait
			copied.nodes = slices.Clip(copied.nodes)
			c.handles[i].wait = &copied
		}
		c.handles[i].holds = slices.Clip(h.holds)
	}
	return &c
}

// request lets a handle ask for a lock.
func (w *world) request(h int, lock string, kind driver.Kind, permits, limit int) {
	handle := &w.handles[h]
	var c Contender
	c.Node = driver.Node{Kind: kind, Permits: permits, Limit: limit}
	if !handle.foreign {
		c.Record = nodedata.Record{Origin: nodedata.Origin{PID: 1}, Unchecked: handle.unchecked}
		for _, held := range handle.holds {
			c.Record.Holds = append(c.Record.Holds, hold(held.queue, held.node))
		}
		if len(c.Record.Holds) > 0 || kind == driver.Permit {
			c.Record.Ask = fmt.Sprintf("ask%04d", w.r.IntN(10000)+int(w.seq)*10000)
		}
	}
	handle.wait = &wait{lock: lock, c: c}
	if kind == driver.Permit {
		c.Node.Kind, c.Permits, c.Limit = driver.Guard, 0, 0
		lock += "/locks"
	}
	w.add(h, lock, c)
}

// grant grants one lock, if possible.
func (w *world) grant() bool {
	for h := range w.handles {
		handle := &w.handles[h]
		if handle.wait == nil {
			continue
		}
		node := handle.wait.nodes[len(handle.wait.nodes)-1]
		queue, at := w.nodes(node)
		kind := queue[at].Kind
		switch {
		case kind == driver.Plain && at > 0:
			continue
		case kind == driver.Permit:
			limit := smaller(w.limits[handle.wait.lock], handle.wait.c.Limit)
			if queue[at].Permits > limit { // waits for the limit instead
				w.end(h)
				return true
			}
			if len(recipe.Within(limit)(queue, at)) > 0 {
				continue
			}
			w.remove(handle.wait.nodes[0])
		case kind == driver.Guard && at == 0:
			w.add(h, handle.wait.lock+"/leases", handle.wait.c)
			return true
		case len(recipe.RuleOf(kind)(queue, at)) > 0:
			continue
		}
		handle.holds, handle.wait = append(handle.holds, node), nil
		return true
	}
	return false
}

func smaller(set, given int) int {
	if given > 0 {
		return min(set, given)
	}
	return set
}

func (w *world) nodes(of ref) (queue []driver.Node, at int) {
	for _, c := range w.queues[of.queue] {
		queue = append(queue, c.Node)
	}
	return queue, slices.IndexFunc(queue, func(n driver.Node) bool { return n.Name == of.node })
}

// end ends a wait without the lock.
func (w *world) end(h int) {
	for _, ref := range w.handles[h].wait.nodes {
		w.remove(ref)
	}
	w.handles[h].wait = nil
}

func (w *world) release(h int) {
	for _, ref := range w.handles[h].holds {
		w.remove(ref)
	}
	w.handles[h].holds = nil
}

// finish lets every handle finish that can, and returns the asks of the remaining waits.
func (w *world) finish() (stuck []string) {
	for more := true; more; {
		more = w.grant()
		for h, handle := range w.handles {
			if handle.wait != nil && handle.foreign {
				w.end(h)
				more = true
			}
			if w.handles[h].wait == nil && len(handle.holds) > 0 {
				w.release(h)
				more = true
			}
		}
	}
	for _, handle := range w.handles {
		if handle.wait != nil {
			stuck = append(stuck, handle.wait.c.Record.Ask)
		}
	}
	return stuck
}

// endAll ends the waits of the asks.
func (w *world) endAll(asks ...string) *world {
	for h, handle := range w.handles {
		if handle.wait != nil && handle.wait.c.Record.Ask != "" && slices.Contains(asks, handle.wait.c.Record.Ask) {
			w.end(h)
		}
	}
	return w
}

func (w *world) graph() (queues []Queue) {
	for _, name := range slices.Sorted(maps.Keys(w.queues)) {
		q := Queue{Lock: lockOf(name), Name: name, Contenders: w.queues[name]}
		if strings.HasSuffix(name, "/leases") {
			q.Limit = w.limits[q.Lock]
		}
		queues = append(queues, q)
	}
	return queues
}

// view returns what the search of a wait reads: backward from the held locks.
func (w *world) view(wait *wait) []Queue {
	read := map[string]bool{}
	var visit func(holds []nodedata.Hold)
	visit = func(holds []nodedata.Hold) {
		for _, held := range holds {
			if read[held.Lock] {
				continue
			}
			read[held.Lock] = true
			for _, h := range w.handles {
				if h.wait != nil && h.wait.lock == held.Lock {
					visit(h.wait.c.Record.Holds)
				}
			}
		}
	}
	visit(wait.c.Record.Holds)
	return slices.DeleteFunc(w.graph(), func(q Queue) bool { return !read[q.Lock] })
}

func randomWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 16))
	w := &world{r: r, queues: map[string][]Contender{}, owner: map[ref]int{}, limits: map[string]int{}, handles: make([]handle, 2+r.IntN(9))}
	oddities := r.IntN(3) == 0
	for h := range w.handles {
		w.handles[h].foreign = oddities && r.IntN(8) == 0
		w.handles[h].unchecked = oddities && r.IntN(6) == 0
	}
	locks := 2 + r.IntN(6)
	kinds := make([]driver.Kind, locks)
	for l := range kinds {
		kinds[l] = []driver.Kind{driver.Exclusive, driver.Convertible, driver.Convertible, driver.Permit, driver.Permit, driver.Plain}[r.IntN(6)]
		w.limits[fmt.Sprint("l", l)] = 1 + r.IntN(4)
	}
	for range 10 + r.IntN(60) {
		h, l := r.IntN(len(w.handles)), r.IntN(locks)
		name, kind, permits, limit := fmt.Sprint("l", l), kinds[l], 0, 0
		switch {
		case w.handles[h].wait != nil:
			if r.IntN(20) == 0 {
				w.end(h)
			}
		case r.IntN(15) == 0:
			w.release(h)
		case kind == driver.Permit && oddities && r.IntN(5) == 0:
			w.limits[name] = 1 + r.IntN(4)
		default:
			if kind == driver.Permit {
				permits = 1 + r.IntN(w.limits[name])
				if r.IntN(4) == 0 {
					limit = permits + r.IntN(3)
				}
			} else if slices.ContainsFunc(w.handles[h].holds, func(r ref) bool { return r.queue == name }) {
				continue
			}
			if kind == driver.Convertible && r.IntN(2) == 0 {
				kind = driver.Shared
			}
			w.request(h, name, kind, permits, limit)
		}
		for r.IntN(10) > 0 && w.grant() {
		}
	}
	return w
}

// findAll returns the victims, and checks each.
func findAll(t *testing.T, w *world) (victims []string) {
	t.Helper()
	all, asked := map[string][]ref{}, map[string]int64{}
	for _, h := range w.handles {
		if h.wait == nil || h.wait.c.Record.Ask == "" {
			continue
		}
		ask := h.wait.c.Record.Ask
		cycle, proof := graphOf(w.graph()).Find(ask)
		if len(h.wait.c.Record.Holds) > 0 {
			c, p := graphOf(w.view(h.wait)).Find(ask)
			require.Equal(t, refsOf(proof), refsOf(p), "what the search of %s reads", ask)
			require.Len(t, c, len(cycle))
		}
		if cycle != nil {
			require.False(t, h.unchecked)
			requireCycle(t, w, h.wait, cycle, refsOf(proof))
			all[ask], asked[ask] = refsOf(proof), h.wait.asked
		}
	}
	victims = slices.SortedFunc(maps.Keys(all), func(a, b string) int { return cmp.Compare(asked[b], asked[a]) })
	for i, v := range victims {
		require.Contains(t, w.clone().endAll(victims[:i]...).finish(), v, "stuck if the victims end that asked later")
		require.Contains(t, w.only(all[v]).finish(), v, "stuck as long as the nodes of its proof exist")
	}
	return victims
}

// refOf names a contender as the world does.
func refOf(c *Contender) ref {
	if c.Kind() == driver.Plain {
		return ref{c.Lock, c.Name}
	}
	return ref{c.Queue, c.Name}
}

func refsOf(contenders []*Contender) (refs []ref) {
	for _, c := range contenders {
		refs = append(refs, refOf(c))
	}
	return refs
}

// only returns the world with only the given nodes.
func (w *world) only(refs []ref) *world {
	w = w.clone()
	for h := range w.handles {
		handle := &w.handles[h]
		lacks := func(r ref) bool { return !slices.Contains(refs, r) }
		for _, r := range handle.holds {
			if lacks(r) {
				w.remove(r)
			}
		}
		handle.holds = slices.DeleteFunc(slices.Clone(handle.holds), lacks)
		if handle.wait != nil && slices.ContainsFunc(handle.wait.nodes, lacks) {
			w.end(h)
		}
	}
	return w
}

func requireCycle(t *testing.T, w *world, mine *wait, cycle []Step, proof []ref) {
	t.Helper()
	require.Equal(t, mine.c.Record.Ask, cycle[0].Record.Ask)
	for i, step := range cycle {
		require.Contains(t, proof, refOf(step.Contender))
		next := cycle[(i+1)%len(cycle)]
		ahead := next.Contender
		if next.Held != nil {
			ahead = next.Held
			require.Contains(t, next.Record.Holds, hold(ahead.Queue, ahead.Name))
			require.Contains(t, proof, refOf(ahead))
		}
		require.Equal(t, step.Lock, ahead.Lock)
		if refOf(step.Contender).queue == refOf(ahead).queue {
			queue, self := w.nodes(refOf(step.Contender))
			_, other := w.nodes(refOf(ahead))
			require.Less(t, other, self)
			if step.Node.Kind == driver.Shared {
				require.NotEqual(t, driver.Shared, queue[other].Kind)
			}
		}
	}
}

func TestVictimsEndAllDeadlocksOfRandomGraphs(t *testing.T) {
	t.Parallel()
	found, again, sizes := 0, 0, map[int]int{}
	for seed := range uint64(4000) {
		ok := t.Run("", func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			}()
			w := randomWorld(seed)
			findAll(t, w) // also while some can go on
			for round := 0; ; round++ {
				stuck := w.finish()
				victims := findAll(t, w)
				if len(victims) == 0 {
					unchecked := false
					for h, handle := range w.handles {
						if handle.wait != nil && handle.unchecked {
							w.end(h)
							unchecked = true
						}
					}
					if unchecked {
						continue
					}
					require.Empty(t, stuck)
					return
				}
				found += len(victims)
				if round > 0 {
					again++
				}
				sizes[len(victims)]++
				w.endAll(victims...)
			}
		})
		if !ok {
			return
		}
	}
	t.Logf("%d victims, %d times in a later round; number of victims at once: %v", found, again, sizes)
	require.Greater(t, found, 2000)
	require.Greater(t, again, 5)
	require.Greater(t, sizes[2], 100)
}

func TestDisjointCyclesHaveOneVictimEach(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 17))
		w := &world{r: r, queues: map[string][]Contender{}, owner: map[ref]int{}, handles: make([]handle, 1)}
		w.handles = nil
		var cycles [][]int
		for range 1 + r.IntN(5) {
			var cycle []int
			for range 2 + r.IntN(19) {
				cycle = append(cycle, len(w.handles))
				w.handles = append(w.handles, handle{})
			}
			cycles = append(cycles, cycle)
		}
		kinds := []driver.Kind{driver.Exclusive, driver.Convertible, driver.Plain}
		kind := make([]driver.Kind, len(w.handles))
		for h := range w.handles {
			kind[h] = kinds[r.IntN(3)]
			w.request(h, fmt.Sprint("l", h), kind[h], 0, 0)
			require.True(t, w.grant())
		}
		var want []string
		for _, cycle := range cycles {
			last := ""
			for _, i := range r.Perm(len(cycle)) {
				next := cycle[(i+1)%len(cycle)]
				w.request(cycle[i], fmt.Sprint("l", next), kind[next], 0, 0)
				last = w.handles[cycle[i]].wait.c.Record.Ask
			}
			want = append(want, last)
		}
		require.ElementsMatch(t, want, findAll(t, w), "seed %d", seed)
		require.Len(t, graphOf(w.graph()).Deadlocks(), len(cycles))
	}
}

func TestEdgesLeadWhereTheRulesDo(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 18))
		q := Queue{Lock: "q", Name: "q", Limit: 1 + r.IntN(6)}
		permits := r.IntN(2) == 0
		var nodes []driver.Node
		for i := range 1 + r.IntN(8) {
			n := driver.Node{Name: fmt.Sprint(i), Seq: int64(i - r.IntN(2)), Kind: []driver.Kind{driver.Exclusive, driver.Shared, driver.Convertible, driver.Shared}[r.IntN(4)]}
			if permits {
				n.Kind, n.Permits, n.Limit = driver.Permit, 1+r.IntN(2), r.IntN(2)*(2+r.IntN(3))
			}
			if i > 0 {
				n.Seq = max(n.Seq, nodes[i-1].Seq)
			}
			q.Contenders = append(q.Contenders, Contender{Contender: driver.Contender{Node: n}})
			nodes = append(nodes, n)
		}
		last := len(nodes) - 1
		if permits { // of whom the last has the guard
			q.Name = "q/leases"
			q.Contenders[last].Record.Ask = "ask"
			guard := Contender{Record: nodedata.Record{Ask: "ask"}}
			g := New([]Queue{q, {Lock: "q", Name: "q/locks", Contenders: []Contender{guard}}})
			var obstacles []driver.Node
			if limit := smaller(q.Limit, nodes[last].Limit); nodes[last].Permits <= limit {
				obstacles = recipe.Within(limit)(nodes, last)
			}
			require.Len(t, g.all[last].For, len(obstacles), "seed %d", seed)
			continue
		}
		g := New([]Queue{q})
		want, got := make([]map[int]bool, len(nodes)), make([]map[int]bool, len(nodes)) // awaited in the end
		for i, n := range nodes {
			want[i], got[i] = map[int]bool{}, map[int]bool{}
			for _, o := range recipe.RuleOf(n.Kind)(nodes, i) {
				at := slices.Index(nodes, o)
				want[i][at] = true
				maps.Copy(want[i], want[at])
			}
			for _, o := range g.all[i].For {
				require.True(t, g.all[i].blocks(o))
				got[i][o.index] = true
				maps.Copy(got[i], got[o.index])
			}
			require.Equal(t, want[i], got[i], "seed %d, %d", seed, i)
			require.Equal(t, len(want[i]) > 0, g.all[i].Waits)
		}
	}
}
