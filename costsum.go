package lockpool

// This file has the sums of the costs of locks, and their publication.

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
)

const (
	mostCosts  = 100              // lines that a pool knows
	mostLast   = 1000             // locks whose last node a pool knows
	costsEvery = time.Minute      // how often a pool publishes at most
	costsAgain = 10 * time.Minute // how often without new costs
	costsWorth = time.Second      // of waits and requests, without which nothing is published
	costsHalf  = time.Hour        // after which the sums are halved
)

// costs are the sums of a pool: a space-saving sketch, which knows the lines with the largest
// costs. A new line takes the place of the one with the smallest weight, and its weight: the more
// likely, the more the line costs (randomized admission, by Ben Basat et al.).
type costs struct {
	publish func() // called by timer

	mu     sync.Mutex
	lines  map[costLine]*lineCost
	least  time.Duration          // weight, at most, of a full sketch's lines
	last   map[string]driver.Node // the newest node of the pool, by lock
	active map[string]int         // calls with a node, by lock; nil with local turns
	over   time.Duration          // of the sums, until halved
	halved time.Time              // or the opening of the pool
	fresh  time.Duration          // spent since the last publication
	spent  time.Time              // when fresh was enough last
	wrote  time.Time              // when there last was a publication
	timer  *time.Timer            // nil if none is running
	closed bool
}

func (c *costs) open(publish func(), localTurns bool) {
	c.publish, c.halved = publish, time.Now()
	if !localTurns {
		c.active = map[string]int{}
	}
}

func (c *costs) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed = true; c.timer != nil {
		c.timer.Stop()
	}
}

type costLine struct {
	lock, kind, at string
	foreign        bool
	host           string // of a foreign line
	pid            int
}

type lineCost struct {
	nodedata.Cost
	weight time.Duration
	within time.Duration // by which Within leads, in the vote of Boyer and Moore
}

// add bounds the times of cost, and adds cost to the sums of a line, weight times.
func (c *costs) add(line costLine, cost *nodedata.Cost, weight float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.age(now)
	cost.Limit(c.over + now.Sub(c.halved)) // the rest is of an earlier time
	spent := time.Duration(weight * float64(cost.Waited+cost.Asked))
	whole := spent + time.Duration(weight*float64(cost.Held))
	if c.fresh += spent; c.fresh >= costsWorth {
		c.publishIn(costsEvery)
	}
	l := c.lines[line]
	if l == nil {
		if l = c.admit(line, whole); l == nil {
			return
		}
	}
	l.weight += whole
	l.Add(cost, weight)
	if cost.Within != "" {
		l.vote(cost.Within, cost.Inside)
	}
}

// publishIn starts the timer, unless it is running. The caller holds mu.
func (c *costs) publishIn(d time.Duration) {
	if c.timer == nil && !c.closed {
		c.timer = time.AfterFunc(d, c.publish)
	}
}

// admit returns the costs of a new line, or nil if the line costs too little.
func (c *costs) admit(line costLine, cost time.Duration) *lineCost {
	l := &lineCost{Cost: nodedata.Cost{Lock: line.lock, Kind: line.kind, At: line.at, Foreign: line.foreign, Host: line.host, PID: line.pid}}
	if len(c.lines) >= mostCosts {
		if rand.Float64()*float64(c.least+cost) > float64(cost) {
			return nil
		}
		var least costLine
		c.least = math.MaxInt64
		for other, o := range c.lines {
			if o.weight < c.least {
				least, c.least = other, o.weight
			}
		}
		l.weight = c.least
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

// age halves the sums for each half-life that has passed. The common path has no
// function with a large frame: to grow the stack of a waiter takes half as long as a turn.
func (c *costs) age(now time.Time) {
	for ; now.Sub(c.halved) >= costsHalf; c.halved = c.halved.Add(costsHalf) {
		c.halve()
	}
}

func (c *costs) halve() {
	c.over, c.least = (c.over+costsHalf)/2, c.least/2
	for line, l := range c.lines {
		l.Add(&l.Cost, -0.5)
		if l.weight /= 2; l.weight < time.Millisecond {
			delete(c.lines, line)
		}
	}
}

// enter and leave count the calls with a node of their own, as far as the pool has no local turns.
// enter reports whether there are others.
func (c *costs) enter(name string) (others bool) {
	if c.active == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[name]++
	return c.active[name] > 1
}

func (c *costs) leave(name string) {
	if c.active == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active[name]--; c.active[name] <= 0 { // user code that panics can make a call leave twice
		delete(c.active, name)
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

// due returns what is to be published, with the largest costs first, or nothing. keep says that
// an earlier publication stays.
func (c *costs) due(now time.Time) (due nodedata.Costs, keep bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age(now)
	worth := c.fresh >= costsWorth
	if worth {
		c.spent = now
	}
	if keep = now.Sub(c.spent) < costsHalf; !keep || !worth && now.Sub(c.wrote) < costsAgain {
		return due, keep
	}
	due.Over = c.over + now.Sub(c.halved)
	for _, l := range slices.SortedFunc(maps.Values(c.lines), func(a, b *lineCost) int { return cmp.Compare(b.weight, a.weight) }) {
		due.Costs = append(due.Costs, l.Cost)
	}
	return due, keep
}

// published is called after due. exists says that there is a publication, perhaps of earlier
// costs.
func (c *costs) published(now time.Time, wrote, exists bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer = nil; wrote {
		c.fresh, c.wrote = 0, now
	}
	if exists || c.fresh >= costsWorth {
		c.publishIn(costsEvery)
	}
}

// publishCosts publishes in the queue driver.Costs, and is called by a timer. Within an hour after
// new costs, that may open a session.
func (p *Pool) publishCosts() {
	if !p.begin() {
		return
	}
	defer p.work.Done()
	r, now, wrote := &p.published, time.Now(), false
	due, keep := p.costs.due(now)
	switch {
	case !keep:
		r.tell(p, nil)
	case len(due.Costs) > 0:
		due.LocalTurns, due.KeptLocks = p.cfg.localTurns > 0, p.cfg.keptLocks > 0
		wrote = r.tell(p, p.owner.Encode(due))
	}
	p.costs.published(now, wrote, r.session != nil)
}
