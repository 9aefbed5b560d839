package lockpool

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// ownerRecord is what the nodes of this process say about it, for people who look
// at them and for other clients' listings: JSON in UTF-8.
type ownerRecord struct {
	Owner string `json:"owner,omitempty"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Trace string `json:"traceparent,omitempty"`
	Ask   string `json:"ask,omitempty"`   // what the nodes of one who asks for permits have in common
	Token int64  `json:"token,omitempty"` // of a lock that became shared: its node is a later one

	other string // what another client has stored
}

func askOf(data []byte) string { return readOwner(data).Ask }

// owner is the record of a pool.
type owner []byte

func newOwner(name string) owner {
	if name == "" {
		name = printable(strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"))
	}
	host, _ := os.Hostname() // empty if unknown
	record, err := json.Marshal(ownerRecord{Owner: name, Host: host, PID: os.Getpid()})
	if err != nil {
		panic(err) // strings and a number
	}
	return record
}

// data is what a node says whose lock is asked for in ctx: the record, and if
// there is a trace the span that asks, as W3C's traceparent has it.
func (o owner) data(ctx context.Context, req request, links bool) []byte {
	record := o[: len(o)-1 : len(o)-1]
	if span := trace.SpanContextFromContext(ctx); links && span.IsValid() {
		record = fmt.Appendf(record, `,"traceparent":"00-%s-%s-%s"`, span.TraceID(), span.SpanID(), span.TraceFlags()&trace.FlagsSampled) // as its Extract accepts
	}
	if req.permits > 0 {
		record = fmt.Appendf(record, `,"ask":"%s"`, uuid.NewString())
	}
	if len(record) < len(o) {
		return o
	}
	return append(record, '}')
}

// withToken adds the fencing token to a record.
func withToken(record []byte, token int64) []byte {
	return fmt.Appendf(record[:len(record)-1:len(record)-1], `,"token":%d}`, token)
}

const (
	longestRecord = 4096 // that is read
	longestText   = 200  // of it that is repeated, in bytes
)

// readOwner reads what anybody may have stored in a node, and believes little of
// it.
func readOwner(data []byte) (r ownerRecord) {
	if len(data) > longestRecord || json.Unmarshal(data, &r) != nil || r.Host == "" && r.PID == 0 {
		if len(data) > longestRecord || !utf8.Valid(data) {
			return ownerRecord{}
		}
		return ownerRecord{other: printable(string(data))}
	}
	r.Owner, r.Host, r.Trace = printable(r.Owner), printable(r.Host), printable(r.Trace)
	return r
}

// printable returns s as it can stand in a log, or nothing.
func printable(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), longestText)], "")
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return s
}

// String says whose a node is, as far as it is known.
func (r ownerRecord) String() string {
	switch {
	case r.Host == "" && r.PID == 0:
		return r.other
	case r.Owner == "":
		return fmt.Sprintf("process %d on %s", r.PID, r.Host)
	}
	return fmt.Sprintf("%s, process %d on %s", r.Owner, r.PID, r.Host)
}

// span returns the span that asked for the lock; it is not valid if there is none.
func (r ownerRecord) span() trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": r.Trace})
	return trace.SpanContextFromContext(ctx)
}
