package lockpool

// This file builds waits-for graphs: from the queues of the service, or from the nested
// waits of the pool.

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// readWaits is readLock, and reads the limit of a semaphore, and the nodes that show waits
// for a plain lock.
func readWaits(ctx context.Context, s *session, name string, read readFunc) (queues []waitgraph.Queue, others []string, err error) {
	queues, others, err = readLock(name, read)
	switch {
	case err != nil:
	case len(queues) > 1 && len(queues[2].Contenders) > 0 && slices.Contains(others, driver.Limit):
		// The limit is an error without leases, if the name is used for another kind now.
		err = use(func(ctx context.Context, limits driver.Limiter) (err error) {
			queues[2].Limit, _, err = limits.Limit(ctx, name, 0)
			return err
		})(ctx, s)
		if errors.Is(err, driver.ErrLimit) {
			queues[2].Limit, err = 0, nil
		}
	case len(queues[0].Contenders) == 1 && queues[0].Contenders[0].Node.Kind == driver.Plain:
		var waits []driver.Contender
		waits, _, err = read(waitgraph.Waits(name), everybody)
		queues = append(queues, waitgraph.Read(name, waitgraph.Waits(name), waits))
	}
	return queues, others, err
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
	add := func(r *nestedWait) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.order > 0 && r.ctx.Err() == nil {
			reached = append(reached, waitInMemory{r, cmp.Or(r.age, r.created, math.MaxInt64), r.order, r.nodes})
		}
	}
	add(w)
	known := map[string]bool{}
	for i := 0; i < len(reached); i++ {
		for _, held := range reached[i].holds {
			if held.life.over.Load() || known[held.name] {
				continue
			}
			known[held.name] = true
			closed = closed || held.name == w.name
			for _, other := range w.pool.nested.waitsFor(held.name) {
				if other != w {
					add(other)
				}
			}
		}
	}
	slices.SortFunc(reached, func(a, b waitInMemory) int {
		return cmp.Or(cmp.Compare(a.asked, b.asked), cmp.Compare(a.order, b.order))
	})
	return reached, closed
}

// graphInMemory is read among the pool's nested waits. It also returns those that it has
// come to, by Ask. It is nil if there is no cycle.
func (w *nestedWait) graphInMemory() (*waitgraph.Graph, map[string]*nestedWait) {
	holderWaits := func(h *hold) bool { return h.handle.waitsNested() }
	if !slices.ContainsFunc(w.pool.holdsOf(w.name), holderWaits) { // as mostly, so the walk is spared
		return nil, nil
	}
	reached, closed := w.reach()
	if !closed {
		return nil, nil
	}
	var queues []waitgraph.Queue
	index, byAsk := map[string]int{}, map[string]*nestedWait{}
	add := func(lock, queue string, c waitgraph.Contender) {
		i, ok := index[queue]
		if !ok {
			i = len(queues)
			index[queue] = i
			queues = append(queues, waitgraph.Queue{Lock: lock, Name: queue})
		}
		queues[i].Contenders = append(queues[i].Contenders, c)
	}
	held := map[driver.Located]bool{}
	for i, r := range reached {
		byAsk[r.ask] = r.nestedWait
		record := nodedata.Parse(r.base)
		record.At, record.Holds = r.at, nil
		for _, h := range r.holds {
			if h.life.over.Load() {
				continue
			}
			hold := h.named()
			record.Holds = append(record.Holds, hold)
			at := driver.Located{Queue: hold.Lock, Node: h.tenancy.nodeNow()}
			if hold.Permits {
				at.Queue += "/" + driver.Leases
			}
			if !held[at] {
				held[at] = true
				add(h.name, at.Queue, waitgraph.Contender{Contender: driver.Contender{Node: at.Node}})
			}
		}
		for _, at := range r.nodes {
			add(r.name, at.Queue, waitgraph.Contender{Contender: driver.Contender{Node: at.Node, Created: int64(i + 1), Joined: r.Began()}, Record: record})
		}
	}
	for _, q := range queues {
		slices.SortStableFunc(q.Contenders, func(a, b waitgraph.Contender) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return waitgraph.New(queues), byAsk
}

// victimOf returns the cycle through the wait if it is a victim.
func victimOf(g *waitgraph.Graph, ask string) *cycle {
	steps, proof := g.Find(ask)
	if steps == nil {
		return nil
	}
	c := &cycle{own: steps[0].Located()}
	for i, step := range steps {
		wait := tell(step.Contender)
		call := Party{Origin: wait.Origin, Wait: &wait, For: []int{(i + 1) % len(steps)}}
		if step.Held != nil {
			held := tell(step.Held)
			held.Origin = wait.Origin
			call.Holds = []Contender{held}
		}
		c.calls = append(c.calls, call)
	}
	for _, other := range proof {
		if other != steps[0].Contender {
			c.others = append(c.others, other.Located())
		}
	}
	return c
}
