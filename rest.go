package lockpool

import (
	"errors"
	"fmt"
	"time"
)

// A hold that is unlocked before its time (see HoldAtLeast) rests: the hold has ended for its
// holder, but its turn of the tenancy has not. So the lock stays what it was, for other
// handles of the pool as well as for the service. The rest ends when the time has come
// (endRest), or with the tenancy, and until then the hold stays registered.

// holdAtLeast applies HoldAtLeast to the hold that the lock is an entry of.
func (l *Lock) holdAtLeast(d time.Duration) {
	until := time.Now().Add(d)
	h := l.hold.handle
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(l.hold.until) {
		l.hold.until = until
	}
}

// mayRest reports whether a hold that has ended for a cause rests, unless the time has come,
// the lock was lost, or the pool or the tenancy has ended. It is called with Pool.mu held.
func (h *hold) mayRest(cause error) bool {
	return !h.until.IsZero() && (cause == ErrNotHeld || cause == ErrHandleClosed) &&
		time.Now().Before(h.until) && h.handle.pool.alive.Err() == nil && h.tenancy.alive.Err() == nil
}

// rest begins the rest. It is called with Pool.mu held.
func (h *hold) rest() {
	h.resting = time.AfterFunc(time.Until(h.until), h.endRest)
	h.handle.pool.resting++
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
	ended := h.stopResting() && t.leaveLocked()
	p.mu.Unlock()
	if ended {
		_ = t.removeNode(canceled) // continues in the background
	}
}

// stopResting reports whether the hold rests, and if so, ends that and unregisters it. It
// is called with Pool.mu held.
func (h *hold) stopResting() bool {
	if h.resting == nil {
		return false
	}
	h.resting.Stop()
	h.resting = nil
	p := h.handle.pool
	p.resting--
	h.unregister()
	p.noteDrained()
	return true
}

// endRests ends the rests of all holds: the tenancy has ended. It reports whether there
// were any. It is called with Pool.mu held.
func (t *tenancy) endRests() (rested bool) {
	for i := len(t.holds) - 1; i >= 0; i-- { // the hold is removed from the slice
		if t.holds[i].stopResting() {
			t.holders--
			rested = true
		}
	}
	return rested
}

// cutShort returns an error for Close if the lock comes free before its time.
func (h *hold) cutShort() error {
	h.handle.mu.Lock()
	defer h.handle.mu.Unlock()
	left := time.Until(h.until)
	if left <= 0 || errors.Is(h.life.err(), ErrLockLost) {
		return nil
	}
	return fmt.Errorf("lockpool: close: %q comes free %v before its time (HoldAtLeast); Shutdown waits for that", h.name, left.Round(time.Millisecond))
}
