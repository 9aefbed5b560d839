package lockpool

// This file ends the wait of a deadlock's victim.

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// cycle is a cycle for a wait to leave, and the proof of the cycle.
type cycle struct {
	calls  []Party
	own    driver.Located   // the node of the wait
	others []driver.Located // as long as these exist, too, the cycle stands
}

// isCertain reports whether nothing unread can make another call the victim: each call on the
// cycle holds what the call before waits for, and so may be the victim, and none waits for
// permits, which other holders may release.
func (c *cycle) isCertain() bool {
	return !slices.ContainsFunc(c.calls, func(p Party) bool { return len(p.Holds) == 0 || p.Wait.Permits > 0 })
}

// leave makes the wait the victim of the cycle, if the cycle stands at the removal of the
// wait's node. So of several victims, the second finds the cycle dissolved.
func (w *nestedWait) leave(c *cycle) error {
	if !w.act() {
		return w.ctx.Err()
	}
	defer w.acted()
	err := w.on.LeaveIf(w.ctx, c.own, c.others...)
	if err == nil {
		w.cancel(&DeadlockError{c.calls})
	}
	if err != nil && w.req.plain { // the node may be gone (driver.Session)
		watches, lost := w.on.Watch(w.ctx, c.own.Queue, c.own.Node)
		w.shown = lost == nil && watches[0].Fired() == 0
	}
	return err
}

// asked returns the order number of the wait, or of an earlier attempt if there was one, or
// 0 if unknown.
func (w *nestedWait) asked() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.age, w.created)
}

// lookInMemory looks among the pool's own nested waits, when this one is about to wait for
// others. The victim nearly always is this one.
func (w *nestedWait) lookInMemory() {
	g, reached := w.graphInMemory()
	if g == nil {
		return
	}
	last := g.Last(w.ask)
	if c := victimOf(g, last); c != nil {
		victim := reached[last]
		victim.inBackground(func() { _ = victim.leave(c) }) // or else the victim looks at the service
	}
}

// ages are the ages of requests that were ended by a deadlock. A victim that tries again
// keeps the age: the new request is as old as the first one, so no request is the victim for
// ever. A request tries again if the request holds the same locks and asks for the same one,
// by whatever handle of the pool and on whatever goroutine. The age ends with the grant, or
// is forgotten without another try.
type ages struct {
	mu  sync.Mutex
	all map[string]age // by nestedWait.tries
}

type age struct {
	order int64
	since time.Time
}

const (
	mostAges = 1 << 12
	longAge  = 10 * time.Minute
)

// tries returns the key of the wait in the ages.
func (w *nestedWait) tries() string {
	var names []string
	for _, held := range w.holds {
		names = append(names, held.name)
	}
	slices.Sort(names)
	return strings.Join(append(names, w.name), "\x00") // which no name contains
}

// take returns an age and forgets the age: of two requests at once, one tries again.
func (a *ages) take(w *nestedWait) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) == 0 {
		return 0
	}
	key := w.tries()
	found := a.all[key]
	delete(a.all, key)
	if time.Since(found.since) > longAge {
		return 0
	}
	return found.order
}

// put remembers the age of a wait that was not granted the lock, if order is known.
func (a *ages) put(w *nestedWait, order int64) {
	if order == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[string]age{}
	}
	key := w.tries()
	delete(a.all, key)
	if len(a.all) >= mostAges {
		for key, other := range a.all {
			if time.Since(other.since) > longAge {
				delete(a.all, key)
			}
		}
	}
	if len(a.all) >= mostAges {
		clear(a.all)
	}
	a.all[key] = age{order, time.Now()}
}
