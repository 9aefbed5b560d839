package shop

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/examples/internal/spans"
)

const spanWork = "quickstart.work" // of the work under a lock

const axisWidth = 32 // makes lines shorter than 80 characters

// waterfall draws a line for every request for a lock, all on one time axis.
func waterfall(all []spans.Span) string {
	// Sort spans by their start, because in a trace the wait is part of the
	// request and drawn over it, and the work follows both.
	all = slices.DeleteFunc(slices.Clone(all), func(s spans.Span) bool { return marks[s.Name] == 0 })
	slices.SortStableFunc(all, func(a, b spans.Span) int { return a.Start.Compare(b.Start) })
	if len(all) == 0 {
		return ""
	}
	begin := all[0].Start
	end := slices.MaxFunc(all, func(a, b spans.Span) int { return a.End.Compare(b.End) }).End
	axis := spans.Axis{Begin: begin, Total: end.Sub(begin), Width: axisWidth}

	var b strings.Builder
	fmt.Fprintf(&b, "%-8s  %-9s  %s\n", "service", "lock", axis.Scale())
	for _, request := range all {
		if request.Name != spans.Acquire {
			continue
		}
		row := axis.NewRow()
		var waited time.Duration
		var holdBegan time.Time
		for _, s := range all {
			if s.Trace != request.Trace {
				continue
			}
			switch s.Name {
			case spans.Wait:
				waited = s.Duration()
			case spanWork: // the lock is held between two works, too
				if holdBegan.IsZero() {
					holdBegan = s.Start
				}
				s.Start = holdBegan
			}
			axis.Draw(row, &s, marks[s.Name])
		}
		fmt.Fprintf(&b, "%-8s  %-9s  %s  waited %4d ms  %s\n", request.Service, request.Attrs[spans.KeyLock],
			string(row), waited.Milliseconds(), request.Attrs[spans.KeyOutcome])
	}
	fmt.Fprintf(&b, "%21s░ waits   █ holds   · neither\n", "")
	return b.String()
}

var marks = map[string]rune{spans.Acquire: '·', spans.Wait: '░', spanWork: '█'}
