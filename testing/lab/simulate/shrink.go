package main

// This file shortens the schedule of a violation.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// tries is the number of runs without a violation after which a schedule counts as
	// harmless. As many runs show how often the whole schedule brings the violation back.
	tries = 5
	// afterwards is how much of a schedule is kept after its first violation.
	afterwards = time.Minute
)

// truncate ends the schedule after d.
func (s *schedule) truncate(d time.Duration) {
	s.Lasts = min(s.Lasts, d)
	s.Steps = slices.DeleteFunc(slices.Clone(s.Steps), func(st step) bool { return st.At >= s.Lasts })
}

// truncateAfter ends the schedule some time after the first violation.
func (s *schedule) truncateAfter(found result) {
	if first := time.Duration(found.Report.First); first > 0 {
		s.truncate(first + afterwards + s.longestTimeout())
	}
}

func (s *schedule) save(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(s.write(f), f.Close())
}

// explain runs a schedule with a violation again, shortens the schedule, and writes the
// shortest schedule that brings a violation back, with a timeline.
func (r *runner) explain(ctx context.Context, out io.Writer, mu *sync.Mutex, o options, s schedule, found result) error {
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format, args...)
	}
	name := o.violation(s)
	sh := &shrinker{kind: kindOf(firstOf(found)), run: func(s schedule) (result, error) { return r.run(ctx, order{Schedule: s}) }, left: o.Shrink}
	all := len(s.Steps)
	s.truncateAfter(found)
	if err := s.save(name + ".json"); err != nil {
		return err
	}
	if found.Real >= o.Limit {
		say("the schedule is in %s; it is not run again, because that might take as long\n", name+".json")
		return nil
	}
	var err error
	again := 0
	for range tries {
		repeated, err := sh.run(s)
		if err != nil {
			return err
		}
		if repeated.has(sh.kind) {
			again++
		}
	}
	say("bubble %d of seed %d: the violation came back in %d of %d runs\n", s.Bubble, s.Seed, again, tries)
	least := s
	if again > 0 {
		if least, err = sh.shrink(s, found); err != nil {
			return err
		}
	}
	if err := least.save(name + ".json"); err != nil {
		return err
	}
	// A timeline of a shorter run with a violation, if one comes back, in place of the
	// first timeline.
	var last result
	for range tries {
		if last, err = r.run(ctx, order{Schedule: least, Timeline: name}); err != nil {
			return err
		}
		if last.has(sh.kind) {
			break
		}
	}
	back := "it brings back: " + firstOf(last)
	if !last.has(sh.kind) {
		back = fmt.Sprintf("it did not bring the violation back in %d more runs", tries)
	}
	say("the shortest schedule found in %d runs lasts %s and has %d processes and %d of %d faults; run it again with -replay %s:\n%s%s\n",
		sh.runs, least.Lasts, least.processes(), len(least.Steps), all, name+".json", least.list(), back)
	say("timeline of the last run with a violation: %s.txt, %s.svg\n", name, name)
	return nil
}

// violation returns the files about a violation, without their extension.
func (o options) violation(s schedule) string {
	return filepath.Join(o.Out, fmt.Sprintf("violation-%d-%d", s.Seed, s.Bubble))
}

// firstOf returns the text of the first finding.
func firstOf(r result) string {
	for _, list := range [][]string{r.Report.Violations, r.Report.Leaked, r.Report.Stuck} {
		if len(list) > 0 {
			return list[0]
		}
	}
	return ""
}

// kindOf returns the first word of the text of a violation.
func kindOf(text string) string {
	kind, _, _ := strings.Cut(text, " ")
	return kind
}

// has reports whether a violation of the kind was found.
func (r result) has(kind string) bool {
	return slices.ContainsFunc(slices.Concat(r.Report.Violations, r.Report.Leaked, r.Report.Stuck), func(text string) bool {
		return kindOf(text) == kind
	})
}

// shrinker shortens a schedule by delta debugging.
type shrinker struct {
	kind string // of the violation
	run  func(schedule) (result, error)
	left int // further runs allowed
	runs int
}

// fails reports whether a schedule brings the violation back, and returns what was found.
func (sh *shrinker) fails(s schedule) (found result, yes bool, err error) {
	for range tries {
		if sh.left == 0 {
			return found, false, nil
		}
		sh.left, sh.runs = sh.left-1, sh.runs+1
		if found, err = sh.run(s); err != nil || found.has(sh.kind) {
			return found, err == nil, err
		}
	}
	return found, false, nil
}

// shrink returns the shortest schedule found to bring a violation back: everything after
// the violation is cut off, and then faults and processes are removed, many at a time at
// first.
func (sh *shrinker) shrink(s schedule, found result) (schedule, error) {
	for {
		shorter := s
		shorter.truncateAfter(found)
		if shorter.Lasts == s.Lasts {
			break
		}
		again, yes, err := sh.fails(shorter)
		if err != nil {
			return s, err
		}
		if !yes {
			break
		}
		s, found = shorter, again
	}
	for {
		before := len(s.Steps) + s.processes()
		var err error
		if s, err = sh.remove(s, len(s.Steps), func(s schedule, from, until int) schedule {
			s.Steps = slices.Delete(slices.Clone(s.Steps), from, until)
			return s
		}); err != nil {
			return s, err
		}
		if s, err = sh.remove(s, len(s.Processes), func(s schedule, from, until int) schedule {
			s.Processes = slices.Clone(s.Processes)
			for n := from; n < until; n++ {
				s.Processes[n].Workers = 0 // the others keep their numbers
			}
			return s
		}); err != nil {
			return s, err
		}
		if len(s.Steps)+s.processes() == before {
			return s, nil
		}
	}
}

// remove removes as many of n parts as possible: halves of them, then quarters, and so on.
func (sh *shrinker) remove(s schedule, n int, without func(s schedule, from, until int) schedule) (schedule, error) {
	for size := (n + 1) / 2; size > 0; size /= 2 {
		for until := n; until > 0; until -= size {
			from := max(until-size, 0)
			shorter := without(s, from, until)
			if len(shorter.Steps) == len(s.Steps) && shorter.processes() == s.processes() {
				continue
			}
			_, yes, err := sh.fails(shorter)
			if err != nil {
				return s, err
			}
			if yes {
				if len(shorter.Steps) < len(s.Steps) {
					n -= len(s.Steps) - len(shorter.Steps)
				}
				s = shorter
			}
		}
	}
	return s, nil
}

// processes returns how many processes take part.
func (s *schedule) processes() (n int) {
	for _, p := range s.Processes {
		if p.Workers > 0 {
			n++
		}
	}
	return n
}

// list returns the faults, one in a line.
func (s *schedule) list() string {
	var b strings.Builder
	for _, st := range s.Steps {
		fmt.Fprintf(&b, "    %s\n", st)
	}
	return b.String()
}
