package shop

// This file draws which service waited for the lock, and for how long.

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/examples/internal/spans"
	"github.com/lockpool/lockpool/testing/waterfall"
)

const spanWork = "quickstart.work" // of the work under a lock

// marks are the names of the drawn spans, in the order of the chart's marks.
var marks = []string{spans.Wait, spanWork, spans.Acquire}

// draw draws a line for every request for a lock, all on one time axis.
func draw(all []spans.Span) string {
	// Sort spans by their start, because in a trace the wait is part of the
	// request and drawn over it, and the work follows both.
	all = slices.DeleteFunc(slices.Clone(all), func(s spans.Span) bool { return !slices.Contains(marks, s.Name) })
	slices.SortStableFunc(all, func(a, b spans.Span) int { return a.Start.Compare(b.Start) })
	if len(all) == 0 {
		return ""
	}
	begin := all[0].Start
	end := slices.MaxFunc(all, func(a, b spans.Span) int { return a.End.Compare(b.End) }).End
	c := waterfall.Chart{
		Columns: []waterfall.Column{{Name: "service", Width: 8}, {Name: "lock", Width: 9}},
		Width:   32, // makes lines shorter than 80 characters
		Total:   end.Sub(begin),
		Marks:   []waterfall.Mark{{Rune: '░', Name: "waits"}, {Rune: '█', Name: "holds"}, {Rune: '·', Name: "neither"}},
	}
	for _, request := range all {
		if request.Name != spans.Acquire {
			continue
		}
		row := waterfall.Row{Cells: []string{request.Service, request.Attrs[spans.KeyLock]}}
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
			row.Bars = append(row.Bars, waterfall.Bar{Mark: slices.Index(marks, s.Name), Begin: s.Start.Sub(begin), End: s.End.Sub(begin)})
		}
		row.After = fmt.Sprintf("waited %4d ms  %s", waited.Milliseconds(), request.Attrs[spans.KeyOutcome])
		c.Rows = append(c.Rows, row)
	}
	return c.Text()
}
