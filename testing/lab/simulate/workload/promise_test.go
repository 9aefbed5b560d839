package workload

// This file tests the checks of what holders are told.

import (
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
	unknown := []SessionEnd{{At: at(30_000), Orders: []int64{99}}}
	released := func(op string, begin, end int) []any {
		h := held("x", order<<10, 10_000, begin)
		return []any{h, &call{process: "x", op: op, lock: "a", limit: time.Minute, begin: at(begin), end: at(end), releases: h}}
	}
	resting := func(begin, end int) []any {
		parts := released(opUnlock, begin, end)
		parts[1].(*call).rests = true
		return parts
	}
	plain := func(begin, end int) []any {
		parts, second := released(opUnlock, begin, end), held("y", 8<<10, 30_500, 33_000)
		parts[0].(*hold).lock, parts[1].(*call).lock, second.lock = "plain-0", "plain-0", "plain-0"
		return append(parts, second, []Removal{NewRemoval(at(30_000), "plain-0", order)})
	}
	hidden := func(end int) Record { return Record{Hidden: []Span{{"x", at(20_000), at(end)}}} }
	withContext := func(end int) *hold {
		h := heldPart("x", 1, many, many, 0, 0, 10_000)
		h.contextEnd = at(end)
		return h
	}
	passes := Record{PassesOn: []string{"x"}}
	overtaken := []*call{asked("x", 30_000, 36_001), asked("y", 31_001, 35_000)}
	another := &hold{process: "x", lock: "b", requested: at(29_000), begin: at(29_000), end: at(31_000), portion: portion{1, 1}}
	breaks := &call{process: "z", op: opBreak, lock: "a", limit: time.Second, begin: at(5000), end: at(5010), err: notHeld, period: order}
	duel := func(times int64) *call {
		return &call{process: "x", op: opDuel, limit: time.Minute, begin: at(30_000), end: at(50_000), victim: times}
	}
	limits := strict
	limits.InFlight, limits.Victims = time.Second, 10
	check(t, limits, map[string]finding{
		"released during the stop, as far as servers know":  clean(released(opUnlock, 29_000, 29_999), ended, stopped),
		"released after the session had ended":              finds("release: ", released(opUnlock, 40_000, 40_000), ended, stopped),
		"Do after the session had ended":                    finds("release: ", released(opDo, 40_000, 40_000), ended, stopped),
		"released while the session ended":                  finds("release: ", released(opUnlock, 29_000, 40_000), ended, stopped),
		"rests after the session had ended":                 finds("release: ", resting(30_001, 30_001), ended, stopped),
		"released while no clock shows the stop":            clean(hidden(40_000), released(opUnlock, 39_000, 40_000), ended, stopped),
		"released when a clock shows the stop":              finds("release: ", hidden(30_100), released(opUnlock, 39_000, 40_000), ended, stopped),
		"the client closed the session":                     clean(released(opUnlock, 40_000, 40_000), closed, stopped),
		"a fault ended the session, and the service tells":  finds("release: ", released(opUnlock, 30_001, 30_002), forced),
		"a fault ended the session while the lock is left":  clean(resting(30_999, 31_000), forced),
		"a fault ended the session long before":             finds("release: ", resting(31_001, 31_001), forced),
		"a fault, while the news cannot come":               clean(resting(32_999, 33_000), forced, stopped),
		"broken while the release was under way in a fault": clean(released(opUnlock, 29_999, 41_000), removal(30_000, order), stopped),
		"broken when the answer may be lost in a fault":     clean(released(opUnlock, 31_000, 32_000), removal(30_000, order), stopped),
		"broken, and the next answer is late in a fault":    clean(released(opUnlock, 31_000, 33_000), removal(30_000, order), stopped),
		"broken before the release in a fault":              finds("release: ", released(opUnlock, 32_000, 32_001), removal(30_000, order), stopped),
		"broken before the end of Do in a fault":            finds("release: ", released(opDo, 32_000, 32_001), removal(30_000, order), stopped),
		"another holder, and the node is not known":         finds("release: ", released(opUnlock, 40_000, 40_000), held("y", 8<<10, 30_500, 33_000), unknown, stopped, pause("x", 20_000, 40_000)),
		"a plain lock's delete meets the next node":         clean(plain(31_999, 32_000)),
		"a plain lock is deleted long after the news":       finds("release: ", plain(32_001, 32_002)),
		"the context ends before others share":              clean(withContext(10_001), heldPart("y", 2, 1, many, 0, 10_001, 20_000)),
		"the context ends after others share":               finds("context: ", withContext(10_002), heldPart("y", 2, 1, many, 0, 10_001, 20_000)),
		"the context of an entry goes on":                   finds("context: 1 contexts", Record{outlived: []Span{{"x", at(5), at(5)}}}),
		"overtaken while it holds another lock":             finds("order: ", passes, overtaken, another),
		"overtaken without a place":                         clean(passes, overtaken),
		"broken contender holds":                            finds("break: ", held("x", order<<10, 1000, 6000), breaks),
		"broken contender has gone":                         clean(held("x", order<<10, 1000, 5005), breaks),
		"victim again and again":                            finds("starvation: ", duel(11)),
		"victim again and again beside faults":              clean(duel(11), stopped),
		"victim now and then":                               clean(duel(10)),
		"broken by a bystander":                             clean(Record{Broken: removal(30_000, order)}, lost(held("x", order<<10, 0, 30_100)), &call{process: "z", op: opBreak, lock: "a", limit: time.Second, begin: at(29_990), end: at(30_010)}),
		"removed by nobody":                                 finds("loss: ", Record{Broken: removal(30_000, order)}, lost(held("x", order<<10, 0, 30_100))),
	}, "lease: ", "exclusion: ") // these checks excuse the stop: see TestStrictChecks
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
