package lockpool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// graph is who waits for whom, as far as one look has come, from the service or from
// memory.
type graph struct {
	queues []waitgraph.Queue
	index  map[string]int // in queues, by name
	nodes  map[waitgraph.Ref]graphNode

	hasEnded func(lock, ask string) bool // whether a nested wait is known to have ended; may be nil
}

func newGraph() *graph { return &graph{index: map[string]int{}, nodes: map[waitgraph.Ref]graphNode{}} }

// graphNode is a contender in a graph.
type graphNode struct {
	driver.Located
	lock  string
	kind  driver.Kind // of the lock
	asked time.Time
	owner nodedata.Record
}

const (
	maxLocksRead = 200 // of one look
	locksAtATime = 16
)

// read reads what waits for the wait, directly or through others. It returns nil if nobody
// that it has come to holds what the wait is for.
func (w *nestedWait) read() (*graph, error) {
	g := newGraph()
	g.hasEnded = w.pool.hasEnded
	seen := map[string]bool{}
	var locks []string // to read
	add := func(holds []nodedata.Hold) {
		for _, h := range holds { // which any client may have written
			if !seen[h.Lock] && (len(seen) < maxLocksRead || h.Lock == w.name) && w.pool.checkName(h.Lock) == nil {
				seen[h.Lock] = true
				locks = append(locks, h.Lock)
			}
		}
	}
	for add(w.record.Holds); len(locks) > 0; {
		now := locks[:min(len(locks), locksAtATime)]
		locks = locks[len(now):]
		read, errs := make([][]lockQueue, len(now)), make([]error, len(now))
		var all sync.WaitGroup
		for i, lock := range now {
			all.Go(func() { read[i], errs[i] = readQueues(w.ctx, w.on, lock, w.inspect) }) // ends with ctx
		}
		all.Wait()
		for i, err := range errs {
			switch {
			case err == nil:
				for _, q := range read[i] {
					add(g.add(q))
				}
			case w.ctx.Err() != nil || errors.Is(err, driver.ErrSessionLost):
				return nil, err
			case !errors.Is(err, driver.ErrNoPermission):
				w.pause = lookAfterFailed
			} // nobody there counts as stuck
		}
	}
	if !seen[w.name] {
		return nil, nil
	}
	return g, nil
}

// lockQueue is one of the queues of a lock, as it was read.
type lockQueue struct {
	lock       string
	kind       driver.Kind // Permit, Plain, or else Mutex
	queue      string
	limit      int // of leases: the limit that is set, or 0
	contenders []driver.Contender
	others     []string
}

// readQueues reads the queues of a lock, each with a function.
func readQueues(ctx context.Context, s *session, lock string, read func(queue string) ([]driver.Contender, []string, error)) (queues []lockQueue, err error) {
	add := func(kind driver.Kind, queue string) (q *lockQueue) {
		if err == nil {
			queues = append(queues, lockQueue{lock: lock, kind: kind, queue: queue})
			q = &queues[len(queues)-1]
			q.contenders, q.others, err = read(queue)
		}
		return q
	}
	first := add(driver.Exclusive, lock)
	switch {
	case err != nil:
	case len(first.contenders) == 1 && first.contenders[0].Kind == driver.Plain:
		first.kind = driver.Plain
		add(driver.Plain, waitsFor(lock))
	case slices.Contains(first.others, driver.Guards), slices.Contains(first.others, driver.Leases): // either may be missing
		add(driver.Permit, lock+"/"+driver.Guards)
		limit := 0
		if err == nil && slices.Contains(queues[0].others, driver.Limit) {
			err = use(func(ctx context.Context, limits driver.Limiter) (err error) {
				limit, _, err = limits.Limit(ctx, lock, 0)
				return err
			})(ctx, s)
			if errors.Is(err, driver.ErrLimit) {
				limit, err = 0, nil
			}
		}
		if leases := add(driver.Permit, lock+"/"+driver.Leases); leases != nil {
			leases.limit = limit
		}
	}
	return queues, err
}

// inspect returns the contenders of a queue. The wait reads each node once, because what
// it says does not change.
func (w *nestedWait) inspect(queue string) ([]driver.Contender, []string, error) {
	known, _ := w.known.Load(queue)
	before, _ := known.(map[string]driver.Contender)
	inspector, err := driver.Offer[driver.Inspector](w.on.Session)
	if err != nil {
		return nil, nil, err
	}
	contenders, others, err := inspector.Inspect(w.ctx, queue, func(n driver.Node) bool { return before[n.Name].Created == 0 })
	now := map[string]driver.Contender{}
	for i, c := range contenders {
		if known, ok := before[c.Name]; ok {
			contenders[i] = known
		}
		now[c.Name] = contenders[i]
	}
	w.known.Store(queue, now)
	return contenders, others, err
}

// add adds the contenders of a queue. It returns what those hold that may wait.
func (g *graph) add(q lockQueue) (held []nodedata.Hold) {
	name := q.queue
	if q.kind == driver.Plain { // those that wait stand behind the holder
		name = q.lock
	}
	for i, c := range q.contenders {
		owner := nodedata.Parse(c.Data)
		canGoOn := !owner.IsOurs() || len(owner.Holds) > 0 && g.hasEnded != nil && g.hasEnded(q.lock, owner.Ask)
		n := graphNode{driver.Located{Queue: q.queue, Node: c.Node}, q.lock, cmp.Or(q.kind, c.Kind), c.Joined, owner}
		var holds []waitgraph.Ref
		for _, h := range owner.Holds {
			holds = append(holds, refTo(h))
		}
		switch q.queue {
		case waitsFor(q.lock):
			c.Kind = driver.Plain
		case q.lock + "/" + driver.Guards:
			c.Kind = driver.Guard
		}
		g.insert(name, q.limit, n, waitgraph.Contender{
			Node: c.Node, Created: c.Created, Ask: owner.Ask, Holds: holds, Unchecked: owner.Unchecked, Foreign: canGoOn,
		})
		if i > 0 || q.queue != name {
			held = append(held, owner.Holds...)
		}
	}
	return held
}

// refTo returns the node of a hold.
func refTo(h nodedata.Hold) waitgraph.Ref {
	queue := h.Lock
	if h.Permits {
		queue += "/" + driver.Leases
	}
	return waitgraph.Ref{Queue: queue, Node: h.Node}
}

// insert adds a contender behind those of its queue.
func (g *graph) insert(queue string, limit int, n graphNode, c waitgraph.Contender) {
	g.nodes[waitgraph.Ref{Queue: queue, Node: c.Name}] = n
	i, ok := g.index[queue]
	if !ok {
		i = len(g.queues)
		g.index[queue] = i
		g.queues = append(g.queues, waitgraph.Queue{Name: queue, Limit: limit})
	}
	g.queues[i].Contenders = append(g.queues[i].Contenders, c)
}

// graphInMemory is read among the pool's nested waits. It also returns those that it has
// come to, by Ask. It is called with Pool.mu held.
func (w *nestedWait) graphInMemory() (*graph, map[string]*nestedWait) {
	reached, byAsk, closed := []*nestedWait{w}, map[string]*nestedWait{w.ask: w}, false
	for i := 0; i < len(reached); i++ {
		for _, held := range reached[i].holds {
			if held.life.over.Load() {
				continue
			}
			closed = closed || held.name == w.name
			for _, other := range w.pool.nested[held.name] {
				if byAsk[other.ask] == nil && other.order > 0 && other.ctx.Err() == nil {
					byAsk[other.ask] = other
					reached = append(reached, other)
				}
			}
		}
	}
	if !closed {
		return nil, nil
	}
	g := newGraph()
	for _, r := range reached {
		var holds []waitgraph.Ref
		for i, held := range r.holds {
			if held.life.over.Load() {
				continue
			}
			ref := refTo(r.record.Holds[i])
			holds = append(holds, ref)
			if _, ok := g.nodes[ref]; !ok {
				n := graphNode{Located: driver.Located{Queue: ref.Queue, Node: held.tenancy.nodeNow()}}
				g.insert(ref.Queue, 0, n, waitgraph.Contender{Node: n.Node})
			}
		}
		for _, node := range r.nodes {
			queue := r.name
			switch {
			case node.Kind == driver.Permit:
				queue += "/" + driver.Leases
			case r.req.permits > 0:
				queue, node.Kind = queue+"/"+driver.Guards, driver.Guard
			}
			n := graphNode{driver.Located{Queue: queue, Node: node}, r.name, r.req.kind(), r.Began(), r.record}
			g.insert(queue, 0, n, waitgraph.Contender{Node: node, Created: r.order, Ask: r.ask, Holds: holds})
		}
	}
	for _, q := range g.queues {
		slices.SortStableFunc(q.Contenders, func(a, b waitgraph.Contender) int {
			return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Created, b.Created)) // a plain lock's holder has no order
		})
	}
	return g, byAsk
}

// find returns the circle through the wait if it is a victim, and the nodes that prove
// that the circle stands as long as they exist.
func (g *graph) find(ask string) (circle []DeadlockWait, proof []driver.Located) {
	steps, refs, victim := waitgraph.Find(g.queues, ask)
	if !victim {
		return nil, nil
	}
	for _, ref := range refs {
		proof = append(proof, g.nodes[ref].Located)
	}
	for _, step := range steps {
		n := g.nodes[waitgraph.Ref{Queue: step.Queue, Node: step.Contender.Name}]
		wait := DeadlockWait{
			Lock: n.lock, Kind: n.kind.String(), Node: n.Node.Name, At: n.owner.At, Asked: n.asked,
			Owner: n.owner.Owner, Host: n.owner.Host, PID: n.owner.PID, Trace: n.owner.Trace,
		}
		if n.kind == driver.Plain { // what shows the wait is no contender
			wait.Node = ""
		}
		for _, h := range n.owner.Holds {
			if refTo(h) == step.Held {
				wait.Holds, wait.HeldNode = h.Lock, h.Node
			}
		}
		circle = append(circle, wait)
	}
	return circle, proof
}
