package lockpool

// This file has what waits and holds cost, by lock and by line of the program.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// PoolCosts are what a pool has published of the costs of locks.
type PoolCosts struct {
	Origin                   // of the pool; Trace is empty
	Over       time.Duration // the time over which the costs are summed up
	LocalTurns bool          // false with WithLocalTurns(0)
	KeptLocks  bool          // true with WithKeptLocks
	Costs      []Cost        // the largest ones
}

// Cost is what the calls on one line of a program have cost at a lock. The sums count what has
// ended: neither present holds nor present waits.
type Cost struct {
	Lock string // the name
	Kind string // as in Contender
	At   string // the place of the requests in the program, as in Contender; empty if not known

	// Foreign means a holder of another process, with Holds and Held as far as the pool's waiters
	// have seen. Host and PID are those of the process, if the node tells.
	Foreign bool
	Host    string
	PID     int

	Holds  float64       // how many times the line has held the lock
	Held   time.Duration // for how long in all, with the rest of HoldAtLeast
	Inside time.Duration // of Held, the time in which the handle waited for other locks
	Within string        // the lock for which the handle waited the most then

	Waits  float64       // calls that waited for other contenders
	Waited time.Duration // for how long in all
	GaveUp float64       // of Waits, the calls without InTime whose deadline came first
	Vain   time.Duration // of Waited, the time of these calls
	Own    float64       // of Waits, the calls beside others of the pool, without local turns

	Asks  float64       // calls that got the lock without a wait for other contenders
	Asked time.Duration // for how long in all
	Again float64       // calls whose node joined the queue directly after another of the pool; 0 on etcd
}

// Costs returns what the pools that use the same service have published: the costs of their
// contended locks, summed up over one to two hours (what was an hour ago counts half). A pool
// publishes at most once a minute, when its calls have spent a second with waits and requests
// for locks, and removes the publication an hour after the last such minute. The pool knows the
// 100 most expensive pairs of a lock and a line, in about 0.3 MB at most (the space-saving sketch
// of Metwally, Agrawal and El Abbadi), and publishes the 20 or so that fit into a node. Of the calls
// that wait shortly in memory or take a kept lock, one in 64 counts for all. A pool without links
// (see [WithTraceLinks]) publishes nothing.
//
// Costs reads a node for each pool. Without the right to read one, the error wraps
// ErrNoPermission.
func (p *Pool) Costs(ctx context.Context) (all []PoolCosts, err error) {
	err = p.withSession(ctx, func(ctx context.Context, s *session) error {
		inspector, err := driver.Offer[driver.Inspector](s.Session)
		if err != nil {
			return err
		}
		found, _, err := inspector.Inspect(ctx, driver.Costs, nil)
		all = nil
		for _, c := range found {
			if told, ok := nodedata.ParseCosts(c.Data); ok {
				costs := PoolCosts{Origin(told.Origin), told.Over, told.LocalTurns, told.KeptLocks, nil}
				for _, cost := range told.Costs {
					costs.Costs = append(costs.Costs, Cost(cost))
				}
				all = append(all, costs)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lockpool: costs of locks: %w", err)
	}
	return all, nil
}

// costSample is how many short calls in memory one counts for.
const costSample = 64

// weigh decides for how many calls the acquisition counts: for itself if its line is known, or
// after a long wait. To find the line takes longer than a short turn.
func (a *acquisition) weigh() (weight int32) {
	const long = 10 * time.Millisecond
	switch {
	case a.weighed || a.pool.telemetry.NoLinks || a.req.op == opElect:
	case a.local.at != "":
		a.weight = 1
	case time.Since(a.Began()) > long:
		a.weight = 1
		a.placeToTell()
	case rand.Uint32N(costSample) == 0:
		a.weight = costSample
		a.placeToTell()
	}
	a.weighed = true
	return a.weight
}

// sampleKept makes one in costSample turns of kept locks, taken without an acquisition, count for
// all.
func (p *Pool) sampleKept(h *hold) {
	if p.telemetry.NoLinks || rand.Uint32N(costSample) > 0 {
		return
	}
	h.cost.at, h.cost.weight = cmp.Or(h.cost.at, callSite()), costSample
	p.costs.add(costLine{lock: h.name, kind: h.kind.String(), at: h.cost.at}, &nodedata.Cost{Asks: 1}, costSample)
}

// account adds what the acquisition has cost.
func (a *acquisition) account(err error) {
	a.endStage()
	if a.weigh() == 0 {
		return
	}
	took, cost := time.Since(a.Began()), nodedata.Cost{}
	switch {
	case a.waiting:
		cost.Waits, cost.Waited = 1, took
		if errors.Is(err, context.DeadlineExceeded) && (a.local.admission == nil || a.local.admission.deadline.IsZero()) {
			cost.GaveUp, cost.Vain = 1, took
		}
	case err == nil:
		cost.Asks, cost.Asked = 1, took
	default:
		return
	}
	if a.again {
		cost.Again = 1
	}
	if a.beside {
		cost.Own = cost.Waits
	}
	a.pool.costs.add(costLine{lock: a.name, kind: a.req.kind().String(), at: a.local.at}, &cost, float64(a.weight))
}

// worthNoting is how long a wait behind one node has to last for the node's data to be parsed.
const worthNoting = time.Millisecond

// beginStage is called before progress.waitsBehind.
func (a *acquisition) beginStage(w recipe.Wait) {
	if a.stageBegan.IsZero() || a.progress.now().wait().Behind != w.Behind {
		a.endStage()
		a.stageBegan = time.Now()
	}
}

// endStage ends the wait behind one node.
func (a *acquisition) endStage() {
	if a.stageBegan.IsZero() {
		return
	}
	took := time.Since(a.stageBegan)
	a.stageBegan = time.Time{}
	if took >= worthNoting && a.req.kind() == driver.Exclusive && a.req.op != opElect && !a.pool.telemetry.NoLinks {
		a.noteForeign(took)
	}
}

// noteForeign notes the hold of another process. Of the waiters behind a holder, only one that is
// exclusive is next.
func (a *acquisition) noteForeign(took time.Duration) {
	w, p := a.progress.now().wait(), a.pool
	if w.Holder != w.Behind {
		return
	}
	if r := nodedata.Parse(w.Data); r.Host != p.owner.Host || r.PID != p.owner.PID {
		p.costs.add(costLine{a.name, w.Behind.Kind.String(), r.At, true, r.Host, r.PID}, &nodedata.Cost{Holds: 1, Held: took}, 1)
	}
}

// holdCost is what a hold needs to know for its costs. Handle.mu guards all but at and weight.
type holdCost struct {
	at      string        // where the lock was asked for, if known
	weight  int32         // for how many holds this one counts
	alone   time.Duration // exclusive, before a downgrade
	inside  time.Duration // in waits for other locks
	longest time.Duration // of these
	within  string        // the lock of the longest
}

// noteInside records a wait of the handle for another lock. Names that are asked for together are
// one lock.
func (h *Handle) noteInside(a *acquisition) {
	if !a.waiting || a.req.op == opLockAll {
		return
	}
	took := time.Since(a.Began())
	h.mu.Lock()
	defer h.mu.Unlock()
	for held := range h.holds.all() {
		if c := &held.cost; held.name != a.name && !held.life.over.Load() {
			if c.inside += took; took > c.longest {
				c.longest, c.within = took, a.name
			}
		}
	}
}

// account adds what an ended hold has cost. c and until are the hold's, copied under handle.mu. A
// lock is not free before until.
func (h *hold) account(c holdCost, until time.Time) {
	if c.weight == 0 {
		return
	}
	held := h.life.ended.Sub(h.life.began)
	if rest := until.Sub(h.life.began); h.life.err() == ErrNotHeld && rest > held {
		held = rest
	}
	add := func(kind driver.Kind, cost *nodedata.Cost) {
		h.handle.pool.costs.add(costLine{lock: h.name, kind: kind.String(), at: c.at}, cost, float64(c.weight))
	}
	if c.alone > 0 {
		add(driver.Shared, &nodedata.Cost{Holds: 1, Held: held - c.alone})
		held = c.alone
	}
	add(h.kind, &nodedata.Cost{Holds: 1, Held: held, Inside: c.inside, Within: c.within})
}
