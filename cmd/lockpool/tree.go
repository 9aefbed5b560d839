package main

// This file draws who waits for whom as a tree.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/cmd/lockpool/insights"
)

// forest knows who waits for whom in all locks of a survey.
type forest struct {
	lockpool.WaitGraph
	insights.Insights
	queues     map[string]*lockpool.Queue
	parties    map[position][]int // with a node: holders of a lock, or waiters
	deadlocked []bool             // whether each party is in a deadlock
}

// position is the place of a contender.
type position struct{ lock, node string }

func newForest(g lockpool.WaitGraph, in insights.Insights) *forest {
	f := &forest{g, in, map[string]*lockpool.Queue{}, map[position][]int{}, make([]bool, len(g.Parties))}
	for i := range g.Queues {
		f.queues[g.Queues[i].Name] = &g.Queues[i]
	}
	for i, p := range g.Parties {
		stands := slices.Clone(p.Holds)
		if p.Wait != nil {
			stands = append(stands, *p.Wait)
		}
		for _, s := range stands {
			at := position{s.Lock, s.Node}
			f.parties[at] = append(f.parties[at], i)
		}
	}
	for _, deadlock := range g.Deadlocks {
		for _, i := range deadlock {
			f.deadlocked[i] = true
		}
	}
	return f
}

// line is a line of a tree.
type line struct {
	text      string
	contender *lockpool.Contender // of the tree's lock; nil if the line is about something else
}

// tree returns who waits for whom from the lock on: the holders, below them the waiters,
// and below each waiter the waiters of the locks held by it meanwhile.
func (f *forest) tree(q *lockpool.Queue, now time.Time) (lines []line) {
	return f.treeOf(q, map[string]bool{}, now)
}

// treeOf is tree, with the locks whose waiters have been shown.
func (f *forest) treeOf(q *lockpool.Queue, shown map[string]bool, now time.Time) (lines []line) {
	for i := range q.Contenders {
		c := &q.Contenders[i]
		if !c.Holds {
			continue
		}
		lines = append(lines, line{fmt.Sprintf("%s holds it for %s (%s%s)", who(*c), heldFor(now, heldSince(*c)), kindOf(*c), usually(f.Usual(q.Name))), c})
		if c.At != "" {
			lines = append(lines, line{"  asked in " + printable(c.At), nil})
		}
		for _, p := range f.parties[position{q.Name, c.Node}] {
			wait := f.Parties[p].Wait
			if wait == nil {
				continue
			}
			text := fmt.Sprintf("  and waits for %s, which %s", quoted(wait.Lock), heldBy(f.queues[wait.Lock]))
			if f.deadlocked[p] {
				text += ": deadlock"
			}
			lines = append(lines, line{text, nil})
		}
	}
	if len(lines) == 0 {
		lines = append(lines, line{"nobody holds it", nil})
	}
	return append(lines, f.waiters(q, []string{q.Name}, shown, "", now)...)
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
func (f *forest) waiters(q *lockpool.Queue, path []string, shown map[string]bool, indent string, now time.Time) (lines []line) {
	shown[q.Name] = true
	var waiting []int
	for i, c := range q.Contenders {
		if !c.Holds {
			waiting = append(waiting, i)
		}
	}
	for n, i := range waiting {
		c, branch, below := &q.Contenders[i], "├─ ", "│  "
		if n == len(waiting)-1 {
			branch, below = "└─ ", "   "
		}
		l := line{fmt.Sprintf("%s%s%s waits for %s%s (%s)", indent, branch, who(*c), waitedFor(now, c.Asked), left(f.Left(*q, i, now)), kindOf(*c)), c}
		if len(path) > 1 {
			l.contender = nil
		}
		lines = append(lines, l)
		if c.At != "" {
			lines = append(lines, line{indent + below + "in " + printable(c.At), nil})
		}
		for _, p := range f.parties[position{q.Name, c.Node}] {
			for _, held := range f.Parties[p].Holds {
				text, of := indent+below+"holds "+quoted(held.Lock), f.queues[held.Lock]
				switch {
				case slices.Contains(path, held.Lock) && f.deadlocked[p]:
					lines = append(lines, line{text + ", which is above: deadlock", nil})
				case slices.Contains(path, held.Lock):
					lines = append(lines, line{text + ", which is above", nil})
				case !slices.ContainsFunc(of.Contenders, func(c lockpool.Contender) bool { return !c.Holds }):
				case shown[held.Lock]:
					lines = append(lines, line{text + ", whose waiters are shown above", nil})
				default:
					lines = append(lines, line{text + ", which others wait for:", nil})
					lines = append(lines, f.waiters(of, append(slices.Clone(path), held.Lock), shown, indent+below, now)...)
				}
			}
		}
	}
	return lines
}

// String returns the trees of all locks with waiters, each below the lock's name: first the
// locks whose holders wait for nothing, then the deadlocks.
func (f *forest) String(now time.Time) string {
	var b strings.Builder
	shown := map[string]bool{}
	grow := func(q *lockpool.Queue) {
		s := summarize(*q)
		if s.waiters == 0 || shown[q.Name] {
			return
		}
		fmt.Fprintf(&b, "%s: %s, %s\n", quoted(q.Name), count(s.holders, "holder"), count(s.waiters, "waiter"))
		for _, l := range f.treeOf(q, shown, now) {
			fmt.Fprintln(&b, l.text)
		}
		if s.holders > 0 {
			b.WriteString(remedies(q.Name))
		}
		b.WriteString("\n")
	}
	for i := range f.Queues {
		q := &f.Queues[i]
		if !slices.ContainsFunc(q.Contenders, func(c lockpool.Contender) bool {
			return c.Holds && slices.ContainsFunc(f.parties[position{q.Name, c.Node}], func(p int) bool { return f.Parties[p].Wait != nil })
		}) {
			grow(q)
		}
	}
	for i := range f.Queues {
		grow(&f.Queues[i])
	}
	return b.String()
}
