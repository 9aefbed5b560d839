package insights

// This file has the rules of advice. Each says what the advice would bring.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// Advice is what would help, by a rule that holds.
type Advice struct {
	Lock string  `json:"lock"`
	Rule string  `json:"rule"`
	Text string  `json:"text"`
	Now  float64 `json:"now"`  // what the advice is about, in the unit of the rule
	Then float64 `json:"then"` // if the advice is followed
	Unit string  `json:"unit"`
	Also int     `json:"also"` // other locks of the group for which the rule holds

	cost float64 // calls that wait at a time, on which the order depends
}

const (
	worthAdvice = 0.01 // calls that wait or ask at a time, on average
	leastGain   = 0.8  // is left of what the advice is about, at most
)

const (
	unitMeanWait = "seconds of the mean wait"
	unitWaiting  = "calls waiting at a time"
	unitVain     = "calls waiting in vain at a time"
	unitAsking   = "seconds of the mean request"
	unitRequests = "calls a second that ask the service"
)

// advice returns the advice of all rules, the most expensive locks first.
func (s sums) advice() (all []Advice) {
	for name, l := range s {
		if !l.isQueue() {
			continue
		}
		for _, rule := range []func(*lock) (Advice, bool){(*lock).share, (*lock).splitHold, (*lock).refuse, (*lock).keep, (*lock).takeTurns} {
			if a, ok := rule(l); ok {
				a.Lock, a.cost = name, l.all.Waited.Seconds()
				all = append(all, a)
			}
		}
	}
	for parent, group := range s.groups() {
		if a, ok := spread(parent, group); ok {
			all = append(all, a)
		}
	}
	all = slices.DeleteFunc(all, func(a Advice) bool {
		return !(a.Then <= leastGain*a.Now && a.Now > 0) || s[a.Lock].spent() < worthAdvice
	})
	slices.SortFunc(all, func(a, b Advice) int {
		return cmp.Or(cmp.Compare(b.cost, a.cost), cmp.Compare(a.Lock, b.Lock), cmp.Compare(a.Rule, b.Rule))
	})
	return s.condensed(all)
}

// condensed has the first one of the same advice for the locks of a group.
func (s sums) condensed(all []Advice) (kept []Advice) {
	groups, first := s.groups(), map[[2]string]int{}
	for _, a := range all {
		key := [2]string{a.Rule, a.Lock}
		if parent := parentOf(a.Lock); len(groups[parent]) >= groupOf {
			key[1] = parent + "/*"
		}
		if i, ok := first[key]; ok {
			kept[i].Also++
			continue
		}
		first[key] = len(kept)
		kept = append(kept, a)
	}
	return kept
}

// share is the advice for an exclusive line at a lock that others share. If the line only reads,
// the readers no longer wait for the line, nor the line for them.
func (l *lock) share() (a Advice, ok bool) {
	var most, readers, writers line
	for key, c := range l.lines {
		switch {
		case key.foreign:
			writers.add(*c, 1)
		case key.shared:
			readers.add(*c, 1)
		case c.Held > most.Held:
			writers.add(most, 1)
			most = *c
		default:
			writers.add(*c, 1)
		}
	}
	if readers.Holds < 0.1*l.all.Holds || most.part(&l.all) < 0.3 {
		return a, false
	}
	left := func(waited, held time.Duration) float64 { // of waits that were also for the line and readers
		return waited.Seconds() * ratio(float64(writers.Held), float64(writers.Held+held))
	}
	now := l.all.Waited.Seconds()
	then := left(readers.Waited, most.Held) + left(most.Waited, most.Held+readers.Held) + writers.Waited.Seconds()
	return Advice{
		Rule: "shared", Now: now, Then: then, Unit: unitWaiting,
		Text: fmt.Sprintf("%s holds the lock alone %.0f %% of the time held, and others share it. If that line only reads, give it lockpool.Shared: %s instead of %s.",
			place(most.At), 100*most.part(&l.all), callers(then), callers(now)),
	}, true
}

// splitHold is the advice for a line that waits for another lock while holding this one.
func (l *lock) splitHold() (a Advice, ok bool) {
	var most line
	for key, c := range l.lines {
		if !key.shared && c.Inside > most.Inside {
			most = *c
		}
	}
	if !l.isExclusive() || float64(most.Inside) < 0.3*float64(most.Held) || most.part(&l.all) < 0.3 {
		return a, false
	}
	now, then := l.meanWait(), l.predict(l.all.Held-most.Inside, 1)
	return Advice{
		Rule: "wait inside", Now: now.Seconds(), Then: then.Seconds(), Unit: unitMeanWait,
		Text: fmt.Sprintf("%s holds the lock for %s, of which %.0f %% are waits for other locks, most of all %s. Do what needs %s before the lock, or after: a mean wait of %s instead of %s.",
			place(most.At), Round(most.meanHold()), 100*float64(most.Inside)/float64(most.Held), most.Within, most.Within, Round(then), Round(now)),
	}, true
}

// refuse is the advice for calls whose contexts end before their turn.
func (l *lock) refuse() (a Advice, ok bool) {
	if l.all.GaveUp == 0 || l.all.GaveUp < 0.1*l.all.Waits {
		return a, false
	}
	now := l.all.Vain.Seconds()
	return Advice{
		Rule: "deadline", Now: now, Then: 0, Unit: unitVain,
		Text: fmt.Sprintf("%.0f %% of the calls that wait end with their deadlines, after %s. With lockpool.InTime they fail at once: %s in vain less.",
			100*l.all.GaveUp/l.all.Waits, Round(time.Duration(ratio(float64(l.all.Vain), l.all.GaveUp))), callers(now)),
	}, true
}

// keep is the advice for a lock that one pool takes again and again.
func (l *lock) keep() (a Advice, ok bool) {
	asks := l.all.Asks
	if asks == 0 || l.all.mightKeep < 0.8*(asks+l.all.Waits) || float64(l.all.couldKeep) < 0.8*float64(l.all.Asked) {
		return a, false
	}
	now := ratio(l.all.Asked.Seconds(), asks)
	then := now * max(0, 1-l.all.mightKeep/asks)
	return Advice{
		Rule: "keep", Now: now, Then: then, Unit: unitAsking,
		Text: fmt.Sprintf("%.0f %% of the calls come from the pool that had the lock before. With lockpool.WithKeptLocks they need no request: a mean of %s for a call instead of %s.",
			100*l.all.mightKeep/(asks+l.all.Waits), Round(seconds(then)), Round(seconds(now))),
	}, true
}

// takeTurns is the advice for a pool without local turns, whose calls stand beside each other.
func (l *lock) takeTurns() (a Advice, ok bool) {
	if l.all.ownTurns < 0.1*l.all.Waits || l.all.ownTurns == 0 {
		return a, false
	}
	const most = 100 * time.Millisecond // of the turns that a pool gives out in succession
	now := l.all.Waits + l.all.Asks
	then := now - l.all.ownTurns*max(0, 1-ratio(float64(l.all.Held), l.all.Holds*float64(most)))
	return Advice{
		Rule: "local turns", Now: now, Then: then, Unit: unitRequests,
		Text: fmt.Sprintf("%.0f %% of the calls that wait stand beside others of their pool. Without WithLocalTurns(0) they wait in memory: %.1f calls a second ask the service instead of %.1f.",
			100*l.all.ownTurns/l.all.Waits, then, now),
	}, true
}

// spread is the advice for a group of which one lock has most of the waits.
func spread(parent string, group []*lock) (a Advice, ok bool) {
	if len(group) < groupOf {
		return a, false
	}
	all, hot := time.Duration(0), group[0]
	for _, l := range group {
		all += l.all.Waited
		if l.all.Waited > hot.all.Waited {
			hot = l
		}
	}
	isRun := strings.HasPrefix(hot.name(), parent+"/"+driver.RunPrefix) // which does a job once
	if part := ratio(float64(hot.all.Waited), float64(all)); part >= 0.5 && hot.isExclusive() && !isRun {
		name, now, then := hot.name(), hot.meanWait(), hot.predict(hot.all.Held, 2)
		return Advice{
			Lock: name, Rule: "hot", Now: now.Seconds(), Then: then.Seconds(), Unit: unitMeanWait, cost: hot.all.Waited.Seconds(),
			Text: fmt.Sprintf("it has %.0f %% of the waits for the %d known locks of %s/*. Divided into two locks: a mean wait of %s instead of %s.",
				100*part, len(group), parent, Round(then), Round(now)),
		}, true
	}
	return a, false
}

// spent is how many calls wait or ask at a time.
func (l *lock) spent() float64 { return (l.all.Waited + l.all.Asked).Seconds() }

func (l *lock) name() string {
	for name := range l.names {
		return name
	}
	return ""
}

// predict returns the mean wait if the lock were held for another time of each second, and its
// calls divided among parts. A queue that is hardly ever empty is closed: the same callers come
// again after their turn, and each waits for all others. Otherwise calls come at random, and the
// wait grows with the load as Pollaczek and Khinchine say.
func (l *lock) predict(held time.Duration, parts float64) time.Duration {
	const full = 0.9
	now, then := l.all.Held.Seconds(), held.Seconds()
	wait, hold := l.meanWait().Seconds(), ratio(now, l.all.Holds)
	if now >= full {
		shorter := hold * then / now
		return seconds(max(0, ((wait/hold+1)/parts-1)*shorter-(hold-shorter))) // what is not done in the lock is done before the next call
	}
	then /= parts
	return seconds(wait * then / now * parts * (then / (1 - then)) / (now / (1 - now)))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Round rounds to what a person reads.
func Round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}

func place(at string) string {
	if at == "" {
		return "A line that is not known"
	}
	at, _, _ = strings.Cut(at, " from ")
	return at
}

// callers says how many calls wait at a time.
func callers(n float64) string { return fmt.Sprintf("%.2f calls wait at a time", n) }
