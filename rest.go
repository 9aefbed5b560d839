package lockpool

// This file has rests: locks that are unlocked and not free yet.

import (
	"errors"
	"fmt"
	"time"
)

// A hold that is unlocked before its time (see HoldAtLeast) rests: the hold has ended for its
// holder, but its turn of the tenancy has not. So the lock stays what it was, for other
// handles of the pool as well as for the service. The rest ends when the time has come
// (endRest), or with the tenancy, and until then the hold stays registered.
type rest struct {
	until time.Time   // before which the lock does not come free; guarded by handle.mu while there are entries
	timer *time.Timer // ends the rest that has begun, or nil; guarded by Pool.mu
}

// holdAtLeast applies HoldAtLeast to the hold that the lock is an entry of.
func (l *Lock) holdAtLeast(d time.Duration) {
	until := time.Now().Add(d)
	h := l.hold.handle
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.hold.entries.index(l.entry) >= 0 && until.After(l.hold.rest.until) {
		l.hold.rest.until = until
	}
}

// beginRest begins the rest of a hold that has ended for a cause, if the node was watched. If
// the time has come, the lock was lost, or the pool or the tenancy has ended, the turn ends.
func (h *hold) beginRest(cause error, watched bool) leaving {
	p := h.handle.pool
	p.mu.Lock()
	rests := (cause == ErrNotHeld || cause == ErrHandleClosed) &&
		time.Now().Before(h.rest.until) && p.alive.Err() == nil && h.tenancy.alive.Err() == nil
	if rests && watched {
		h.rest.timer = time.AfterFunc(time.Until(h.rest.until), h.endRest)
		h.tenancy.resting++
		p.resting++
	}
	p.mu.Unlock()
	switch {
	case !rests:
		return h.tenancy.leave(watched)
	case !watched:
		return notYet
	}
	return rested
}

// endRest ends the rest of a hold whose time has come and, if no other handle has the lock,
// gives the lock back.
func (h *hold) endRest() {
	p, t := h.handle.pool, h.tenancy
	if !p.begin() {
		return
	}
	defer p.work.Done()
	p.mu.Lock()
	ended := h.stopResting()
	p.mu.Unlock()
	if ended {
		t.drop()
	}
}

// stopResting reports whether the hold rests, and if so, ends that and unregisters it. It
// is called with Pool.mu held.
func (h *hold) stopResting() bool {
	if h.rest.timer == nil {
		return false
	}
	h.rest.timer.Stop()
	h.rest.timer = nil
	p := h.handle.pool
	p.resting--
	h.tenancy.resting--
	h.unregister()
	p.noteDrained()
	return true
}

// endRests ends the rests of all holds: the tenancy has ended. It is called with Pool.mu held.
func (t *tenancy) endRests() {
	for i := len(t.holds) - 1; i >= 0; i-- { // the hold is removed from the slice
		if t.holds[i].stopResting() {
			t.pool.local.leave(&t.turns, true)
		}
	}
}

// cutShort returns an error for Close if the lock comes free before its time.
func (h *hold) cutShort() error {
	h.handle.mu.Lock()
	defer h.handle.mu.Unlock()
	left := time.Until(h.rest.until)
	if left <= 0 || errors.Is(h.life.err(), ErrLockLost) {
		return nil
	}
	return fmt.Errorf("lockpool: close: %q comes free %v before its time (HoldAtLeast); Shutdown waits for that", h.name, left.Round(time.Millisecond))
}
