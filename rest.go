package lockpool

import (
	"context"
	"errors"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// A hold that is unlocked before its time (see HoldAtLeast) rests: it has ended for its
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

// rest begins the rest of a hold that was unlocked. It reports false if there is none:
// the time has come, or the handle, the pool or the tenancy has ended.
func (h *hold) rest() bool {
	if h.until.IsZero() {
		return false
	}
	by, p := h.handle, h.handle.pool
	by.mu.Lock()
	defer by.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(h.until)
	if left <= 0 || by.isClosedByUser() || h.tenancy.alive.Err() != nil {
		return false
	}
	if by.rests == nil {
		by.rests = map[*hold]*time.Timer{}
	}
	by.rests[h] = time.AfterFunc(left, func() {
		if p.begin() {
			defer p.work.Done()
			_ = h.endRest(canceled) // continues in the background
		}
	})
	p.resting++
	return true
}

// endRest ends the rest of a hold and, if nobody else has the lock, gives it back. ctx
// bounds the wait for that.
func (h *hold) endRest(ctx context.Context) error {
	p, t := h.handle.pool, h.tenancy
	p.mu.Lock()
	ended := h.stopResting() && t.leaveLocked()
	p.mu.Unlock()
	if !ended {
		return nil
	}
	ctx, cancel := beyondHolds(ctx)
	defer cancel()
	err := t.removeNode(ctx)
	if errors.Is(err, driver.ErrRemoved) || errors.Is(err, driver.ErrSessionLost) {
		return nil // it was lost, which is no news for anybody
	}
	return explainRelease(ctx, err)
}

// stopResting reports whether the hold rests, and if so, ends that and unregisters it. It
// is called with Pool.mu held.
func (h *hold) stopResting() bool {
	timer := h.handle.rests[h]
	if timer == nil {
		return false
	}
	timer.Stop()
	delete(h.handle.rests, h)
	h.handle.pool.resting--
	h.unregister()
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
