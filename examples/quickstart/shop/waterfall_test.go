package shop

// This file tests the drawing.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/examples/internal/spans"
)

func TestWaterfallHasOneLinePerRequest(t *testing.T) {
	t.Parallel()
	// With 32 columns for 3.2 s, a column stands for 100 ms.
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }
	span := func(name, service, trace, outcome string, from, to int) spans.Span {
		return spans.Span{Service: service, Trace: trace, Name: name, Start: at(from), End: at(to),
			Attrs: map[string]string{spans.KeyLock: "orders/42", spans.KeyOutcome: outcome}}
	}
	asked := func(service, trace, outcome string, from, to int) spans.Span {
		return span(spans.Acquire, service, trace, outcome, from, to)
	}
	waited := func(service, trace, outcome string, from, to int) spans.Span {
		return span(spans.Wait, service, trace, outcome, from, to)
	}
	held := func(service, trace string, from, to int) spans.Span {
		return span(spanWork, service, trace, "", from, to)
	}
	const (
		header = "service   lock       0 s                        3.2 s\n"
		legend = "                     ░ waits   █ holds   · neither\n"
	)
	for _, test := range []struct {
		name string
		all  []spans.Span
		want string
	}{
		{"no spans", nil, ""},
		{"no spans of locks", []spans.Span{{Service: "billing", Trace: "a", Name: "charge", Start: at(0), End: at(9)}}, ""},
		{
			"spans of a hand-over out of order", []spans.Span{
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
			"requests that end without the lock", []spans.Span{
				asked("billing", "a", "acquired", 0, 100),
				held("billing", "a", 100, 1000), held("billing", "a", 1200, 3200), // two in one trace
				asked("refunds", "b", "busy", 400, 405),
				asked("refunds", "c", "timeout", 500, 1060),
				waited("refunds", "c", "timeout", 600, 1000),
			}, header +
				"billing   orders/42  ·███████████████████████████████  waited    0 ms  acquired\n" +
				"refunds   orders/42      ·                             waited    0 ms  busy\n" +
				"refunds   orders/42       ·░░░░·                       waited  400 ms  timeout\n" + legend,
		},
		{
			"spans shorter than a column get one, also at the end", []spans.Span{
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
			"no time passes", []spans.Span{asked("billing", "a", "busy", 0, 0)},
			strings.ReplaceAll(header, "3.2", "0.0") +
				"billing   orders/42  ·                                 waited    0 ms  busy\n" + legend,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := draw(test.all)
			require.Equal(t, test.want, got)
			for line := range strings.Lines(got) {
				require.Less(t, len([]rune(strings.TrimSpace(line))), 80)
			}
		})
	}
}
