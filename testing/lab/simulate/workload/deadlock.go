package workload

// This file checks the deadlocks of a record: victims without a cycle, and cycles without a
// victim.

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// deadlock is the class of the error of a call chosen to give up for waiting in a cycle.
const deadlock = "deadlock"

// askTime is how much later than another a call must begin to have certainly asked later: a
// wait for a plain lock is not seen for some time, and a wait whose holder has just turned
// a hold into a reader's begins again.
const askTime = 2 * time.Second

// wait is a call waiting for a lock, or for several, one after the other.
type wait struct {
	who
	begin, end Instant
	place      Instant // since when the process may have had the place
	gone       Instant // until when others may see the wait
	err        string
	calls      []*call // one for each lock
	holds      []*hold // held when the wait began
}

// who is a holder: each worker is one holder at a time.
type who struct {
	process string
	worker  int
}

// several reports whether the call waits for several locks, and so has some of them before
// having all. The record does not say which.
func (w *wait) several() bool { return len(w.calls) > 1 }

// isNested reports whether others may wait for what the caller has.
func (w *wait) isNested() bool { return len(w.holds) > 0 || w.several() }

func (w *wait) String() string {
	var names, held []string
	for _, c := range w.calls {
		names = append(names, fmt.Sprintf("%s (%s)", c.lock, c.portion))
	}
	for _, h := range w.holds {
		held = append(held, fmt.Sprintf("%s (%s)", h.lock, h.portion))
	}
	return fmt.Sprintf("%s, goroutine %d, which holds %s and waits for %s", w.process, w.worker, strings.Join(held, ", "), strings.Join(names, ", "))
}

// deadlocks are the waits of a record.
//
// A record says when a call began and returned, and a hold is known from the return of the
// acquiring call until just before the release. The service sees less: the node of a wait
// is created after the beginning of the call. And the service sees more: the nodes of a
// wait and of a hold may stay for some time after the end, without faults for no longer
// than the limit Lag, and otherwise until all faults of the process have been over for the
// limit Settling, when the session has ended or has a connection. So two checks of
// different kinds are possible. A cycle which no service can have seen is certainly no
// reason for a victim. A cycle which every service must have seen certainly has to be
// broken; only times without a fault of any of the processes count here.
type deadlocks struct {
	rec       *Record
	waits     []*wait           // by begin; only possible parts of a cycle
	nested    map[*call]bool    // calls whose holders certainly held something when they began
	unsettled map[string][]Span // by process, the times when nodes may stay for longer
}

// checkDeadlocks finds victims of a deadlock on no cycle of waits, or on a cycle to be
// broken by another call, and cycles never broken.
func (r *Report) checkDeadlocks(d *deadlocks) {
	rec := d.rec
	if rec.Lag == 0 {
		return
	}
	var victims []*wait
	for _, w := range d.waits {
		if w.err == deadlock {
			victims = append(victims, w)
		}
	}
	for _, c := range rec.calls {
		if c.err == deadlock && !slices.ContainsFunc(victims, func(v *wait) bool { return slices.Contains(v.calls, c) }) {
			r.violation(c.end, "victim: %s, goroutine %d, was the victim of a deadlock at %s, in a call that waits for no lock, or without holding one: %s of %q",
				c.process, c.worker, rec.at(c.end), c.op, c.lock)
		}
	}
	for _, v := range victims {
		near := d.near(v)
		switch {
		case !v.isNested():
			r.violation(v.end, "victim: %s, goroutine %d, was the victim of a deadlock at %s, and held no lock that others could wait for",
				v.process, v.worker, rec.at(v.end))
		case !d.onCycle(v, near, nil):
			r.violation(v.end, "victim: at no time from %s until %s was there a cycle of waits through the victim of a deadlock: %s%s",
				rec.at(v.begin), rec.at(v.end), v, rec.circumstances(v.end))
		default:
			r.checkVictim(d, v, near)
		}
	}
	r.checkCycles(d)
}

// checkVictim finds victims of cycles to be broken by other calls: by another victim, or by
// a call that asked later. A call merely before others in a queue is no victim.
func (r *Report) checkVictim(d *deadlocks, v *wait, near []*wait) {
	asked := d.asked(v)
	for _, w := range near {
		later := !v.several() && kindOf(v.calls[0].lock) != Plain && asked.Add(askTime) < w.begin && w.begin < v.end && !d.triesAgain(w)
		both := w.err == deadlock && v.begin <= w.begin
		if w == v || !w.isNested() || !later && !both || !d.settled(v.process, v.begin, max(v.end, w.end)) || !d.settled(w.process, v.begin, max(v.end, w.end)) ||
			d.onCycle(v, near, w) {
			continue
		}
		if both && !d.onCycle(w, d.near(w), v) {
			r.violation(w.end, "victim: two calls were victims, each of which was on no cycle without the other: at %s %s; at %s %s",
				d.rec.at(v.end), v, d.rec.at(w.end), w)
		} else if later {
			r.violation(v.end, "victim: at %s, not the call that asked last: %s since %s; another on each of its cycles asked at %s: %s",
				d.rec.at(v.end), v, d.rec.at(v.begin), d.rec.at(w.begin), w)
		}
	}
}

// triesAgain reports whether a call may be as old as an earlier one of its process, the
// victim of a deadlock: no call that certainly was the same one again has been granted the
// lock since.
func (d *deadlocks) triesAgain(w *wait) bool {
	return slices.ContainsFunc(d.waits, func(victim *wait) bool {
		return victim.err == deadlock && victim.end <= w.end && victim.process == w.process && victim.sharesALock(w) &&
			!slices.ContainsFunc(d.waits, func(granted *wait) bool {
				return granted.err == "" && victim.end < granted.begin && granted.end < w.begin && granted.isAgain(victim)
			})
	})
}

// sharesALock reports whether two calls wait for the same lock.
func (w *wait) sharesALock(other *wait) bool {
	return slices.ContainsFunc(w.calls, func(c *call) bool {
		return slices.ContainsFunc(other.calls, func(o *call) bool { return o.lock == c.lock })
	})
}

// isAgain reports whether two calls of a process for one lock each certainly held the same
// locks.
func (w *wait) isAgain(other *wait) bool {
	names := func(w *wait) (names []string) {
		for _, h := range w.holds {
			if h.lost || h.begin == w.begin || h.end <= w.end { // perhaps not held
				return nil
			}
			names = append(names, h.lock)
		}
		slices.Sort(names)
		return names
	}
	mine := names(w)
	return mine != nil && w.process == other.process && !w.several() && !other.several() && w.sharesALock(other) && slices.Equal(mine, names(other))
}

// asked returns until when a call may have joined the last of its queues. A wait for
// permits joins the queue of the leases when no other waiter is before it any more.
func (d *deadlocks) asked(w *wait) Instant {
	at := w.begin
	for _, other := range d.waits {
		if lock := w.calls[0].lock; kindOf(lock) == Semaphore && other != w && other.calls[0].lock == lock && other.gone.within(w.begin, w.end) {
			at = max(at, other.gone)
		}
	}
	return at
}

// checkCycles finds cycles not broken within the limit Cycle, although no fault touched any
// process on them.
func (r *Report) checkCycles(d *deadlocks) {
	var long []*wait
	for _, w := range d.waits {
		if len(w.holds) > 0 && w.end.Since(w.begin) >= d.rec.Cycle {
			long = append(long, w)
		}
	}
	// Times when the last call of a cycle may begin, the last fault be over, or the last
	// waiter before a wait for permits give up.
	var times []Instant
	for _, w := range long {
		times = append(times, w.begin)
		if lock := w.calls[0].lock; kindOf(lock) == Semaphore {
			for _, x := range d.waits {
				if x.calls[0].lock == lock && x.gone.within(w.begin, w.end) {
					times = append(times, x.gone+1)
				}
			}
		}
		for _, s := range d.unsettledTimes(w.process) {
			if s.End.within(w.begin, w.end) {
				times = append(times, s.End+1)
			}
		}
	}
	slices.Sort(times)
	reported := map[*wait]bool{}
	for _, from := range slices.Compact(times) {
		until := from.Add(d.rec.Cycle)
		var standing []*wait
		for _, w := range long {
			if w.begin <= from && until <= w.end && until <= d.rec.End && d.settled(w.process, from, until) {
				standing = append(standing, w)
			}
		}
		stuck := d.fixpoint(standing, func(w *wait, others []*wait) bool { return d.isBlocked(w, others, from, until) })
		if len(stuck) == 0 || !slices.ContainsFunc(stuck, func(w *wait) bool { return !reported[w] }) {
			continue
		}
		var text strings.Builder
		for _, w := range stuck {
			reported[w] = true
			fmt.Fprintf(&text, "\n    %s, from %s until %s", w, d.rec.at(w.begin), d.rec.at(w.end))
		}
		r.violation(from, "cycle: these calls waited for each other for more than %s, from %s, and nobody was told:%s%s",
			d.rec.Cycle, d.rec.at(from), &text, d.rec.circumstances(from))
	}
}

func newDeadlocks(rec *Record) *deadlocks {
	d := &deadlocks{rec: rec, nested: map[*call]bool{}, unsettled: map[string][]Span{}}
	holds := map[who][]*hold{}
	for _, h := range rec.holds {
		by := who{h.process, h.worker}
		holds[by] = append(holds[by], h)
	}
	for _, all := range holds {
		slices.SortStableFunc(all, func(a, b *hold) int { return cmp.Compare(a.begin, b.begin) })
	}
	latest := map[who]*wait{} // the latest call for several locks
	asking := map[string][]*call{}
	for _, c := range slices.SortedStableFunc(slices.Values(rec.calls), func(a, b *call) int { return cmp.Compare(a.begin, b.begin) }) {
		if c.permits == 0 || c.op != opLock && c.op != opAgain && c.op != opLockAll {
			continue
		}
		asking[c.lock] = append(asking[c.lock], c)
		by := who{c.process, c.worker}
		if w := latest[by]; c.op == opLockAll && w != nil && w.begin == c.begin {
			w.calls = append(w.calls, c)
			continue
		}
		w := &wait{who: by, begin: c.begin, end: c.end, err: c.err, calls: []*call{c}}
		mine := holds[by]
		for len(mine) > 0 && mine[0].end < c.begin {
			mine = mine[1:] // over for all later calls as well
		}
		holds[by] = mine
		for _, h := range mine {
			if h.begin > c.end {
				break
			}
			downgraded := h.downgraded() && slices.Contains(w.holds, h.restOf) // by another goroutine, while the call waits
			if h.begin <= c.begin && c.begin <= h.end || downgraded {
				w.holds = append(w.holds, h)
			}
		}
		d.nested[c] = slices.ContainsFunc(w.holds, func(h *hold) bool { return c.begin < h.end })
		if c.op == opLockAll {
			latest[by] = w
		}
		// A caller without holds can only be before others in a queue, and every waiter for
		// an exclusive lock waits for the holder as well.
		if kind := kindOf(c.lock); c.err == deadlock || len(w.holds) > 0 || c.op == opLockAll || kind == ReadWrite || kind == Semaphore {
			w.gone = d.gone(w.process, w.end)
			d.waits = append(d.waits, w)
		}
	}
	for _, w := range d.waits {
		w.place = w.begin
		for _, c := range w.calls {
			w.place = min(w.place, rec.placeSince(c, asking[c.lock]))
		}
	}
	return d
}

// unsettledTimes returns the times when faults touch a process, or have not been over for
// long, in order, with overlapping times joined.
func (d *deadlocks) unsettledTimes(process string) []Span {
	times, ok := d.unsettled[process]
	if ok {
		return times
	}
	for _, f := range slices.SortedFunc(slices.Values(slices.Concat(d.rec.Faults, d.rec.Pending)), func(a, b Span) int { return cmp.Compare(a.Begin, b.Begin) }) {
		if d.rec.touchesOther(f, process) {
			continue
		}
		f.End = f.End.Add(d.rec.Settling)
		if last := len(times) - 1; last >= 0 && f.Begin <= times[last].End {
			times[last].End = max(times[last].End, f.End)
		} else {
			times = append(times, f)
		}
	}
	d.unsettled[process] = times
	return times
}

// touchesOther reports whether a fault touches another process alone.
func (rec *Record) touchesOther(f Span, process string) bool {
	return slices.ContainsFunc(rec.Single, func(s Span) bool { return s.Begin == f.Begin && s.End == f.End && s.Process != process })
}

// settled reports whether no fault touched a process in a time, or shortly before.
func (d *deadlocks) settled(process string, from, until Instant) bool {
	times := d.unsettledTimes(process)
	next := sort.Search(len(times), func(i int) bool { return times[i].End >= from })
	return next == len(times) || times[next].Begin > until
}

// gone returns until when the servers may have nodes unwanted by a process since a time.
func (d *deadlocks) gone(process string, since Instant) Instant {
	until := since.Add(d.rec.Lag)
	times := d.unsettledTimes(process)
	if next := sort.Search(len(times), func(i int) bool { return times[i].End >= since }); next < len(times) && times[next].Begin <= until {
		return times[next].End.Add(d.rec.Lag)
	}
	return until
}

// near returns the waits possibly seen by others during a wait.
func (d *deadlocks) near(v *wait) (near []*wait) {
	for _, w := range d.waits {
		if w.begin <= v.end && v.begin <= w.gone {
			near = append(near, w)
		}
	}
	return near
}

// onCycle reports whether a wait may have been, at some time, on a cycle of waits, even if
// the caller of the wait without, if not nil, had held nothing.
func (d *deadlocks) onCycle(v *wait, near []*wait, without *wait) bool {
	for _, last := range near { // the latest to begin
		t := max(last.begin, v.begin)
		var seen []*wait
		for _, w := range near {
			if w.begin <= t && t <= w.gone {
				seen = append(seen, w)
			}
		}
		stuck := d.fixpoint(seen, func(w *wait, others []*wait) bool { return d.mayBeBlocked(w, others, t, without) })
		if slices.Contains(stuck, v) && d.isCycle(v, stuck, t, without) {
			return true
		}
	}
	return false
}

// fixpoint returns the largest set of waits each of which is blocked by the others.
func (d *deadlocks) fixpoint(waits []*wait, blocked func(w *wait, others []*wait) bool) []*wait {
	for {
		left := slices.DeleteFunc(slices.Clone(waits), func(w *wait) bool { return !blocked(w, waits) })
		if len(left) == len(waits) {
			return left
		}
		waits = left
	}
}

// isBlocked reports whether a wait is certainly blocked by others, all lasting for a whole
// time: the wait cannot be granted the lock unless one of them ends, as every reader of the
// queues sees.
func (d *deadlocks) isBlocked(w *wait, others []*wait, from, until Instant) bool {
	c := w.calls[0]
	for _, other := range w.calls { // asked for in this order
		if other.lock < c.lock {
			c = other
		}
	}
	sum, of := c.permits, c.of
	for _, x := range others {
		if x == w {
			continue
		}
		for _, h := range x.holds {
			if h.lock == c.lock && h.begin <= from && until <= h.end {
				sum, of = sum+h.permits, min(of, h.of)
			}
		}
	}
	if sum <= of {
		return false
	}
	// Of the waiters for permits, only the first can be seen to ask for more than there
	// are.
	return kindOf(c.lock) != Semaphore || !slices.ContainsFunc(d.waits, func(x *wait) bool {
		return x != w && x.calls[0].lock == c.lock && x.begin <= w.begin.Add(askTime) && from <= x.gone && !slices.Contains(others, x)
	})
}

// mayBeBlocked reports whether a wait may have been blocked by others at a time.
func (d *deadlocks) mayBeBlocked(w *wait, others []*wait, t Instant, without *wait) bool {
	for _, c := range w.calls {
		sum, of := c.permits, c.of
		for _, x := range others {
			if x == w {
				continue
			}
			if d.mayPrecede(x, w, c) {
				return true
			}
			if x != without {
				d.mayHave(x, c.lock, t, func(p portion) { sum, of = sum+p.permits, min(of, p.of) })
			}
		}
		if sum > of {
			return true
		}
	}
	return false
}

// mayHave calls add for each part of a lock possibly held by the caller of a wait at a
// time.
func (d *deadlocks) mayHave(x *wait, lock string, t Instant, add func(portion)) {
	for _, h := range x.holds {
		if h.lock == lock && t <= d.gone(h.process, h.end) {
			add(h.portion)
		}
	}
	for _, c := range x.calls {
		if x.several() && c.lock == lock {
			add(c.portion)
		}
	}
}

// mayPrecede reports whether x may have been before w in the queue of a lock, so that w
// waited for x.
func (d *deadlocks) mayPrecede(x, w *wait, c *call) bool {
	return slices.ContainsFunc(x.calls, func(other *call) bool {
		return other.lock == c.lock && c.excludes(other) &&
			(x.place <= w.begin.Add(d.rec.Lag) || !d.settled(x.process, w.begin, w.gone) || !d.settled(w.process, w.begin, w.gone))
	})
}

// isCycle reports whether a wait may have been on a cycle of waits at a time. A cycle leads
// through something held: two calls, each possibly before the other in a queue, are no
// cycle.
func (d *deadlocks) isCycle(v *wait, waits []*wait, t Instant, without *wait) bool {
	holds, next := map[*wait][]*wait{}, map[*wait][]*wait{}
	for _, w := range waits {
		for _, c := range w.calls {
			for _, x := range waits {
				if x == w {
					continue
				}
				d.mayHave(x, c.lock, t, func(p portion) {
					if x != without && (kindOf(c.lock) != ReadWrite || c.permits+p.permits > c.of) {
						holds[w], next[w] = append(holds[w], x), append(next[w], x)
					}
				})
				if d.mayPrecede(x, w, c) {
					next[w] = append(next[w], x)
				}
			}
		}
	}
	leads := func(from, to *wait) bool {
		seen, todo := map[*wait]bool{}, []*wait{from}
		for len(todo) > 0 {
			w := todo[0]
			todo = todo[1:]
			if w == to {
				return true
			}
			if !seen[w] {
				seen[w] = true
				todo = append(todo, next[w]...)
			}
		}
		return false
	}
	for w, held := range holds {
		for _, x := range held {
			if leads(v, w) && leads(x, v) {
				return true
			}
		}
	}
	return false
}
