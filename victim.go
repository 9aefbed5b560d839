package lockpool

// This file ends the wait of a deadlock's victim.

import (
	"cmp"
	"slices"
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

// A victim that tries again keeps its age: the new request is as old as the first one ended
// by a deadlock, so the caller is not the victim for ever. A handle remembers the age until
// the handle has got a nested lock and then holds nothing. Where each try has a handle of
// its own, as with Pool.Lock, the goroutine remembers the age, until a nested lock is
// granted.

// remember remembers the order number of a request ended by a deadlock.
func (h *Handle) remember(goroutine, order int64) {
	h.mu.Lock()
	h.age, h.hasGot = order, false
	h.mu.Unlock()
	h.pool.ages.set(goroutine, order)
}

// ageOn returns the age of a request of the handle on a goroutine, or 0.
func (h *Handle) ageOn(goroutine int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.age == 0 {
		h.age = h.pool.ages.get(goroutine)
	}
	return h.age
}

// gotNested is called when the wait was granted the lock.
func (w *nestedWait) gotNested() {
	if w == nil || w.age == 0 {
		return
	}
	w.handle.mu.Lock()
	w.handle.hasGot = true
	w.handle.mu.Unlock()
	w.pool.ages.set(w.goroutine, 0)
}

// endAge is called when the handle holds nothing.
func (h *Handle) endAge() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hasGot && len(h.holds) == 0 {
		h.age, h.hasGot = 0, false
	}
}

// ages are the ages of requests by goroutine. Without another try, an age is forgotten.
type ages struct {
	mu  sync.Mutex
	all map[int64]age
}

type age struct {
	order int64
	since time.Time
}

const (
	mostAges = 1 << 12
	longAge  = 10 * time.Minute
)

func (a *ages) get(goroutine int64) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[goroutine].order
}

// set sets the age of requests on a goroutine, or forgets an age of 0.
func (a *ages) set(goroutine, order int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if delete(a.all, goroutine); order == 0 {
		return
	}
	if len(a.all) >= mostAges {
		for g, other := range a.all {
			if time.Since(other.since) > longAge {
				delete(a.all, g)
			}
		}
	}
	if a.all == nil || len(a.all) >= mostAges {
		a.all = map[int64]age{}
	}
	a.all[goroutine] = age{order, time.Now()}
}
