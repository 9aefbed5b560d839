package main

// This file tests the simulation: runs without violations, planted losses, and shortened
// schedules.

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/lab/simulate/workload"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		runChild() // does not return
	}
	os.Exit(m.Run())
}

// runFor runs bubbles for some virtual time, and returns the output and the last line.
func runFor(t *testing.T, virtual time.Duration, change func(*options)) (sum *total, out, last string) {
	o := options{
		mix: mix{Pools: 5, Interval: time.Minute}, Years: float64(virtual) / float64(year),
		Seed: 1, Bubble: -1, Parallel: 2, Out: t.TempDir(), Limit: 10 * time.Minute, Shrink: 15,
	}
	change(&o)
	var b strings.Builder
	sum, err := run(t.Context(), &b, o)
	t.Log("\n" + b.String())
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	return sum, b.String(), lines[len(lines)-1]
}

func TestBubblesWithoutViolations(t *testing.T) {
	sum, _, last := runFor(t, 25*time.Minute, func(*options) {})
	require.Regexp(t, `^violations=0 leaked_nodes=0 stuck_waiters=0 grants=\d+ kept_turns=\d+ asked_back=\d+ faults=\d+ losses=\d+ breaks=\d+ deadlocks=\d+ starved=\S+ victim_in_a_row=\d+ rescues=0 virtual=\S+ real=\S+$`, last)
	require.True(t, sum.clean())
	require.Greater(t, sum.Grants, 500)
	require.Greater(t, sum.Faults, 12)
	require.Greater(t, sum.KeptTurns, 50)
	require.Greater(t, sum.AskedBack, 5)
	require.GreaterOrEqual(t, sum.virtual, 25*time.Minute)
}

// losses makes holders ignore losses. What a schedule leaves open differs from run to run: with
// this seed, 8 minutes have 20 violations or more; with others, now and then none.
func losses(o *options) {
	o.Seed, o.IgnoreLosses, o.Only, o.Pools, o.Interval = 27, true, "freeze connections for long", 3, 20*time.Second
}

// Holders ignoring losses are found. The schedule left to bring a violation back is
// shorter.
func TestIgnoredLossesAreFound(t *testing.T) {
	dir := t.TempDir()
	sum, out, last := runFor(t, 8*time.Minute, func(o *options) {
		losses(o)
		o.Out = dir
	})
	require.False(t, sum.clean())
	require.NotContains(t, last, "violations=0 ")
	require.Regexp(t, `VIOLATION in bubble 0 of seed 27: (exclusion|lease): lock `, out)
	require.Regexp(t, `the violation came back in \d of 5 runs`, out)

	name := filepath.Join(dir, "violation-27-0")
	text, err := os.ReadFile(name + ".json")
	require.NoError(t, err)
	var s schedule
	require.NoError(t, json.Unmarshal(text, &s))
	var o options
	losses(&o)
	whole := draw(o.Seed, 0, o.mix)
	whole.truncate(8 * time.Minute)
	require.Less(t, len(s.Steps), len(whole.Steps))

	text, err = os.ReadFile(name + ".txt")
	require.NoError(t, err)
	require.Contains(t, string(text), "holds lock-")
	require.Contains(t, string(text), "faults begins freeze connections for long: process ")
	text, err = os.ReadFile(name + ".svg")
	require.NoError(t, err)
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		if _, err := d.Token(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}

	// How often the shortest schedule brings a violation back is up to chance.
	sum, _, _ = runFor(t, 0, func(o *options) { o.Replay = name + ".json" })
	require.Len(t, s.Steps, sum.Faults, "the schedule is run again")
}

func TestStopAtFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	sum, out, _ := runFor(t, 8*time.Minute, func(o *options) {
		losses(o)
		o.StopAtFirst, o.Out = true, dir
	})
	require.False(t, sum.clean())
	require.NotContains(t, out, "shortest")
	require.FileExists(t, filepath.Join(dir, "violation-27-0.txt"), "a timeline, even if the violation does not come back")
}

// A run goes on after the bubbles in its file, and not after the bubbles of another run.
func TestRunGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	seed := uint64(1)
	for draw(seed, 0, mix{}).Lasts > 70*time.Minute {
		seed++
	}
	both := draw(seed, 0, mix{}).Lasts + 10*time.Minute
	quiet := func(o *options) { o.Seed, o.Pools, o.State, o.Interval = seed, 1, file, 0 }
	first, _, _ := runFor(t, both, quiet)
	require.Equal(t, 2, first.bubbles)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.SplitAfter(string(text), "\n")
	require.Len(t, lines, 4)
	slices.SortFunc(lines[1:3], func(a, b string) int { return strings.Index(a, `"Bubble":0,`) - strings.Index(b, `"Bubble":0,`) })
	zero := lines[2]
	var r result
	require.NoError(t, json.Unmarshal([]byte(zero), &r))
	require.Zero(t, r.Bubble)
	r.Figures.Grants += 1_000_000
	changed, err := json.Marshal(r)
	require.NoError(t, err)
	cut := lines[0] + string(changed) + "\n" + lines[1][:len(lines[1])/2] // interrupted during a write
	require.NoError(t, os.WriteFile(file, []byte(cut), 0o666))
	second, _, _ := runFor(t, both, quiet)
	require.Equal(t, 2, second.bubbles)
	require.Greater(t, second.Grants, 1_000_000)
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(string(text), "\n"))

	_, err = run(t.Context(), io.Discard, options{Seed: seed + 1, Bubble: -1, State: file, Parallel: 1, Years: 0.001})
	require.ErrorContains(t, err, "another seed")
}

func TestBubblesThatEndTheirProcessOrHangAreReported(t *testing.T) {
	s := draw(1, 0, mix{Pools: 3})
	s.truncate(10 * time.Minute)
	broken := s
	broken.Steps = []step{{At: time.Second, Fault: "unknown"}}
	r := &runner{limit: 10 * time.Minute}
	found, err := r.run(t.Context(), order{Schedule: broken})
	require.NoError(t, err)
	require.Len(t, found.Report.Violations, 1)
	require.Contains(t, found.Report.Violations[0], "crash: bubble 0 ended its process")
	require.Contains(t, found.Report.Violations[0], "goroutine ")

	found, err = r.run(t.Context(), order{Schedule: s}) // in another process
	require.NoError(t, err)
	require.True(t, found.Report.Clean())

	r.limit = time.Second // several are needed
	found, err = r.run(t.Context(), order{Schedule: draw(1, 0, mix{Pools: 20})})
	require.NoError(t, err)
	require.Len(t, found.Report.Stuck, 1)
	require.Contains(t, found.Report.Stuck[0], "stuck: bubble 0 did not end within 1s of real time") // which goroutines are shown is up to chance
	require.Equal(t, "\ngoroutine 2 [select, synctest bubble 1]:\nb", notDurable(
		"goroutine 1 [running]:\na\n\ngoroutine 2 [select, synctest bubble 1]:\nb\n\ngoroutine 3 [sleep (durable), synctest bubble 1]:\nc"))

	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("interrupted")
	cancel(reason)
	_, err = r.run(ctx, order{Schedule: s})
	require.ErrorIs(t, err, reason)
	require.NoError(t, r.close())

	r.child, err = startChild()
	require.NoError(t, err)
	require.NoError(t, r.child.cmd.Process.Kill())
	require.ErrorContains(t, r.close(), "a process that ran bubbles: signal: killed")
}

func TestSchedulesAreDrawnFromTheSeed(t *testing.T) {
	t.Parallel()
	m := mix{Interval: time.Minute}
	require.Equal(t, draw(7, 3, m), draw(7, 3, m))
	require.NotEqual(t, draw(7, 3, m), draw(7, 4, m))
	require.NotEqual(t, draw(7, 3, m), draw(8, 3, m))
	used := map[string]bool{}
	pools := map[int]bool{}
	for n := range 60 {
		s := draw(7, n, m)
		var b bytes.Buffer
		require.NoError(t, s.write(&b))
		var again schedule
		require.NoError(t, json.Unmarshal(b.Bytes(), &again))
		require.Equal(t, s, again)
		pools[len(s.Processes)] = true
		for _, p := range s.Processes {
			require.GreaterOrEqual(t, p.Timeout, minTimeout)
			require.LessOrEqual(t, p.Timeout, maxTimeout)
		}
		for i, st := range s.Steps {
			used[st.Fault] = true
			require.True(t, i == 0 || s.Steps[i-1].At <= st.At)
			require.Less(t, st.At, s.Lasts)
		}
	}
	require.Len(t, used, len(faults))
	require.Greater(t, len(pools), 5)
}

// A violation of two faults and one process is brought back by nothing else.
func TestSchedulesAreShortened(t *testing.T) {
	t.Parallel()
	s := draw(1, 0, mix{Pools: 7, Interval: time.Minute})
	for n := range s.Steps {
		s.Steps[n].Amount = float64(n)
	}
	run := func(s schedule) (result, error) {
		has := func(n float64) bool {
			return slices.ContainsFunc(s.Steps, func(st step) bool { return st.Amount == n })
		}
		if !has(3) || !has(17) || s.Processes[4].Workers == 0 {
			return result{Report: workload.Report{Violations: []string{"call: another one"}}}, nil
		}
		return result{Report: workload.Report{Violations: []string{"exclusion: x"}, First: workload.Instant(s.Steps[len(s.Steps)-1].At)}}, nil
	}
	whole, err := run(s)
	require.NoError(t, err)
	sh := &shrinker{run: run, kind: "exclusion:", left: 1000}
	least, err := sh.shrink(s, whole)
	require.NoError(t, err)
	require.Len(t, least.Steps, 2)
	require.Equal(t, 1, least.processes())
	require.Positive(t, least.Processes[4].Workers)
	require.Contains(t, least.list(), fmt.Sprint(least.Steps[0]))
}
