package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool"
)

// forest knows who blocks whom in all locks of a survey.
type forest struct {
	queues []lockpool.Queue
	places map[string][]place // of each process
}

// place is where a contender stands.
type place struct {
	queue     *lockpool.Queue
	contender *lockpool.Contender
}

// processOf identifies the process of a contender, or else its session.
func processOf(c *lockpool.Contender) string {
	if c.Host == "" && c.PID == 0 {
		return c.Session
	}
	return fmt.Sprintf("%d %s", c.PID, c.Host)
}

func newForest(queues []lockpool.Queue) *forest {
	f := &forest{queues, map[string][]place{}}
	for i := range queues {
		q := &queues[i]
		for j := range q.Contenders {
			c := &q.Contenders[j]
			f.places[processOf(c)] = append(f.places[processOf(c)], place{q, c})
		}
	}
	return f
}

// elsewhere returns where the process of a contender of q stands in other queues, as a
// holder or as a waiter. If both have a trace, it must be the same: a process may
// serve many requests.
func (f *forest) elsewhere(q *lockpool.Queue, c *lockpool.Contender, holds bool) (found []place) {
	for _, p := range f.places[processOf(c)] {
		other := c.Trace != "" && p.contender.Trace != "" && traceID(c) != traceID(p.contender)
		if p.queue != q && p.contender.Holds == holds && !other {
			found = append(found, p)
		}
	}
	return found
}

// traceID returns the part of a traceparent that names the trace.
func traceID(c *lockpool.Contender) string {
	parts := strings.Split(c.Trace, "-")
	return parts[min(1, len(parts)-1)]
}

// line is a line of a tree.
type line struct {
	text      string
	contender *lockpool.Contender // of the tree's lock; nil if the line is about something else
}

// tree returns who blocks whom from the lock on: its holders, below them its waiters, and
// below each of those the waiters of the locks that it holds meanwhile.
func (f *forest) tree(q *lockpool.Queue, now time.Time) (lines []line) {
	for i := range q.Contenders {
		c := &q.Contenders[i]
		if !c.Holds {
			continue
		}
		lines = append(lines, line{fmt.Sprintf("%s holds it for %s (%s)", who(*c), heldFor(now, heldSince(*c)), kindOf(*c)), c})
		for _, p := range f.elsewhere(q, c, false) {
			lines = append(lines, line{fmt.Sprintf("  and waits for %s, which %s", quoted(p.queue.Name), heldBy(p.queue)), nil})
		}
	}
	if len(lines) == 0 {
		lines = append(lines, line{"nobody holds it", nil})
	}
	return append(lines, f.waiters(q, []*lockpool.Queue{q}, "", now)...)
}

func heldBy(q *lockpool.Queue) string {
	switch h := holders(*q); len(h) {
	case 0:
		return "nobody holds"
	case 1:
		return who(h[0]) + " holds"
	default:
		return fmt.Sprintf("%d holders have", len(h))
	}
}

// waiters returns the lines below the holders of q. path is the locks from the tree's
// root down to q.
func (f *forest) waiters(q *lockpool.Queue, path []*lockpool.Queue, indent string, now time.Time) (lines []line) {
	var waiting []*lockpool.Contender
	for i := range q.Contenders {
		if c := &q.Contenders[i]; !c.Holds {
			waiting = append(waiting, c)
		}
	}
	for i, c := range waiting {
		branch, below := "├─ ", "│  "
		if i == len(waiting)-1 {
			branch, below = "└─ ", "   "
		}
		l := line{fmt.Sprintf("%s%s%s waits for %s (%s)", indent, branch, who(*c), waitedFor(now, c.Asked), kindOf(*c)), c}
		if len(path) > 1 {
			l.contender = nil
		}
		lines = append(lines, l)
		for _, p := range f.elsewhere(q, c, true) {
			text := indent + below + "holds " + quoted(p.queue.Name)
			switch {
			case slices.Contains(path, p.queue):
				lines = append(lines, line{text + ", which is above: perhaps a deadlock", nil})
			case slices.ContainsFunc(p.queue.Contenders, func(c lockpool.Contender) bool { return !c.Holds }):
				lines = append(lines, line{text + ", which others wait for:", nil})
				lines = append(lines, f.waiters(p.queue, append(slices.Clone(path), p.queue), indent+below, now)...)
			}
		}
	}
	return lines
}
