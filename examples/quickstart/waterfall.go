package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Names of spans and attributes, those of lockpool and one of our own.
const (
	spanAcquire = "lockpool.lock.acquire" // asking for a lock
	spanWait    = "lockpool.lock.wait"    // the part of it spent behind others
	spanHold    = "quickstart.hold"

	keyLock    = "lockpool.lock.name"
	keyOutcome = "lockpool.lock.outcome" // acquired, busy, timeout, ...
)

// span is what the waterfall needs of a finished span.
type span struct {
	Service, Trace, Name string
	Lock, Outcome        string
	Start, End           time.Time
}

func newSpan(service string, s sdktrace.ReadOnlySpan) *span {
	short := &span{Service: service, Trace: s.SpanContext().TraceID().String(), Name: s.Name(),
		Start: s.StartTime(), End: s.EndTime()}
	for _, attr := range s.Attributes() {
		switch attr.Key {
		case keyLock:
			short.Lock = attr.Value.AsString()
		case keyOutcome:
			short.Outcome = attr.Value.AsString()
		}
	}
	return short
}

var drawn = []string{spanAcquire, spanWait, spanHold}

const axisWidth = 32 // such that lines are less than 80 wide

// waterfall draws a line for every lock asked for, all on one axis of time.
func waterfall(spans []span) string {
	// Only the spans of asking, waiting and holding. By start, because in a trace one thing comes
	// after the other: asking, as part of it waiting, and then holding.
	spans = slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return !slices.Contains(drawn, s.Name) })
	slices.SortStableFunc(spans, func(a, b span) int { return a.Start.Compare(b.Start) })
	if len(spans) == 0 {
		return ""
	}
	begin := spans[0].Start
	total := slices.MaxFunc(spans, func(a, b span) int { return a.End.Compare(b.End) }).End.Sub(begin)
	column := func(t time.Time) int {
		return int(math.Round(axisWidth * t.Sub(begin).Seconds() / max(total, 1).Seconds()))
	}

	var b strings.Builder
	end := fmt.Sprintf("%.1f s", total.Seconds())
	fmt.Fprintf(&b, "%-8s  %-9s  0 s%*s\n", "who", "lock", axisWidth-len("0 s"), end)
	for _, asked := range spans {
		if asked.Name != spanAcquire {
			continue
		}
		bar := slices.Repeat([]rune{' '}, axisWidth)
		var waited time.Duration
		for _, s := range spans {
			if s.Trace != asked.Trace {
				continue
			}
			mark := '·'
			switch s.Name {
			case spanWait:
				mark = '░'
				waited = s.End.Sub(s.Start)
			case spanHold:
				mark = '█'
			}
			from := min(column(s.Start), axisWidth-1)
			for i := from; i < max(column(s.End), from+1); i++ { // at least one, to be seen
				bar[i] = mark
			}
		}
		fmt.Fprintf(&b, "%-8s  %-9s  %s  waited %4d ms  %s\n",
			asked.Service, asked.Lock, string(bar), waited.Milliseconds(), asked.Outcome)
	}
	fmt.Fprintf(&b, "%21s░ waits   █ holds   · neither\n", "")
	return b.String()
}
