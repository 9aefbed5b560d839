//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// wakeUp is how long a client that was paused may take to notice what it
	// has lost.
	wakeUp = 250 * time.Millisecond
	// overrun is how much longer than its context a call may take.
	overrun = 2 * time.Second
	// recovery is how long it may take after all faults until a lock is granted.
	recovery = 30 * time.Second
	// telling is how long it may take after a request for a lock until its holder
	// has heard of it, or has lost the lock: no lease lasts longer.
	telling = 3 * time.Second
	// enough who ask for what another holder leaves make it certain that some get it.
	enough = 50
	// around is how far from a violation a fault is that may have to do with it.
	around = 5 * time.Second
	// decision bounds the search for a linearization of one lock's register.
	decision = 2 * time.Minute
)

// possible are the ends of calls for which clients, or faults, give cause. Nobody
// mixes kinds of locks, or removes the nodes of others.
var possible = []string{"", "busy", "canceled", "lock_lost", "pool_closed", "revoked", "timeout", unanswered}

// report is what the checks have found.
type report struct {
	violations []string
	leaked     []string
	stuck      []string
	excused    int // overlaps while the older holder was paused

	together map[string]int // by lock: how many held it at once at the most
}

// verdict is the last line of a campaign.
func (r report) verdict() string {
	return fmt.Sprintf("violations=%d leaked_nodes=%d stuck_waiters=%d", len(r.violations), len(r.leaked), len(r.stuck))
}

func (r report) clean() bool { return len(r.violations)+len(r.leaked)+len(r.stuck) == 0 }

func (r *report) violation(format string, args ...any) {
	r.violations = append(r.violations, fmt.Sprintf(format, args...))
}

// check finds everything that must not be in a record.
func check(r *record) report {
	found := report{violations: slices.Clone(r.accidents), leaked: r.left, stuck: slices.Clone(r.hanging), together: map[string]int{}}
	byLock := map[string][]*hold{}
	for _, h := range r.holds {
		byLock[h.lock] = append(byLock[h.lock], h)
	}
	for _, name := range slices.Sorted(maps.Keys(byLock)) {
		holds := byLock[name]
		slices.SortFunc(holds, func(a, b *hold) int { return cmp.Compare(a.begin, b.begin) })
		found.overlaps(r, holds)
		found.tokens(r, holds)
		found.room(holds)
		found.requests(r, holds)
		found.gaps(r, holds)
	}
	found.registers(r)
	found.calls(r)
	return found
}

// overlaps looks for more holders that believed at the same time to hold a lock
// than it has permits for.
func (r *report) overlaps(rec *record, holds []*hold) {
	var active []*hold
	for _, h := range holds {
		active = slices.DeleteFunc(active, func(g *hold) bool { return g.end <= h.begin })
		if h.end <= h.begin {
			continue
		}
		active = append(active, h)
		if !exceeded(active) {
			r.together[h.lock] = max(r.together[h.lock], len(active))
			continue
		}
		newest := active[0]
		for _, g := range active[1:] {
			if rec.older(newest, g) == newest {
				newest = g
			}
		}
		awake := slices.DeleteFunc(slices.Clone(active), func(g *hold) bool {
			return g != newest && rec.pausedDuring(g.process, h.begin, min(g.end, latestEnd(active, g)))
		})
		if !exceeded(awake) {
			r.excused++
			continue
		}
		until, by := h.end, []string{}
		for _, g := range awake {
			until = min(until, g.end)
			by = append(by, fmt.Sprintf("by %s from %s until %s", g, rec.at(g.begin), rec.at(g.end)))
		}
		times := "twice"
		if len(awake) > 2 {
			times = fmt.Sprintf("%d times", len(awake))
		}
		r.violation("lock %q was held %s for %s at %s: %s%s", h.lock, times, until.since(h.begin), rec.at(h.begin),
			strings.Join(by, ", and "), rec.circumstances(h.begin))
	}
}

// exceeded reports whether holds have more permits than there are.
func exceeded(holds []*hold) bool {
	used := 0
	for _, h := range holds {
		used += h.permits
	}
	return used > holds[0].of
}

// latestEnd is that of all but one.
func latestEnd(holds []*hold, but *hold) (end instant) {
	for _, h := range holds {
		if h != but {
			end = max(end, h.end)
		}
	}
	return end
}

// older tells which of two holds should have ended, g having been noticed first.
func (rec *record) older(g, h *hold) *hold {
	switch {
	case g.token != 0 && h.token != 0 && h.token < g.token:
		return h
	case h.token == 0 && rec.woke(h): // it was granted before its client was paused
		return h
	default:
		return g
	}
}

// woke reports whether a hold was noticed only when its client was paused, and
// so may have been granted before.
func (rec *record) woke(h *hold) bool {
	return rec.pausedDuring(h.process, h.begin, h.begin)
}

func (rec *record) pausedDuring(process string, from, until instant) bool {
	return slices.ContainsFunc(rec.pauses, func(p span) bool {
		return p.process == process && from.within(p.begin, p.end.add(wakeUp)) && until.within(p.begin, p.end.add(wakeUp))
	})
}

// pausedFor is for how long a process was paused in a time.
func (rec *record) pausedFor(process string, from, until instant) (sum time.Duration) {
	for _, p := range rec.pauses {
		if p.process == process {
			sum += max(min(p.end, until).since(max(p.begin, from)), 0)
		}
	}
	return sum
}

// tokens looks for tokens that do not grow, or that change while a lock is held.
// A grant comes before another if it was seen before the other was asked for, or
// was seen before it and the lock has no room for both.
func (r *report) tokens(rec *record, holds []*hold) {
	var known []*hold
	for _, h := range holds {
		for _, inner := range h.inner {
			if h.token != 0 && inner != h.token {
				r.violation("lock %q: entering again changed the token to %#x: %s, %s", h.lock, inner, h, rec.at(h.begin))
			}
		}
		if h.token == 0 || h.continues() || rec.woke(h) {
			continue
		}
		var last *hold
		for _, g := range known {
			if (g.begin <= h.asked || g.permits+h.permits > h.of) && (last == nil || g.token > last.token) {
				last = g
			}
		}
		known = append(known, h)
		if last != nil && h.token <= last.token {
			r.violation("lock %q: the token did not grow: %s, granted %s, after %s, granted %s%s",
				h.lock, h, rec.at(h.begin), last, rec.at(last.begin), rec.circumstances(h.begin))
		}
	}
}

// room looks for a lock that was never held by several at once, although many
// asked for what another holder left.
func (r *report) room(holds []*hold) {
	could := 0
	for _, h := range holds {
		if slices.ContainsFunc(holds, func(g *hold) bool {
			return g.begin <= h.asked && h.asked < g.end && g.permits+h.permits <= h.of
		}) {
			could++
		}
	}
	if name := holds[0].lock; could >= enough && r.together[name] < 2 {
		r.violation("lock %q was never held by two at once, although %d asked for no more of it than its holder left", name, could)
	}
}

// requests looks for holders that listen, whom nobody has told that somebody
// asked for their lock, although they went on to hold it.
func (r *report) requests(rec *record, holds []*hold) {
	for _, c := range rec.calls {
		if c.op != opRevoke || c.lock != holds[0].lock || c.err != "" {
			continue
		}
		for _, h := range holds {
			begin, due := h.begin, c.end.add(telling+rec.pausedFor(h.process, c.begin, h.end))
			if h.continues() {
				begin = h.granted
			}
			if h.listens && begin <= c.begin && h.end > due && (h.told == never || h.told > due) {
				r.violation("lock %q: the holder was not told that somebody asked for the lock from %s until %s: %s from %s until %s%s",
					h.lock, rec.at(c.begin), rec.at(c.end), h, rec.at(h.begin), rec.at(h.end), rec.circumstances(c.end))
			}
		}
	}
}

// gaps looks for a time in which a lock was free and not granted, although some
// waited.
func (r *report) gaps(rec *record, holds []*hold) {
	free := rec.begin
	check := func(until instant) {
		if until.since(free) <= recovery {
			return
		}
		var waited time.Duration
		for _, c := range rec.calls {
			if c.lock == holds[0].lock && c.permits > 0 {
				waited += max(min(until, c.end).since(max(free, c.begin)), 0)
			}
		}
		if waited > recovery {
			r.violation("lock %q was free and granted to nobody for %s after %s, although some waited, together for %s%s",
				holds[0].lock, until.since(free), rec.at(free), waited, rec.circumstances(free))
		}
	}
	for _, h := range holds {
		check(h.begin)
		free = max(free, h.end)
	}
	check(rec.end)
}

// registers checks that each lock's register was linearizable, as one that
// accepts a write unless its token is smaller than the last accepted one.
func (r *report) registers(rec *record) {
	byLock := map[string][]porcupine.Operation{}
	clients := map[string]int{}
	for _, a := range rec.accesses {
		if _, ok := clients[a.process]; !ok {
			clients[a.process] = len(clients)
		}
		byLock[a.lock] = append(byLock[a.lock], porcupine.Operation{
			ClientId: clients[a.process], Input: a, Call: int64(a.begin), Output: a, Return: int64(a.end),
		})
	}
	model := porcupine.Model{
		Init: func() any { return register{} },
		Step: func(state, input, _ any) (bool, any) {
			g, a := state.(register), input.(*access)
			if a.write {
				return g.write(a.token, a.value) == a.accepted, g
			}
			return g == register{a.token, a.value}, g
		},
	}
	for _, name := range slices.Sorted(maps.Keys(byLock)) {
		switch porcupine.CheckOperationsTimeout(model, byLock[name], decision) {
		case porcupine.Illegal:
			r.violation("the register of lock %q is not linearizable in its %d reads and writes: a write with an old token was accepted after a newer one, or a new one refused",
				name, len(byLock[name]))
		case porcupine.Unknown:
			r.violation("the register of lock %q: whether its %d reads and writes are linearizable was not found out within %s: make the campaign shorter",
				name, len(byLock[name]), decision)
		}
	}
}

// calls looks for calls that outlasted their context, or ended with an error that
// can not be, and for a time in which
// nobody was granted anything although nothing was wrong.
func (r *report) calls(rec *record) {
	for _, c := range rec.calls {
		if !slices.Contains(possible, c.err) {
			r.violation("lock %q: %s by %s, goroutine %d, ended at %s with %q, and nobody gave cause for that%s",
				c.lock, c.op, c.process, c.worker, rec.at(c.end), c.err, rec.circumstances(c.end))
		}
		allowed := c.limit + overrun + rec.pausedFor(c.process, c.begin, c.end)
		if took := c.end.since(c.begin); took > allowed {
			r.stuck = append(r.stuck, fmt.Sprintf("%s of %q by %s, goroutine %d, took %s until it ended with %q; its context ended after %s%s",
				c.op, c.lock, c.process, c.worker, took, c.err, c.limit, rec.circumstances(c.begin.add(c.limit))))
		}
	}
	for _, t := range rec.healed {
		if next := rec.nextGrant(t); next.since(t) > recovery {
			r.violation("nobody was granted a lock for %s after all faults had been healed at %s", next.since(t), rec.at(t))
		}
	}
}

// nextGrant returns when a lock was granted next after t, or the end.
func (rec *record) nextGrant(t instant) instant {
	next := rec.end
	for _, h := range rec.holds {
		if h.begin >= t {
			next = min(next, h.begin)
		}
	}
	return max(next, t)
}

// at writes a time as one since the beginning.
func (rec *record) at(t instant) string { return fmt.Sprintf("%.3fs", t.since(rec.begin).Seconds()) }

// circumstances lists what went on around a time.
func (rec *record) circumstances(t instant) string {
	var b strings.Builder
	list := func(what string, spans []span) {
		for _, s := range spans {
			if s.begin.add(-around) <= t && t <= s.end.add(around) {
				fmt.Fprintf(&b, "\n    %s from %s until %s: %s", what, rec.at(s.begin), rec.at(s.end), s.process)
			}
		}
	}
	list("fault", rec.faults)
	list("pause", rec.pauses)
	list("late timer", rec.stalls)
	return b.String()
}

// summarize writes what the campaign was about and all that was found.
func summarize(w io.Writer, rec *record, found report) {
	calls, errs := map[string]int{}, map[string]int{}
	for _, c := range rec.calls {
		calls[c.op]++
		if c.err != "" {
			errs[c.op+": "+c.err]++
		}
	}
	lost, refused, writes, revoked := 0, 0, 0, 0
	var grants []instant
	asked, kinds := map[string]int{}, map[string]int{}
	for _, c := range rec.calls {
		if c.permits > 0 {
			asked[kindOf(c.lock)]++
		}
	}
	for _, h := range rec.holds {
		if h.lost {
			lost++
		}
		if h.continues() {
			continue
		}
		grants = append(grants, h.begin)
		kinds[kindOf(h.lock)]++
		if h.told != never {
			revoked++
		}
	}
	for _, a := range rec.accesses {
		if a.write {
			writes++
		}
		if a.write && !a.accepted {
			refused++
		}
	}
	fmt.Fprintf(w, "\ncalls: %s\n", counts(calls))
	fmt.Fprintf(w, "errors: %s\n", counts(errs))
	fmt.Fprintf(w, "asked for: %s\n", counts(asked))
	fmt.Fprintf(w, "grants: %d (%s), of which %d were lost; %d holders were told that somebody asked for the lock\n",
		len(grants), counts(kinds), lost, revoked)
	fmt.Fprintf(w, "held at once, at the most: %s\n", counts(found.together))
	fmt.Fprintf(w, "register: %d writes, of which fencing refused %d; %d reads\n", writes, refused, len(rec.accesses)-writes)

	faults := map[string]int{}
	for _, f := range rec.faults {
		name, _, _ := strings.Cut(f.process, ":")
		faults[name]++
	}
	fmt.Fprintf(w, "faults: %s\n", counts(faults))

	var recoveries []time.Duration
	for _, t := range rec.healed {
		recoveries = append(recoveries, rec.nextGrant(t).since(t))
	}
	if len(recoveries) > 0 {
		slices.Sort(recoveries)
		fmt.Fprintf(w, "recoveries: %d, the next grant after %s (median), %s (at most)\n", len(recoveries),
			recoveries[len(recoveries)/2].Round(time.Millisecond), slices.Max(recoveries).Round(time.Millisecond))
	}
	grants = append(grants, rec.begin, rec.end)
	slices.Sort(grants)
	var gap time.Duration
	for i, t := range grants[1:] {
		if t <= rec.end {
			gap = max(gap, t.since(grants[i]))
		}
	}
	fmt.Fprintf(w, "longest time without any grant: %s\n", gap.Round(time.Millisecond))
	var late time.Duration
	for _, s := range rec.stalls {
		if !rec.pausedDuring(s.process, s.end, s.end) {
			late = max(late, s.end.since(s.begin))
		}
	}
	fmt.Fprintf(w, "latest timer of a client that was not paused: %s\n", late.Round(time.Millisecond))
	fmt.Fprintf(w, "overlaps while paused: %d (fencing refused writes: %d)\n", found.excused, refused)

	for _, list := range []struct {
		what string
		all  []string
	}{{"VIOLATION", found.violations}, {"LEAKED NODE", found.leaked}, {"STUCK", found.stuck}} {
		for _, text := range list.all {
			fmt.Fprintf(w, "%s: %s\n", list.what, text)
		}
	}
	fmt.Fprintln(w, found.verdict())
}

func counts(m map[string]int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", key, m[key]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
