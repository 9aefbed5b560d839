//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync"
)

// history builds the record from the events of all clients, and keeps the
// registers that the locks protect.
type history struct {
	log io.Writer // receives all events

	mu        sync.Mutex
	record    record
	registers map[string]*register
	lastGrant instant
	granted   chan struct{}  // closed and replaced at every grant
	open      map[*hold]bool // that have not ended
}

func newHistory(log io.Writer) *history {
	return &history{log: log, registers: map[string]*register{}, granted: make(chan struct{}), open: map[*hold]bool{}}
}

// collect reads the events of a client until it ends, and answers them. What is
// open then ends at the time that exit returns.
func (h *history) collect(process string, events io.Reader, answers io.Writer, exit func() instant) {
	s := &stream{h, process, map[int64]*call{}, map[int64]*hold{}, map[int64]*access{}}
	in, out := bufio.NewScanner(events), json.NewEncoder(answers)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil { // the incomplete last line of a killed client
			continue
		}
		h.mu.Lock()
		fmt.Fprintf(h.log, "%s %s\n", process, in.Bytes())
		reply := s.add(e)
		h.mu.Unlock()
		if reply != nil {
			_ = out.Encode(reply) // fails if the client is gone
		}
	}
	end := exit()
	h.mu.Lock()
	defer h.mu.Unlock()
	s.end(end)
}

// longestHolder returns the client that has held a lock for the longest time, or
// "" if there is no holder.
func (h *history) longestHolder() (process string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := instant(math.MaxInt64)
	for g := range h.open {
		if g.begin < since {
			process, since = g.process, g.begin
		}
	}
	return process
}

// nextGrant returns the time of the last grant, and a channel that is closed at
// the next one.
func (h *history) nextGrant() (instant, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastGrant, h.granted
}

// update changes the record.
func (h *history) update(change func(r *record)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.record)
}

// stream is the events of one client. Its history's mutex is held during all of
// its methods.
type stream struct {
	*history
	process  string
	calls    map[int64]*call
	holds    map[int64]*hold
	accesses map[int64]*access
}

// add adds an event to the record, and returns the answer for the client, if any.
func (s *stream) add(e event) *answer {
	switch e.Kind {
	case eventCall:
		s.begin(e)
	case eventReturn:
		s.finish(s.calls[e.ID], e)
	case eventToken:
		s.holds[e.Hold].token = e.Token
	case eventReenter:
		g := s.holds[e.Hold]
		g.reentries = append(g.reentries, e.Token)
	case eventDowngrade:
		s.downgrade(s.holds[e.Hold], e)
	case eventRevoke:
		s.holds[e.Hold].revokedAt = e.At
	case eventEnd:
		g := s.holds[e.Hold]
		g.end, g.lost = e.At, e.Lost
		delete(s.open, g)
	case eventAccess:
		return s.access(e)
	case eventAccessed:
		s.accesses[e.ID].end = e.At
	case eventLate:
		s.record.lateTimers = append(s.record.lateTimers, span{s.process, e.At.add(-e.Late), e.At})
	}
	return nil
}

func (s *stream) begin(e event) {
	c := &call{
		process: s.process, worker: e.Worker, op: e.Op, lock: e.Lock, limit: e.Limit, begin: e.At,
		portion: portion{e.Permits, e.Of}, revocable: e.Revocable,
	}
	s.calls[e.ID] = c
	s.record.calls = append(s.record.calls, c)
}

func (s *stream) finish(c *call, e event) {
	c.end, c.err = e.At, e.Error
	if c.permits == 0 || c.err != "" {
		return
	}
	s.hold(e.ID, &hold{
		process: s.process, worker: c.worker, lock: c.lock, requested: c.begin, begin: e.At,
		portion: c.portion, revocable: c.revocable,
	})
	s.lastGrant = max(s.lastGrant, e.At)
	close(s.granted)
	s.granted = make(chan struct{})
}

func (s *stream) hold(id int64, g *hold) {
	s.holds[id] = g
	s.record.holds = append(s.record.holds, g)
	s.open[g] = true
}

func (s *stream) downgrade(g *hold, e event) {
	if g.end != never { // the lock was lost before
		return
	}
	rest := *g
	rest.begin, rest.exclusiveSince, rest.permits, rest.reentries = e.At, g.begin, 1, nil
	g.end = e.At
	delete(s.open, g)
	s.hold(e.Hold, &rest)
}

// access reads or writes a lock's register.
func (s *stream) access(e event) *answer {
	g := s.registers[e.Lock]
	if g == nil {
		g = &register{}
		s.registers[e.Lock] = g
	}
	a := &access{process: s.process, lock: e.Lock, write: e.Op == opWrite, token: e.Token, value: e.Value, begin: e.At}
	s.accesses[e.ID] = a
	s.record.accesses = append(s.record.accesses, a)
	reply := &answer{ID: e.ID}
	if a.write {
		a.accepted = g.write(a.token, a.value)
		reply.Accepted = a.accepted
	} else {
		a.token, a.value = g.token, g.value
		reply.Token, reply.Value = g.token, g.value
	}
	a.end = now() // if the client does not live to report another time
	return reply
}

// end ends the calls and holds of a client that has ended.
func (s *stream) end(at instant) {
	for _, c := range s.calls {
		if c.end == never {
			c.end, c.err = at, unanswered
		}
	}
	for _, g := range s.holds {
		if g.end == never {
			g.end = max(at, g.begin)
			delete(s.open, g)
		}
	}
}

// register is what a lock protects: a store that refuses a write whose token is
// smaller than the largest one that it has seen.
type register struct{ token, value int64 }

func (g *register) write(token, value int64) bool {
	if token < g.token {
		return false
	}
	g.token, g.value = token, value
	return true
}
