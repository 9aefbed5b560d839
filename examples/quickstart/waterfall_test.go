package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWaterfall(t *testing.T) {
	t.Parallel()
	// 32 columns for 3.2 s make 100 ms a column.
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }
	asked := func(service, trace, outcome string, from, to int) span {
		return span{service, trace, spanAcquire, "orders/42", outcome, at(from), at(to)}
	}
	waited := func(service, trace, outcome string, from, to int) span {
		return span{service, trace, spanWait, "orders/42", outcome, at(from), at(to)}
	}
	held := func(service, trace string, from, to int) span {
		return span{service, trace, spanHold, "orders/42", "", at(from), at(to)}
	}
	const (
		header = "who       lock       0 s                        3.2 s\n"
		legend = "                     ░ waits   █ holds   · neither\n"
	)
	for _, test := range []struct {
		name  string
		spans []span
		want  string
	}{
		{"nothing", nil, ""},
		{"nothing about locks", []span{{Service: "billing", Trace: "a", Name: "charge", Start: at(0), End: at(9)}}, ""},
		{
			"a hand-over, in whatever order the spans come", []span{
				held("shipping", "b", 1600, 3200),
				asked("shipping", "b", "acquired", 200, 1600),
				waited("shipping", "b", "acquired", 210, 1600),
				{Service: "billing", Trace: "a", Name: "charge", Start: at(-100), End: at(1700)},
				held("billing", "a", 10, 1600),
				asked("billing", "a", "acquired", 0, 10),
			}, header +
				"billing   orders/42  ████████████████                  waited    0 ms  acquired\n" +
				"shipping  orders/42    ░░░░░░░░░░░░░░████████████████  waited 1390 ms  acquired\n" + legend,
		},
		{
			"those who did not get it", []span{
				asked("billing", "a", "acquired", 0, 100),
				held("billing", "a", 100, 1000), held("billing", "a", 1000, 3200), // two in one trace
				asked("refunds", "b", "busy", 400, 405),
				asked("refunds", "c", "timeout", 500, 1060),
				waited("refunds", "c", "timeout", 600, 1000),
			}, header +
				"billing   orders/42  ·███████████████████████████████  waited    0 ms  acquired\n" +
				"refunds   orders/42      ·                             waited    0 ms  busy\n" +
				"refunds   orders/42       ·░░░░·                       waited  400 ms  timeout\n" + legend,
		},
		{
			"what is too short for a column gets one, also at the end", []span{
				asked("billing", "a", "acquired", 0, 10),
				held("billing", "a", 10, 3190),
				asked("shipping", "b", "acquired", 100, 3190),
				waited("shipping", "b", "acquired", 100, 3190),
				held("shipping", "b", 3190, 3200),
			}, header +
				"billing   orders/42  ████████████████████████████████  waited    0 ms  acquired\n" +
				"shipping  orders/42   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░█  waited 3090 ms  acquired\n" + legend,
		},
		{
			"no time at all", []span{asked("billing", "a", "busy", 0, 0)},
			strings.ReplaceAll(header, "3.2", "0.0") +
				"billing   orders/42  ·                                 waited    0 ms  busy\n" + legend,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := waterfall(test.spans)
			require.Equal(t, test.want, got)
			for line := range strings.Lines(got) {
				require.Less(t, len([]rune(strings.TrimSpace(line))), 80)
			}
		})
	}
}
