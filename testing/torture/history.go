//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// instant is a time by the one monotonic clock of the machine, which all
// processes read. It is not the clock that some clients' leases go by.
type instant int64

// never is the end of what has not ended.
const never instant = 0

func now() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has it
	}
	return instant(t.Nano())
}

func (t instant) add(d time.Duration) instant     { return t + instant(d) }
func (t instant) since(u instant) time.Duration   { return time.Duration(t - u) }
func (t instant) within(from, until instant) bool { return from <= t && t <= until }

// event is a line that a client writes. It is written before the client does
// anything that others could notice, so that what the lines of a killed client
// say is what it believed.
type event struct {
	Kind   kind
	At     instant
	ID     int64 `json:",omitempty"` // of a call, or of an access to the register
	Hold   int64 `json:",omitempty"` // the call that got the lock
	Worker int   `json:",omitempty"`

	Op    string        `json:",omitempty"`
	Lock  string        `json:",omitempty"`
	Limit time.Duration `json:",omitempty"` // after which the call's context ends
	Error string        `json:",omitempty"` // in one word

	Permits int  `json:",omitempty"` // that a call asks for, if it asks for a lock
	Of      int  `json:",omitempty"` // so many that the lock has
	Listens bool `json:",omitempty"` // the holder wants to be told that somebody asks for the lock

	Token int64         `json:",omitempty"`
	Value int64         `json:",omitempty"`
	Lost  bool          `json:",omitempty"`
	Late  time.Duration `json:",omitempty"`
}

type kind string

const (
	asked     kind = "asked"     // a call of lockpool begins
	answered  kind = "answered"  // it has returned; if it was a lock, the hold begins
	tokened   kind = "token"     // the token of a hold
	reentered kind = "reentered" // the token of a hold that was entered once more
	shared    kind = "shared"    // the hold goes on, but others may read from now on
	told      kind = "told"      // the holder has heard that somebody asks for the lock
	ended     kind = "ended"     // the hold ends, by the client's belief
	accessing kind = "accessing" // the register is about to be read or written
	accessed  kind = "accessed"  // it was
	stalled   kind = "stalled"   // a timer of the client was late
)

// record is all that happened, for the checks.
type record struct {
	begin, end instant // of the time in which locks should be granted
	calls      []*call
	holds      []*hold
	accesses   []*access
	pauses     []span    // of clients
	stalls     []span    // of clients, by no fault of ours
	faults     []span    // all of them, the process being what happened
	healed     []instant // when nothing was left of them
	accidents  []string  // what is wrong in itself, such as a client that crashed
	left       []string  // nodes in the queues at the end
	hanging    []string  // clients that did not end when told to
}

// span is a time in which a process was not itself.
type span struct {
	process    string
	begin, end instant
}

// unanswered is how a call ends with its client.
const unanswered = "unanswered"

// call is a call of lockpool.
type call struct {
	process    string
	worker     int
	op, lock   string
	limit      time.Duration
	begin, end instant
	err        string
	portion
	listens bool
}

// portion is how much of a lock a holder has, in permits, of which there are so
// many. Who is alone has all of them.
type portion struct{ permits, of int }

// many is how many permits there are of a lock that is shared by those who read:
// each has one.
const many = 1 << 20

func (p portion) alone() bool { return p.permits == p.of }

func (p portion) String() string {
	switch {
	case p.alone():
		return "alone"
	case p.of == many:
		return "reading"
	}
	return fmt.Sprintf("%d of %d permits", p.permits, p.of)
}

// hold is the time in which a client believed that it held a lock. When it goes on
// as one of those who read, that is another hold of the same grant.
type hold struct {
	process    string
	worker     int
	lock       string
	token      int64 // 0 if it did not get to know it
	inner      []int64
	begin, end instant
	asked      instant // when it began to wait
	lost       bool
	portion
	granted instant // when it began to be alone, if it goes on as one of those who read
	listens bool
	told    instant // that somebody asks for the lock
}

// continues reports whether it is a hold of a grant that had one before.
func (h *hold) continues() bool { return h.granted != never }

func (h *hold) String() string {
	return fmt.Sprintf("%s, goroutine %d, token %#x, %s", h.process, h.worker, h.token, h.portion)
}

// access is a read or write of the fenced register of a lock.
type access struct {
	process      string
	lock         string
	write        bool
	token, value int64 // written, or read
	accepted     bool
	begin, end   instant
}

// history collects what clients say.
type history struct {
	log io.Writer // all lines, for whoever looks for a cause

	mu        sync.Mutex
	record    record
	registers map[string]*register
	lastGrant instant
	granted   chan struct{} // closed and replaced with every grant
	open      map[*hold]bool
}

func newHistory(log io.Writer) *history {
	return &history{log: log, registers: map[string]*register{}, granted: make(chan struct{}), open: map[*hold]bool{}}
}

// register is what the locks protect: a store that refuses a token that is
// smaller than one it has seen.
type register struct{ token, value int64 }

func (g *register) write(token, value int64) bool {
	if token < g.token {
		return false
	}
	g.token, g.value = token, value
	return true
}

// answer is what a client is told about its access to the register.
type answer struct {
	ID           int64
	Accepted     bool
	Token, Value int64
}

// listen takes the lines of a client until its end, and answers it. What is
// still open then has ended at the time that over returns.
func (h *history) listen(process string, lines io.Reader, answers io.Writer, over func() instant) {
	calls, holds, accesses := map[int64]*call{}, map[int64]*hold{}, map[int64]*access{}
	in, out := bufio.NewScanner(lines), json.NewEncoder(answers)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil { // the last words of a killed client
			continue
		}
		h.mu.Lock()
		fmt.Fprintf(h.log, "%s %s\n", process, in.Bytes())
		switch e.Kind {
		case asked:
			c := &call{process: process, worker: e.Worker, op: e.Op, lock: e.Lock, limit: e.Limit, begin: e.At,
				portion: portion{e.Permits, e.Of}, listens: e.Listens}
			calls[e.ID] = c
			h.record.calls = append(h.record.calls, c)
		case answered:
			c := calls[e.ID]
			c.end, c.err = e.At, e.Error
			if c.permits > 0 && c.err == "" {
				g := &hold{process: process, worker: c.worker, lock: c.lock, asked: c.begin, begin: e.At, portion: c.portion, listens: c.listens}
				holds[e.ID] = g
				h.record.holds = append(h.record.holds, g)
				h.open[g] = true
				h.lastGrant = max(h.lastGrant, e.At)
				close(h.granted)
				h.granted = make(chan struct{})
			}
		case tokened:
			holds[e.Hold].token = e.Token
		case reentered:
			holds[e.Hold].inner = append(holds[e.Hold].inner, e.Token)
		case shared:
			g := holds[e.Hold]
			if g.end != never { // it was lost
				break
			}
			rest := *g
			rest.begin, rest.granted, rest.permits, rest.inner = e.At, g.begin, 1, nil
			g.end = e.At
			holds[e.Hold] = &rest
			h.record.holds = append(h.record.holds, &rest)
			delete(h.open, g)
			h.open[&rest] = true
		case told:
			holds[e.Hold].told = e.At
		case ended:
			g := holds[e.Hold]
			g.end, g.lost = e.At, e.Lost
			delete(h.open, g)
		case accessing:
			a := &access{process: process, lock: e.Lock, write: e.Op == opWrite, token: e.Token, value: e.Value, begin: e.At}
			accesses[e.ID] = a
			reply := h.access(a)
			reply.ID = e.ID
			a.end = now() // unless the client lives to tell
			h.record.accesses = append(h.record.accesses, a)
			h.mu.Unlock()
			_ = out.Encode(reply) // or the client is gone
			h.mu.Lock()
		case accessed:
			accesses[e.ID].end = e.At
		case stalled:
			h.record.stalls = append(h.record.stalls, span{process, e.At.add(-e.Late), e.At})
		}
		h.mu.Unlock()
	}
	end := over()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range calls {
		if c.end == never {
			c.end, c.err = end, unanswered
		}
	}
	for _, g := range holds {
		if g.end == never {
			g.end = max(end, g.begin)
			delete(h.open, g)
		}
	}
}

func (h *history) access(a *access) answer {
	g := h.registers[a.lock]
	if g == nil {
		g = &register{}
		h.registers[a.lock] = g
	}
	if a.write {
		a.accepted = g.write(a.token, a.value)
		return answer{Accepted: a.accepted}
	}
	a.token, a.value = g.token, g.value
	return answer{Token: g.token, Value: g.value}
}

// longestHolder returns the client that holds something for the longest time
// now, by what has been heard, or "".
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

// nextGrant returns when a lock has last been granted, and a channel that is
// closed when another one is.
func (h *history) nextGrant() (instant, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastGrant, h.granted
}

// note changes the record.
func (h *history) note(change func(r *record)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.record)
}
