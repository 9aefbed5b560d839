package workload

// This file checks what holders are told: losses, releases, contexts, breaks and
// starvation.

import (
	"slices"
	"strings"
	"time"
)

// loss is the end of a node not removed by the owner.
type loss struct {
	at   Instant
	told bool // only the service can tell the owner: no clock shows the loss
}

// losses returns what nodes have been lost, by their order numbers.
func (rec *Record) losses() map[int64]loss {
	lost := map[int64]loss{}
	for _, x := range rec.Removals {
		lost[x.Order] = loss{x.At, true}
	}
	for _, end := range rec.Ends {
		for _, order := range end.Orders {
			if _, ok := lost[order]; !ok && !end.Closed {
				lost[order] = loss{end.At, end.Forced}
			}
		}
	}
	delete(lost, 0)
	return lost
}

// checkReleases finds releases, by Unlock or at the end of Do, confirmed after the loss of
// the lock: the servers had ended the session, others had removed the node, or another
// holder had been granted the lock. (A nil error means that the lock was held until then.)
//
// No confirmation is allowed if the servers have ended the session for want of activity:
// the clock of the lease has to show the end, or the wall clock that the lease's clock is
// in doubt. (If both hide a stop of the machine, the check waits until one shows the stop.)
// Other losses are for the service to tell. A release with a request to the service is told
// at once. Beside a fault, the answer may be lost with the connection, and the next answer,
// that the node is gone, does not say who has removed the node. A release that leaves the
// lock to others of the process, or to rest, knows only what has arrived, so the news may
// be on the way: for no longer than the limit InFlight without a fault, and otherwise until
// the lease has ended.
func (r *Report) checkReleases(rec *Record, byLock map[string][]*hold) {
	lost := rec.losses()
	released := map[*hold]*call{}
	for _, c := range rec.calls {
		h := c.releases
		if h == nil || c.err != "" {
			continue
		}
		x, ok := lost[h.order()]
		if !ok {
			released[h] = c
			continue
		}
		calm := rec.calm(x.at.Add(-rec.Revocation), c.end, removing, expiring)
		if x.at > c.end || x.at >= rec.End || !calm && (rec.InFlight == 0 || x.told && x.at >= c.begin) { // in the latter case, the release may have been first
			continue
		}
		if by := rec.knows(c, x, calm); by < c.end || by == x.at && by == c.end {
			r.violation(c.end, "release: lock %q: %s at %s returned no error, although its holder had lost it at %s, and had to know at %s: %s%s",
				c.lock, rec.howReleased(c), rec.at(c.end), rec.at(x.at), rec.at(by), h, rec.circumstances(x.at))
		}
	}
	if rec.InFlight == 0 {
		return
	}
	for _, holds := range byLock { // holds with unknown nodes: after a downgrade, or without a token
		for n, h := range holds {
			c := released[h]
			if c == nil {
				continue
			}
			for _, g := range holds[n+1:] {
				if g.begin >= c.begin {
					break
				}
				if g.restOf == h || h.restOf == g || h.permits+g.permits <= min(h.of, g.of) || rec.older(h, g) != h || rec.ambiguous(h, g) ||
					rec.removedDuring(h, g.begin, c.begin) && (rec.leavesToOthers(c) || kindOf(c.lock) == Plain) { // before the news, a plain lock's delete meets g's node
					continue
				}
				if by := rec.knows(c, loss{g.begin, true}, rec.calm(g.begin.Add(-rec.Revocation), c.begin, removing, expiring)); by < c.begin {
					r.violation(c.end, "release: lock %q: %s at %s returned no error, although another holder had been granted it at %s: %s, and %s%s",
						c.lock, rec.howReleased(c), rec.at(c.end), rec.at(g.begin), h, g, rec.circumstances(g.begin))
				}
			}
		}
	}
}

// knows returns when a releasing call has to know of the loss of the lock.
func (rec *Record) knows(c *call, x loss, calm bool) Instant {
	by := x.at
	switch {
	case !x.told:
	case rec.leavesToOthers(c):
		inFlight := rec.Revocation
		if rec.InFlight == 0 {
			inFlight = noticeTime
		} else if calm {
			inFlight = rec.InFlight
		}
		by = by.Add(inFlight + rec.pausedFor(c.process, x.at, c.end))
	case !calm:
		if by = by.Add(noticeTime); by > c.begin { // the answer may be lost with the connection, however long the next one takes
			by = max(by, c.end)
		}
	}
	for _, s := range rec.Hidden {
		if s.Process == c.process && x.at.within(s.Begin, s.End.Add(rec.Revocation)) {
			by = max(by, s.End.Add(rec.WakeUp))
		}
	}
	return by
}

// ambiguous reports whether either of two holds may have been granted first.
func (rec *Record) ambiguous(h, g *hold) bool {
	return (h.token == 0 || g.token == 0) && (rec.noticedLate(h) || rec.noticedLate(g))
}

// leavesToOthers reports whether a call may release a lock without an answer: the lock
// rests or is kept, or others of the process may have the lock next, or share the lock.
func (rec *Record) leavesToOthers(c *call) bool {
	if c.rests {
		return true
	}
	return slices.Contains(rec.PassesOn, c.process) && kindOf(c.lock) != Plain && kindOf(c.lock) != Semaphore &&
		(slices.Contains(rec.Keeps, c.process) || slices.ContainsFunc(rec.calls, func(other *call) bool {
			return other.process == c.process && other.lock == c.lock && (other.op == opLock || other.op == opAgain) && other.begin <= c.end && c.begin <= other.end
		}) || slices.ContainsFunc(rec.holds, func(other *hold) bool {
			return other.process == c.process && other.lock == c.lock && other != c.releases && other.begin <= c.end && c.begin <= other.end
		}))
}

// howReleased describes a releasing call.
func (rec *Record) howReleased(c *call) string {
	switch {
	case c.rests:
		return c.op + " of a lock that may rest"
	case c.op != opDo && rec.leavesToOthers(c):
		return c.op + " of a lock that may be passed on"
	}
	return c.op
}

// checkContexts finds contexts of exclusive holders still open when others got the lock, or
// shared the lock after a downgrade.
func (r *Report) checkContexts(rec *Record, holds []*hold) {
	for n, h := range holds {
		if h.downgraded() || h.lost || h.contextEnd <= h.end.Add(rec.Noted+rec.pausedFor(h.process, h.end, h.contextEnd)) {
			continue
		}
		for _, g := range holds[n+1:] {
			if g.begin >= h.contextEnd || g.begin >= rec.End {
				break
			}
			if g.begin >= h.end && (g.process != h.process || g.worker != h.worker) && rec.older(h, g) == h && !rec.ambiguous(h, g) &&
				!rec.heldInGoodFaith(h.process, g.begin, h.contextEnd) && !rec.removedDuring(h, g.begin, h.contextEnd) {
				r.violation(g.begin, "context: lock %q: the context of %s, which held it from %s until %s, ended at %s, after the lock was granted at %s to %s",
					h.lock, h, rec.at(h.begin), rec.at(h.end), rec.at(h.contextEnd), rec.at(g.begin), g)
				break
			}
		}
	}
}

// checkEntries finds contexts of entries still open after the entries were unlocked.
func (r *Report) checkEntries(rec *Record) {
	if n := len(rec.outlived); n > 0 {
		s := rec.outlived[0]
		r.violation(s.Begin, "context: %d contexts of entries had not ended when the entries had been unlocked, the first of them of %s at %s", n, s.Process, rec.at(s.Begin))
	}
}

// checkBreaks finds requests to break a contender which did not find the contender,
// although the contender held the lock all the time.
func (r *Report) checkBreaks(rec *Record) {
	byOrder, lost := rec.byOrder(), rec.losses()
	for _, c := range rec.calls {
		if c.op != opBreak || c.err != notHeld {
			continue
		}
		for _, h := range byOrder[c.period] {
			root := h
			for root.restOf != nil {
				root = root.restOf
			}
			x, ok := lost[c.period]
			if h.lock == c.lock && root.begin < c.begin && c.end < h.end && !h.lost && !(ok && x.at <= c.end) && !rec.pausedDuring(h.process, c.begin, c.begin) {
				r.violation(c.end, "break: lock %q: %s was told at %s that the contender is gone, which has held the lock since %s: %s", c.lock, c.process, rec.at(c.end), rec.at(root.begin), h)
			}
		}
	}
}

// checkStarvation finds callers that were the victim of a deadlock again and again, trying
// again at once, without a fault.
func (r *Report) checkStarvation(rec *Record) {
	for _, c := range rec.calls {
		if c.op == opDuel && rec.Victims > 0 && c.victim > rec.Victims && rec.calm(c.begin.Add(-rec.Revocation), c.end, removing) {
			r.violation(c.end, "starvation: %s, goroutine %d, tried for %s, from %s, and was the victim of a deadlock %d times in succession",
				c.process, c.worker, c.end.Since(c.begin).Round(time.Millisecond), rec.at(c.begin), c.victim)
		}
	}
}

// starved returns the longest time a victim of a deadlock tried again, and how often in
// succession a caller was the victim at most.
func (rec *Record) starved() (longest time.Duration, most int64) {
	for _, c := range rec.calls {
		if c.op == opDuel && c.victim > 0 {
			longest, most = max(longest, c.end.Since(c.begin)), max(most, c.victim)
		}
	}
	return longest, most
}

// admitBreaks counts the removals by other sessions as faults requested by bystanders. The
// library has no reason for others.
func (rec *Record) admitBreaks() {
	for _, x := range rec.Broken {
		if slices.ContainsFunc(rec.calls, func(c *call) bool {
			return c.op == opBreak && c.lock == x.Lock && x.At.within(c.begin, c.end.Add(rec.Revocation))
		}) {
			rec.Removals = append(rec.Removals, x)
			rec.Faults = append(rec.Faults, Span{removing + "what a bystander breaks", x.At, x.At})
		}
	}
	rec.Broken = nil
}

// breaks returns how many contenders bystanders have broken.
func (rec *Record) breaks() (n int) {
	for _, f := range rec.Faults {
		if strings.HasSuffix(f.Process, "a bystander breaks") {
			n++
		}
	}
	return n
}
