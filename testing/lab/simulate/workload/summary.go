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
	Grants, KeptTurns, AskedBack, Faults, Losses, Rescues, Waits, Deadlocks, Breaks int

	Starved time.Duration // the longest time a victim of deadlocks tried again
	Victim  int64         // how often in succession a caller was the victim, at the most
}

// Count counts what happened.
func Count(rec *Record) (f Figures) {
	f.Breaks, f.KeptTurns, f.AskedBack = rec.breaks(), rec.KeptTurns, rec.AskedBack
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
	return f
}

// Summarize writes what happened in a campaign and what the checks have found.
func Summarize(w io.Writer, rec *Record, r Report) {
	say := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	f := Count(rec)
	say("")
	calls, errs, requests, faults := tally{}, tally{}, tally{}, tally{}
	for _, c := range rec.calls {
		calls[c.op]++
		if c.err != "" {
			errs[c.op+": "+c.err]++
		}
		if c.permits > 0 {
			requests[kindOf(c.lock)]++
		}
	}
	say("calls: %s\nerrors: %s\nrequests: %s", calls, errs, requests)
	summarizeGrants(say, rec)
	say("most holders at once: %s", tally(r.MaxHolders))
	for _, f := range rec.Faults {
		name, _, _ := strings.Cut(f.Process, ":")
		faults[name]++
	}
	say("faults: %s", faults)
	var recoveries []time.Duration
	for _, t := range rec.Healed {
		recoveries = append(recoveries, rec.nextGrant(t).Since(t))
	}
	say("recoveries, until the next grant: %s", spread(recoveries))
	say("victims of deadlocks, until told: %s", spread(toldDeadlocks(rec)))
	say("longest starvation of a victim that tried again at once: %s; a caller was the victim %d times in succession, at the most", f.Starved.Round(time.Millisecond), f.Victim)
	var late time.Duration
	for _, s := range rec.lateTimers {
		if !rec.within(rec.Pauses, 0, s.Process, s.End, s.End) {
			late = max(late, s.End.Since(s.Begin))
		}
	}
	say("latest timer of a client that was not paused: %s", late.Round(time.Millisecond))
	say("overlaps with a paused holder: %d, with one whose node was removed: %d", r.excused, r.excusedRemoved)
	for _, note := range rec.Notes {
		say("%s", note)
	}
	for _, list := range []struct {
		label string
		all   []string
	}{{"VIOLATION", r.Violations}, {"LEAKED NODE", r.Leaked}, {"STUCK", r.Stuck}} {
		for _, text := range list.all {
			say("%s: %s", list.label, text)
		}
	}
	say("%s", r.Verdict())
}

// toldDeadlocks returns how long each victim of a deadlock had waited until told.
func toldDeadlocks(rec *Record) (told []time.Duration) {
	last := map[who]Instant{} // of a call for several locks there are several
	for _, c := range rec.calls {
		if by := (who{c.process, c.worker}); c.err == deadlock && last[by] != c.begin {
			last[by] = c.begin
			told = append(told, c.end.Since(c.begin))
		}
	}
	return told
}

func summarizeGrants(say func(format string, args ...any), rec *Record) {
	lost, revoked, kinds, grants := 0, 0, tally{}, []Instant{rec.Begin, rec.End}
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
	say("grants: %d (%s), of which %d were lost; %d holders noticed a revocation request", len(grants)-2, kinds, lost, revoked)
	slices.Sort(grants)
	var gap time.Duration
	for i, t := range grants[1:] {
		if t <= rec.End {
			gap = max(gap, t.Since(grants[i]))
		}
	}
	say("longest time without any grant: %s", gap.Round(time.Millisecond))
}

// spread describes durations, and sorts them.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	return fmt.Sprintf("%d, %s (median), %s (longest)", len(all), all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
}

// tally counts by name.
type tally map[string]int

func (m tally) String() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", key, m[key]))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
