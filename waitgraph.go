package lockpool

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
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

// add adds the contenders of a queue. It returns what those hold that may wait.
func (g *graph) add(q lockQueue) (held []nodedata.Hold) {
	name := q.queue
	if q.kind == driver.Plain { // those that wait stand behind the holder
		name = q.lock
	}
	for i, c := range q.contenders {
		owner := nodedata.Parse(c.Data)
		canGoOn := !owner.IsOurs() || len(owner.Holds) > 0 && g.hasEnded != nil && g.hasEnded(q.lock, owner.Ask)
		n := graphNode{driver.Located{Queue: q.queue, Node: c.Node, Version: c.Version}, q.lock, cmp.Or(q.kind, c.Kind), c.Joined, owner}
		created := c.Created
		if owner.Age > 0 {
			created = min(created, owner.Age)
		}
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
			Node: c.Node, Was: owner.Was, Created: created, Ask: owner.Ask, Holds: holds, Unchecked: owner.Unchecked, Foreign: canGoOn,
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

// waitInMemory is a nested wait of the pool, as it was at one moment.
type waitInMemory struct {
	*nestedWait
	asked, order int64
	nodes        []driver.Located
}

// reach returns the pool's nested waits that wait for this one, directly or through others,
// and whether one of these has what this one waits for. The first asked is the first.
func (w *nestedWait) reach() (reached []waitInMemory, closed bool) {
	p := w.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	known := map[string]bool{}
	add := func(r *nestedWait) {
		if !known[r.ask] && r.order > 0 && r.ctx.Err() == nil {
			known[r.ask] = true
			reached = append(reached, waitInMemory{r, cmp.Or(r.age, r.created, math.MaxInt64), r.order, r.nodes})
		}
	}
	add(w)
	for i := 0; i < len(reached); i++ {
		for _, held := range reached[i].holds {
			if !held.life.over.Load() {
				closed = closed || held.name == w.name
				for _, other := range p.nested[held.name] {
					add(other)
				}
			}
		}
	}
	return reached, closed
}

// graphInMemory is read among the pool's nested waits. It also returns those that it has
// come to, by Ask. It is nil if there is no cycle.
func (w *nestedWait) graphInMemory() (*graph, map[string]*nestedWait) {
	reached, closed := w.reach()
	if !closed {
		return nil, nil
	}
	slices.SortFunc(reached, func(a, b waitInMemory) int {
		return cmp.Or(cmp.Compare(a.asked, b.asked), cmp.Compare(a.order, b.order))
	})
	g, byAsk := newGraph(), map[string]*nestedWait{}
	for place, r := range reached {
		byAsk[r.ask] = r.nestedWait
		record := nodedata.Parse(r.nestedWait.base)
		record.At = r.at
		var holds []waitgraph.Ref
		for i, held := range r.holds {
			if held.life.over.Load() {
				continue
			}
			node := held.tenancy.nodeNow()
			record.Holds = append(record.Holds, nodedata.Hold{Lock: held.name, Node: node.Name, Permits: r.named[i].Permits})
			ref := refTo(record.Holds[len(record.Holds)-1])
			holds = append(holds, ref)
			if _, ok := g.nodes[ref]; !ok {
				n := graphNode{Located: driver.Located{Queue: ref.Queue, Node: node}, lock: held.name}
				g.insert(ref.Queue, 0, n, waitgraph.Contender{Node: node})
			}
		}
		for _, at := range r.nodes {
			queue, node := at.Queue, at.Node
			switch {
			case r.req.plain:
				queue, node.Kind = r.name, driver.Plain
			case r.req.permits > 0 && node.Kind != driver.Permit:
				node.Kind = driver.Guard
			}
			n := graphNode{at, r.name, r.req.kind(), r.Began(), record}
			g.insert(queue, 0, n, waitgraph.Contender{Node: node, Created: int64(place + 1), Ask: r.ask, Holds: holds})
		}
	}
	for _, q := range g.queues {
		slices.SortStableFunc(q.Contenders, func(a, b waitgraph.Contender) int {
			switch { // a plain lock's holder has no number
			case a.Ask == "" && b.Kind == driver.Plain:
				return -1
			case b.Ask == "" && a.Kind == driver.Plain:
				return 1
			}
			return cmp.Compare(a.Seq, b.Seq)
		})
	}
	return g, byAsk
}

// find returns the cycle through the wait if it is a victim.
func (g *graph) find(ask string) *cycle {
	steps, refs, victim := waitgraph.Find(g.queues, ask)
	if !victim {
		return nil
	}
	c := new(cycle)
	for i, step := range steps {
		self := waitgraph.Ref{Queue: step.Queue, Node: step.Contender.Name}
		n := g.nodes[self]
		wait := DeadlockWait{
			Lock: n.lock, Kind: n.kind.String(), Node: n.Node.Name, At: n.owner.At, Asked: n.asked,
			Owner: n.owner.Owner, Host: n.owner.Host, PID: n.owner.PID, Trace: n.owner.Trace,
		}
		if n.kind == driver.Plain { // what shows the wait is no contender
			wait.Node = ""
		}
		if step.Held != (waitgraph.Ref{}) {
			wait.Holds, wait.HeldNode = g.nodes[step.Held].lock, step.Held.Node
		}
		c.waits = append(c.waits, wait)
		if i == 0 {
			c.own = g.nodes[self].Located
			refs = slices.DeleteFunc(refs, func(r waitgraph.Ref) bool { return r == self })
		}
	}
	for _, ref := range refs {
		c.others = append(c.others, g.nodes[ref].Located)
	}
	return c
}
