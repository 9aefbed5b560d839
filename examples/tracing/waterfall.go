package main

// This file draws which requests waited for which, and describes the waits in words.

import (
	"fmt"
	"time"

	"github.com/lockpool/lockpool/examples/internal/spans"
	"github.com/lockpool/lockpool/testing/waterfall"
)

// The marks of the chart.
const (
	waits = iota
	holds
	asks
)

// chart has a row for every lock asked for by a request. An arrow leads from each wait to
// the requests in the way.
func chart(requests []*request) *waterfall.Chart {
	c := &waterfall.Chart{
		Title:   "Which requests waited for which",
		Columns: []waterfall.Column{{Name: "process", Width: 9}, {Name: "request", Width: 16}, {Name: "lock", Width: 10}},
		Width:   36,
		Marks: []waterfall.Mark{
			waits: {Rune: '░', Fill: "#f6c453", Name: "waits"}, holds: {Rune: '█', Fill: "#2166ac", Name: "holds"},
			asks: {Rune: '·', Fill: "#e4e8ed", Name: "the request"},
		},
	}
	rows := map[*lock]int{}
	for _, r := range requests {
		c.Total = max(c.Total, r.End.Sub(requests[0].Start))
		service, name := r.Service, r.Name
		for _, l := range r.locks {
			row := waterfall.Row{Cells: []string{service, name, l.name}}
			bar := func(mark int, s *spans.Span, what string) {
				if s != nil {
					row.Bars = append(row.Bars, waterfall.Bar{
						Mark: mark, Begin: s.Start.Sub(requests[0].Start), End: s.End.Sub(requests[0].Start),
						Text: fmt.Sprintf("%s, %d ms", what, s.Duration().Milliseconds()),
					})
				}
			}
			bar(asks, &r.Span, r.Name+", trace "+r.Trace)
			bar(holds, l.hold, "holds "+l.name)
			bar(waits, l.wait, "waits for "+l.name)
			if l.wait != nil && l.outcome != "acquired" {
				row.After = l.outcome
			}
			for i, line := range l.explain() {
				row.Below = append(row.Below, fmt.Sprintf("%*s%s", 11+2*min(i, 1), "", line))
			}
			rows[l] = len(c.Rows)
			c.Rows = append(c.Rows, row)
			service, name = "", "" // once for each request
		}
	}
	for _, r := range requests {
		for _, l := range r.locks {
			for _, other := range l.behind {
				c.Arrows = append(c.Arrows, waterfall.Arrow{
					At: l.wait.Start.Sub(requests[0].Start), From: rows[l], To: rows[other.lock], Dashed: other.role != spans.Holder,
					Text: fmt.Sprintf("%s waited behind %s in %s", r.Name, other.of.Name, other.of.Service),
				})
			}
		}
	}
	return c
}

// explain returns what the request waited for, if anything.
func (l *lock) explain() (lines []string) {
	if l.wait == nil {
		return nil
	}
	text := fmt.Sprintf("waited %d ms for %s", l.wait.Duration().Milliseconds(), l.name)
	if l.outcome != "acquired" {
		text += " in vain (" + l.outcome + ")"
	}
	if len(l.behind) == 0 { // the spans in the way are not ours
		if owner := l.wait.Attrs[spans.KeyWaitingFor]; owner != "" {
			text += " behind " + owner
		}
		return []string{text}
	}
	for _, other := range l.behind {
		lines = append(lines, fmt.Sprintf("%s behind %s in process %s (trace %s)", text, other.of.Name, other.of.Service, other.of.Trace))
		text = "and"
	}
	return lines
}

// summary returns the totals of the waits.
func summary(requests []*request) string {
	var waited, vain int
	var total time.Duration
	caused := map[*request]time.Duration{} // waits begun behind the request
	for _, r := range requests {
		for _, l := range r.locks {
			if l.wait == nil {
				continue
			}
			waited++
			total += l.wait.Duration()
			if l.outcome != "acquired" {
				vain++
			}
			if len(l.behind) > 0 {
				caused[l.behind[0].of] += l.wait.Duration()
			}
		}
	}
	text := fmt.Sprintf("%d requests, %d waits, %d of them in vain: %d ms spent waiting.\n",
		len(requests), waited, vain, total.Milliseconds())
	var worst *request
	for _, r := range requests {
		if caused[r] > caused[worst] {
			worst = r
		}
	}
	if worst != nil {
		text += fmt.Sprintf("Most of it, %d ms, began behind %s in process %s (trace %s).\n",
			caused[worst].Milliseconds(), worst.Name, worst.Service, worst.Trace)
	}
	return text
}
