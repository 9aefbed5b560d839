package nodedata

// This file encodes the report of a pool.

import (
	"encoding/json"
	"fmt"

	"go.opentelemetry.io/otel/trace"
)

// Crowd is the calls of a process that wait in memory behind a node of the process.
type Crowd struct {
	Lock    string `json:"lock"`
	Node    string `json:"node"`
	Callers int    `json:"callers"`

	// Of the present turn, if the node holds the lock.
	At    string `json:"at,omitempty"`
	Trace string `json:"traceparent,omitempty"`

	Revocable bool `json:"revocable,omitempty"`
}

type report struct {
	Origin
	Crowds []Crowd `json:"crowds"`
}

// Report is the data of the node of a report: the owner, and as many of the crowds as fit, or
// nothing without a crowd.
func (o Owner) Report(crowds []Crowd) []byte {
	if len(crowds) == 0 {
		return nil
	}
	r := report{Origin: o.Origin}
	return fitting(crowds[:min(len(crowds), 100)], func(crowds []Crowd) any { r.Crowds = crowds; return r })
}

// fitting returns the record with as many of the items as fit into a node.
func fitting[T any](items []T, with func([]T) any) []byte {
	for {
		data, err := json.Marshal(with(items))
		if err != nil {
			panic(err) // impossible for texts and numbers
		}
		if len(data) <= MaxNode {
			return data
		}
		items = items[:len(items)*9/10]
	}
}

// ReportedCrowd is a crowd with the process that reports it.
type ReportedCrowd struct {
	Crowd
	Host string
	PID  int
}

// ParseReport reads the crowds in the data of a node. Nothing is trusted.
func ParseReport(data []byte) (found []ReportedCrowd) {
	const most = 1_000_000 // callers
	var r report
	if len(data) > MaxNode || json.Unmarshal(data, &r) != nil {
		return nil
	}
	for _, c := range r.Crowds {
		c.Callers, c.At, c.Trace = min(max(0, c.Callers), most), printable(c.At), printable(c.Trace)
		found = append(found, ReportedCrowd{c, printable(r.Host), r.PID})
	}
	return found
}

// Traceparent returns a span in W3C's format, or nothing.
func Traceparent(span *trace.SpanContext) string {
	if span == nil {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags()&trace.FlagsSampled) // other flags are reserved
}
