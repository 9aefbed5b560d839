package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const axisWidth = 36

// waterfall draws a line for every lock asked for, all on one axis of time, and
// says below it what it waited for.
func waterfall(requests []*request) string {
	if len(requests) == 0 {
		return ""
	}
	begin, total := extent(requests)
	column := func(t time.Time) int {
		return int(math.Round(axisWidth * t.Sub(begin).Seconds() / max(total, 1).Seconds()))
	}
	var b strings.Builder
	end := fmt.Sprintf("%.1f s", total.Seconds())
	fmt.Fprintf(&b, "%-9s  %-16s  %-10s  0 s%*s\n", "process", "request", "lock", axisWidth-len("0 s"), end)
	for _, r := range requests {
		service, name := r.Service, r.Name
		for _, l := range r.locks {
			bar := slices.Repeat([]rune{' '}, axisWidth)
			draw := func(s *span, mark rune) {
				if s == nil {
					return
				}
				from := min(max(column(s.Start), 0), axisWidth-1)
				for i := from; i < min(max(column(s.End), from+1), axisWidth); i++ { // at least one, to be seen
					bar[i] = mark
				}
			}
			draw(&r.span, '·')
			draw(l.hold, '█')
			draw(l.wait, '░')
			fmt.Fprintf(&b, "%-9s  %-16s  %-10s  %s\n", service, name, l.name, strings.TrimRight(string(bar), " "))
			service, name = "", "" // once for each request
			for i, text := range l.tell() {
				fmt.Fprintf(&b, "%*s%s\n", 11+2*min(i, 1), "", text)
			}
		}
	}
	fmt.Fprintf(&b, "%41s░ waits   █ holds   · the request\n", "")
	return b.String()
}

// extent returns when the first request began, and how long it is to the end of
// the last one.
func extent(requests []*request) (begin time.Time, total time.Duration) {
	begin = requests[0].Start
	for _, r := range requests {
		total = max(total, r.End.Sub(begin))
	}
	return begin, total
}

// tell says what a lock was waited for, if it was.
func (l *lock) tell() (lines []string) {
	if l.wait == nil {
		return nil
	}
	text := fmt.Sprintf("waited %d ms for %s", l.wait.took().Milliseconds(), l.name)
	if l.outcome != "acquired" {
		text += " in vain (" + l.outcome + ")"
	}
	if len(l.behind) == 0 { // who was in the way has no spans
		if whose := l.wait.Attrs[keyWhose]; whose != "" {
			text += " behind " + whose
		}
		return []string{text}
	}
	for i, w := range l.behind {
		whose := fmt.Sprintf("behind %s in process %s (trace %s)", w.of.Name, w.of.Service, w.of.Trace)
		if i == 0 {
			lines = append(lines, text+" "+whose)
		} else {
			lines = append(lines, "and "+whose)
		}
	}
	return lines
}

// summary says what it all came to.
func summary(requests []*request) string {
	var waits, vain int
	var total time.Duration
	lost := map[*request]time.Duration{} // to others, behind this one
	for _, r := range requests {
		for _, l := range r.locks {
			if l.wait == nil {
				continue
			}
			waits++
			total += l.wait.took()
			if l.outcome != "acquired" {
				vain++
			}
			if len(l.behind) > 0 {
				lost[l.behind[0].of] += l.wait.took()
			}
		}
	}
	text := fmt.Sprintf("%d requests, %d waits, %d of them in vain: %d ms spent waiting.\n",
		len(requests), waits, vain, total.Milliseconds())
	var worst *request
	for _, r := range requests {
		if lost[r] > lost[worst] {
			worst = r
		}
	}
	if worst != nil {
		text += fmt.Sprintf("Most of it, %d ms, began behind %s in process %s (trace %s).\n",
			lost[worst].Milliseconds(), worst.Name, worst.Service, worst.Trace)
	}
	return text
}
