package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockpool/lockpool/examples/internal/spans"
)

const axisWidth = 36

// waterfall draws a line for every lock that a request asked for, all on one time
// axis, and below it the locks and requests that the request waited for.
func waterfall(requests []*request) string {
	if len(requests) == 0 {
		return ""
	}
	begin, total := extent(requests)
	axis := spans.Axis{Begin: begin, Total: total, Width: axisWidth}
	var b strings.Builder
	fmt.Fprintf(&b, "%-9s  %-16s  %-10s  %s\n", "process", "request", "lock", axis.Scale())
	for _, r := range requests {
		service, name := r.Service, r.Name
		for _, l := range r.locks {
			row := axis.NewRow()
			axis.Draw(row, &r.Span, '·')
			if l.hold != nil {
				axis.Draw(row, l.hold, '█')
			}
			if l.wait != nil {
				axis.Draw(row, l.wait, '░')
			}
			fmt.Fprintf(&b, "%-9s  %-16s  %-10s  %s\n", service, name, l.name, strings.TrimRight(string(row), " "))
			service, name = "", "" // once for each request
			for i, line := range l.explain() {
				fmt.Fprintf(&b, "%*s%s\n", 11+2*min(i, 1), "", line)
			}
		}
	}
	fmt.Fprintf(&b, "%41s░ waits   █ holds   · the request\n", "")
	return b.String()
}

// extent returns when the first request began, and the time from then to the end
// of the last one.
func extent(requests []*request) (begin time.Time, total time.Duration) {
	begin = requests[0].Start
	for _, r := range requests {
		total = max(total, r.End.Sub(begin))
	}
	return begin, total
}

// explain returns what the request waited for, if it did.
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
	var waits, vain int
	var total time.Duration
	caused := map[*request]time.Duration{} // waits that began behind the request
	for _, r := range requests {
		for _, l := range r.locks {
			if l.wait == nil {
				continue
			}
			waits++
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
		len(requests), waits, vain, total.Milliseconds())
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
