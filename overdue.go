package lockpool

// This file tells of holds that last longer than WithMaxHold allows.

import (
	"context"
	"time"
)

// overdue is what a hold needs to be told of when it has lasted too long.
type overdue struct {
	after time.Duration // 0 for never
	timer *time.Timer   // guarded by Pool.mu
}

// noteMaxHold sets the longest time of a hold. Leaders hold their locks for as long as they lead.
func (h *hold) noteMaxHold(op string) {
	if d := h.handle.pool.cfg.maxHold; d > 0 && op != opElect {
		h.overdue.after, h.cost.at = d, callSite()
	}
}

// start is called with Pool.mu held, as is stop.
func (o *overdue) start(h *hold) {
	if o.after > 0 {
		o.timer = time.AfterFunc(o.after, h.tellOverdue)
	}
}

func (o *overdue) stop() {
	if o.timer != nil {
		o.timer.Stop()
	}
}

func (h *hold) tellOverdue() {
	p := h.handle.pool
	if h.life.err() != nil || !p.begin() {
		return
	}
	defer p.work.Done()
	if p.cfg.revokeOverdue { // before the logger, which may block
		h.life.revoke()
	}
	h.telemetry.Overdue(context.Background(), h.overdue.after, h.cost.at)
}
