package main

// This file runs the bubbles of a run, and adds up what was found.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

type options struct {
	mix
	Years       float64
	Seed        uint64
	Parallel    int
	StopAtFirst bool
	State       string
	Replay      string
	Bubble      int
	Out         string
	Limit       time.Duration
	Shrink      int
}

const year = 365 * 24 * time.Hour

// total is the sum of the results of bubbles.
type total struct {
	workload.Figures
	violations, leaked, stuck int
	virtual, real             time.Duration
	bubbles                   int
}

func (t *total) add(r result) {
	t.Grants, t.Faults = t.Grants+r.Figures.Grants, t.Faults+r.Figures.Faults
	t.Losses, t.Rescues = t.Losses+r.Figures.Losses, t.Rescues+r.Figures.Rescues
	t.Deadlocks, t.Breaks = t.Deadlocks+r.Figures.Deadlocks, t.Breaks+r.Figures.Breaks
	t.KeptTurns, t.AskedBack = t.KeptTurns+r.Figures.KeptTurns, t.AskedBack+r.Figures.AskedBack
	t.Starved, t.Victim = max(t.Starved, r.Figures.Starved), max(t.Victim, r.Figures.Victim)
	t.violations += len(r.Report.Violations)
	t.leaked += len(r.Report.Leaked)
	t.stuck += len(r.Report.Stuck)
	t.virtual += r.Virtual
	t.bubbles++
}

func (t *total) clean() bool { return t.violations+t.leaked+t.stuck == 0 }

func (t *total) String() string {
	return fmt.Sprintf("violations=%d leaked_nodes=%d stuck_waiters=%d grants=%d kept_turns=%d asked_back=%d faults=%d losses=%d breaks=%d deadlocks=%d starved=%s victim_in_a_row=%d rescues=%d virtual=%s real=%s",
		t.violations, t.leaked, t.stuck, t.Grants, t.KeptTurns, t.AskedBack, t.Faults, t.Losses, t.Breaks, t.Deadlocks, t.Starved.Round(time.Millisecond), t.Victim, t.Rescues, t.virtual.Round(time.Second), t.real.Round(time.Second))
}

// schedules yields the schedules of a run: of as many bubbles as fit in the time, the last
// one shortened.
func (o options) schedules(yield func(schedule) bool) {
	left := time.Duration(o.Years * float64(year))
	for n := 0; left > 0; n++ {
		s := draw(o.Seed, n, o.mix)
		s.truncate(left)
		left -= s.Lasts
		if o.Bubble >= 0 && n != o.Bubble {
			continue
		}
		if !yield(s) {
			return
		}
	}
}

// run runs bubbles, and writes what they find to out.
func run(ctx context.Context, out io.Writer, o options) (*total, error) {
	began, sum := time.Now(), &total{}
	if err := os.MkdirAll(o.Out, 0o777); o.Out != "" && err != nil {
		return nil, err
	}
	if o.Replay != "" {
		return replay(ctx, out, o)
	}
	state, err := openState(o)
	if err != nil {
		return nil, err
	}
	defer state.close()
	for _, r := range state.finished {
		sum.add(r)
		sum.real += r.Real / time.Duration(o.Parallel)
	}
	before := sum.real

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // of sum, state and out
	todo := make(chan schedule)
	var workers sync.WaitGroup
	for range o.Parallel {
		workers.Go(func() { // ends when there is nothing left to do
			r := &runner{limit: o.Limit}
			defer func() {
				if err := r.close(); err != nil {
					cancel(err)
				}
			}()
			for s := range todo {
				found, err := r.run(ctx, order{Schedule: s, Timeline: o.violation(s)})
				if ctx.Err() != nil {
					continue
				}
				if err != nil {
					cancel(err)
					continue
				}
				mu.Lock()
				sum.add(found)
				sum.real = before + time.Since(began)
				err = state.save(found)
				printFound(out, s, found)
				if sum.bubbles%20 == 0 {
					fmt.Fprintf(out, "%d bubbles: %s\n", sum.bubbles, sum)
				}
				mu.Unlock()
				if err == nil && !found.Report.Clean() {
					if o.StopAtFirst {
						cancel(errFirst)
						continue
					}
					err = r.explain(ctx, out, &mu, o, s, found)
				}
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	for s := range o.schedules {
		if _, ok := state.finished[s.Bubble]; ok {
			continue
		}
		select {
		case todo <- s:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	close(todo)
	workers.Wait()
	sum.real = before + time.Since(began)
	fmt.Fprintln(out, sum)
	if err := context.Cause(ctx); err != nil && !errors.Is(err, errFirst) {
		return nil, err
	}
	return sum, nil
}

var errFirst = errors.New("a violation was found")

// maxPrinted is how many violations of each kind are printed for a bubble.
const maxPrinted = 10

// printFound prints what was found in a bubble.
func printFound(out io.Writer, s schedule, r result) {
	for _, list := range []struct {
		label string
		all   []string
	}{{"VIOLATION", r.Report.Violations}, {"LEFT", r.Report.Leaked}, {"STUCK", r.Report.Stuck}} {
		count := map[string]int{} // by kind
		for _, text := range list.all {
			if count[kindOf(text)]++; count[kindOf(text)] <= maxPrinted {
				fmt.Fprintf(out, "%s in bubble %d of seed %d: %s\n", list.label, s.Bubble, s.Seed, text)
			}
		}
		for _, kind := range slices.Sorted(maps.Keys(count)) {
			if n := count[kind] - maxPrinted; n > 0 {
				fmt.Fprintf(out, "%s in bubble %d of seed %d: %s and %d more\n", list.label, s.Bubble, s.Seed, kind, n)
			}
		}
	}
}

// runner runs bubbles in a child, and replaces an ended child.
type runner struct {
	child *child
	limit time.Duration
}

func (r *runner) run(ctx context.Context, o order) (found result, err error) {
	if r.child == nil {
		if r.child, err = startChild(); err != nil {
			return found, err
		}
	}
	found, alive, err := r.child.run(ctx, o, r.limit)
	if !alive {
		r.child = nil
	}
	return found, err
}

func (r *runner) close() error {
	if r.child == nil {
		return nil
	}
	return r.child.close()
}

// replay runs the schedule in a file.
func replay(ctx context.Context, out io.Writer, o options) (*total, error) {
	text, err := os.ReadFile(o.Replay)
	if err != nil {
		return nil, err
	}
	var s schedule
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s is not a schedule: %w", o.Replay, err)
	}
	r := &runner{limit: o.Limit}
	found, err := r.run(ctx, order{s, filepath.Join(o.Out, "replay"), true})
	if err = errors.Join(err, r.close()); err != nil {
		return nil, err
	}
	sum := &total{}
	sum.add(found)
	sum.real = found.Real
	printFound(out, s, found)
	fmt.Fprintln(out, sum)
	return sum, nil
}

// state is the file with the finished bubbles.
type state struct {
	file     *os.File
	finished map[int]result
}

// openState opens the file, whose first line is what determines the bubbles.
func openState(o options) (*state, error) {
	st := &state{finished: map[int]result{}}
	if o.State == "" {
		return st, nil
	}
	header, err := json.Marshal(struct {
		Seed uint64
		Mix  mix
	}{o.Seed, o.mix})
	if err != nil {
		return nil, err
	}
	if st.file, err = os.OpenFile(o.State, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	in := bufio.NewReader(st.file)
	line, err := in.ReadString('\n')
	if err == io.EOF && line == "" {
		_, err = fmt.Fprintf(st.file, "%s\n", header)
		return st, err
	}
	if line != string(header)+"\n" {
		return nil, fmt.Errorf("%s is of a run with another seed or other options: %s", o.State, line)
	}
	offset := int64(len(line))
	for {
		line, err := in.ReadString('\n')
		if err != nil { // the end, or an incomplete line
			_, err := st.file.Seek(offset, io.SeekStart)
			return st, err
		}
		offset += int64(len(line))
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", o.State, err)
		}
		st.finished[r.Bubble] = r
	}
}

func (st *state) save(r result) error {
	if st.file == nil {
		return nil
	}
	text, err := json.Marshal(r)
	if err == nil {
		_, err = fmt.Fprintf(st.file, "%s\n", text)
	}
	return err
}

func (st *state) close() {
	if st.file != nil {
		_ = st.file.Close()
	}
}
