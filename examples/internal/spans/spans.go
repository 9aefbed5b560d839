// Package spans records spans of lockpool in a form for sending to another process, and
// draws them on an axis of time.
package spans

import (
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Names of lockpool's spans.
const (
	Acquire = "lockpool.lock.acquire"
	Wait    = "lockpool.lock.wait" // the part of Acquire spent behind other contenders
	Hold    = "lockpool.lock.hold"
)

// Attributes of the spans, and of their links.
const (
	KeyLock       = "lockpool.lock.name"
	KeyKind       = "lockpool.lock.kind"
	KeyOutcome    = "lockpool.lock.outcome"           // acquired, busy, timeout, ...
	KeyWaitingFor = "lockpool.lock.waiting_for.owner" // of the node in the way
	KeyRole       = "lockpool.link"                   // Holder, or predecessor
	Holder        = "holder"
)

// Span is a finished span.
type Span struct {
	Service, Name     string
	Trace, ID, Parent string
	Start, End        time.Time
	Attrs             map[string]string
	Links             []Link `json:",omitempty"`
}

// Link leads from a wait to the span of a request in the way, for the same lock.
type Link struct{ Trace, ID, Role string }

// Record returns a span as recorded by a service.
func Record(service string, s sdktrace.ReadOnlySpan) *Span {
	c := s.SpanContext()
	record := &Span{Service: service, Name: s.Name(), Trace: c.TraceID().String(), ID: c.SpanID().String(),
		Start: s.StartTime(), End: s.EndTime(), Attrs: map[string]string{}}
	if s.Parent().IsValid() {
		record.Parent = s.Parent().SpanID().String()
	}
	for _, attr := range s.Attributes() {
		record.Attrs[string(attr.Key)] = attr.Value.Emit()
	}
	for _, l := range s.Links() {
		to := Link{Trace: l.SpanContext.TraceID().String(), ID: l.SpanContext.SpanID().String()}
		for _, attr := range l.Attributes {
			if attr.Key == KeyRole {
				to.Role = attr.Value.AsString()
			}
		}
		record.Links = append(record.Links, to)
	}
	return record
}

// Duration returns how long the span took.
func (s *Span) Duration() time.Duration { return s.End.Sub(s.Start) }
