package lockpool

// This file has what the waits and holds of a pool have cost, by lock and by line of the program.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
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
	Lock    string // the name
	Kind    string // as in Contender
	At      string // the place of the requests in the program, as in Contender; empty if not known
	Foreign bool   // a holder of another process, with Holds and Held as seen by the waiters of the pool

	Holds  float64       // how many times the line has held the lock
	Held   time.Duration // for how long in all
	Inside time.Duration // of Held, the time in which the handle waited for other locks
	Within string        // the lock for which the handle waited the most then

	Waits  float64       // calls that waited for other contenders
	Waited time.Duration // for how long in all
	GaveUp float64       // of Waits, the calls that did not get the lock
	Vain   time.Duration // of Waited, the time of these calls
	Own    float64       // of Waits, the calls behind another node of their own process

	Asks  float64       // calls that got the lock without a wait for other contenders
	Asked time.Duration // for how long in all
	Again float64       // calls whose node joined the queue directly after another of the pool; 0 on etcd
}

// Costs returns what the pools that use the same service have published: the costs of their
// contended locks, summed up over one to two hours (what was an hour ago counts half). A pool
// publishes at most once a minute, when its calls have spent a second with waits and requests
// for locks, and removes the publication an hour after the last such minute. The pool knows the
// 100 most expensive pairs of a lock and a line, in about 0.3 MB at most (the space-saving sketch
// of Metwally, Agrawal and El Abbadi), and publishes the first 20 or more. Of the calls that wait
// shortly in memory, one in 64 counts for all. A pool without links (see [WithTraceLinks])
// publishes nothing.
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

const (
	costSample = 64          // of so many calls whose line is not known, one counts for all
	mostCosts  = 100         // lines that a pool knows
	mostLast   = 1000        // locks whose last node a pool knows
	costsEvery = time.Minute // how often a pool publishes at most
	costsWorth = time.Second // of waits and requests, without which nothing is published
	costsHalf  = time.Hour   // after which the sums are halved
)

// costs are the sums of a pool: a space-saving sketch, which knows the lines with the largest
// costs. A new line takes the place of the one with the smallest weight, and its weight.
type costs struct {
	mu     sync.Mutex
	lines  map[costLine]*lineCost
	last   map[string]driver.Node // the newest node of the pool, by lock
	fresh  time.Duration          // spent since the last publication
	wrote  time.Time              // when that was
	timed  bool                   // publish is going to be called
	over   time.Duration          // of the sums, until halved
	halved time.Time

	publish func() // called once some time after add; nil for never
}

type costLine struct {
	lock, kind, at string
	foreign        bool
}

type lineCost struct {
	nodedata.Cost
	weight time.Duration
	within time.Duration // by which Within leads, in the vote of Boyer and Moore
}

// add adds to the costs of a line, weight times.
func (c *costs) add(line costLine, cost nodedata.Cost, weight float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age(time.Now())
	l := c.lines[line]
	if l == nil {
		l = c.replace(line)
	}
	l.Add(cost, weight)
	spent := time.Duration(weight * float64(cost.Waited+cost.Asked))
	l.weight += spent + time.Duration(weight*float64(cost.Held))
	if cost.Within != "" {
		l.vote(cost.Within, cost.Inside)
	}
	if c.fresh += spent; !c.timed && c.publish != nil {
		c.timed = true
		time.AfterFunc(costsEvery, c.publish)
	}
}

// replace returns the costs of a new line.
func (c *costs) replace(line costLine) *lineCost {
	l := &lineCost{Cost: nodedata.Cost{Lock: line.lock, Kind: line.kind, At: line.at, Foreign: line.foreign}}
	if len(c.lines) >= mostCosts {
		var least costLine
		for other, o := range c.lines {
			if least == (costLine{}) || o.weight < c.lines[least].weight {
				least = other
			}
		}
		l.weight = c.lines[least].weight
		delete(c.lines, least)
	}
	if c.lines == nil {
		c.lines = map[costLine]*lineCost{}
	}
	c.lines[line] = l
	return l
}

func (l *lineCost) vote(lock string, d time.Duration) {
	switch {
	case l.Within == lock:
		l.within += d
	case l.within < d:
		l.Within, l.within = lock, d-l.within
	default:
		l.within -= d
	}
}

// age halves the sums for each half-life that has passed.
func (c *costs) age(now time.Time) {
	if c.halved.IsZero() {
		c.halved = now
	}
	for ; now.Sub(c.halved) >= costsHalf; c.halved = c.halved.Add(costsHalf) {
		c.over = (c.over + costsHalf) / 2
		for line, l := range c.lines {
			l.Add(l.Cost, -0.5)
			if l.weight /= 2; l.weight < time.Millisecond {
				delete(c.lines, line)
			}
		}
	}
}

// follows reports whether a node has joined a queue directly after the pool's last one, as far as
// the driver can tell.
func (c *costs) follows(name string, node driver.Node, s *session) bool {
	counter, tells := s.Session.(driver.Counter)
	if !tells {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.last[name]
	if c.last == nil || len(c.last) >= mostLast && !known {
		c.last = map[string]driver.Node{}
	}
	c.last[name] = node
	return known && counter.Adjoins(before, node)
}

// usual returns how long a lock is held in the mean, or 0 after few holds.
func (c *costs) usual(name string) time.Duration {
	const few = 10
	c.mu.Lock()
	defer c.mu.Unlock()
	holds, held := 0.0, time.Duration(0)
	for line, l := range c.lines {
		if line.lock == name {
			holds, held = holds+l.Holds, held+l.Held
		}
	}
	if holds < few {
		return 0
	}
	return time.Duration(float64(held) / holds)
}

// largest returns the largest costs, and the time over which they are summed up, or nothing if
// little has been spent since the last call. stale says that the last ones are old.
func (c *costs) largest(now time.Time) (found []nodedata.Cost, over time.Duration, stale bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timed = false
	if c.age(now); c.fresh < costsWorth {
		return nil, 0, now.Sub(c.wrote) >= costsHalf
	}
	c.fresh, c.wrote = 0, now
	lines := slices.SortedFunc(maps.Values(c.lines), func(a, b *lineCost) int { return cmp.Compare(b.weight, a.weight) })
	for _, l := range lines {
		found = append(found, l.Cost)
	}
	return found, c.over + now.Sub(c.halved), false
}

// publishCosts publishes in the queue driver.Costs, and is called by a timer.
func (p *Pool) publishCosts() {
	if !p.begin() {
		return
	}
	defer p.work.Done()
	switch found, over, stale := p.costs.largest(time.Now()); {
	case len(found) > 0:
		p.published.tell(p, p.owner.Encode(nodedata.Costs{Over: over, LocalTurns: p.cfg.localTurns > 0, KeptLocks: p.cfg.keptLocks > 0, Costs: found}))
	case stale:
		p.published.tell(p, nil)
	}
	if p.published.session != nil {
		p.costs.again()
	}
}

// again makes the timer run, which removes the publication in the end.
func (c *costs) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.timed {
		c.timed = true
		time.AfterFunc(costsEvery, c.publish)
	}
}

// weigh decides for how many calls the acquisition counts: for itself if its line is known. To
// find the line takes longer than a short turn.
func (a *acquisition) weigh() (weight int32) {
	switch {
	case a.weighed || a.pool.telemetry.NoLinks || a.req.op == opElect:
	case a.local.at != "":
		a.weight = 1
	case rand.Uint32N(costSample) == 0:
		a.weight = costSample
		a.placeToTell()
	}
	a.weighed = true
	return a.weight
}

func (a *acquisition) costLine() costLine {
	return costLine{lock: a.name, kind: a.req.kind().String(), at: a.local.at}
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
		if cost.Waits, cost.Waited = 1, took; err != nil {
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
	if a.behindOwn {
		cost.Own = 1
	}
	a.pool.costs.add(a.costLine(), cost, float64(a.weight))
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

// endStage ends the wait behind one node, and notes who was in the way.
func (a *acquisition) endStage() {
	began, p := a.stageBegan, a.pool
	if a.stageBegan = (time.Time{}); began.IsZero() || time.Since(began) < worthNoting || p.telemetry.NoLinks {
		return
	}
	w := a.progress.now().wait()
	switch r := nodedata.Parse(w.Data); {
	case r.Host == p.owner.Host && r.PID == p.owner.PID:
		a.behindOwn = true
	case w.Holder == w.Behind:
		p.costs.add(costLine{a.name, w.Behind.Kind.String(), r.At, true}, nodedata.Cost{Holds: 1, Held: time.Since(began)}, 1)
	}
}

// holdCost is what a hold needs to know for its costs.
type holdCost struct {
	at     string        // where the lock was asked for, if known
	weight int32         // for how many holds this one counts
	inside time.Duration // in waits for other locks; guarded by handle.mu
	within string        // the lock of the longest one
}

// noteInside records a wait of the handle for another lock.
func (h *Handle) noteInside(a *acquisition) {
	if !a.waiting {
		return
	}
	took := time.Since(a.Began())
	h.mu.Lock()
	defer h.mu.Unlock()
	for held := range h.holds.all() {
		if c := &held.cost; held.name != a.name && !held.life.over.Load() {
			if c.within == "" || took > c.inside {
				c.within = a.name
			}
			c.inside += took
		}
	}
}

// account adds what a hold has cost. The caller holds handle.mu.
func (h *hold) account() {
	c := h.cost
	if c.weight > 0 {
		h.handle.pool.costs.add(costLine{lock: h.name, kind: h.kind.String(), at: c.at},
			nodedata.Cost{Holds: 1, Held: h.life.ended.Sub(h.life.began), Inside: c.inside, Within: c.within}, float64(c.weight))
	}
}
