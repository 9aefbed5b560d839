//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at is so many milliseconds after the begin of a history.
func at(ms int) instant { return instant(1).add(time.Duration(ms) * time.Millisecond) }

func held(process string, token int64, begin, end int) *hold {
	return &hold{process: process, lock: "a", token: token, begin: at(begin), end: at(end)}
}

func wrote(process string, token, value int64, accepted bool, begin, end int) *access {
	return &access{process: process, lock: "a", write: true, token: token, value: value, accepted: accepted, begin: at(begin), end: at(end)}
}

func read(process string, token, value int64, begin, end int) *access {
	return &access{process: process, lock: "a", token: token, value: value, begin: at(begin), end: at(end)}
}

func called(process string, limit time.Duration, begin, end int) *call {
	return &call{process: process, op: opLock, lock: "a", limit: limit, begin: at(begin), end: at(end)}
}

// found checks a record and returns the verdict.
func found(t *testing.T, r record) (report, string) {
	r.begin, r.end = at(0), at(100_000)
	f := check(&r)
	var out strings.Builder
	summarize(&out, &r, f)
	t.Log(out.String())
	require.True(t, strings.HasSuffix(out.String(), "\n"+f.verdict()+"\n"))
	return f, f.verdict()
}

const clean = "violations=0 leaked_nodes=0 stuck_waiters=0"

func TestHistoriesThatAreRight(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]record{
		"empty":          {},
		"one by one":     {holds: []*hold{held("x", 1, 0, 10), held("y", 2, 10, 20), held("x", 0, 30, 40), held("x", 3, 50, 60)}},
		"two locks":      {holds: []*hold{held("x", 7, 0, 10), {process: "y", lock: "b", token: 2, begin: at(5), end: at(8)}}},
		"entered again":  {holds: []*hold{{process: "x", lock: "a", token: 4, inner: []int64{4, 4}, begin: at(0), end: at(9)}}},
		"fenced":         {accesses: []*access{wrote("x", 1, 11, true, 0, 1), wrote("y", 2, 12, true, 2, 3), wrote("x", 1, 13, false, 4, 5), read("x", 2, 12, 6, 7)}},
		"at once":        {accesses: []*access{wrote("x", 1, 11, true, 0, 9), wrote("y", 2, 12, true, 0, 9), read("z", 1, 11, 1, 8)}},
		"in time":        {calls: []*call{called("x", time.Second, 0, 2900)}},
		"paused in call": {calls: []*call{called("x", time.Second, 0, 6900)}, pauses: []span{{"x", at(500), at(4600)}}},
		"soon after all": {healed: []instant{at(10)}, holds: []*hold{held("x", 1, 29_000, 29_001)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, verdict := found(t, r)
			require.Equal(t, clean, verdict)
			require.True(t, f.clean())
		})
	}
}

func TestHistoriesThatAreWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record
		verdict string
		what    string
	}{
		"overlap": {
			record{holds: []*hold{held("x", 1, 0, 20), held("y", 2, 19, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", `lock "a" was held twice for 1ms at 0.019s: by x, `,
		},
		"overlap within a process": {
			record{holds: []*hold{held("x", 1, 0, 20), held("x", 2, 19, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "was held twice",
		},
		"overlap with one before the last": {
			record{holds: []*hold{held("x", 1, 0, 50), held("y", 2, 60, 70), held("z", 3, 61, 62), held("y", 4, 69, 80)}},
			"violations=2 leaked_nodes=0 stuck_waiters=0", "was held twice",
		},
		"token that stays": {
			record{holds: []*hold{held("x", 2, 0, 10), held("y", 2, 20, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the token did not grow: y, ",
		},
		"token that shrinks": {
			record{holds: []*hold{held("x", 2, 0, 10), held("y", 0, 12, 13), held("y", 1, 20, 30), held("y", 3, 40, 50)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the token did not grow: y, ",
		},
		"token that changes": {
			record{holds: []*hold{{process: "x", lock: "a", token: 4, inner: []int64{4, 5}, begin: at(0), end: at(9)}}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "entering again changed the token",
		},
		"old write accepted": {
			record{accesses: []*access{wrote("x", 2, 11, true, 0, 1), wrote("y", 1, 12, true, 2, 3)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "not linearizable",
		},
		"new write refused": {
			record{accesses: []*access{wrote("x", 1, 11, true, 0, 1), wrote("y", 2, 12, false, 2, 3)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "not linearizable",
		},
		"stale read": {
			record{accesses: []*access{wrote("x", 1, 11, true, 0, 1), wrote("y", 2, 12, true, 2, 3), read("x", 1, 11, 4, 5)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "not linearizable",
		},
		"never again": {
			record{healed: []instant{at(10)}, holds: []*hold{held("x", 1, 5, 6)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "nobody was granted a lock",
		},
		"accident": {
			record{accidents: []string{"x ended by itself"}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "x ended by itself",
		},
		"leaked": {
			record{left: []string{"/a/1", "/a/2"}},
			"violations=0 leaked_nodes=2 stuck_waiters=0", "",
		},
		"stuck": {
			record{calls: []*call{called("x", time.Second, 0, 3001)}, pauses: []span{{"y", at(0), at(2000)}, {"x", at(4000), at(5000)}}},
			"violations=0 leaked_nodes=0 stuck_waiters=1", "",
		},
		"hanging": {
			record{hanging: []string{"x"}},
			"violations=0 leaked_nodes=0 stuck_waiters=1", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, verdict := found(t, c.record)
			require.Equal(t, c.verdict, verdict)
			require.False(t, f.clean())
			if c.what != "" {
				require.Contains(t, f.violations[0], c.what)
			}
		})
	}
}

// Who is paused can not notice a loss. It has until a moment after the pause.
func TestOverlapsAreExcusedOnlyWhileTheOlderHolderIsPaused(t *testing.T) {
	t.Parallel()
	pause := span{"x", at(1000), at(5000)}
	for name, c := range map[string]struct {
		holds   []*hold
		excused int
	}{
		"in the pause":            {[]*hold{held("x", 1, 0, 5200), held("y", 2, 4000, 5300)}, 1},
		"with several":            {[]*hold{held("x", 1, 0, 5200), held("y", 2, 4000, 4300), held("z", 3, 4400, 4500)}, 2},
		"granted, then paused":    {[]*hold{held("y", 2, 4000, 5300), held("x", 1, 5001, 5010)}, 1},
		"the same, of no token":   {[]*hold{held("y", 2, 4000, 5300), held("x", 0, 5001, 5010)}, 1},
		"before the pause":        {[]*hold{held("x", 1, 0, 5200), held("y", 2, 999, 5300)}, 0},
		"too long after it":       {[]*hold{held("x", 1, 0, 5251), held("y", 2, 4000, 5300)}, 0},
		"the newer one is paused": {[]*hold{held("y", 1, 0, 2000), held("x", 2, 1500, 3000)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := found(t, record{holds: c.holds, pauses: []span{pause}})
			require.Equal(t, c.excused, f.excused)
			require.Equal(t, c.excused > 0, f.clean())
		})
	}
}
