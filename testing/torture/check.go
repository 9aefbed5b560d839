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
	// around is how far from a violation a fault is that may have to do with it.
	around = 5 * time.Second
	// decision bounds the search for a linearization of one lock's register.
	decision = 2 * time.Minute
)

// report is what the checks have found.
type report struct {
	violations []string
	leaked     []string
	stuck      []string
	excused    int // overlaps while the older holder was paused
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
	found := report{violations: slices.Clone(r.accidents), leaked: r.left, stuck: slices.Clone(r.hanging)}
	byLock := map[string][]*hold{}
	for _, h := range r.holds {
		byLock[h.lock] = append(byLock[h.lock], h)
	}
	for _, name := range slices.Sorted(maps.Keys(byLock)) {
		holds := byLock[name]
		slices.SortFunc(holds, func(a, b *hold) int { return cmp.Compare(a.begin, b.begin) })
		found.overlaps(r, holds)
		found.tokens(r, holds)
	}
	found.registers(r)
	found.calls(r)
	return found
}

// overlaps looks for two that believed at the same time that they hold a lock.
func (r *report) overlaps(rec *record, holds []*hold) {
	var active []*hold
	for _, h := range holds {
		active = slices.DeleteFunc(active, func(g *hold) bool { return g.end <= h.begin })
		for _, g := range active {
			if g.end <= h.begin || h.end <= h.begin {
				continue
			}
			from, until := h.begin, min(g.end, h.end)
			old := rec.older(g, h)
			if rec.pausedDuring(old.process, from, until) {
				r.excused++
				continue
			}
			r.violation("lock %q was held twice for %s at %s: by %s from %s until %s, and by %s from %s until %s%s",
				h.lock, until.since(from), rec.at(from), g, rec.at(g.begin), rec.at(g.end), h, rec.at(h.begin), rec.at(h.end),
				rec.circumstances(from))
		}
		active = append(active, h)
	}
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

// tokens looks for tokens that do not grow from one grant to the next, or that
// change while a lock is held.
func (r *report) tokens(rec *record, holds []*hold) {
	var last *hold
	for _, h := range holds {
		for _, inner := range h.inner {
			if h.token != 0 && inner != h.token {
				r.violation("lock %q: entering again changed the token to %#x: %s, %s", h.lock, inner, h, rec.at(h.begin))
			}
		}
		if h.token == 0 || rec.woke(h) {
			continue
		}
		if last != nil && h.token <= last.token {
			r.violation("lock %q: the token did not grow: %s, granted %s, after %s, granted %s%s",
				h.lock, h, rec.at(h.begin), last, rec.at(last.begin), rec.circumstances(h.begin))
		}
		if last == nil || h.token > last.token {
			last = h
		}
	}
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

// calls looks for calls that outlasted their context, and for a time in which
// nobody was granted anything although nothing was wrong.
func (r *report) calls(rec *record) {
	for _, c := range rec.calls {
		allowed := c.limit + overrun
		for _, p := range rec.pauses {
			if p.process == c.process {
				allowed += max(min(p.end, c.end).since(max(p.begin, c.begin)), 0)
			}
		}
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
	lost, refused, writes := 0, 0, 0
	var grants []instant
	for _, h := range rec.holds {
		grants = append(grants, h.begin)
		if h.lost {
			lost++
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
	fmt.Fprintf(w, "grants: %d, of which %d were lost\n", len(grants), lost)
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
