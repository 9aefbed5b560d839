package lockpool

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// ownerRecord is what the nodes of this process say about it, for people who look
// at them and for other clients' listings: JSON in UTF-8.
type ownerRecord struct {
	Owner string `json:"owner,omitempty"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Trace string `json:"traceparent,omitempty"`
	Ask   string `json:"ask,omitempty"` // what the nodes of one who asks for permits have in common
}

// readOwner reads what anybody may have stored in a node.
func readOwner(data []byte) (r ownerRecord) {
	_ = json.Unmarshal(data, &r) // others write what they like
	return r
}

func askOf(data []byte) string { return readOwner(data).Ask }

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
// there is a trace the span that asks, as W3C's traceparent has it.
func (o owner) data(ctx context.Context, req request) []byte {
	record := o[: len(o)-1 : len(o)-1]
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		record = fmt.Appendf(record, `,"traceparent":"00-%s-%s-%s"`, span.TraceID(), span.SpanID(), span.TraceFlags())
	}
	if req.permits > 0 {
		record = fmt.Appendf(record, `,"ask":"%s"`, uuid.NewString())
	}
	if len(record) < len(o) {
		return o
	}
	return append(record, '}')
}
