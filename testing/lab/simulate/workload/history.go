package workload

// This file builds the record of a run from the events of clients.

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
)

// History builds the record from the events of all clients.
type History struct {
	log io.Writer // receives all events; nil if none does

	mu        sync.Mutex
	record    Record
	lastGrant Instant
	granted   chan struct{}  // closed and replaced at every grant
	open      map[*hold]bool // not ended
}

// NewHistory returns an empty history. All events are written to log, unless log is nil.
func NewHistory(log io.Writer) *History {
	return &History{log: log, granted: make(chan struct{}), open: map[*hold]bool{}}
}

// Collect reads the events of a client to the end. Open calls and holds then end at the
// time returned by exit.
func (h *History) Collect(process string, events io.Reader, exit func() Instant) {
	s := h.Stream(process)
	for in := bufio.NewScanner(events); in.Scan(); {
		var e Event
		if json.Unmarshal(in.Bytes(), &e) == nil { // not the incomplete last line of a killed client
			s.Add(e)
		}
	}
	s.End(exit())
}

// LongestHolder returns the client holding a lock for the longest time, or "" if there is
// no holder.
func (h *History) LongestHolder() (process string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := Instant(math.MaxInt64)
	for g := range h.open {
		if g.begin < since {
			process, since = g.process, g.begin
		}
	}
	return process
}

// Waiter is a process waiting for a lock.
type Waiter struct{ Process, Lock string }

// Waiters returns how many places processes need now in the queues of locks, because calls
// have waited there since a time. Calls of a local handoff need one place together.
func (h *History) Waiters(since, now Instant) map[Waiter]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiters := map[Waiter]int{}
	for _, c := range h.record.calls {
		if kind := kindOf(c.lock); c.op == opLock && c.begin < since && now < min(c.end, c.begin.Add(c.limit)) && (kind == Exclusive || kind == ReadWrite || kind == own) {
			w := Waiter{c.process, c.lock}
			if waiters[w] == 0 || !slices.Contains(h.record.PassesOn, c.process) {
				waiters[w]++
			}
		}
	}
	return waiters
}

// NextGrant returns the time of the last grant, and a channel closed at the next one.
func (h *History) NextGrant() (Instant, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastGrant, h.granted
}

// Update changes the record.
func (h *History) Update(change func(*Record)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.record)
}

// Stream is the events of one client.
type Stream struct {
	*History
	process string
	calls   map[int64]*call
	holds   map[int64]*hold
	ended   bool
}

// Stream returns the stream of a client.
func (h *History) Stream(process string) *Stream {
	return &Stream{History: h, process: process, calls: map[int64]*call{}, holds: map[int64]*hold{}}
}

// Add adds an event to the record. After End, Add does nothing.
func (s *Stream) Add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if s.log != nil {
		text, _ := json.Marshal(e) // cannot fail
		fmt.Fprintf(s.log, "%s %s\n", s.process, text)
	}
	switch e.Kind {
	case eventCall:
		s.begin(e)
	case eventReturn:
		s.finish(s.calls[e.ID], e)
	case eventToken:
		for g := s.holds[e.Hold]; g != nil; g = g.restOf { // the token of the grant
			g.token = e.Token
		}
	case eventReenter:
		g := s.holds[e.Hold]
		g.reentries = append(g.reentries, e.Token)
	case eventDowngrade:
		s.downgrade(s.holds[e.Hold], e)
	case eventRevoke:
		s.holds[e.Hold].revokedAt = e.At
	case eventContext:
		g := s.holds[e.Hold]
		for g.restOf != nil {
			g = g.restOf
		}
		g.contextEnd = e.At
	case eventOutlived:
		s.record.outlived = append(s.record.outlived, Span{s.process, e.At, e.At})
	case eventEnd:
		g := s.holds[e.Hold]
		g.end, g.lost = e.At, e.Lost
		delete(s.open, g)
	case eventStart:
		s.calls[e.ID].started = e.At
	case eventLate:
		s.record.lateTimers = append(s.record.lateTimers, Span{s.process, e.At.Add(-e.Late), e.At})
	}
}

func (s *Stream) begin(e Event) {
	c := &call{
		process: s.process, worker: e.Worker, op: e.Op, lock: e.Lock, limit: e.Limit, begin: e.At,
		portion: portion{e.Permits, e.Of}, revocable: e.Revocable, releases: s.holds[e.Hold], rests: e.Rests, period: e.Value,
	}
	s.calls[e.ID] = c
	s.record.calls = append(s.record.calls, c)
}

func (s *Stream) finish(c *call, e Event) {
	c.end, c.err = e.At, e.Error
	if c.op == opDuel {
		c.victim = e.Value
	}
	if c.permits == 0 || c.err != "" {
		return
	}
	c.grants = &hold{
		process: s.process, worker: c.worker, lock: c.lock, requested: c.begin, begin: e.At,
		portion: c.portion, revocable: c.revocable, again: c.op == opAgain,
	}
	s.hold(e.ID, c.grants)
	s.lastGrant = max(s.lastGrant, e.At)
	close(s.granted)
	s.granted = make(chan struct{})
}

func (s *Stream) hold(id int64, g *hold) {
	s.holds[id] = g
	s.record.holds = append(s.record.holds, g)
	s.open[g] = true
}

func (s *Stream) downgrade(g *hold, e Event) {
	if g.end != Never { // the lock was lost before
		return
	}
	rest := *g
	rest.begin, rest.restOf, rest.permits, rest.reentries = e.At, g, 1, nil
	g.end = e.At
	delete(s.open, g)
	s.hold(e.Hold, &rest)
}

// End ends the calls and holds of an ended client.
func (s *Stream) End(at Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, c := range s.calls {
		if c.end == Never {
			c.end, c.err = at, unanswered
		}
	}
	for _, g := range s.holds {
		if g.end == Never {
			g.end = max(at, g.begin)
			delete(s.open, g)
		}
	}
}
