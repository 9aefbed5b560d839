package workload

// This file tests the checks of what holders are told.

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A stop of a machine, unknown to the servers: they end the session at 30 s.
var stopped = []Span{{"stop a machine: x", at(20_000), at(40_000)}}

func TestPromisesAreChecked(t *testing.T) {
	t.Parallel()
	const order = 7
	ended := []SessionEnd{{At: at(30_000), Orders: []int64{order}}}
	forced := []SessionEnd{{At: at(30_000), Orders: []int64{order}, Forced: true}}
	closed := []SessionEnd{{At: at(30_000), Orders: []int64{order}, Closed: true}}
	record := func(rec Record, op string, begin, end int) Record {
		h := held("x", order<<10, 10_000, begin)
		rec.holds = append(rec.holds, h)
		rec.calls = append(rec.calls, &call{process: "x", op: op, lock: "a", limit: time.Minute, begin: at(begin), end: at(end), releases: h})
		return rec
	}
	rests := func(rec Record) Record {
		rec.calls[len(rec.calls)-1].rests = true
		return rec
	}
	plain := func(rec Record) Record {
		rec.Removals = []Removal{NewRemoval(at(30_000), "plain-0", order)}
		for _, h := range rec.holds {
			h.lock = "plain-0"
		}
		rec.calls[0].lock = "plain-0"
		return rec
	}
	withContext := func(end int, others ...*hold) Record {
		h := heldPart("x", 1, many, many, 0, 0, 10_000)
		h.contextEnd = at(end)
		return Record{holds: append([]*hold{h}, others...)}
	}
	second := held("y", 8<<10, 30_500, 33_000)
	unknown := []SessionEnd{{At: at(30_000), Orders: []int64{99}}}
	nested := func(process string) Record {
		return Record{PassesOn: []string{process}, calls: []*call{asked("x", 30_000, 36_001), asked("y", 31_001, 35_000)},
			holds: []*hold{{process: "x", lock: "b", requested: at(29_000), begin: at(29_000), end: at(31_000), portion: portion{1, 1}}}}
	}
	breaks := func(end int) Record {
		c := &call{process: "z", op: opBreak, lock: "a", limit: time.Second, begin: at(5000), end: at(5010), err: notHeld, period: order}
		return Record{holds: []*hold{held("x", order<<10, 1000, end)}, calls: []*call{c}}
	}
	duel := func(times int64, faults ...Span) Record {
		return Record{Faults: faults, calls: []*call{{process: "x", op: opDuel, limit: time.Minute, begin: at(30_000), end: at(50_000), victim: times}}}
	}
	for name, c := range map[string]struct {
		Record
		text string // of the only violation, if there is one
	}{
		"released during the stop, as far as servers know":  {record(Record{Ends: ended, Faults: stopped}, opUnlock, 29_000, 29_999), ""},
		"released after the session had ended":              {record(Record{Ends: ended, Faults: stopped}, opUnlock, 40_000, 40_000), "release: "},
		"Do after the session had ended":                    {record(Record{Ends: ended, Faults: stopped}, opDo, 40_000, 40_000), "release: "},
		"released while the session ended":                  {record(Record{Ends: ended, Faults: stopped}, opUnlock, 29_000, 40_000), "release: "},
		"rests after the session had ended":                 {rests(record(Record{Ends: ended, Faults: stopped}, opUnlock, 30_001, 30_001)), "release: "},
		"released while no clock shows the stop":            {record(Record{Ends: ended, Faults: stopped, Hidden: []Span{{"x", at(20_000), at(40_000)}}}, opUnlock, 39_000, 40_000), ""},
		"released when a clock shows the stop":              {record(Record{Ends: ended, Faults: stopped, Hidden: []Span{{"x", at(20_000), at(30_100)}}}, opUnlock, 39_000, 40_000), "release: "},
		"the client closed the session":                     {record(Record{Ends: closed, Faults: stopped}, opUnlock, 40_000, 40_000), ""},
		"a fault ended the session, and the service tells":  {record(Record{Ends: forced}, opUnlock, 30_001, 30_002), "release: "},
		"a fault ended the session while the lock is left":  {rests(record(Record{Ends: forced}, opUnlock, 30_999, 31_000)), ""},
		"a fault ended the session long before":             {rests(record(Record{Ends: forced}, opUnlock, 31_001, 31_001)), "release: "},
		"a fault, while the news cannot come":               {rests(record(Record{Ends: forced, Faults: stopped}, opUnlock, 32_999, 33_000)), ""},
		"broken while the release was under way in a fault": {record(Record{Removals: removal(30_000, order), Faults: stopped}, opUnlock, 29_999, 41_000), ""},
		"broken when the answer may be lost in a fault":     {record(Record{Removals: removal(30_000, order), Faults: stopped}, opUnlock, 31_000, 32_000), ""},
		"broken before the release in a fault":              {record(Record{Removals: removal(30_000, order), Faults: stopped}, opUnlock, 32_000, 32_001), "release: "},
		"broken before the end of Do in a fault":            {record(Record{Removals: removal(30_000, order), Faults: stopped}, opDo, 32_000, 32_001), "release: "},
		"another holder, and the node is not known":         {record(Record{Ends: unknown, Faults: stopped, holds: []*hold{second}, Pauses: []Span{{"x", at(20_000), at(40_000)}}}, opUnlock, 40_000, 40_000), "release: "},
		"a plain lock's delete meets the next node":         {plain(record(Record{holds: []*hold{held("y", 8<<10, 30_500, 33_000)}}, opUnlock, 31_999, 32_000)), ""},
		"a plain lock is deleted long after the news":       {plain(record(Record{holds: []*hold{held("y", 8<<10, 30_500, 33_000)}}, opUnlock, 32_001, 32_002)), "release: "},
		"the context ends before others share":              {withContext(10_001, heldPart("y", 2, 1, many, 0, 10_001, 20_000)), ""},
		"the context ends after others share":               {withContext(10_002, heldPart("y", 2, 1, many, 0, 10_001, 20_000)), "context: "},
		"the context of an entry goes on":                   {Record{outlived: []Span{{"x", at(5), at(5)}}}, "context: 1 contexts"},
		"overtaken while it holds another lock":             {nested("x"), "order: "},
		"overtaken without a place":                         {Record{PassesOn: []string{"x"}, calls: nested("x").calls}, ""},
		"broken contender holds":                            {breaks(6000), "break: "},
		"broken contender has gone":                         {breaks(5005), ""},
		"victim again and again":                            {duel(11), "starvation: "},
		"victim again and again beside faults":              {duel(11, stopped...), ""},
		"victim now and then":                               {duel(10), ""},
		"broken by a bystander": {
			Record{
				Broken: removal(30_000, order), holds: []*hold{lost(held("x", order<<10, 0, 30_100))},
				calls: []*call{{process: "z", op: opBreak, lock: "a", limit: time.Second, begin: at(29_990), end: at(30_010)}},
			}, "",
		},
		"removed by nobody": {Record{Broken: removal(30_000, order), holds: []*hold{lost(held("x", order<<10, 0, 30_100))}}, "loss: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := strict(c.Record)
			rec.InFlight, rec.Victims = time.Second, 10
			found := slices.DeleteFunc(Check(&rec).Violations, func(text string) bool {
				return strings.HasPrefix(text, "lease: ") || strings.HasPrefix(text, "exclusion: ") // these checks excuse the stop: see TestStrictChecks
			})
			if c.text == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Contains(t, found[0], c.text)
		})
	}
}

func TestStarvationIsMeasured(t *testing.T) {
	t.Parallel()
	rec := Record{calls: []*call{
		{op: opDuel, begin: at(0), end: at(9000)}, {op: opDuel, begin: at(0), end: at(3000), victim: 2}, {op: opDuel, begin: at(0), end: at(1000), victim: 5},
	}}
	f := Count(&rec)
	require.Equal(t, 3*time.Second, f.Starved)
	require.EqualValues(t, 5, f.Victim)
}
