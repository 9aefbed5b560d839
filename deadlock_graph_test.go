package lockpool_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// Random graphs of handles that hold locks of all kinds and ask for others. What is true is
// known from the calls, from the server's nodes, of which each tells by its traceparent
// which call created it, and from the rules of locks, which are stated here once more.

var (
	graphs      = flag.Int("graphs", 0, "how many random graphs TestDeadlockGraphs and TestDeadlockGraphsOfProcesses try each; 0 is a few")
	graphSeed   = flag.Uint64("graph-seed", 1, "the seed of the first random graph; each next one has the next number")
	graphFaults = flag.String("graph-faults", "both", "whether there are faults in random graphs: `yes, no or both` in turn")
)

const (
	brokenWithin = 2 * time.Second // of the time when a cycle has closed and all on it are connected
	graphEnd     = 2 * time.Minute // everybody has finished by then
)

type graphLock struct {
	name    string
	kind    byte // 'x' exclusive and shared, 's' semaphore, 'p' plain, 'a' two locks that are taken together
	limit   int  // of a semaphore
	stated  bool // by those that acquire permits; otherwise it is set
	smaller bool // some state a smaller one; then all acquire one permit
}

// graphOp asks for a lock.
type graphOp struct {
	Lock    int
	Name    string
	Mode    byte // 'x', 'r', 's', 'p' as above, 'a' both of a pair, 'y' the second of it
	Permits int
	Limit   int
}

func (op graphOp) String() string {
	return fmt.Sprintf("%c %s %d/%d", op.Mode, op.Name, op.Permits, op.Limit)
}

func (op graphOp) names() []string {
	switch op.Mode {
	case 'a':
		return []string{op.Name, op.Name + "-too"}
	case 'y':
		return []string{op.Name + "-too"}
	}
	return []string{op.Name}
}

// do does it with a handle, and returns the error of the call.
func (op graphOp) do(ctx context.Context, h *lockpool.Handle) (err error) {
	switch op.Mode {
	case 'r':
		_, err = h.Lock(ctx, op.Name, lockpool.Shared())
	case 's':
		_, err = h.Semaphore(op.Name, op.Limit).Acquire(ctx, op.Permits)
	case 'p':
		_, err = h.Lock(ctx, op.Name, lockpool.Plain())
	case 'a':
		_, err = h.LockAll(ctx, op.names())
	default:
		_, err = h.Lock(ctx, op.names()[0])
	}
	return err
}

// graphHandle is a handle of a random graph, and its program: it gets what it begins with
// without a wait, then asks for the rest, one after the other, and finishes.
type graphHandle struct {
	id, pool int
	begin    []graphOp
	asks     []graphOp
	at       time.Duration // of the first ask
	lasts    time.Duration // from the last grant until it finishes
	retries  bool          // asks again once when it is a victim
	timed    bool          // at and lasts were chosen together with those of others

	first   time.Time // when the first of its asks began that a deadlock has ended
	granted []*graphAsk
	pending *graphAsk // also while it is told and has not left
}

// graphAsk is a call.
type graphAsk struct {
	graphOp
	id     int
	handle *graphHandle
	begun  time.Time
	told   bool               // that it is a victim
	last   lockpool.Contender // with which it was told
	seen   []graphNode        // its nodes, when they were last seen
	since  time.Time          // it has waited with these nodes
	got    time.Time          // when it was granted
}

func (a *graphAsk) String() string {
	return fmt.Sprintf("%d: handle %d of pool %d, %v", a.id, a.handle.id, a.handle.pool, a.graphOp)
}

// actor does what handles do, here or in other processes.
type actor interface {
	do(ctx context.Context, h *graphHandle, op graphOp) error
	finish(ctx context.Context, h *graphHandle) error
}

// graph is a random one, and what is known of it.
type graph struct {
	testing.TB
	seed    uint64
	r       *rand.Rand
	pools   int
	locks   []graphLock
	handles []*graphHandle

	actor  actor
	read   func() *graphView
	faulty bool
	limit  time.Duration      // brokenWithin, and more where time is real
	think  time.Duration      // from a victim's error until it lets go
	down   func() []time.Time // when each pool was last disconnected or disturbed; nil if never

	mu     sync.Mutex
	calls  map[int]*graphAsk
	cycles [][]int // asks of the simple cycles that had a victim
	result graphResult
	left   int
}

type graphResult struct {
	victims, simple, errors int
	slowest                 time.Duration
	sizes                   map[int]int
}

func (g *graph) chance(n int) bool { return g.r.IntN(n) == 0 }

// randomGraph draws a graph: cycles of 2 to 20 handles, which share locks, queues and
// handles with each other, and others that end somewhere.
func randomGraph(t testing.TB, seed uint64) *graph {
	g := &graph{TB: t, seed: seed, r: rand.New(rand.NewPCG(seed, 2216)), calls: map[int]*graphAsk{}, limit: brokenWithin}
	g.result.sizes = map[int]int{}
	r := g.r
	g.pools = 2 + r.IntN(19)
	if r.IntN(2) == 0 {
		g.pools = 2 + r.IntN(5)
	}
	for p := range g.pools {
		for range 1 + max(0, r.IntN(6)-3) {
			g.handles = append(g.handles, &graphHandle{id: len(g.handles), pool: p})
		}
	}
	// Each handle but a few holds a lock of its own, and perhaps a part of others'.
	owned := map[int][]int{} // by handle
	for _, h := range g.handles {
		if g.chance(8) {
			continue // holds nothing, or only what is shared with it
		}
		for range 1 + max(0, r.IntN(5)-3) {
			l := len(g.locks)
			lock := graphLock{name: fmt.Sprint("l", l), kind: "xxxsspa"[r.IntN(7)], limit: 1 + r.IntN(3), stated: r.IntN(2) == 0}
			lock.smaller = g.chance(5) && lock.stated
			g.locks = append(g.locks, lock)
			owned[h.id] = append(owned[h.id], l)
			op := g.drawOp(l, false)
			shared := 0
			switch {
			case lock.kind == 'x' && g.chance(3):
				op.Mode, shared = 'r', r.IntN(3)
			case lock.kind == 's':
				op.Permits = 1 + r.IntN(lock.limit)
				if lock.smaller {
					op.Permits = 1
				}
				if lock.stated {
					op.Limit = lock.limit
				}
				shared = r.IntN(1 + lock.limit - op.Permits)
			}
			h.begin = append(h.begin, op)
			for range shared {
				other := g.handles[r.IntN(len(g.handles))]
				if other == h || other.uses(l) {
					continue
				}
				op.Permits = min(op.Permits, 1)
				other.begin = append(other.begin, op)
			}
		}
	}
	if len(g.locks) == 0 {
		return randomGraph(t, seed+1_000_000)
	}
	ask := func(h *graphHandle, l int) {
		if !h.uses(l) {
			h.asks = append(h.asks, g.drawOp(l, true))
		}
	}
	any := func() int { return r.IntN(len(g.locks)) }
	order := r.Perm(len(g.handles))
	for len(order) > 1 {
		n := min(len(order), 2+r.IntN(19))
		if g.chance(2) {
			n = min(len(order), 2+r.IntN(4))
		}
		cycle := order[:n]
		order = order[n:]
		for i, id := range cycle {
			h, next := g.handles[id], cycle[(i+1)%n]
			if g.chance(10) || len(owned[next]) == 0 {
				if !g.chance(3) {
					ask(h, any())
				}
				continue
			}
			ask(h, owned[next][r.IntN(len(owned[next]))])
			if g.chance(6) {
				ask(h, any())
			}
		}
	}
	for range r.IntN(5) { // visitors, who stand between others
		h := &graphHandle{id: len(g.handles), pool: r.IntN(g.pools)}
		g.handles = append(g.handles, h)
		ask(h, any())
	}
	g.addLateGuard()
	spread := []time.Duration{0, 50 * time.Millisecond, time.Second, 3 * time.Second}[r.IntN(4)]
	for _, h := range g.handles {
		at, lasts, retries := time.Duration(r.Int64N(int64(spread)+1)), time.Duration(r.Int64N(int64(6*time.Second))), g.chance(8)
		if !h.timed {
			h.at, h.lasts, h.retries = at, lasts, retries
		}
	}
	return g
}

// addLateGuard adds, to some graphs, a cycle that closes long after most of its calls were
// made, and without a call: when the guard of a wait for permits is first. One holds a part
// of the permits, and then waits for what another holds, which waits for permits itself: it
// is the one whose guard is first, or stands behind that one.
func (g *graph) addLateGuard() {
	r := rand.New(rand.NewPCG(g.seed, 2218)) // so that the rest is the same for a seed
	if r.IntN(4) > 0 {
		return
	}
	add := func(at, lasts time.Duration) *graphHandle {
		h := &graphHandle{id: len(g.handles), pool: r.IntN(g.pools), at: at, lasts: lasts, timed: true}
		g.handles = append(g.handles, h)
		return h
	}
	permits := graphLock{name: fmt.Sprint("l", len(g.locks)), kind: 's', limit: 2 + r.IntN(2), stated: r.IntN(2) == 0}
	held := graphLock{name: fmt.Sprint("l", len(g.locks)+1), kind: 'x'}
	first := len(g.locks)
	g.locks = append(g.locks, permits, held)
	acquire := func(n int) graphOp {
		op := graphOp{Lock: first, Name: permits.name, Mode: 's', Permits: n}
		if permits.stated {
			op.Limit = permits.limit
		}
		return op
	}
	lock := graphOp{Lock: first + 1, Name: held.name, Mode: 'x'}
	moment := func(from, to time.Duration) time.Duration { return from + time.Duration(r.Int64N(int64(to-from))) }

	asks := moment(3500*time.Millisecond, 5*time.Second)
	if r.IntN(2) == 0 {
		asks = moment(0, 5*time.Second)
	}
	one := add(asks, moment(0, time.Second))
	one.begin, one.asks = []graphOp{acquire(1)}, []graphOp{lock}
	full := add(asks, moment(0, time.Second)) // then it releases the rest
	full.begin = []graphOp{acquire(permits.limit - 1)}
	visitor := add(0, moment(0, time.Second))
	visitor.asks = []graphOp{acquire(1)}
	last := add(50*time.Millisecond, moment(0, time.Second))
	last.asks = []graphOp{acquire(permits.limit)}
	two := last
	if r.IntN(2) == 0 {
		two = add(100*time.Millisecond, moment(0, time.Second))
		two.asks = []graphOp{acquire(1)}
	}
	two.begin = []graphOp{lock}
	if one.pool == two.pool {
		two.pool = (one.pool + 1) % g.pools // otherwise they are found in memory
	}
}

func (h *graphHandle) uses(l int) bool {
	return slices.ContainsFunc(slices.Concat(h.begin, h.asks), func(op graphOp) bool { return op.Lock == l })
}

func (g *graph) drawOp(l int, ask bool) graphOp {
	lock := g.locks[l]
	op := graphOp{Lock: l, Name: lock.name, Mode: lock.kind}
	switch lock.kind {
	case 'x':
		if ask && g.chance(4) {
			op.Mode = 'r'
		}
	case 's':
		op.Permits = 1 + g.r.IntN(lock.limit)
		if lock.smaller {
			op.Permits = 1
		}
		if lock.stated {
			op.Limit = lock.limit
			if lock.smaller {
				op.Limit = 1 + g.r.IntN(lock.limit)
			}
		}
	case 'a':
		op.Mode = "aay"[g.r.IntN(3)]
		if ask && g.chance(3) {
			op.Mode = 'x' // only the first
		}
	}
	return op
}

// describe tells the graph, for a failure.
func (g *graph) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %d pools, faults %v\n", g.seed, g.pools, g.faulty)
	for _, l := range g.locks {
		fmt.Fprintf(&b, "  %s %c limit %d stated %v\n", l.name, l.kind, l.limit, l.stated)
	}
	for _, h := range g.handles {
		fmt.Fprintf(&b, "  handle %d of pool %d: %v, from %v: %v, lasts %v, retries %v; pending %v, granted %v\n",
			h.id, h.pool, h.begin, h.at, h.asks, h.lasts, h.retries, h.pending, h.granted)
	}
	return b.String()
}

// asked returns when a call has asked. One of a handle of which a deadlock has ended a call is
// as old as that.
func (a *graphAsk) asked() time.Time {
	if !a.handle.first.IsZero() {
		return a.handle.first
	}
	return a.begun
}

// A graphNode is a contender's node.
type graphNode struct {
	queue string // the lock's name; for semaphores with /locks or /leases
	name  string
	kind  byte // 'x', 'r', 'g' guard, 's' lease, 'p' plain
	seq   int64
	limit int // that a lease states
	ask   int // that created it
}

// graphView is what the server has.
type graphView struct {
	queues map[string][]graphNode // in order
	byAsk  map[int][]graphNode
	owners map[graphNode][]*graphHandle // as far as they were asked for
}

// parseGraphNode reads a node; the path is relative to the chroot.
func parseGraphNode(at string, data []byte) (n graphNode, ok bool) {
	if strings.HasPrefix(at, ".") {
		return n, false
	}
	var record struct{ Traceparent string }
	data = data[max(0, bytes.IndexByte(data, '{')):] // a plain lock's has its GUID before
	if json.Unmarshal(data, &record) == nil && len(record.Traceparent) == len("00-00000000000000000000000000000000-0000000000000000-00") {
		id, err := strconv.ParseUint(record.Traceparent[36:52], 16, 64)
		if err == nil {
			n.ask = int(id)
		}
	}
	n.queue, n.name = path.Split(at)
	n.queue = strings.TrimSuffix(n.queue, "/")
	if !strings.HasPrefix(n.name, "_c_") {
		n.queue, n.kind = at, 'p'
		return n, true
	}
	n.seq, _ = strconv.ParseInt(locktest.Sequence(n.name), 10, 64)
	switch {
	case strings.HasSuffix(n.queue, "/locks"):
		n.kind = 'g'
	case strings.HasSuffix(n.queue, "/leases"):
		n.kind = 's'
		if _, of, ok := strings.Cut(n.name, "-of"); ok {
			n.limit, _ = strconv.Atoi(strings.Split(of, "-")[0])
		}
	case strings.Contains(n.name, "-rlock-"):
		n.kind = 'r'
	default:
		n.kind = 'x'
	}
	return n, true
}

func newGraphView(nodes []graphNode) *graphView {
	v := &graphView{queues: map[string][]graphNode{}}
	for _, n := range nodes {
		v.queues[n.queue] = append(v.queues[n.queue], n)
	}
	v.index()
	return v
}

func (v *graphView) index() {
	v.byAsk, v.owners = map[int][]graphNode{}, map[graphNode][]*graphHandle{}
	for _, name := range slices.Sorted(maps.Keys(v.queues)) {
		q := v.queues[name]
		slices.SortStableFunc(q, func(a, b graphNode) int { return cmp.Compare(a.seq, b.seq) })
		for i := range q { // of the leases of a request, the first tells
			const guid = len("_c_00000000-0000-0000-0000-000000000000")
			if i > 0 && q[i].kind == 's' && q[i].ask == 0 && q[i].name[:guid] == q[i-1].name[:guid] {
				q[i].ask = q[i-1].ask
			}
			v.byAsk[q[i].ask] = append(v.byAsk[q[i].ask], q[i])
		}
	}
}

func (v *graphView) of(ask int) []graphNode { return v.byAsk[ask] }

// view returns what the server has and, for calls that were told and have not let go yet,
// what it had when they were. It is called with mu held.
func (g *graph) view() *graphView {
	v := g.read()
	for _, h := range g.handles {
		for _, a := range h.granted {
			if nodes := v.of(a.id); len(nodes) > 0 {
				a.seen = nodes
			}
		}
		if a := h.pending; a != nil && !a.told {
			if nodes := v.of(a.id); len(nodes) > 0 && !slices.Equal(nodes, a.seen) {
				a.seen, a.since = nodes, time.Now()
			}
		}
	}
	for _, h := range g.handles {
		if a := h.pending; a != nil && a.told {
			v.restore(a)
		}
	}
	return v
}

// restore adds the nodes of a call that was told, which has removed them.
func (v *graphView) restore(a *graphAsk) {
	exist := v.of(a.id)
	add := func(n graphNode) {
		if !slices.ContainsFunc(exist, func(e graphNode) bool { return e.queue == n.queue && e.name == n.name }) {
			v.queues[n.queue] = append(v.queues[n.queue], n)
		}
	}
	seen := slices.ContainsFunc(a.seen, func(n graphNode) bool { return n.name == a.last.Node })
	for _, n := range a.seen {
		if seen || n.kind != 'g' {
			add(n)
		}
	}
	if !seen && a.Mode != 'p' { // it was told before it was seen with this node
		n, _ := parseGraphNode(a.last.Lock+"/"+a.last.Node, nil)
		n.ask = a.id
		switch {
		case a.Mode != 's':
			add(n)
		case strings.Contains(n.name, "lease-"):
			add(graphNode{queue: a.Name + "/locks", name: "guard", kind: 'g', seq: -1, ask: a.id})
			n.queue, n.kind, n.limit = a.Name+"/leases", 's', a.Limit
			for i := range int64(a.Permits) {
				n.seq, n.name = n.seq+i, fmt.Sprint(n.name, i)
				add(n)
			}
		default:
			n.queue, n.kind = a.Name+"/locks", 'g'
			add(n)
		}
	}
	v.index()
	const last = 1 << 40
	if guards := v.queues[a.Name+"/locks"]; a.Mode == 's' && len(guards) > 0 && guards[0].ask == a.id && len(v.of(a.id)) == 1 { // it had come to its turn since
		for i := range a.Permits {
			add(graphNode{queue: a.Name + "/leases", name: fmt.Sprintf("%-50d", i), kind: 's', seq: last + int64(i), limit: a.Limit, ask: a.id})
		}
		v.index()
	}
}

// owners returns the handles that a node is the contender of: that which created it,
// unless it has passed it on, and those of the pool that share it in memory.
func (g *graph) owners(v *graphView, n graphNode) []*graphHandle {
	owners, ok := v.owners[n]
	if !ok {
		owners = g.findOwners(v, n)
		v.owners[n] = owners
	}
	return owners
}

func (g *graph) findOwners(v *graphView, n graphNode) (owners []*graphHandle) {
	a := g.calls[n.ask]
	if a == nil {
		return nil
	}
	if a.handle.pending == a || slices.Contains(a.handle.granted, a) {
		owners = append(owners, a.handle)
	}
	for _, h := range g.handles {
		if h == a.handle || h.pool != a.handle.pool {
			continue
		}
		for _, granted := range h.granted {
			if granted.Lock == a.Lock && granted.shares() && len(v.of(granted.id)) == 0 {
				owners = append(owners, h)
			}
		}
	}
	return owners
}

// blockers returns those that a handle cannot go on before, among the given ones: if the
// handle waits, and cannot unless one of them does. Everybody can go on who is not given.
func (g *graph) blockers(v *graphView, h *graphHandle, among map[*graphHandle]bool) (blockers []*graphHandle) {
	a := h.pending
	if a == nil {
		return nil
	}
	of := func(nodes []graphNode) (stuck []graphNode) {
		for _, n := range nodes {
			is := false
			for _, o := range g.owners(v, n) {
				if among[o] {
					is = true
					if !slices.Contains(blockers, o) {
						blockers = append(blockers, o)
					}
				}
			}
			if is {
				stuck = append(stuck, n)
			}
		}
		return stuck
	}
	if a.Mode == 'p' {
		if holder := v.queues[a.Name]; len(holder) > 0 && holder[0].kind == 'p' && holder[0].ask != a.id {
			of(holder[:1])
		}
		return blockers
	}
	for _, n := range v.of(a.id) {
		queue := v.queues[n.queue]
		before := queue[:slices.IndexFunc(queue, func(m graphNode) bool { return m.name == n.name })]
		switch n.kind {
		case 'r':
			before = slices.DeleteFunc(slices.Clone(before), func(m graphNode) bool { return m.kind == 'r' })
		case 's':
			continue // below
		}
		of(before)
	}
	if a.Mode == 's' {
		leases := v.queues[a.Name+"/leases"]
		first := slices.IndexFunc(leases, func(n graphNode) bool { return n.ask == a.id })
		if first < 0 {
			return blockers
		}
		limit := func(nodes []graphNode) int {
			limit := g.locks[a.Lock].limit
			for _, n := range append(slices.Clip(nodes), leases[first]) {
				if n.limit > 0 {
					limit = min(limit, n.limit)
				}
			}
			return limit
		}
		others := len(blockers)
		stuck := of(leases[:first])
		if first+a.Permits <= limit(leases[:first]) || len(stuck)+a.Permits <= limit(stuck) {
			blockers = blockers[:others]
		}
	}
	return blockers
}

// stuck returns those of the waiting handles of which none can go on before another.
func (g *graph) stuck(v *graphView, waiting func(h *graphHandle) bool) map[*graphHandle]bool {
	set := map[*graphHandle]bool{}
	for _, h := range g.handles {
		if h.pending != nil && waiting(h) {
			set[h] = true
		}
	}
	for more := true; more; {
		more = false
		for h := range set {
			if len(g.blockers(v, h, set)) == 0 {
				delete(set, h)
				more = true
			}
		}
	}
	return set
}

// cycleOf returns all that are on cycles with a handle, and whether that is one simple
// cycle.
func (g *graph) cycleOf(v *graphView, h *graphHandle, stuck map[*graphHandle]bool) (cycle []*graphHandle, simple bool) {
	reach := func(from *graphHandle) map[*graphHandle]bool {
		reached := map[*graphHandle]bool{}
		for next := []*graphHandle{from}; len(next) > 0; next = next[1:] {
			for _, b := range g.blockers(v, next[0], stuck) {
				if !reached[b] {
					reached[b] = true
					next = append(next, b)
				}
			}
		}
		return reached
	}
	for other := range reach(h) {
		if reach(other)[h] {
			cycle = append(cycle, other)
		}
	}
	simple = len(cycle) > 1
	for _, c := range cycle {
		// Also what does not decide: somebody who stands between two in a queue.
		if len(g.blockers(v, c, stuck)) != 1 {
			simple = false
		}
	}
	return cycle, simple
}

// gotFrom reports whether a call was granted what a victim of several locks had got: it
// gives that back before it returns.
func (a *graphAsk) gotFrom(victim *graphAsk, since time.Time) bool {
	return victim.Mode == 'a' && a.got.After(since) && slices.ContainsFunc(victim.seen, func(n graphNode) bool {
		return n.queue != victim.last.Lock && slices.Contains(a.names(), n.queue)
	})
}

// judge checks a victim, with mu held, and returns what is wrong.
func (g *graph) judge(a *graphAsk, deadlock *lockpool.DeadlockError, at time.Time) error {
	v := g.view()
	for _, h := range g.handles {
		if last := len(h.granted) - 1; last >= 0 && h.granted[last].gotFrom(a, at.Add(-g.think)) {
			pending, granted := h.pending, h.granted
			h.pending, h.granted = granted[last], granted[:last]
			defer func() { h.pending, h.granted = pending, granted }()
		}
	}
	stuck := g.stuck(v, func(*graphHandle) bool { return true })
	cycle, simple := g.cycleOf(v, a.handle, stuck)
	if !slices.Contains(cycle, a.handle) {
		return fmt.Errorf("%v is a false victim: %v\nserver: %v", a, deadlock, v.queues)
	}
	for i, w := range deadlock.Cycle {
		told := func(i int) *graphAsk {
			n, _ := parseGraphNode("told", fmt.Appendf(nil, `{"traceparent":%q}`, deadlock.Cycle[i%len(deadlock.Cycle)].Trace))
			return g.calls[n.ask]
		}
		this, next := told(i), told(i+1)
		switch {
		case this == nil || next == nil || i == 0 && this != a:
			return fmt.Errorf("%v: step %d names no call: %v", a, i, deadlock)
		case this.handle.pending != this || !slices.Contains(this.names(), w.Wait.Lock):
			return fmt.Errorf("%v: step %d does not wait for that: %v", a, i, deadlock)
		case !slices.Contains(g.blockers(v, this.handle, stuck), next.handle):
			return fmt.Errorf("%v: step %d is not blocked by the next: %v", a, i, deadlock)
		case len(w.Holds) > 0 && !slices.ContainsFunc(append(slices.Clip(this.handle.granted), this), func(held *graphAsk) bool { return slices.Contains(held.names(), w.Holds[0].Lock) }):
			return fmt.Errorf("%v: step %d does not hold that: %v", a, i, deadlock)
		}
	}
	asks, closed := []int{}, time.Time{}
	for _, h := range cycle {
		asks = append(asks, h.pending.id)
		if h.pending.since.After(closed) {
			closed = h.pending.since
		}
	}
	slices.Sort(asks)
	for _, other := range g.cycles {
		if slices.Equal(other, asks) {
			return fmt.Errorf("%v is the second victim of a simple cycle: %v", a, deadlock)
		}
	}
	for _, h := range cycle {
		other := h.pending
		if simple && !g.faulty && holdsFor(h, cycle) && other.asked().Sub(a.asked()) > g.limit/40 {
			return fmt.Errorf("%v is the victim, and asked before %v: %v", a, other, deadlock)
		}
	}
	g.result.victims++
	if simple {
		g.cycles = append(g.cycles, asks)
		g.result.simple++
		if !g.faulty {
			g.result.slowest = max(g.result.slowest, at.Sub(closed))
		}
	}
	g.result.sizes[len(deadlock.Cycle)]++
	return nil
}

// holdsFor reports whether a handle holds what another one of a cycle waits for. If not, it
// only stands in front of it. Then it is no victim, although it may be the last to have
// joined a queue: that of the leases, when its guard was first.
func holdsFor(h *graphHandle, cycle []*graphHandle) bool {
	holds := slices.Clone(h.granted)
	if h.pending.Mode == 'a' { // it may have one of them
		holds = append(holds, h.pending)
	}
	return slices.ContainsFunc(cycle, func(other *graphHandle) bool {
		return other != h && slices.ContainsFunc(other.pending.names(), func(name string) bool {
			return slices.ContainsFunc(holds, func(a *graphAsk) bool { return slices.Contains(a.names(), name) })
		})
	})
}

// inspect checks, with mu held, that nobody has been stuck for too long.
func (g *graph) inspect() {
	now := time.Now()
	down := g.down()
	stuck := g.stuck(g.view(), func(h *graphHandle) bool {
		return !h.pending.told && now.Sub(h.pending.since) > g.limit && (down == nil || now.Sub(down[h.pool]) > g.limit)
	})
	if len(stuck) == 0 {
		return
	}
	var who []string
	for h := range stuck {
		who = append(who, fmt.Sprintf("%v, for %v (with these nodes %v)", h.pending, now.Sub(h.pending.begun), now.Sub(h.pending.since)))
	}
	slices.Sort(who)
	g.failf("stuck for more than %v:\n    %s\nserver: %v", g.limit, strings.Join(who, "\n    "), g.view().queues)
}

// failf fails once for a graph.
func (g *graph) failf(format string, args ...any) {
	if !g.Failed() {
		g.Errorf(format+"\n%s", append(args, g.describe())...)
	}
}

// shares reports whether a call that was granted may have got a turn with another's node:
// if it has none, and did not lose one.
func (a *graphAsk) shares() bool {
	return len(a.seen) == 0 && (a.Mode == 'x' || a.Mode == 'r' || a.Mode == 'a' || a.Mode == 'y')
}

// spanOf returns a context whose span has the number of a call.
func (a *graphAsk) spanOf(ctx context.Context) context.Context { return graphSpan(ctx, a.id) }

func graphSpan(ctx context.Context, id int) context.Context {
	var span trace.SpanID
	binary.BigEndian.PutUint64(span[:], uint64(id))
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: span}))
}

// call lets a handle ask, and returns whether it goes on.
func (g *graph) call(ctx context.Context, h *graphHandle, op graphOp) bool {
	for try := 0; ; try++ {
		g.mu.Lock()
		a := &graphAsk{graphOp: op, id: len(g.calls) + 1, handle: h, begun: time.Now(), since: time.Now()}
		g.calls[a.id] = a
		h.pending = a
		g.mu.Unlock()
		err := g.actor.do(a.spanOf(ctx), h, op)
		g.mu.Lock()
		var deadlock *lockpool.DeadlockError
		switch {
		case err == nil:
			h.granted, h.pending, a.got = append(h.granted, a), nil, time.Now()
			g.mu.Unlock()
			return true
		case errors.As(err, &deadlock):
			a.told, a.last = true, *deadlock.Cycle[0].Wait
			toldAt := time.Now()
			if a.Mode != 'p' && !slices.ContainsFunc(a.seen, func(n graphNode) bool { return n.name == a.last.Node }) {
				a.since = toldAt // it has joined that queue since the nodes were read
			}
			wrong := g.judge(a, deadlock, toldAt)
			for _, pause := range []time.Duration{time.Millisecond, g.think / 4} { // others who are told now have not returned
				if wrong != nil {
					g.mu.Unlock()
					time.Sleep(pause)
					g.mu.Lock()
					wrong = g.judge(a, deadlock, toldAt)
				}
			}
			if wrong != nil {
				g.failf("%v", wrong)
			}
			g.mu.Unlock()
			time.Sleep(g.think) // so that they can be judged, too
			g.mu.Lock()
			h.pending, h.first = nil, a.asked()
			g.mu.Unlock()
			if h.retries && try == 0 {
				continue
			}
			return false
		default:
			if !g.faulty {
				g.failf("%v: %v", a, err)
			}
			g.result.errors++
			h.pending = nil
			g.mu.Unlock()
			return false
		}
	}
}

// run runs the program of a handle from its first ask.
func (g *graph) run(ctx context.Context, h *graphHandle) {
	defer func() {
		err := g.actor.finish(ctx, h)
		g.mu.Lock()
		h.granted = nil
		g.left--
		if err != nil && !g.faulty {
			g.failf("handle %d: %v", h.id, err)
		}
		g.mu.Unlock()
	}()
	time.Sleep(h.at)
	for _, op := range h.asks {
		if !g.call(ctx, h, op) {
			return
		}
	}
	time.Sleep(h.lasts)
}

// runAll runs all programs, and inspects the graph meanwhile.
func (g *graph) runAll(ctx context.Context, fault func(ctx context.Context), settle func()) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, h := range g.handles {
		for _, op := range h.begin {
			begun := time.Now()
			if !g.call(ctx, h, op) {
				g.failf("handle %d does not begin", h.id)
				return
			}
			if time.Since(begun) > time.Second && !g.faulty && g.limit == brokenWithin {
				g.failf("handle %d has waited to begin", h.id)
			}
		}
	}
	var all sync.WaitGroup
	g.left = len(g.handles)
	for _, h := range g.handles {
		all.Go(func() { g.run(ctx, h) })
	}
	going, stop := context.WithCancel(ctx)
	var faults sync.WaitGroup
	if g.faulty {
		faults.Go(func() { fault(going) })
	}
	for began := time.Now(); ; {
		time.Sleep(200 * time.Millisecond)
		settle()
		g.mu.Lock()
		g.inspect()
		left := g.left
		late := time.Since(began) > graphEnd
		if late {
			g.failf("%d handles have not finished\nserver: %v", left, g.view().queues)
		}
		g.mu.Unlock()
		if left == 0 || late || g.Failed() {
			break
		}
	}
	stop()
	faults.Wait()
	if g.Failed() {
		cancel()
	}
	all.Wait()
}

// graphBubble runs a graph in virtual time.
func graphBubble(t *testing.T, seed uint64) (result graphResult) {
	g := randomGraph(t, seed)
	g.think = 10 * time.Millisecond
	g.faulty = *graphFaults == "yes" || *graphFaults == "both" && seed%2 == 0
	if g.faulty {
		g.think = time.Second
	}
	server := zktest.StartBubble(t)
	b := locktest.NewOn(t, server)
	host := func(p int) string { return fmt.Sprintf("10.0.1.%d", p+1) }
	inside := newLocalActor(g, func(p int) *lockpool.Pool {
		cfg := b.Config()
		cfg.SessionTimeout = 15 * time.Second
		cfg.Dial = server.DialFrom(host(p))
		return b.PoolWith(cfg)
	})
	g.actor = inside
	g.read = func() *graphView {
		var nodes []graphNode
		for at, node := range server.State().Nodes {
			if rest, ok := strings.CutPrefix(at, b.Chroot+"/"); ok && node.Stat.EphemeralOwner != 0 {
				if n, ok := parseGraphNode(rest, node.Data); ok {
					nodes = append(nodes, n)
				}
			}
		}
		return newGraphView(nodes)
	}

	// When each pool was last disconnected or disturbed.
	last, sessions := make([]time.Time, g.pools), make([]map[int64]bool, g.pools)
	var mu sync.Mutex
	silent := map[int]bool{}
	g.down = func() []time.Time {
		if !g.faulty {
			return nil
		}
		state, now := server.State(), time.Now()
		mu.Lock()
		defer mu.Unlock()
		for p := range last {
			if sessions[p] == nil {
				sessions[p] = map[int64]bool{}
			}
			for _, c := range state.Conns {
				if addr, _, _ := strings.Cut(c.Addr, ":"); addr == host(p) && c.Session != 0 {
					sessions[p][c.Session] = true
				}
			}
			connected := 0
			for _, s := range state.Sessions {
				if sessions[p][s.ID] {
					connected++
					if s.Conn == 0 {
						last[p] = now
					}
				}
			}
			if connected == 0 || silent[p] || silent[-1] {
				last[p] = now
			}
		}
		return last
	}
	for l, lock := range g.locks {
		if lock.kind == 's' && !lock.stated {
			require.NoError(t, inside.pools[l%g.pools].Semaphore(lock.name, 0).SetLimit(t.Context(), lock.limit))
		}
	}
	mark := func(p int, is bool) { mu.Lock(); silent[p] = is; mu.Unlock() }
	fault := func(ctx context.Context) {
		r := rand.New(rand.NewPCG(seed, 2217))
		admin := b.Admin.SessionID()
		refused := refusedLooks(admin) // once for each session, however often it is injected
		ofPools := zktest.Match{Where: func(r zktest.Request) bool { return r.Session != admin }}
		for range 1 + r.IntN(6) {
			time.Sleep(time.Duration(r.Int64N(int64(1500 * time.Millisecond))))
			p := r.IntN(g.pools)
			sel := zktest.Selector{Host: host(p)}
			span := 100*time.Millisecond + time.Duration(r.Int64N(int64(2*time.Second)))
			switch r.IntN(10) {
			case 8, 9:
				defer server.Inject(refused).Remove()
			case 0:
				server.Cut(sel)
			case 1:
				server.Reset(zktest.Selector{})
			case 2, 3:
				dir := []zktest.Direction{zktest.Both, zktest.Inbound, zktest.Outbound}[r.IntN(3)]
				mark(p, true)
				server.Partition(sel, dir)
				time.Sleep(span)
				server.HealOnly(sel, dir)
				server.State()
				mark(p, false)
			case 4:
				_ = server.Restart(ctx, span)
			case 5:
				f := server.Inject(zktest.Rule{Match: ofPools, Times: 1 + r.IntN(20), Do: zktest.DelayReply(time.Duration(r.Int64N(int64(300 * time.Millisecond))))})
				mark(-1, true)
				wait, cancel := context.WithTimeout(ctx, span)
				_ = f.Wait(wait)
				cancel()
				f.Remove()
				time.Sleep(300 * time.Millisecond)
				mark(-1, false)
			case 6:
				defer server.Inject(zktest.Rule{Match: ofPools, Skip: r.IntN(10), Times: 1 + r.IntN(3), Do: []zktest.Action{zktest.DropAfterApply(), zktest.ResetBeforeApply(), zktest.ResetAfterReply()}[r.IntN(3)]}).Remove()
			default:
				if sessions := server.State().Sessions; len(sessions) > 0 {
					if s := sessions[r.IntN(len(sessions))]; slices.ContainsFunc(server.State().Conns, func(c zktest.Conn) bool { return c.Session == s.ID && strings.HasPrefix(c.Addr, "10.0.1.") }) {
						_ = server.ExpireSession(s.ID)
					}
				}
			}
		}
	}
	g.runAll(t.Context(), fault, synctest.Wait)
	if !t.Failed() {
		require.NoError(t, inside.close())
		time.Sleep(5 * time.Second) // until the bench has connected again
		require.Empty(t, b.Contenders("/"), g.describe())
	}
	return g.result
}

// refusedLooks refuses one request of each session's looks: a proof, which is the only
// transaction that speaks of nodes in several queues, or what shows a wait for a plain lock.
func refusedLooks(admin int64) zktest.Rule {
	var mu sync.Mutex
	refused := map[int64]bool{}
	return zktest.Rule{Times: zktest.Always, Do: zktest.FailWith(zktest.ErrThrottled), Match: zktest.Match{Where: func(r zktest.Request) bool {
		exists := func(p string) bool { return numbered.MatchString(p) }
		proves := r.Op == zktest.OpMulti && slices.ContainsFunc(r.Paths, exists) &&
			slices.ContainsFunc(r.Paths, func(p string) bool { return path.Dir(p) != path.Dir(r.Paths[0]) })
		shows := len(r.Paths) > 0 && strings.Contains(r.Paths[len(r.Paths)-1], "/.waits/") && strings.HasSuffix(r.Paths[len(r.Paths)-1], "-lock-")
		mu.Lock()
		defer mu.Unlock()
		if r.Session == admin || !proves && !shows || refused[r.Session] {
			return false
		}
		refused[r.Session] = true
		return true
	}}}
}

// numbered matches the path of a contender that exists.
var numbered = regexp.MustCompile(`-[0-9]{10}$`)

// localActor has the pools of a graph in this process.
type localActor struct {
	pools   []*lockpool.Pool
	handles []*lockpool.Handle
}

func newLocalActor(g *graph, open func(p int) *lockpool.Pool) *localActor {
	a := &localActor{}
	for p := range g.pools {
		a.pools = append(a.pools, open(p))
	}
	for _, h := range g.handles {
		handle, err := a.pools[h.pool].Handle(g.Context())
		require.NoError(g, err)
		a.handles = append(a.handles, handle)
	}
	return a
}

func (a *localActor) do(ctx context.Context, h *graphHandle, op graphOp) error {
	return op.do(ctx, a.handles[h.id])
}

func (a *localActor) finish(ctx context.Context, h *graphHandle) error {
	return a.handles[h.id].Close(ctx)
}

func (a *localActor) close() (err error) {
	for _, p := range a.pools {
		err = errors.Join(err, p.Close())
	}
	return err
}

func TestDeadlockGraphs(t *testing.T) {
	if !locktest.Embedded() {
		t.Skip("there is no virtual time")
	}
	bubble.Parallel(t)
	n := uint64(cmp.Or(*graphs, 25))
	var mu sync.Mutex
	next := uint64(0)
	all := graphResult{sizes: map[int]int{}}
	var bubbles sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		bubbles.Go(func() {
			for {
				mu.Lock()
				seed := *graphSeed + next
				next++
				stop := next > n
				mu.Unlock()
				if stop {
					return
				}
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						result := graphBubble(t, seed)
						mu.Lock()
						defer mu.Unlock()
						all.add(result)
					})
				})
			}
		})
	}
	bubbles.Wait()
	t.Logf("%d graphs: %v", n, all)
	if n >= 20 {
		require.Greater(t, all.victims, int(n)/2)
	}
}

func (r *graphResult) add(other graphResult) {
	r.victims += other.victims
	r.simple += other.simple
	r.errors += other.errors
	r.slowest = max(r.slowest, other.slowest)
	for n, times := range other.sizes {
		r.sizes[n] += times
	}
}

func (r graphResult) String() string {
	return fmt.Sprintf("%d victims, %d of them of simple cycles, the slowest after %v; %d calls failed otherwise; lengths of cycles: %v",
		r.victims, r.simple, r.slowest, r.errors, r.sizes)
}

// graphOrder tells a process what to do. A process has one pool at a time.
type graphOrder struct {
	ID      int
	What    string // open, do, finish or close
	Addr    string // of the server
	Chroot  string
	Handles []int // to open
	Handle  int
	Op      graphOp
	Call    int
}

type graphReply struct {
	ID       int
	Error    string
	Deadlock *lockpool.DeadlockError
}

// deadlockerProcess follows the orders from its standard input.
func deadlockerProcess() int {
	var pool *lockpool.Pool
	handles := map[int]*lockpool.Handle{}
	var out sync.Mutex
	reply := func(id int, err error) {
		r := graphReply{ID: id}
		if errors.As(err, &r.Deadlock); err != nil {
			r.Error = err.Error()
		}
		text, _ := json.Marshal(r)
		out.Lock()
		defer out.Unlock()
		fmt.Printf("%s\n", text)
	}
	ctx := context.Background()
	in := json.NewDecoder(os.Stdin)
	for {
		var o graphOrder
		if err := in.Decode(&o); err != nil {
			return 0
		}
		switch o.What {
		case "open":
			connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: []string{o.Addr}, Chroot: o.Chroot})
			if err == nil {
				pool, err = lockpool.OpenConnector(connector)
			}
			for _, h := range o.Handles {
				if err == nil {
					handles[h], err = pool.Handle(ctx)
				}
			}
			reply(o.ID, err)
		case "do":
			h := handles[o.Handle]
			go func() { reply(o.ID, o.Op.do(graphSpan(ctx, o.Call), h)) }() // ends with the pool
		case "finish":
			h := handles[o.Handle]
			go func() { reply(o.ID, h.Close(ctx)) }() // ends with the pool
		case "close":
			reply(o.ID, pool.Close())
		}
	}
}

// graphProcess is a process that follows orders.
type graphProcess struct {
	*process
	mu      sync.Mutex
	in      *json.Encoder
	ids     int
	replies map[int]chan graphReply
}

func startDeadlocker(t testing.TB) *graphProcess {
	p := &graphProcess{process: start(t, "deadlocker"), replies: map[int]chan graphReply{}}
	p.in = json.NewEncoder(p.stdin.(io.Writer))
	go func() { // ends with the process
		for out := json.NewDecoder(p.lines); ; {
			var r graphReply
			if out.Decode(&r) != nil {
				return
			}
			p.mu.Lock()
			p.replies[r.ID] <- r
			delete(p.replies, r.ID)
			p.mu.Unlock()
		}
	}()
	return p
}

func (p *graphProcess) order(ctx context.Context, o graphOrder) error {
	reply := make(chan graphReply, 1)
	p.mu.Lock()
	p.ids++
	o.ID = p.ids
	p.replies[o.ID] = reply
	err := p.in.Encode(o)
	p.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case r := <-reply:
		switch {
		case r.Deadlock != nil:
			return r.Deadlock
		case r.Error != "":
			return errors.New(r.Error)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type remoteActor []*graphProcess

func (a remoteActor) do(ctx context.Context, h *graphHandle, op graphOp) error {
	span := trace.SpanContextFromContext(ctx).SpanID()
	return a[h.pool].order(ctx, graphOrder{What: "do", Handle: h.id, Op: op, Call: int(binary.BigEndian.Uint64(span[:]))})
}

func (a remoteActor) finish(ctx context.Context, h *graphHandle) error {
	return a[h.pool].order(ctx, graphOrder{What: "finish", Handle: h.id})
}

// graphOfProcesses runs a graph in real time. A call's moments are known as late as the
// processes and the reads of the nodes are, so it has more time.
func graphOfProcesses(t *testing.T, seed uint64, fleet remoteActor) graphResult {
	g := randomGraph(t, seed)
	g.actor, g.think, g.limit = fleet, time.Second, brokenWithin+time.Second
	g.faulty = *graphFaults == "yes" || *graphFaults == "both" && seed%2 == 0
	b := locktest.New(t)
	var proxy *zktest.Proxy
	if g.faulty {
		proxy = b.Proxy()
	}
	for p := range g.pools {
		var handles []int
		for _, h := range g.handles {
			if h.pool == p {
				handles = append(handles, h.id)
			}
			h.lasts /= 3
		}
		require.NoError(t, fleet[p].order(t.Context(), graphOrder{What: "open", Addr: b.Addr, Chroot: b.Chroot, Handles: handles}))
	}
	admin := b.Pool()
	for _, lock := range g.locks {
		if lock.kind == 's' && !lock.stated {
			require.NoError(t, admin.Semaphore(lock.name, 0).SetLimit(t.Context(), lock.limit))
		}
	}
	g.read = func() *graphView {
		var nodes []graphNode
		for _, at := range b.Contenders("/") {
			data, _, err := b.Admin.Get(b.Chroot + at)
			if n, ok := parseGraphNode(strings.TrimPrefix(at, "/"), data); ok && err == nil {
				nodes = append(nodes, n)
			}
		}
		return newGraphView(nodes)
	}
	var mu sync.Mutex
	var cut time.Time
	g.down = func() (down []time.Time) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Repeat([]time.Time{cut}, g.pools)
	}
	g.runAll(t.Context(), func(ctx context.Context) {
		r := rand.New(rand.NewPCG(seed, 2217))
		for range 1 + r.IntN(4) {
			select {
			case <-time.After(time.Duration(r.Int64N(int64(1500 * time.Millisecond)))):
			case <-ctx.Done():
				return
			}
			proxy.Cut(zktest.Selector{})
			mu.Lock()
			cut = time.Now().Add(time.Second) // they have connected again
			mu.Unlock()
		}
	}, func() {})
	for p := range g.pools {
		require.NoError(t, fleet[p].order(t.Context(), graphOrder{What: "close"}))
	}
	return g.result
}

func TestDeadlockGraphsOfProcesses(t *testing.T) {
	var fleet remoteActor
	for range 20 {
		fleet = append(fleet, startDeadlocker(t))
	}
	all := graphResult{sizes: map[int]int{}}
	for i := range cmp.Or(*graphs, 2) {
		seed := *graphSeed + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { all.add(graphOfProcesses(t, seed, fleet)) })
	}
	t.Log(all)
	for _, p := range fleet {
		require.NoError(t, p.stdin.Close())
		require.NoError(t, p.cmd.Wait())
	}
}
