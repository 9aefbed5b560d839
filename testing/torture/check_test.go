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
	return &hold{process: process, lock: "a", token: token, begin: at(begin), end: at(end), portion: portion{1, 1}}
}

// partly is held of some permits, asked for at a time.
func partly(process string, token int64, permits, of, asked, begin, end int) *hold {
	return &hold{process: process, lock: "a", token: token, begin: at(begin), end: at(end), asked: at(asked), portion: portion{permits, of}}
}

// revoked is a request for the lock.
func revoked(begin, end int) []*call {
	return []*call{{process: "z", op: opRevoke, lock: "a", limit: time.Second, begin: at(begin), end: at(end)}}
}

// listening is held by one who was told at a time, or never.
func listening(process string, begin, end int, heard instant) *hold {
	h := held(process, 1, begin, end)
	h.listens, h.told = true, heard
	return h
}

// listen lets holders listen, who are never told.
func listen(holds []*hold) []*hold {
	for _, h := range holds {
		h.listens = true
	}
	return holds
}

// continuing is a hold that was alone, and the rest of it, which is not.
func continuing(process string, token int64, begin, shared, end int) []*hold {
	rest := partly(process, token, 1, many, begin, shared, end)
	rest.granted = at(begin)
	return []*hold{partly(process, token, many, many, begin, begin, shared), rest}
}

// alternating are readers of two processes that never meet, although each asked
// while the one before was reading.
func alternating(n int) (holds []*hold) {
	for i := range n {
		holds = append(holds, partly(string(rune('x'+i%2)), int64(i+1), 1, many, 10*i-5, 10*i, 10*i+10))
	}
	return holds
}

// waited are calls for a lock that end in vain.
func waited(begin, end int) *call {
	return &call{process: "x", op: opLock, lock: "a", limit: time.Minute, begin: at(begin), end: at(end), err: "timeout", portion: portion{1, 1}}
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
		"readers":        {holds: []*hold{partly("x", 1, 1, many, 0, 1, 30), partly("y", 2, 1, many, 0, 2, 20), partly("z", 3, many, many, 0, 30, 40)}},
		"permits":        {holds: []*hold{partly("x", 1, 1, 3, 0, 1, 30), partly("y", 2, 2, 3, 0, 2, 20), partly("z", 3, 2, 3, 0, 20, 40), partly("x", 4, 3, 3, 0, 40, 50)}},
		"seen late":      {holds: []*hold{partly("y", 2, 1, 3, 0, 5, 10), partly("x", 1, 1, 3, 0, 11, 30)}},
		"goes on":        {holds: append(continuing("x", 1, 0, 10, 20), partly("y", 2, 1, many, 0, 10, 30), partly("z", 3, many, many, 0, 30, 40))},
		"told":           {holds: []*hold{listening("x", 0, 9000, at(3100))}, calls: revoked(90, 100)},
		"let go":         {holds: []*hold{listening("x", 0, 3100, never)}, calls: revoked(90, 100)},
		"came later":     {holds: []*hold{listening("x", 91, 9000, never)}, calls: revoked(90, 100)},
		"told before":    {holds: []*hold{listening("x", 0, 9000, at(10))}, calls: revoked(90, 100)},
		"listens not":    {holds: []*hold{held("x", 1, 0, 9000)}, calls: revoked(90, 100)},
		"paused":         {holds: []*hold{listening("x", 0, 9000, at(6000))}, calls: revoked(90, 100), pauses: []span{{"x", at(1000), at(5000)}}},
		"held for long":  {holds: []*hold{held("x", 1, 0, 90_000)}, calls: []*call{waited(0, 50_000)}},
		"free for long":  {holds: []*hold{held("x", 1, 0, 10)}, calls: []*call{waited(0, 29_000)}},
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
		"reader and writer": {
			record{holds: []*hold{partly("x", 1, 1, many, 0, 0, 20), partly("y", 2, many, many, 0, 19, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", `lock "a" was held twice for 1ms at 0.019s: by x, goroutine 0, token 0x1, reading`,
		},
		"writer and readers": {
			record{holds: []*hold{partly("x", 1, many, many, 0, 0, 20), partly("y", 2, 1, many, 0, 18, 30), partly("z", 3, 1, many, 0, 19, 30)}},
			"violations=2 leaked_nodes=0 stuck_waiters=0", "was held twice for 2ms",
		},
		"who goes on reading, and a writer": {
			record{holds: append(continuing("x", 1, 0, 10, 20), partly("z", 2, many, many, 0, 19, 40))},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "was held twice",
		},
		"reader before it was shared": {
			record{holds: append(continuing("x", 1, 0, 10, 20), partly("y", 2, 1, many, 0, 9, 40))},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "was held twice",
		},
		"too many permits": {
			record{holds: []*hold{partly("x", 1, 1, 3, 0, 0, 20), partly("y", 2, 1, 3, 0, 1, 20), partly("x", 3, 2, 3, 0, 19, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", `lock "a" was held 3 times for 1ms at 0.019s: by x, goroutine 0, token 0x1, 1 of 3 permits`,
		},
		"token of a writer that is not above a reader's": {
			record{holds: []*hold{partly("x", 5, 1, many, 0, 0, 10), partly("y", 4, many, many, 0, 20, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the token did not grow: y, ",
		},
		"token of a reader that is not above a writer's": {
			record{holds: []*hold{partly("x", 5, many, many, 0, 0, 10), partly("y", 5, 1, many, 0, 20, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the token did not grow: y, ",
		},
		"token of permits that is not above earlier ones": {
			record{holds: []*hold{partly("x", 5, 1, 3, 0, 0, 100), partly("y", 4, 1, 3, 1, 20, 30)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the token did not grow: y, ",
		},
		"readers that never meet": {
			record{holds: alternating(enough + 1)},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "was never held by two at once, although 50",
		},
		"told too late": {
			record{holds: []*hold{listening("x", 0, 9000, at(3101))}, calls: revoked(90, 100)},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the holder was not told",
		},
		"never told": {
			record{holds: []*hold{listening("x", 0, 3101, never)}, calls: revoked(90, 100)},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the holder was not told",
		},
		"asked for before it was shared": {
			record{holds: listen(continuing("x", 1, 0, 1000, 9000)), calls: revoked(90, 100)},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "the holder was not told",
		},
		"taken by force": {
			record{holds: []*hold{listening("x", 0, 9000, at(100)), held("y", 2, 200, 300)}, calls: revoked(90, 100)},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "was held twice",
		},
		"removed by nobody": {
			record{calls: []*call{{process: "x", op: opUnlock, lock: "a", limit: time.Second, begin: at(0), end: at(1), err: removed}}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "nobody gave cause",
		},
		"other kind": {
			record{calls: []*call{{process: "x", op: opLock, lock: "a", limit: time.Second, begin: at(0), end: at(1), err: "kind_mismatch"}}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "nobody gave cause",
		},
		"error that says something else": {
			record{calls: []*call{{process: "x", op: opLock, lock: "a", limit: time.Second, begin: at(0), end: at(1), err: "no node after 10 tries"}}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "nobody gave cause",
		},
		"free and not granted": {
			record{holds: []*hold{held("x", 1, 0, 10)}, calls: []*call{waited(0, 20_000), waited(20_000, 50_000)}},
			"violations=1 leaked_nodes=0 stuck_waiters=0", "was free and granted to nobody for 1m39.99s",
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
		"in the pause":                       {[]*hold{held("x", 1, 0, 5200), held("y", 2, 4000, 5300)}, 1},
		"with several":                       {[]*hold{held("x", 1, 0, 5200), held("y", 2, 4000, 4300), held("z", 3, 4400, 4500)}, 2},
		"granted, then paused":               {[]*hold{held("y", 2, 4000, 5300), held("x", 1, 5001, 5010)}, 1},
		"the same, of no token":              {[]*hold{held("y", 2, 4000, 5300), held("x", 0, 5001, 5010)}, 1},
		"before the pause":                   {[]*hold{held("x", 1, 0, 5200), held("y", 2, 999, 5300)}, 0},
		"too long after it":                  {[]*hold{held("x", 1, 0, 5251), held("y", 2, 4000, 5300)}, 0},
		"permits":                            {[]*hold{partly("x", 1, 2, 3, 0, 0, 5200), partly("y", 2, 1, 3, 0, 0, 5300), partly("z", 3, 2, 3, 0, 4000, 6000)}, 1},
		"permits, and others are too many":   {[]*hold{partly("x", 1, 1, 3, 0, 0, 5200), partly("y", 2, 2, 3, 0, 0, 5300), partly("z", 3, 2, 3, 0, 4000, 6000)}, 0},
		"reading":                            {[]*hold{partly("x", 1, 1, many, 0, 0, 5200), partly("y", 2, many, many, 0, 4000, 5300)}, 1},
		"reading, and another is not paused": {[]*hold{partly("x", 1, 1, many, 0, 0, 5200), partly("y", 2, 1, many, 0, 0, 4001), partly("z", 3, many, many, 0, 4000, 5300)}, 0},
		"the newer one is paused":            {[]*hold{held("y", 1, 0, 2000), held("x", 2, 1500, 3000)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := found(t, record{holds: c.holds, pauses: []span{pause}})
			require.Equal(t, c.excused, f.excused)
			require.Equal(t, c.excused > 0, f.clean())
		})
	}
}
