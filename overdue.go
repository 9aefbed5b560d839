package lockpool

// This file tells of holds that last longer than WithMaxHold allows.

import "context"

// tellOverdue is called when the hold has lasted for maxHold.
func (h *hold) tellOverdue() {
	p := h.handle.pool
	if h.life.err() != nil || !p.begin() {
		return
	}
	defer p.work.Done()
	if p.cfg.revokeOverdue { // before the logger, which may block
		h.life.revoke()
	}
	h.telemetry.Overdue(context.Background(), h.maxHold, h.cost.at)
}
