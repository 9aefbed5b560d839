package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Names of lockpool's spans and attributes.
const (
	spanAcquire = "lockpool.lock.acquire" // asking for a lock
	spanWait    = "lockpool.lock.wait"    // the part of it spent behind others
	spanHold    = "lockpool.lock.hold"

	keyLock    = "lockpool.lock.name"
	keyKind    = "lockpool.lock.kind"
	keyOutcome = "lockpool.lock.outcome"           // acquired, timeout, ...
	keyWhose   = "lockpool.lock.waiting_for.owner" // of the node in the way
	keyRole    = "lockpool.link"                   // on a link
	holder     = "holder"
)

// span is what is drawn of a finished span.
type span struct {
	Service, Name     string
	Trace, ID, Parent string
	Start, End        time.Time
	Attrs             map[string]string
	Links             []link `json:",omitempty"`
}

// link leads from a wait to the request for the same lock that was in the way.
type link struct{ Trace, ID, Role string }

func newSpan(service string, s sdktrace.ReadOnlySpan) *span {
	c := s.SpanContext()
	record := &span{Service: service, Name: s.Name(), Trace: c.TraceID().String(), ID: c.SpanID().String(),
		Start: s.StartTime(), End: s.EndTime(), Attrs: map[string]string{}}
	if s.Parent().IsValid() {
		record.Parent = s.Parent().SpanID().String()
	}
	for _, attr := range s.Attributes() {
		record.Attrs[string(attr.Key)] = attr.Value.Emit()
	}
	for _, l := range s.Links() {
		to := link{Trace: l.SpanContext.TraceID().String(), ID: l.SpanContext.SpanID().String()}
		for _, attr := range l.Attributes {
			if attr.Key == keyRole {
				to.Role = attr.Value.AsString()
			}
		}
		record.Links = append(record.Links, to)
	}
	return record
}

// request is a trace, by the span it began with.
type request struct {
	span
	locks []*lock // in the order in which it asked for them
}

// lock is one lock that a request asked for.
type lock struct {
	span          // lockpool.lock.acquire
	of            *request
	wait, hold    *span // if there were
	behind        []way // who was in the way: first the holder, then those before it in the queue
	name, outcome string
}

// way is a lock that was in the way.
type way struct {
	*lock
	role string
}

func (s *span) took() time.Duration { return s.End.Sub(s.Start) }

// understand finds out of finished spans, in whatever order they come, which
// requests there were and who waited for whom.
func understand(spans []span) []*request {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b span) int { return a.Start.Compare(b.Start) })
	requests, locks := map[string]*request{}, map[string]*lock{}
	var order []*request
	for _, s := range spans {
		if s.Parent == "" && requests[s.Trace] == nil {
			requests[s.Trace] = &request{span: s}
			order = append(order, requests[s.Trace])
		}
	}
	for _, s := range spans {
		if of := requests[s.Trace]; of != nil && s.Name == spanAcquire {
			l := &lock{span: s, of: of, name: s.Attrs[keyLock], outcome: s.Attrs[keyOutcome]}
			locks[s.ID] = l
			of.locks = append(of.locks, l)
		}
	}
	for i := range spans {
		s := &spans[i]
		switch s.Name {
		case spanWait:
			if l := locks[s.Parent]; l != nil {
				l.wait = s
			}
		case spanHold:
			if l := lastAsked(requests[s.Trace], s); l != nil {
				l.hold = s
			}
		}
	}
	for _, l := range locks {
		if l.wait == nil {
			continue
		}
		for _, to := range l.wait.Links {
			if other := locks[to.ID]; other != nil {
				l.behind = append(l.behind, way{other, to.Role})
			}
		}
		slices.SortStableFunc(l.behind, func(a, b way) int {
			return cmp.Or(strings.Compare(a.role, b.role), a.Start.Compare(b.Start)) // "holder" < "predecessor"
		})
	}
	return slices.DeleteFunc(order, func(r *request) bool { return len(r.locks) == 0 })
}

// lastAsked returns the lock whose hold began with the span.
func lastAsked(r *request, hold *span) (last *lock) {
	if r == nil {
		return nil
	}
	for _, l := range r.locks {
		if l.name == hold.Attrs[keyLock] && !l.Start.After(hold.Start) && l.hold == nil {
			last = l
		}
	}
	return last
}
