// Package insights finds what waiting for locks costs, and what would help, in the costs that
// pools publish.
package insights

// This file sums up the costs of pools.

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// Insights are what contention has cost, the largest costs first.
type Insights struct {
	Pools  int      `json:"pools"`
	Over   float64  `json:"over_seconds"` // the longest time of a pool
	Locks  []Lock   `json:"locks"`
	Advice []Advice `json:"advice"`

	holds map[string]time.Duration // the mean, by lock and by group
}

// Lock is what a lock has cost, or the locks of a group.
type Lock struct {
	Lock     string  `json:"lock"`    // ends with /* for a group
	Locks    int     `json:"locks"`   // that are known of a group
	Waiting  float64 `json:"waiting"` // calls at a time, on average
	Calls    float64 `json:"calls"`   // a second
	MeanWait float64 `json:"mean_wait_seconds"`
	GaveUp   float64 `json:"gave_up"` // calls a second whose deadline came before the lock
	Held     float64 `json:"held"`    // holders at a time, on average
	Lines    []Line  `json:"lines"`
}

// Line is what a line of a program has to do with the waits for a lock: the waiting calls are
// divided among the lines by the times for which they hold the lock.
type Line struct {
	At       string  `json:"at"` // empty if not known
	Waiting  float64 `json:"waiting"`
	Holds    float64 `json:"holds"` // a second
	MeanHold float64 `json:"mean_hold_seconds"`
}

// Of returns what is known of the locks whose names are a prefix, or below.
func Of(costs []lockpool.PoolCosts, prefix string) Insights {
	in := Insights{Pools: len(costs), Locks: []Lock{}, Advice: []Advice{}, holds: map[string]time.Duration{}}
	locks, told := sums{}, map[process]bool{}
	for _, p := range costs {
		for _, c := range p.Costs {
			if c.Holds > 0 && !c.Foreign {
				told[process{p.Host, p.PID, c.Lock}] = true
			}
		}
	}
	prefix = strings.TrimSuffix(prefix, "/")
	for _, p := range costs {
		in.Over = max(in.Over, p.Over.Seconds())
		for _, c := range p.Costs {
			known := c.Foreign && told[process{c.Host, c.PID, c.Lock}] // by the process itself
			if !known && (prefix == "" || c.Lock == prefix || strings.HasPrefix(c.Lock, prefix+"/")) {
				locks.add(p, nodedata.Cost(c))
			}
		}
	}
	for name, l := range locks {
		in.holds[name] = l.all.meanHold()
	}
	in.Advice = append(in.Advice, locks.advice()...)
	for name, l := range locks.grouped() {
		in.Locks, in.holds[name] = append(in.Locks, l.shown(name)), l.all.meanHold()
	}
	slices.SortFunc(in.Locks, func(a, b Lock) int { return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.Lock, b.Lock)) })
	return in
}

// Usual returns how long a lock is held in the mean, or else the locks of the lock's group, or 0 if
// that is not known.
func (in Insights) Usual(name string) time.Duration {
	return cmp.Or(in.holds[name], in.holds[parentOf(name)+"/*"])
}

// Left returns when the contender i of a queue is going to hold the lock if all before do so for
// the usual time, or 0 if that is not known. It is not known if the queue has not moved as usual.
func (in Insights) Left(q lockpool.Queue, i int, now time.Time) time.Duration {
	const doubt = 3 // times longer than usual
	usual, turns, before := in.Usual(q.Name), 0, lockpool.Contender{}
	most := doubt * time.Duration(len(q.Contenders)+1) * usual
	for n, c := range q.Contenders[:i+1] {
		first := before.Holds && !c.Holds
		switch {
		case c.Kind != "mutex" && c.Kind != "write" && c.Kind != "read", first && now.Sub(c.Asked) > most:
			return 0
		case n < i && (c.Kind != "read" || before.Kind != "read"): // readers share
			turns += 1 + c.Callers
		}
		before = c
	}
	return time.Duration(turns) * usual
}

// line is what a line costs in a second.
type line struct {
	nodedata.Cost
	ownTurns  float64       // Own of pools without local turns
	mightKeep float64       // Again of pools that keep no locks
	couldKeep time.Duration // Asked of these
}

func (l *line) add(o line, times float64) {
	within := o.Within
	if l.Inside >= o.Inside {
		within = l.Within
	}
	l.Add(&o.Cost, times)
	l.Within = within
	l.ownTurns += times * o.ownTurns
	l.mightKeep += times * o.mightKeep
	l.couldKeep += time.Duration(times * float64(o.couldKeep))
}

// process is a process with calls for a lock.
type process struct {
	host string
	pid  int
	lock string
}

// lock is what all lines of a lock cost in a second.
type lock struct {
	names map[string]bool // more than one for a group
	kinds map[string]bool
	lines map[lineKey]*line
	all   line
}

// isQueue reports whether the lock is neither a semaphore nor a plain lock.
func (l *lock) isQueue() bool { return !l.kinds["semaphore"] && !l.kinds["plain"] && !l.kinds["guard"] }

// isExclusive reports whether there are no readers either, and holders are known.
func (l *lock) isExclusive() bool {
	return l.isQueue() && !l.kinds["read"] && l.all.Holds > 0 && l.all.Held > 0
}

type lineKey struct {
	at      string
	shared  bool
	foreign bool
}

// sums are the costs of locks by name.
type sums map[string]*lock

func (s sums) of(name string) *lock {
	if s[name] == nil {
		s[name] = &lock{names: map[string]bool{}, kinds: map[string]bool{}, lines: map[lineKey]*line{}}
	}
	return s[name]
}

func (s sums) add(p lockpool.PoolCosts, c nodedata.Cost) {
	one := line{Cost: c}
	if !p.LocalTurns {
		one.ownTurns = c.Own
	}
	if !p.KeptLocks {
		one.mightKeep, one.couldKeep = c.Again, c.Asked
	}
	l := s.of(c.Lock)
	l.names[c.Lock] = true
	l.add(lineKey{c.At, c.Kind == "read", c.Foreign}, one, 1/p.Over.Seconds())
}

func (l *lock) add(key lineKey, c line, times float64) {
	l.kinds[c.Kind] = true
	if l.lines[key] == nil {
		l.lines[key] = &line{Cost: nodedata.Cost{Lock: c.Lock, Kind: c.Kind, At: c.At, Foreign: c.Foreign}}
	}
	l.lines[key].add(c, times)
	l.all.add(c, times)
}

// groupOf is how many locks below a name are shown as one.
const groupOf = 5

// grouped returns the locks, those of a group as one: orders/* for orders/1, orders/2 and so on.
func (s sums) grouped() sums {
	groups := s.groups()
	all := sums{}
	for name, l := range s {
		if parent := parentOf(name); len(groups[parent]) >= groupOf {
			name = parent + "/*"
		}
		to := all.of(name)
		maps.Copy(to.names, l.names)
		for key, c := range l.lines {
			to.add(key, *c, 1)
		}
	}
	return all
}

// groups returns the locks by what their names begin with.
func (s sums) groups() map[string][]*lock {
	groups := map[string][]*lock{}
	for name, l := range s {
		if parent := parentOf(name); parent != "" {
			groups[parent] = append(groups[parent], l)
		}
	}
	return groups
}

func parentOf(name string) string { return name[:max(0, strings.LastIndexByte(name, '/'))] }

func (l *lock) shown(name string) Lock {
	all := &l.all
	shown := Lock{
		Lock: name, Locks: len(l.names), Waiting: all.Waited.Seconds(), Calls: all.Waits + all.Asks,
		MeanWait: l.meanWait().Seconds(), GaveUp: all.GaveUp, Held: all.Held.Seconds(), Lines: []Line{},
	}
	for key, c := range l.lines {
		if c.Holds > 0 {
			shown.Lines = append(shown.Lines, Line{key.at, shown.Waiting * c.part(all), c.Holds, c.meanHold().Seconds()})
		}
	}
	slices.SortFunc(shown.Lines, func(a, b Line) int { return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(a.At, b.At)) })
	return shown
}

// part is the part of a line in the time for which the lock is held.
func (l *line) part(all *line) float64 { return ratio(float64(l.Held), float64(all.Held)) }

func (l *line) meanHold() time.Duration {
	return time.Duration(ratio(float64(l.Held), l.Holds))
}

// meanWait is the mean wait of all calls, also of those that did not wait.
func (l *lock) meanWait() time.Duration {
	return time.Duration(ratio(float64(l.all.Waited), l.all.Waits+l.all.Asks))
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
