package zktest

// This file has the trace of requests, replies and events.

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// RecordKind is the kind of a [Record].
type RecordKind int

const (
	Requested RecordKind = iota + 1 // a request arrived
	Replied                         // a reply was queued
	Notified                        // a watch event was queued, or swallowed
	Expired                         // a session expired
)

var recordNames = [...]string{Requested: "request", Replied: "reply", Notified: "event", Expired: "expired"}

// String returns the kind in one word.
func (k RecordKind) String() string { return recordNames[k] }

// Record is an entry of the server's trace.
type Record struct {
	Kind    RecordKind
	At      time.Duration // on the server's clock, since the start
	Conn    int
	Session int64
	Op      Op
	Paths   []string
	Zxid    int64 // of a reply, or of the change reported by an event
	Code    Code  // of a reply
	Event   EventType
	Fault   bool // a rule hit the request, or swallowed the event
}

// String returns the record in one line.
func (r Record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%10.6f conn %d session 0x%x %v", r.At.Seconds(), r.Conn, r.Session, r.Kind)
	switch r.Kind {
	case Requested, Replied:
		fmt.Fprintf(&b, " %v", r.Op)
	case Notified:
		fmt.Fprintf(&b, " %v", r.Event)
	}
	for _, path := range r.Paths {
		fmt.Fprintf(&b, " %q", path)
	}
	switch {
	case r.Kind == Replied:
		fmt.Fprintf(&b, " zxid 0x%x %v", r.Zxid, r.Code)
	case r.Fault:
		b.WriteString(" FAULT")
	}
	return b.String()
}

// traceLength bounds the trace.
const traceLength = 10_000

// trace holds the latest records, and the violations of their order.
type trace struct {
	records    []Record
	next       int // the index of the oldest record, once there are traceLength
	violations []error
}

// record adds a record to the trace.
func (s *Server) record(r Record) {
	t := &s.trace
	r.At = s.now()
	if len(t.records) < traceLength {
		t.records = append(t.records, r)
	} else {
		t.records[t.next] = r
		t.next = (t.next + 1) % traceLength
	}
}

// checkZxid checks a reply about to be sent: no server accepts a client with a zxid later
// than the server's.
func (s *Server) checkZxid(c *conn, r Record) {
	if r.Zxid <= 0 {
		return
	}
	if r.Zxid < c.seen {
		s.trace.violations = append(s.trace.violations, fmt.Errorf("zktest: the zxid went back from 0x%x: %v", c.seen, r))
	}
	c.seen = r.Zxid
}

// Trace returns the latest requests, replies, events and expiries, up to
// 10,000, oldest first.
func (s *Server) Trace() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.trace
	return slices.Concat(t.records[t.next:], t.records[:t.next])
}
