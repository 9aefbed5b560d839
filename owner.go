package lockpool

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"go.opentelemetry.io/otel/trace"
)

// ownerRecord is what the nodes of this process say about it, for people who look
// at them and for other clients' listings: JSON in UTF-8.
type ownerRecord struct {
	Owner string `json:"owner,omitempty"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Trace string `json:"traceparent,omitempty"`
}

// owner is the record of a pool.
type owner []byte

func newOwner(name string) owner {
	host, _ := os.Hostname() // empty if unknown
	record, err := json.Marshal(ownerRecord{Owner: name, Host: host, PID: os.Getpid()})
	if err != nil {
		panic(err) // strings and a number
	}
	return record
}

// data is what a node says whose lock is asked for in ctx: the record, and if
// there is a trace the span that will hold the lock, as W3C's traceparent has it.
func (o owner) data(ctx context.Context) []byte {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return o
	}
	return fmt.Appendf(o[:len(o)-1:len(o)-1], `,"traceparent":"00-%s-%s-%s"}`, span.TraceID(), span.SpanID(), span.TraceFlags())
}
