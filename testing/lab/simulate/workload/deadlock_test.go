package workload

// This file tests the check of deadlocks on short records.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// story is a record of holders, each holding a lock and waiting for others.
type story struct{ Record }

// The portions of locks.
var (
	whole  = portion{1, 1}
	reader = portion{1, many}
	writer = portion{many, many}
)

func permitsOf(n, of int) portion { return portion{n, of} }

// holds adds the hold of a process's only worker.
func (s *story) holds(process, lock string, p portion, begin, end int) *story {
	s.Record.holds = append(s.Record.holds, &hold{process: process, lock: lock, requested: at(begin), begin: at(begin), end: at(end), portion: p})
	return s
}

// downgrades adds the rest of the last hold.
func (s *story) downgrades(end int) *story {
	whole := s.Record.holds[len(s.Record.holds)-1]
	rest := *whole
	rest.begin, rest.end, rest.portion, rest.restOf = whole.end, at(end), reader, whole
	s.Record.holds = append(s.Record.holds, &rest)
	return s
}

// loses makes the last hold end by a loss.
func (s *story) loses() *story {
	s.Record.holds[len(s.Record.holds)-1].lost = true
	return s
}

// waits adds a call of the worker, ending with an error, or granted the lock.
func (s *story) waits(process, lock string, p portion, begin, end int, err string) *story {
	s.calls = append(s.calls, &call{process: process, op: opLock, lock: lock, limit: time.Minute, begin: at(begin), end: at(end), err: err, portion: p})
	return s
}

// waitsForAll adds a call of the worker for several locks.
func (s *story) waitsForAll(process string, begin, end int, err string, locks ...string) *story {
	for _, lock := range locks {
		s.waits(process, lock, whole, begin, end, err)
		s.calls[len(s.calls)-1].op = opLockAll
	}
	return s
}

// fault adds a fault of one process, or of all if the name is "".
func (s *story) fault(process string, begin, end int) *story {
	s.Faults = append(s.Faults, Span{"cut: " + process, at(begin), at(end)})
	if process != "" {
		s.Single = append(s.Single, Span{process, at(begin), at(end)})
	}
	return s
}

// told returns what the check of deadlocks finds.
func (s *story) told() []string {
	s.Limits = Limits{Cycle: 5 * time.Second, Lag: 500 * time.Millisecond, Settling: 10 * time.Second}
	s.Begin, s.End = at(0), at(100_000)
	var r Report
	r.checkDeadlocks(newDeadlocks(&s.Record))
	return r.Violations
}

// pair is a cycle of x, asking first and holding a, and y, holding b.
func pair(xErr string, xEnd int, yErr string, yEnd int) *story {
	return new(story).holds("x", "a", whole, 0, xEnd).holds("y", "b", whole, 0, yEnd).
		waits("x", "b", whole, 1000, xEnd, xErr).waits("y", "a", whole, 4000, yEnd, yErr)
}

// placePassedOn is a cycle through a call in front of an earlier one, if the process passes
// places on.
func placePassedOn(passesOn ...string) *story {
	s := new(story).holds("x", "shared-1", reader, 0, 9000).holds("y", "b", whole, 0, 6000).
		waits("z", "shared-1", writer, 3000, 4700, "canceled").waits("z", "shared-1", writer, 4600, 9500, "").
		waits("x", "b", whole, 5500, 7000, "").waits("y", "shared-1", reader, 4000, 6000, deadlock)
	s.PassesOn = passesOn
	return s
}

// victimBefore is pair, with x as the victim, when y has been the victim of another cycle in
// the same call.
func victimBefore() *story {
	return new(story).holds("y", "b", whole, 0, 250).holds("z", "a", whole, 0, 300).
		waits("z", "b", whole, 50, 260, "").waits("y", "a", whole, 100, 200, deadlock).
		holds("x", "a", whole, 400, 4500).holds("y", "b", whole, 500, 4600).
		waits("x", "b", whole, 1000, 4500, deadlock).waits("y", "a", whole, 4000, 4600, "")
}

func TestDeadlocksAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		*story
		text string // of the only violation, if there is one
	}{
		"the last to ask is the victim":    {pair("", 4600, deadlock, 4500), ""},
		"both end by themselves":           {pair("timeout", 8000, "timeout", 8999), ""},
		"a node stays for a moment":        {pair("timeout", 4200, deadlock, 4700).holds("z", "c", whole, 0, 1), ""},
		"one of two that asked together":   {new(story).holds("x", "a", whole, 0, 20).holds("y", "b", whole, 0, 20).waits("x", "b", whole, 10, 15, deadlock).waits("y", "a", whole, 11, 20, ""), ""},
		"a node stays after a fault":       {pair("unanswered", 1500, deadlock, 5000).fault("x", 1500, 1600), ""},
		"a cycle in which a fault happens": {pair("timeout", 18_000, "timeout", 18_000).fault("y", 3900, 4000), ""},
		"a fault of all":                   {pair("timeout", 18_000, "timeout", 18_000).fault("", 3900, 4000), ""},
		"a chain": {new(story).holds("x", "a", whole, 0, 9000).holds("y", "b", whole, 0, 9000).
			waits("x", "b", whole, 10, 9000, "").waits("y", "c", whole, 20, 9000, ""), ""},
		"a cycle through the queue": {new(story).holds("x", "shared-1", reader, 0, 9000).holds("y", "b", whole, 0, 5000).
			waits("z", "shared-1", writer, 1000, 9500, "").waits("x", "b", whole, 1500, 6000, "").waits("y", "shared-1", reader, 4000, 5000, deadlock), ""},
		"a cycle through a place older than the call": {placePassedOn("z"), ""},
		"a cycle through no place":                    {placePassedOn(), "victim: at no time"},
		"a writer that another goroutine downgraded": {new(story).holds("x", "shared-1", writer, 0, 2000).downgrades(9000).holds("y", "b", whole, 0, 5000).
			waits("x", "b", whole, 1000, 6000, "").waits("y", "shared-1", writer, 4000, 5000, deadlock), ""},
		"readers share": {new(story).holds("x", "shared-1", reader, 0, 9000).holds("y", "b", whole, 0, 9000).
			waits("x", "b", whole, 1000, 9000, "").waits("y", "shared-1", reader, 1000, 9000, ""), ""},
		"permits that nobody can give back": {new(story).holds("x", "semaphore-1", permitsOf(2, 3), 0, 9000).holds("z", "semaphore-1", permitsOf(1, 3), 0, 9000).holds("y", "b", whole, 0, 5000).
			waits("x", "b", whole, 1000, 6000, "").waits("z", "b", whole, 1000, 6000, "").waits("y", "semaphore-1", permitsOf(1, 3), 4000, 5000, deadlock), ""},
		"permits that somebody gives back": {new(story).holds("x", "semaphore-1", permitsOf(2, 3), 0, 9000).holds("z", "semaphore-1", permitsOf(1, 3), 0, 9000).holds("y", "b", whole, 0, 9000).
			waits("x", "b", whole, 1000, 9000, "").waits("y", "semaphore-1", permitsOf(1, 3), 1000, 9000, ""), ""},
		"permits behind somebody else": {new(story).holds("x", "semaphore-1", permitsOf(2, 3), 0, 9000).holds("y", "b", whole, 0, 9000).
			waits("x", "b", whole, 1000, 9000, "").waits("w", "semaphore-1", permitsOf(1, 3), 500, 9000, "").waits("y", "semaphore-1", permitsOf(2, 3), 1000, 9000, ""), ""},
		"the last to ask only stands in the queue": {new(story).holds("x", "shared-1", reader, 0, 9000).holds("y", "b", whole, 0, 7500).holds("z", "c", whole, 0, 9500).
			waits("x", "b", whole, 1000, 8000, "").waits("y", "shared-1", reader, 5000, 7500, deadlock).waits("z", "shared-1", writer, 5100, 9500, ""), ""},
		"two victims of two cycles": {new(story).holds("x", "a", whole, 0, 5000).holds("y", "b", whole, 0, 4500).holds("z", "c", whole, 0, 4500).holds("x", "d", whole, 0, 5000).holds("w", "shared-1", reader, 0, 6000).
			holds("y", "shared-1", reader, 0, 4500).waits("x", "shared-1", writer, 1000, 5000, "").waits("y", "a", whole, 2000, 4500, deadlock).waits("w", "d", whole, 2500, 5900, deadlock), ""},
		"permits whose turn comes late": {new(story).holds("x", "semaphore-1", permitsOf(1, 3), 0, 9000).holds("z", "semaphore-1", permitsOf(2, 3), 0, 5000).holds("y", "b", whole, 0, 6000).
			waits("w", "semaphore-1", permitsOf(1, 3), 500, 5000, "").waits("y", "semaphore-1", permitsOf(3, 3), 1000, 6000, deadlock).waits("x", "b", whole, 4000, 6100, ""), ""},
		"several locks at once":       {new(story).holds("y", "b", whole, 0, 5000).waitsForAll("x", 1000, 6000, "", "a", "b").waits("y", "a", whole, 4000, 5000, deadlock), ""},
		"stands":                      {pair("timeout", 9000, "timeout", 9100), "cycle: these calls waited for each other for more than 5s, from 4.000s"},
		"stands beside another fault": {pair("timeout", 9000, "timeout", 9100).fault("z", 5000, 5100), "cycle: "},
		"stands long after a fault":   {pair("timeout", 90_000, "timeout", 90_000).fault("", 0, 100), "cycle: these calls waited for each other for more than 5s, from 10.1"},
		"no cycle":                    {new(story).holds("x", "a", whole, 0, 9000).holds("y", "b", whole, 0, 9000).waits("x", "b", whole, 10, 9000, deadlock).waits("y", "c", whole, 20, 9000, ""), "victim: at no time from 0.010s until 9.000s was there a cycle"},
		"cycle that has dissolved":    {pair("timeout", 3000, deadlock, 4500), "victim: at no time"},
		"behind a cycle":              {pair("", 8100, "timeout", 8000).holds("z", "c", whole, 0, 7000).waits("z", "a", whole, 6000, 7000, deadlock), "victim: at no time"},
		"holds nothing":               {new(story).holds("x", "a", whole, 0, 9000).waits("y", "a", whole, 10, 9000, deadlock), "held no lock"},
		"does not wait":               {&story{Record{calls: failed(opVerify, deadlock)}}, "in a call that waits for no lock"},
		"reader behind a reader":      {new(story).holds("x", "shared-1", reader, 0, 9000).holds("y", "b", whole, 0, 9000).waits("x", "b", whole, 10, 9000, "").waits("y", "shared-1", reader, 10, 9000, deadlock), "victim: at no time"},
		"permits that are given back": {new(story).holds("x", "semaphore-1", permitsOf(2, 3), 0, 9000).holds("z", "semaphore-1", permitsOf(1, 3), 0, 9000).holds("y", "b", whole, 0, 9000).waits("x", "b", whole, 1000, 9000, "").waits("y", "semaphore-1", permitsOf(1, 3), 1000, 9000, deadlock), "victim: at no time"},
		"two that wait for one":       {new(story).holds("x", "a", whole, 0, 9000).holds("y", "b", whole, 0, 9000).holds("z", "c", whole, 0, 9000).waits("x", "c", whole, 10, 9000, deadlock).waits("y", "c", whole, 10, 9000, ""), "victim: at no time"},
		"two victims":                 {new(story).holds("x", "a", whole, 0, 4600).holds("y", "b", whole, 0, 4500).waits("x", "b", whole, 3000, 4600, deadlock).waits("y", "a", whole, 4000, 4500, deadlock), "victim: two calls were victims"},
		"the first to ask":            {pair(deadlock, 4500, "", 4600), "victim: at 4.500s, not the call that asked last: x, goroutine 0, which holds a (exclusive) and waits for b (exclusive) since 1.000s"},
		"the first to ask, before a victim that tries again":              {victimBefore(), ""},
		"the first to ask, before a victim that got the lock with others": {victimBefore().holds("y", "b", whole, 305, 390).loses().waits("y", "a", whole, 320, 350, ""), ""},
		"the first to ask, before a victim that got the lock":             {victimBefore().holds("y", "b", whole, 305, 390).waits("y", "a", whole, 320, 350, ""), "not the call that asked last"},
		"the first to ask for permits":                                    {new(story).holds("x", "semaphore-1", permitsOf(1, 3), 0, 9000).holds("z", "semaphore-1", permitsOf(2, 3), 0, 5000).holds("y", "b", whole, 0, 6000).waits("y", "semaphore-1", permitsOf(3, 3), 1000, 6000, deadlock).waits("x", "b", whole, 4000, 6100, ""), "not the call that asked last"},
		"permits stand":                                                   {new(story).holds("x", "semaphore-1", permitsOf(3, 4), 0, 9000).holds("y", "b", whole, 0, 9000).waits("x", "b", whole, 1000, 9000, "").waits("y", "semaphore-1", permitsOf(2, 4), 1000, 9000, ""), "cycle: "},
		"permits of the smaller limit":                                    {new(story).holds("x", "semaphore-1", permitsOf(2, 3), 0, 9000).holds("y", "b", whole, 0, 9000).waits("x", "b", whole, 1000, 9000, "").waits("y", "semaphore-1", permitsOf(2, 4), 1000, 9000, ""), "cycle: "},
		"readers and writer stand":                                        {new(story).holds("x", "shared-1", reader, 0, 9000).holds("y", "b", whole, 0, 9000).waits("x", "b", whole, 1000, 9000, "").waits("y", "shared-1", writer, 1000, 9000, ""), "cycle: "},
		"several locks stand":                                             {new(story).holds("x", "c", whole, 0, 9000).holds("y", "a", whole, 0, 9000).waitsForAll("x", 1000, 9000, "timeout", "a", "b").waits("y", "c", whole, 1000, 9000, "timeout"), "cycle: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := c.told()
			if c.text == "" {
				require.Empty(t, told)
				return
			}
			require.Len(t, told, 1)
			require.Contains(t, told[0], c.text)
		})
	}
}
