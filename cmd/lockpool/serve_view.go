package main

// This file has what the page of serve says, for the template and, as JSON, for the script.
// Other clients may have chosen any text in it.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/lockpool/lockpool"
)

// Bounds of the page.
const (
	maxRows       = 1000
	maxRowBytes   = 512 << 10 // of the names in all rows
	maxContenders = 200
	maxDrawn      = 40 // parties
)

// view is the page: of the list, or of a lock. Charts are the last hour of the lock. Boxes and
// arrows are the graph of who waits for whom; each box has the same in words.
type view struct {
	Title, More, Undrawn                            string // More and Undrawn say what is left out
	Locks, Contenders, Charts, Boxes, Arrows, Costs []row
	Width, Height                                   int
}

// row is what the page shows of something, by the names in the template. The row is known by
// the key.
type row map[string]string

// view returns the page as it is now.
func (h *hub) view(lock string, now time.Time) view {
	h.mu.Lock()
	s, hour := h.latest, slices.Clone(h.past[lock])
	h.mu.Unlock()
	v := view{}
	if lock != "" {
		v.show(lock, s, h.trace, hour, now)
		return v
	}
	s.queues = slices.Clone(s.queues)
	slices.SortFunc(s.queues, func(a, b lockpool.Queue) int {
		return cmp.Or(cmp.Compare(costOf(b, now), costOf(a, now)), byContention(a, b))
	})
	which, size := "", 0
	if h.prefix != "" {
		which = " below " + quoted(h.prefix)
	}
	v.Title = s.title(s.queues, which, now)
	v.draw(s, now)
	lines := insightLines(s.costs.Insights)
	if s.costs.err != nil {
		lines = []string{oneLine(s.costs.err)}
	}
	for i, line := range lines {
		v.Costs = append(v.Costs, row{"key": strconv.Itoa(i), "text": line})
	}
	for i, q := range s.queues {
		r := rowOf(q, now)
		if size += len(r["key"] + r["name"] + r["holder"]); i == maxRows || size > maxRowBytes {
			v.More = fmt.Sprintf("%d more are not shown; give lockpool serve a prefix.", len(s.queues)-i)
			break
		}
		v.Locks = append(v.Locks, r)
	}
	return v
}

func rowOf(q lockpool.Queue, now time.Time) row {
	sum := summarize(q)
	r := row{
		"key": "/?lock=" + url.QueryEscape(q.Name), "name": quoted(q.Name), "cost": "-", // the key is the link
		"waiters": strconv.Itoa(sum.waiters), "waiting": waitedFor(now, sum.waited),
		"holders": strconv.Itoa(sum.holders), "held": sum.heldFor(now),
	}
	if sum.waiters > 0 {
		r["cost"] = waitedFor(now, now.Add(-costOf(q, now)))
	}
	if held := holders(q); len(held) > 0 {
		r["holder"] = who(held[0])
	}
	return r
}

// show sets what the page of a lock shows.
func (v *view) show(lock string, s survey, trace string, hour []point, now time.Time) {
	q := lockpool.Queue{Name: lock}
	if i := slices.IndexFunc(s.queues, func(q lockpool.Queue) bool { return q.Name == lock }); i >= 0 {
		q = s.queues[i]
	}
	all, sum := contenders(&q), summarize(q)
	v.Title = fmt.Sprintf("%s: %s, %s", quoted(lock), count(sum.holders, "holder"), count(sum.waiters, "waiter"))
	if s.err != nil {
		v.Title += ", seen " + waitedFor(now, s.began) + " ago: " + oneLine(s.err)
	}
	if more := len(all) - maxContenders; more > 0 {
		v.More, all = fmt.Sprintf("%d more wait.", more), all[:maxContenders]
	}
	for i, c := range all {
		r := row{
			"key": c.Node, "who": who(c), "does": "waits (" + kindOf(c) + ")", "since": waitedFor(now, c.Asked), "at": printable(c.At),
			"revoke": revoking.ask(lock, c), "break": breaking.ask(lock, c),
		}
		if c.Holds {
			r["does"], r["since"] = "holds ("+kindOf(c)+usually(s.costs.Usual(lock))+")", heldFor(now, heldSince(c))
		} else {
			r["since"] += left(s.costs.Left(q, i, now))
		}
		if m := traceparent.FindStringSubmatch(c.Trace); m != nil {
			r["trace"] = strings.ReplaceAll(trace, "{trace}", m[1])
		}
		v.Contenders = append(v.Contenders, r)
	}
	waiters, most := pathOf(hour, now, func(p point) uint32 { return p.waiters })
	waiting, longest := pathOf(hour, now, func(p point) uint32 { return p.seconds })
	v.Charts = []row{
		{"key": "waiters", "path": waiters, "text": fmt.Sprintf("Waiters in the last hour: at most %d", most)},
		{"key": "waiting", "path": waiting, "text": "Longest wait in the last hour: " + since("", now, now.Add(-time.Duration(longest)*time.Second))},
	}
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// columnsOf returns the parties to draw, each with the length of the longest chain of waits
// from there: those in deadlocks, the first two waiters for each lock, and the parties in their
// way. A cycle ends where it began.
func columnsOf(s survey, f *forest) map[int]int {
	columns := map[int]int{}
	var visit func(i int) int
	visit = func(i int) int {
		if _, begun := columns[i]; !begun && len(columns) < maxDrawn {
			columns[i] = 0
			for _, other := range s.graph.Parties[i].For {
				columns[i] = max(columns[i], visit(other)+1)
			}
		}
		return columns[i]
	}
	for _, i := range slices.Concat(s.graph.Deadlocks...) {
		visit(i)
	}
	for _, q := range s.queues {
		all, n := contenders(&q), len(holders(q))
		for _, c := range all[n:min(len(all), n+2)] {
			for _, i := range f.parties[position{q.Name, c.Node}] {
				visit(i)
			}
		}
	}
	return columns
}

// draw draws the graph: a column for each number of waits in a row.
func (v *view) draw(s survey, now time.Time) {
	const width, height, gapX, gapY, margin = 220, 44, 60, 16, 24
	f, filled := newForest(s.graph, s.costs.Insights), map[int]int{}
	columns, at, undrawn := columnsOf(s, f), map[int][2]int{}, 0
	for i, p := range s.graph.Parties {
		column, drawn := columns[i]
		if !drawn {
			undrawn += min(len(p.For), 1)
			continue
		}
		x, y := margin+column*(width+gapX), margin+filled[column]*(height+gapY)
		does := ""
		if p.Wait != nil {
			does = fmt.Sprintf("waits %s for %s", waitedFor(now, p.Wait.Asked), quoted(p.Wait.Lock))
		} else {
			does = "holds " + quoted(p.Holds[0].Lock)
		}
		r := row{
			"key": strconv.Itoa(i), "x": strconv.Itoa(x), "y": strconv.Itoa(y),
			"who": ansi.Truncate(nameOf(p), 30, "…"), "does": ansi.Truncate(does, 32, "…"), "text": nameOf(p) + " " + does,
		}
		for n, other := range p.For {
			r["text"] += [2]string{", behind ", " and "}[min(n, 1)] + nameOf(s.graph.Parties[other])
		}
		if f.deadlocked[i] {
			r["class"], r["text"] = "deadlock", r["text"]+": deadlock"
		}
		filled[column]++
		at[i], v.Boxes = [2]int{x, y}, append(v.Boxes, r)
		v.Width, v.Height = max(v.Width, x+width+margin), max(v.Height, y+height+margin)
	}
	if undrawn > 0 {
		v.Undrawn = count(undrawn, "more waiter") + " not drawn."
	}
	for i, from := range at {
		for _, other := range s.graph.Parties[i].For {
			if to, drawn := at[other]; drawn {
				x, y, toX, toY, bend := from[0], from[1]+height/2, to[0]+width, to[1]+height/2, 0
				if toX > x { // back, below the boxes
					bend = height
				}
				r := row{"key": fmt.Sprint(i, other), "path": fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x, y, x-gapX, y+bend, toX+gapX, toY+bend, toX, toY)}
				if f.deadlocked[i] && f.deadlocked[other] {
					r["class"] = "deadlock"
				}
				v.Arrows = append(v.Arrows, r)
			}
		}
	}
	slices.SortFunc(v.Arrows, func(a, b row) int { return cmp.Compare(a["key"], b["key"]) }) // the same each time
}

// nameOf names a party.
func nameOf(p lockpool.Party) string {
	if p.Wait != nil {
		return who(*p.Wait)
	}
	return who(p.Holds[0])
}

// cached is the list as JSON, of a second and between two changes.
type cached struct {
	text    []byte
	second  int64
	changed chan struct{}
}

// update returns the page as JSON, and a channel that is closed at the next change.
func (h *hub) update(lock string, now time.Time) ([]byte, <-chan struct{}) {
	h.mu.Lock()
	list, changed := h.list, h.changed
	h.mu.Unlock()
	if lock == "" && list.changed == changed && list.second == now.Unix() {
		return list.text, changed
	}
	text, err := json.Marshal(h.view(lock, now))
	if err != nil {
		panic(err) // only texts and numbers
	}
	if lock == "" {
		h.mu.Lock()
		h.list = cached{text, now.Unix(), changed}
		h.mu.Unlock()
	}
	return text, changed
}
