package workload

// This file has the checks of a record: exclusion, tokens, order, gaps, causes and calls.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"
)

// Limits are how long things may take.
type Limits struct {
	WakeUp     time.Duration // until a paused client notices a loss
	Overrun    time.Duration // of a call after its context has ended
	Recovery   time.Duration // without faults, until a lock is granted to a waiter
	Revocation time.Duration // until a holder notices a revocation request, or has lost the lock: no lease lasts longer

	// CalmOnly says that there is a whole time of Recovery without any fault. Otherwise,
	// the times between faults count together.
	CalmOnly bool

	// Order is how much earlier than another a call must have asked for a lock to be
	// granted the lock first, if there was no fault for some time. With 0, the order is not
	// checked.
	Order time.Duration

	// Cause is how long before the loss of a lock there must have been a fault. With 0,
	// losses need no cause.
	Cause time.Duration

	// Cycle is for how long callers may wait for each other in a cycle if there is no fault.
	Cycle time.Duration

	// InFlight is how long the news of a broken lock may be on the way to the holder
	// without a fault. With 0, releases are checked only in times without faults.
	InFlight time.Duration

	// Victims is how often in succession a caller may be the victim of a deadlock when
	// trying again at once without a fault. With 0, this is not checked.
	Victims int64

	// Noted is how soon a client with the processor notes the end of a context. It is 0 in
	// virtual time.
	Noted time.Duration

	// Lag is how long a client's unwanted nodes may stay without a fault, and Settling
	// after a fault. If Lag is 0, deadlocks are not checked.
	Lag, Settling time.Duration
}

const (
	// minRequests is how many requests fitting beside a holder make a grant beside the
	// holder certain.
	minRequests = 50
	// vicinity is how far from a violation a fault may be to be listed with the violation.
	vicinity = 5 * time.Second
	// noticeTime is within what time clients learn of something if there is no fault.
	noticeTime = 2 * time.Second
	// multiTime is how soon one of several callers of LockAll gets all locks if they are
	// free and there is no fault.
	multiTime = 5 * time.Second
	// removalTime is how long after the removal of a node a call may still say so: the
	// client may be busy with something else.
	removalTime = 5 * time.Minute
)

// expectedErrors are the errors caused by clients and faults.
var expectedErrors = []string{"", "busy", "canceled", "lock_lost", "pool_closed", "revoked", "timeout", unanswered, done, undecided}

// Report is the result of the checks.
type Report struct {
	Violations []string
	Leaked     []string
	Stuck      []string
	First      Instant        // when the first violation happened, if known
	MaxHolders map[string]int // by lock
	excused    int            // overlaps while the older holder was paused

	excusedRemoved int // overlaps before the older holder had to know of the removal
}

// Verdict returns the last line of a campaign's output.
func (r Report) Verdict() string {
	return fmt.Sprintf("violations=%d leaked_nodes=%d stuck_waiters=%d", len(r.Violations), len(r.Leaked), len(r.Stuck))
}

// Clean reports whether nothing was found.
func (r Report) Clean() bool { return len(r.Violations)+len(r.Leaked)+len(r.Stuck) == 0 }

func (r *Report) violation(at Instant, format string, args ...any) {
	if r.First == Never || at != Never && at < r.First {
		r.First = at
	}
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

// Check checks a record.
func Check(rec *Record) Report {
	rec.admitBreaks()
	r := Report{Violations: slices.Clone(rec.Crashes), Leaked: slices.Clone(rec.Leaked), Stuck: slices.Clone(rec.Hung), MaxHolders: map[string]int{}}
	byLock, calls := map[string][]*hold{}, map[string][]*call{}
	for _, h := range rec.holds {
		byLock[h.lock] = append(byLock[h.lock], h)
	}
	for _, c := range rec.calls {
		calls[c.lock] = append(calls[c.lock], c)
	}
	for _, name := range slices.Sorted(maps.Keys(byLock)) {
		holds := byLock[name]
		slices.SortFunc(holds, func(a, b *hold) int { return cmp.Compare(a.begin, b.begin) })
		r.checkOverlaps(rec, holds)
		r.checkTokens(rec, holds)
		r.checkSharing(holds)
		r.checkRevocations(rec, holds, calls[name])
		r.checkGaps(rec, holds, calls[name])
		r.checkCauses(rec, holds)
		r.checkReentries(rec, holds)
		r.checkContexts(rec, holds)
	}
	d := newDeadlocks(rec)
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		r.checkOrder(rec, calls[name], d)
	}
	r.checkRuns(rec, calls[job])
	r.checkMultis(rec, byLock)
	r.checkDeadlocks(d)
	r.checkEnds(rec)
	r.checkRemovals(rec)
	r.checkReleases(rec, byLock)
	r.checkEntries(rec)
	r.checkBreaks(rec)
	r.checkStarvation(rec)
	r.checkPlaces(rec)
	r.checkUnused(rec, calls)
	r.checkCalls(rec)
	r.checkRecoveries(rec)
	for _, text := range rec.Rescues {
		r.violation(Never, "rescue: a lost event was found by a later check, although no ACL was changed: %s", text)
	}
	return r
}

// checkOverlaps finds times when the holders of a lock believed they had more permits than
// there are.
func (r *Report) checkOverlaps(rec *Record, holds []*hold) {
	var active []*hold
	for _, h := range holds {
		active = slices.DeleteFunc(active, func(g *hold) bool { return g.end <= h.begin })
		if h.end <= h.begin {
			continue
		}
		active = append(active, h)
		if !exceeded(active) {
			r.MaxHolders[h.lock] = max(r.MaxHolders[h.lock], len(active))
			continue
		}
		newest := active[0]
		for _, g := range active[1:] {
			if rec.older(newest, g) == newest {
				newest = g
			}
		}
		unknown := slices.ContainsFunc(active, func(g *hold) bool { return g.token == 0 && rec.noticedLate(g) }) // unknown: which is the newest
		awake := slices.DeleteFunc(slices.Clone(active), func(g *hold) bool {
			return (g != newest || unknown) && rec.heldInGoodFaith(g.process, h.begin, min(g.end, latestEnd(active, g)))
		})
		if !exceeded(awake) {
			r.excused++
			continue
		}
		awake = slices.DeleteFunc(awake, func(g *hold) bool {
			return (g != newest || unknown) && rec.removedDuring(g, h.begin, min(g.end, latestEnd(active, g)))
		})
		if !exceeded(awake) {
			r.excusedRemoved++
			continue
		}
		until, holders := h.end, []string{}
		for _, g := range awake {
			until = min(until, g.end)
			holders = append(holders, fmt.Sprintf("%s from %s until %s", g, rec.at(g.begin), rec.at(g.end)))
		}
		r.violation(h.begin, "exclusion: lock %q exceeded its limit with %d holders, for %s at %s: %s%s", h.lock, len(awake),
			until.Since(h.begin), rec.at(h.begin), strings.Join(holders, ", and "), rec.circumstances(h.begin))
	}
}

// exceeded reports whether holds of a lock have more permits than there are, according to
// the holder who states the fewest.
func exceeded(holds []*hold) bool {
	used, of := 0, many
	for _, h := range holds {
		used, of = used+h.permits, min(of, h.of)
	}
	return used > of
}

// latestEnd returns the latest end of all holds but one.
func latestEnd(holds []*hold, but *hold) (end Instant) {
	for _, h := range holds {
		if h != but {
			end = max(end, h.end)
		}
	}
	return end
}

// older returns which of two holds was granted first and should have ended. The grant of g
// was noticed before the grant of h.
func (rec *Record) older(g, h *hold) *hold {
	switch {
	case g.token != 0 && h.token != 0 && h.token < g.token:
		return h
	case h.token == 0 && rec.noticedLate(h):
		return h
	default:
		return g
	}
}

// noticedLate reports whether a client noticed a grant during or just after a pause, and so
// may have been granted the lock before the pause, or just after the removal of the node,
// and so may have been granted the lock before the removal.
func (rec *Record) noticedLate(h *hold) bool {
	return rec.pausedDuring(h.process, h.begin, h.begin) || rec.removedDuring(h, h.begin, h.begin)
}

// pausedDuring reports whether a process was paused during or just before a time, or its
// timers were so late that the process cannot have run, as after a pause on a busy machine.
func (rec *Record) pausedDuring(process string, from, until Instant) bool {
	return rec.within(rec.Pauses, 0, process, from, until) || rec.within(rec.lateTimers, rec.WakeUp, process, from, until)
}

// within reports whether a time was in, or just after, a span of the process longer than
// least.
func (rec *Record) within(spans []Span, least time.Duration, process string, from, until Instant) bool {
	return slices.ContainsFunc(spans, func(p Span) bool {
		end := p.End.Add(rec.WakeUp)
		return p.Process == process && p.End.Since(p.Begin) > least && from.within(p.Begin, end) && until.within(p.Begin, end)
	})
}

// heldInGoodFaith reports whether, for some time, a process need not have known of the
// session's end at the servers.
func (rec *Record) heldInGoodFaith(process string, from, until Instant) bool {
	return rec.pausedDuring(process, from, until) || slices.ContainsFunc(rec.Jumps, func(j Jump) bool {
		return j.Process == process && from.within(j.Begin, j.End) && until <= from.Add(j.By+rec.WakeUp)
	})
}

// removedDuring reports whether the node of a holder was removed by others, without the
// holder having to know of the removal at any of the given times.
func (rec *Record) removedDuring(h *hold, from, until Instant) bool {
	return slices.ContainsFunc(rec.Removals, func(x Removal) bool {
		return x.Lock == h.lock && (x.Order == 0 || h.token == 0 || x.Order == h.order()) && from.within(x.At, rec.due(x, h)) && until <= rec.due(x, h)
	})
}

// due returns when a holder must know of the removal of the node: soon if there is no
// fault, and otherwise when the lease has ended.
func (rec *Record) due(x Removal, h *hold) Instant {
	due := x.At.Add(noticeTime)
	if !rec.calm(x.At.Add(-rec.Revocation), due, removing) {
		due = x.At.Add(rec.Revocation)
	}
	return due.Add(rec.pausedFor(h.process, x.At, h.end))
}

// pausedFor returns for how much of a time a process was paused, or its timers were late:
// the timers are late because of a pause, too.
func (rec *Record) pausedFor(process string, from, until Instant) time.Duration {
	var sums [2]time.Duration
	for i, spans := range [][]Span{rec.Pauses, rec.lateTimers} {
		for _, p := range spans {
			if p.Process == process {
				sums[i] += max(min(p.End, until).Since(max(p.Begin, from)), 0)
			}
		}
	}
	return max(sums[0], sums[1])
}

// checkTokens finds tokens not growing, or changing while a lock is held. A grant is known
// to precede another one if noticed before the other request, or if noticed before the
// other grant and both exclude each other. A reader may share a node of the process older
// than the grants of other readers, so a reader's token is compared only with the tokens of
// excluded holders.
func (r *Report) checkTokens(rec *Record, holds []*hold) {
	type grants struct {
		holds []*hold // by begin
		last  []*hold // of each beginning of holds, the one with the largest token
	}
	known := map[int]*grants{} // by permits
	for _, h := range holds {
		for _, token := range h.reentries {
			if h.token != 0 && token != h.token {
				r.violation(h.begin, "token: lock %q: reentry changed the token to %#x: %s, %s", h.lock, token, h, rec.at(h.begin))
			}
		}
		if h.token == 0 || h.downgraded() || rec.noticedLate(h) {
			continue
		}
		var last *hold
		for permits, g := range known {
			before := len(g.holds)
			if permits+h.permits <= h.of {
				if kindOf(h.lock) == ReadWrite {
					continue
				}
				before = sort.Search(before, func(i int) bool { return g.holds[i].begin >= h.requested })
			}
			if before > 0 && (last == nil || g.last[before-1].token > last.token) {
				last = g.last[before-1]
			}
		}
		g := known[h.permits]
		if g == nil {
			g = &grants{}
			known[h.permits] = g
		}
		most := h
		if n := len(g.last); n > 0 && g.last[n-1].token > h.token {
			most = g.last[n-1]
		}
		g.holds, g.last = append(g.holds, h), append(g.last, most)
		if last != nil && h.token <= last.token {
			r.violation(h.begin, "token: lock %q: the token did not grow: %s, granted %s, after %s, granted %s%s",
				h.lock, h, rec.at(h.begin), last, rec.at(last.begin), rec.circumstances(h.begin))
		}
	}
}

// checkSharing finds a lock never shared, although many requests fit beside a holder.
func (r *Report) checkSharing(holds []*hold) {
	fitting := 0
	latest := map[int]Instant{} // by permits, the end of holds begun by then
	begun := 0
	for _, h := range slices.SortedFunc(slices.Values(holds), func(a, b *hold) int { return cmp.Compare(a.requested, b.requested) }) {
		for ; begun < len(holds) && holds[begun].begin < h.requested; begun++ { // not h, granted at once
			g := holds[begun]
			latest[g.permits] = max(latest[g.permits], g.end)
		}
		for permits, end := range latest {
			if h.requested < end && permits+h.permits <= h.of {
				fitting++
				break
			}
		}
	}
	if name := holds[0].lock; fitting >= minRequests && r.MaxHolders[name] < 2 {
		r.violation(Never, "sharing: lock %q never had two holders at once, although %d requests fit beside a holder", name, fitting)
	}
}

// checkRevocations finds holders listening for revocation requests, but going on without
// noticing one.
func (r *Report) checkRevocations(rec *Record, holds []*hold, calls []*call) {
	for _, c := range calls {
		if c.op != opRevoke || c.err != "" {
			continue
		}
		for _, h := range holds {
			begin, due := h.begin, c.end.Add(rec.Revocation)
			if h.downgraded() {
				begin = h.restOf.begin
			}
			if !h.revocable || begin >= c.begin || h.end <= due {
				continue
			}
			due = due.Add(rec.pausedFor(h.process, c.begin, h.end))
			if h.end > due && (h.revokedAt == Never || h.revokedAt > due) {
				r.violation(c.end, "revocation: lock %q: the holder did not notice the revocation request made from %s until %s: %s from %s until %s%s",
					h.lock, rec.at(c.begin), rec.at(c.end), h, rec.at(h.begin), rec.at(h.end), rec.circumstances(c.end))
			}
		}
	}
}

// checkGaps finds times when a lock was free and not granted, although clients waited for
// the lock.
func (r *Report) checkGaps(rec *Record, holds []*hold, calls []*call) {
	free := rec.Begin
	checkGap := func(until Instant) {
		if until.Since(free) <= rec.Recovery {
			return
		}
		free, calm := free, time.Duration(0)
		for _, c := range rec.calms(free, until) {
			if d := c.End.Since(c.Begin); !rec.CalmOnly {
				calm += d
			} else if d > calm {
				free, until, calm = c.Begin, c.End, d
			}
		}
		if calm <= rec.Recovery {
			return
		}
		var waited time.Duration
		for _, c := range calls {
			if c.permits > 0 {
				waited += max(min(until, c.end).Since(max(free, c.begin)), 0)
			}
		}
		if waited > rec.Recovery {
			r.violation(free, "stall: lock %q was free but not granted for %s after %s, without a fault for %s, although clients waited for it, for %s in all%s",
				holds[0].lock, until.Since(free), rec.at(free), calm, waited, rec.circumstances(free))
		}
	}
	taken := make([]Span, 0, len(holds))
	for _, h := range holds {
		taken = append(taken, Span{h.process, h.begin, h.end})
	}
	for _, c := range calls { // LockAll may hold this lock while waiting for the others
		if c.op == opLockAll {
			taken = append(taken, Span{c.process, c.begin, c.end})
		}
	}
	slices.SortFunc(taken, func(a, b Span) int { return cmp.Compare(a.Begin, b.Begin) })
	for _, s := range taken {
		checkGap(s.Begin)
		free = max(free, s.End)
	}
	checkGap(rec.End)
}

// calms returns the parts of a time without a fault.
func (rec *Record) calms(from, until Instant) (calms []Span) {
	faults := slices.SortedFunc(slices.Values(rec.Faults), func(a, b Span) int { return cmp.Compare(a.Begin, b.Begin) })
	for _, f := range append(faults, Span{Begin: until, End: until}) {
		if next := min(f.Begin, until); next > from {
			calms = append(calms, Span{Begin: from, End: next})
		}
		from = max(from, f.End)
	}
	return calms
}

// checkCauses finds locks lost without a fault.
func (r *Report) checkCauses(rec *Record, holds []*hold) {
	for _, h := range holds {
		if rec.Cause == 0 || !h.lost || h.end > rec.End {
			continue
		}
		if !slices.ContainsFunc(rec.Faults, func(f Span) bool { return f.Begin <= h.end && h.end <= f.End.Add(rec.Cause) }) {
			r.violation(h.end, "loss: lock %q was lost without a fault in the %s before: %s, granted %s, lost %s",
				h.lock, rec.Cause, h, rec.at(h.begin), rec.at(h.end))
		}
	}
}

// checkReentries finds holders who entered a lost lock again.
func (r *Report) checkReentries(rec *Record, holds []*hold) {
	lost := rec.losses()
	for _, h := range holds {
		x, ended := lost[h.order()]
		after := ended && x.at == h.begin // without latency, both may happen in one instant
		if h.again && h.lost && h.end == h.begin && !after && !rec.removedDuring(h, h.begin, h.end) {
			r.violation(h.begin, "reentry: lock %q was granted again to a holder that had lost it: %s, %s", h.lock, h, rec.at(h.begin))
		}
	}
}

// checkOrder finds calls granted a lock with a queue before others that had asked earlier,
// had a place in the service's queue, and were still waiting. A call whose holder holds
// other locks always has a place, even after losing the other locks. A waiter whose node is
// removed loses the place, but queues again at once, and so does a waiter that loses the
// held locks.
func (r *Report) checkOrder(rec *Record, calls []*call, d *deadlocks) {
	asking := slices.DeleteFunc(slices.Clone(calls), func(c *call) bool {
		return rec.Order == 0 || kindOf(c.lock) == Plain || c.permits == 0
	})
	slices.SortFunc(asking, func(a, b *call) int { return cmp.Compare(a.begin, b.begin) })
	calls = slices.DeleteFunc(slices.Clone(asking), func(c *call) bool {
		return c.op != opLock || c.err != "" && c.err != "timeout" && c.err != "canceled"
	})
	var waiting []*call // asked before
	for _, b := range calls {
		waiting = slices.DeleteFunc(waiting, func(a *call) bool { return a.end <= b.begin })
		since := rec.placeSince(b, asking)
		for _, a := range waiting {
			hasPlace := !slices.Contains(rec.PassesOn, a.process) || d.nested[a] && a.process != b.process
			if b.err == "" && hasPlace && a.begin.Add(rec.Order) < since && b.end.Add(rec.Order) < a.end && a.excludes(b) &&
				rec.lastRemoval(a).Add(rec.Order) < since && rec.calm(a.begin.Add(-rec.Cause), b.end, removing) && !rec.losesMeanwhile(a) {
				r.violation(b.end, "order: lock %q was granted at %s to %s, goroutine %d, who asked for %s at %s, before %s, goroutine %d, who asked for %s at %s and waited until %s",
					b.lock, rec.at(b.end), b.process, b.worker, b.portion, rec.at(b.begin), a.process, a.worker, a.portion, rec.at(a.begin), rec.at(a.end))
			}
		}
		waiting = append(waiting, b)
	}
}

// placeSince returns since when a call may have had a place in the queue: a process with
// local handoff keeps a place for as long as any of its calls waits or has the lock. calls
// are for the same lock, in the order of their beginning.
func (rec *Record) placeSince(c *call, calls []*call) Instant {
	since := c.begin
	if !slices.Contains(rec.PassesOn, c.process) {
		return since
	}
	for _, other := range slices.Backward(calls) {
		until := other.end
		if other.grants != nil {
			until = other.grants.end
		}
		if other.process == c.process && other.begin < since && since <= until {
			since = other.begin
		}
	}
	return since
}

// lastRemoval returns when a contender for the lock of a call last lost a node, during the
// call, or when the call began.
func (rec *Record) lastRemoval(c *call) Instant {
	last := c.begin
	for _, x := range rec.Removals {
		if x.Lock == c.lock && x.At <= c.end {
			last = max(last, x.At)
		}
	}
	return last
}

// losesMeanwhile reports whether a caller lost another lock while the call lasted.
func (rec *Record) losesMeanwhile(c *call) bool {
	return slices.ContainsFunc(rec.holds, func(h *hold) bool {
		return h.lost && h.process == c.process && h.worker == c.worker && h.end.within(c.begin, c.end)
	})
}

// excludes reports whether two calls ask for permits that only one holder can have, or that
// are granted in order anyway, as a semaphore's are.
func (c *call) excludes(other *call) bool {
	return c.of != many || c.permits+other.permits > c.of
}

// Faults with descriptions beginning like this end the holds or waits of some contenders,
// and keep no client from learning so.
const (
	removing = "remove "
	expiring = "expire "
)

// calm reports whether there was no fault in a time, apart from faults with descriptions
// beginning in one of the given ways.
func (rec *Record) calm(from, until Instant, but ...string) bool {
	return !slices.ContainsFunc(rec.Faults, func(f Span) bool {
		return f.Begin <= until && from <= f.End &&
			!slices.ContainsFunc(but, func(prefix string) bool { return strings.HasPrefix(f.Process, prefix) })
	})
}

// checkMultis finds callers of LockAll waiting for each other although all their locks are
// free.
func (r *Report) checkMultis(rec *Record, holds map[string][]*hold) {
	if rec.Cause == 0 {
		return
	}
	type multi struct {
		process    string
		worker     int
		begin, end Instant
	}
	locks := map[multi][]string{}
	for _, c := range rec.calls {
		if c.op == opLockAll {
			m := multi{c.process, c.worker, c.begin, c.end}
			locks[m] = append(locks[m], c.lock)
		}
	}
	for m, names := range locks {
		if m.end.Since(m.begin) <= multiTime {
			continue
		}
		var taken []*hold // meanwhile
		for _, name := range names {
			for _, h := range holds[name] {
				if h.begin < m.end && m.begin < h.end {
					taken = append(taken, h)
				}
			}
		}
		slices.SortFunc(taken, func(a, b *hold) int { return cmp.Compare(a.begin, b.begin) })
		free := m.begin
		check := func(until Instant) {
			if until.Since(free) > multiTime && rec.calm(free.Add(-rec.Cause), until) {
				r.violation(free, "deadlock: %s, goroutine %d, waited for the locks %q from %s until %s, although nobody held any of them from %s until %s",
					m.process, m.worker, names, rec.at(m.begin), rec.at(m.end), rec.at(free), rec.at(until))
			}
		}
		for _, h := range taken {
			check(h.begin)
			free = max(free, h.end)
		}
		check(m.end)
	}
}

// checkRuns finds periods whose job finished twice, was started again after a client was
// told of the finish, or counts as finished although no run can have finished.
func (r *Report) checkRuns(rec *Record, calls []*call) {
	byPeriod := map[int64][]*call{}
	for _, c := range calls {
		byPeriod[c.period] = append(byPeriod[c.period], c)
	}
	for _, period := range slices.Sorted(maps.Keys(byPeriod)) {
		var finished, known *call // the first of each
		possible := false
		for _, c := range byPeriod[period] {
			if c.err == "" {
				if finished != nil {
					r.violation(c.end, "job: that of period %d finished twice, at %s by %s and at %s by %s",
						period, rec.at(finished.end), finished.process, rec.at(c.end), c.process)
				}
				finished = c
			}
			if (c.err == "" || c.err == done) && (known == nil || c.end < known.end) {
				known = c
			}
			possible = possible || c.started != Never && slices.Contains([]string{"", undecided, unanswered, "pool_closed"}, c.err)
		}
		if known == nil {
			continue
		}
		if !possible {
			r.violation(known.end, "job: %s was told at %s that the job of period %d has finished, although no run of it can have", known.process, rec.at(known.end), period)
		}
		for _, c := range byPeriod[period] {
			if c.started > known.end {
				r.violation(c.started, "job: that of period %d was started again by %s at %s, although %s knew at %s that it has finished",
					period, c.process, rec.at(c.started), known.process, rec.at(known.end))
			}
		}
	}
}

// checkRemovals finds holders who did not learn of the removal of their nodes.
func (r *Report) checkRemovals(rec *Record) {
	byOrder := rec.byOrder()
	for _, x := range rec.Removals {
		for _, h := range byOrder[x.Order] {
			if due := rec.due(x, h); due < min(h.end, rec.End) {
				r.violation(due, "removal: lock %q: the node of the holder was removed at %s, and the holder did not know until %s: %s%s",
					h.lock, rec.at(x.At), rec.at(h.end), h, rec.circumstances(x.At))
			}
		}
	}
}

// checkPlaces finds waiters who did not queue again when their nodes had been removed.
func (r *Report) checkPlaces(rec *Record) {
	for _, s := range rec.Displaced {
		if rec.calm(s.Begin.Add(-rec.Recovery), s.End, removing) {
			r.violation(s.End, "place: after the removal of nodes at %s, %s%s", rec.at(s.Begin), s.Process, rec.circumstances(s.End))
		}
	}
}

// byOrder returns the holds whose tokens are known by the order numbers of their nodes.
func (rec *Record) byOrder() map[int64][]*hold {
	byOrder := map[int64][]*hold{}
	for _, h := range rec.holds {
		if h.token != 0 {
			byOrder[h.order()] = append(byOrder[h.order()], h)
		}
	}
	return byOrder
}

// checkEnds finds holders still ignorant of a loss when the servers ended their session,
// and so could grant the lock to others.
func (r *Report) checkEnds(rec *Record) {
	byOrder := rec.byOrder()
	for _, end := range rec.Ends {
		for _, order := range end.Orders {
			for _, h := range byOrder[order] {
				if h.begin < end.At && end.At < min(h.end, rec.End) && !rec.heldInGoodFaith(h.process, end.At, h.end) {
					r.violation(end.At, "lease: lock %q outlived its session: the servers ended the session at %s, and the holder knew at %s: %s%s",
						h.lock, rec.at(end.At), rec.at(h.end), h, rec.circumstances(end.At))
				}
			}
		}
	}
}

// checkUnused finds containers created by clients and left behind without ever a child, so
// that the servers would keep them forever. A client without a session cannot remove them.
func (r *Report) checkUnused(rec *Record, calls map[string][]*call) {
	for _, name := range rec.Unused {
		for _, c := range calls[name] {
			if c.permits > 0 && c.end < rec.End && rec.calm(c.begin.Add(-rec.Revocation), c.end.Add(noticeTime)) {
				r.Leaked = append(r.Leaked, fmt.Sprintf("left: the container of lock %q, for which %s, goroutine %d, asked from %s until %s",
					name, c.process, c.worker, rec.at(c.begin), rec.at(c.end)))
			}
		}
	}
}

// checkCalls finds calls outlasting their context, or ending with an unexpected error.
func (r *Report) checkCalls(rec *Record) {
	for _, c := range rec.calls {
		if !rec.expects(c) {
			r.violation(c.end, "call: lock %q: %s by %s, goroutine %d, ended at %s with %q, which neither clients nor faults cause%s",
				c.lock, c.op, c.process, c.worker, rec.at(c.end), c.err, rec.circumstances(c.end))
		}
		allowed := c.limit + rec.Overrun + rec.pausedFor(c.process, c.begin, c.end)
		if took := c.end.Since(c.begin); took > allowed {
			r.First = cmp.Or(r.First, c.begin.Add(c.limit))
			r.Stuck = append(r.Stuck, fmt.Sprintf("stuck: %s of %q by %s, goroutine %d, took %s until it ended with %q; it may take %s%s",
				c.op, c.lock, c.process, c.worker, took, c.err, c.limit, rec.circumstances(c.begin.Add(c.limit))))
		}
	}
}

// expects reports whether clients or faults can have caused the error of a call.
func (rec *Record) expects(c *call) bool {
	switch {
	case slices.Contains(expectedErrors, c.err):
		return true
	case c.err == deadlock: // checkDeadlocks looks for the reason
		return true
	case c.err == notHeld: // already gone
		return c.op == opBreak
	case c.err == "session_lost": // before a server had confirmed the release
		return slices.Contains([]string{opUnlock, opUnlockAll, opDo, opLockAll}, c.op) && !rec.calm(c.begin.Add(-max(rec.Revocation, rec.Cause)), c.end)
	case c.err == mixed: // some clients ask for a semaphore's lock
		return kindOf(c.lock) == Semaphore
	case c.err == removed:
		// A paused process may see that a node is gone before knowing of the session's end.
		several := []string{opLock, opTry, opLockAll, opUnlockAll} // with other locks, or under another lock
		return rec.pausedDuring(c.process, c.end, c.end) || slices.ContainsFunc(rec.Removals, func(x Removal) bool {
			return (x.Lock == c.lock || slices.Contains(several, c.op)) && c.end.within(x.At, x.At.Add(removalTime+rec.pausedFor(c.process, x.At, c.end)))
		})
	}
	return false
}

// checkRecoveries finds times without any grant, although there was no fault.
func (r *Report) checkRecoveries(rec *Record) {
	for _, t := range rec.Healed {
		if next := rec.nextGrant(t); next.Since(t) > rec.Recovery {
			r.violation(t, "recovery: no lock was granted for %s after all faults had been healed at %s", next.Since(t), rec.at(t))
		}
	}
}

// nextGrant returns the time of the first grant at or after t, or the end.
func (rec *Record) nextGrant(t Instant) Instant {
	next := rec.End
	for _, h := range rec.holds {
		if h.begin >= t {
			next = min(next, h.begin)
		}
	}
	return max(next, t)
}

// at formats a time as the time since the beginning.
func (rec *Record) at(t Instant) string { return fmt.Sprintf("%.3fs", t.Since(rec.Begin).Seconds()) }

// circumstances lists the faults, pauses and late timers around a time.
func (rec *Record) circumstances(t Instant) string {
	var b strings.Builder
	list := func(what string, spans []Span) {
		for _, s := range spans {
			if s.Begin.Add(-vicinity) <= t && t <= s.End.Add(vicinity) {
				fmt.Fprintf(&b, "\n    %s from %s until %s: %s", what, rec.at(s.Begin), rec.at(s.End), s.Process)
			}
		}
	}
	list("fault", rec.Faults)
	list("pause", rec.Pauses)
	list("late timer", rec.lateTimers)
	return b.String()
}
