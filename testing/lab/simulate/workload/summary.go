package workload

// This file summarizes a record: figures, calls and grants.

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Figures count what happened in a campaign.
type Figures struct {
	Grants, Faults, Losses, Rescues, Waits, Refused, Deadlocks, Breaks int

	Starved time.Duration // the longest time a victim of deadlocks tried again
	Victim  int64         // how often in succession a caller was the victim, at the most
}

// Count counts what happened.
func Count(rec *Record) (f Figures) {
	f.Breaks = rec.breaks()
	f.Faults, f.Rescues = len(rec.Faults)-f.Breaks, len(rec.Rescues)
	f.Starved, f.Victim = rec.starved()
	for _, h := range rec.holds {
		if !h.downgraded() {
			f.Grants++
		}
		if h.lost && h.end <= rec.End {
			f.Losses++
		}
		if h.begin > h.requested {
			f.Waits++
		}
	}
	f.Deadlocks = len(toldDeadlocks(rec))
	for _, a := range rec.accesses {
		if a.write && !a.accepted {
			f.Refused++
		}
	}
	return f
}

// Summarize writes what happened in a campaign and what the checks have found.
func Summarize(w io.Writer, rec *Record, r Report) {
	fmt.Fprintln(w)
	summarizeCalls(w, rec)
	grants := summarizeGrants(w, rec)
	fmt.Fprintf(w, "most holders at once: %s\n", counts(r.MaxHolders))
	refused := summarizeAccesses(w, rec)
	summarizeFaults(w, rec)
	fmt.Fprintf(w, "longest time without any grant: %s\n", longestGap(rec, grants).Round(time.Millisecond))
	if told := toldDeadlocks(rec); len(told) > 0 {
		fmt.Fprintf(w, "victims of deadlocks: %d, told after %s (median), %s (longest)\n", len(told),
			told[len(told)/2].Round(time.Millisecond), told[len(told)-1].Round(time.Millisecond))
	}
	if longest, most := rec.starved(); most > 0 {
		fmt.Fprintf(w, "longest starvation of a victim that tried again at once: %s; a caller was the victim %d times in succession, at the most\n", longest.Round(time.Millisecond), most)
	}
	var late time.Duration
	for _, s := range rec.lateTimers {
		if !rec.pausedDuring(s.Process, s.End, s.End) {
			late = max(late, s.End.Since(s.Begin))
		}
	}
	fmt.Fprintf(w, "latest timer of a client that was not paused: %s\n", late.Round(time.Millisecond))
	fmt.Fprintf(w, "overlaps with a paused holder: %d, with one whose node was removed: %d (writes refused by fencing: %d)\n", r.excused, r.excusedRemoved, refused)
	for _, note := range rec.Notes {
		fmt.Fprintln(w, note)
	}

	for _, list := range []struct {
		label string
		all   []string
	}{{"VIOLATION", r.Violations}, {"LEAKED NODE", r.Leaked}, {"STUCK", r.Stuck}} {
		for _, text := range list.all {
			fmt.Fprintf(w, "%s: %s\n", list.label, text)
		}
	}
	fmt.Fprintln(w, r.Verdict())
}

// toldDeadlocks returns how long each victim of a deadlock had waited until told, sorted.
func toldDeadlocks(rec *Record) (told []time.Duration) {
	last := map[who]Instant{} // of a call for several locks there are several
	for _, c := range rec.calls {
		if by := (who{c.process, c.worker}); c.err == deadlock && last[by] != c.begin {
			last[by] = c.begin
			told = append(told, c.end.Since(c.begin))
		}
	}
	slices.Sort(told)
	return told
}

func summarizeCalls(w io.Writer, rec *Record) {
	calls, errs, requests := map[string]int{}, map[string]int{}, map[string]int{}
	for _, c := range rec.calls {
		calls[c.op]++
		if c.err != "" {
			errs[c.op+": "+c.err]++
		}
		if c.permits > 0 {
			requests[kindOf(c.lock)]++
		}
	}
	fmt.Fprintf(w, "calls: %s\n", counts(calls))
	fmt.Fprintf(w, "errors: %s\n", counts(errs))
	fmt.Fprintf(w, "requests: %s\n", counts(requests))
}

// summarizeGrants returns the times of all grants.
func summarizeGrants(w io.Writer, rec *Record) (grants []Instant) {
	lost, revoked, kinds := 0, 0, map[string]int{}
	for _, h := range rec.holds {
		if h.lost {
			lost++
		}
		if h.downgraded() {
			continue
		}
		grants = append(grants, h.begin)
		kinds[kindOf(h.lock)]++
		if h.revokedAt != Never {
			revoked++
		}
	}
	fmt.Fprintf(w, "grants: %d (%s), of which %d were lost; %d holders noticed a revocation request\n",
		len(grants), counts(kinds), lost, revoked)
	return grants
}

// summarizeAccesses returns how many writes were refused.
func summarizeAccesses(w io.Writer, rec *Record) (refused int) {
	writes := 0
	for _, a := range rec.accesses {
		if a.write {
			writes++
		}
		if a.write && !a.accepted {
			refused++
		}
	}
	fmt.Fprintf(w, "registers: %d writes, of which fencing refused %d; %d reads\n", writes, refused, len(rec.accesses)-writes)
	return refused
}

func summarizeFaults(w io.Writer, rec *Record) {
	faults := map[string]int{}
	for _, f := range rec.Faults {
		name, _, _ := strings.Cut(f.Process, ":")
		faults[name]++
	}
	fmt.Fprintf(w, "faults: %s\n", counts(faults))
	var recoveries []time.Duration
	for _, t := range rec.Healed {
		recoveries = append(recoveries, rec.nextGrant(t).Since(t))
	}
	if len(recoveries) > 0 {
		slices.Sort(recoveries)
		fmt.Fprintf(w, "recoveries: %d, the next grant after %s (median), %s (longest)\n", len(recoveries),
			recoveries[len(recoveries)/2].Round(time.Millisecond), slices.Max(recoveries).Round(time.Millisecond))
	}
}

func longestGap(rec *Record, grants []Instant) (gap time.Duration) {
	grants = append(grants, rec.Begin, rec.End)
	slices.Sort(grants)
	for i, t := range grants[1:] {
		if t <= rec.End {
			gap = max(gap, t.Since(grants[i]))
		}
	}
	return gap
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
