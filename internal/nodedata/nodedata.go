// Package nodedata encodes what the node of a lock says about the owner, as JSON, readable
// for other clients and people.
package nodedata

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Origin says where a request comes from.
type Origin struct {
	Owner string `json:"owner,omitempty"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Trace string `json:"traceparent,omitempty"` // of the span of the request, in W3C's format
}

// Record is what a node says about the owner.
type Record struct {
	Origin
	Ask   string `json:"ask,omitempty"`   // identifies the request, perhaps of several nodes
	Local bool   `json:"local,omitempty"` // the process may pass the lock on to other requests of the process
	Kept  bool   `json:"kept,omitempty"`  // the process keeps the lock while no other contender wants the lock, used or not
	Token int64  `json:"token,omitempty"` // of a downgraded lock, whose node is newer than the token, or of a run
	Was   string `json:"was,omitempty"`   // of a downgraded lock: the name of the replaced node
	Run   string `json:"run,omitempty"`   // of the record of a run: different for each

	At        string `json:"at,omitempty"`        // where in the program the request was made
	Revocable bool   `json:"revocable,omitempty"` // the holder listens to a revocation

	// Of a request whose handle holds other locks.
	Holds     []Hold `json:"holds,omitempty"`     // what the handle holds for as long as the request waits
	Unchecked bool   `json:"unchecked,omitempty"` // the request does not look for deadlocks
	Age       int64  `json:"age,omitempty"`       // order number of the caller's first request

	text string // the data stored by another client
}

// Hold is a lock held by a handle.
type Hold struct {
	Lock    string `json:"lock"`
	Node    string `json:"node"`
	Permits bool   `json:"permits,omitempty"` // of a semaphore
}

// Owner is the encoded record of a process that passes a lock on in memory, or does not.
type Owner struct {
	Origin       // without a span
	local, alone []byte
}

// NewOwner returns the record of this process. An empty name stands for the program's
// name.
func NewOwner(name string) Owner {
	if name == "" {
		name = printable(strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"))
	}
	host, _ := os.Hostname() // empty if unknown
	origin := Origin{Owner: name, Host: host, PID: os.Getpid()}
	data, err := json.Marshal(origin)
	if err != nil {
		panic(err) // impossible for two strings and a number
	}
	return Owner{origin, append(data[:len(data)-1:len(data)-1], `,"local":true}`...), data}
}

// Request is what a node says of a request.
type Request struct {
	Span      *trace.SpanContext // nil if there is none
	Local     bool               // the process may pass the lock on
	Ask       string             // identifies the request, or is empty
	At        string             // where in the program the request was made, if known
	Revocable bool
}

// Data returns the data of a node: the owner and the request.
func (o Owner) Data(r Request) []byte {
	record := o.alone
	if r.Local {
		record = o.local
	}
	if r == (Request{Local: r.Local}) {
		return record
	}
	data := record[: len(record)-1 : len(record)-1]
	if r.Revocable {
		data = append(data, `,"revocable":true`...)
	}
	if r.Span != nil {
		data = fmt.Appendf(data, `,"traceparent":"%s"`, Traceparent(r.Span))
	}
	if r.Ask != "" {
		data = append(append(append(data, `,"ask":"`...), r.Ask...), '"')
	}
	if r.At != "" {
		data = strconv.AppendQuote(append(data, `,"at":`...), printable(r.At)) // printable, and so JSON
	}
	return append(data, '}')
}

// Kept adds to the data of a node that the process keeps the lock.
func Kept(data []byte) []byte {
	return append(data[:len(data)-1:len(data)-1], `,"kept":true}`...)
}

// Downgraded adds to the data of a node the fencing token of the lock, and the name of the
// replaced node.
func Downgraded(data []byte, token int64, was string) []byte {
	return fmt.Appendf(data[:len(data)-1:len(data)-1], `,"token":%d,"was":%q}`, token, was)
}

// OfRun makes the data of a node the data of a record, by adding the fencing token of the
// lock, and an identifier of the run.
func OfRun(data []byte, token int64) []byte {
	return fmt.Appendf(data[:len(data)-1:len(data)-1], `,"token":%d,"run":"%s"}`, token, uuid.NewString())
}

// WithHolds adds to the data of a node as many of the holds as fit into most bytes. unchecked says that the request does not look for deadlocks. age is
// 0 without an earlier request.
func WithHolds(data []byte, holds []Hold, unchecked bool, age int64, most int) []byte {
	data = data[: len(data)-1 : len(data)-1]
	b := bytes.NewBuffer(slices.Grow(data, 100+100*len(holds)))
	encoder := json.NewEncoder(b)
	add := func(before string, v any) {
		b.WriteString(before)
		if err := encoder.Encode(v); err != nil {
			panic(err) // impossible for texts
		}
		b.Truncate(b.Len() - 1) // the end of the line
	}
	if unchecked {
		b.WriteString(`,"unchecked":true`)
	}
	if age > 0 {
		add(`,"age":`, age)
	}
	before := `,"holds":[`
	for i := range holds {
		end := b.Len()
		add(before, &holds[i])
		if b.Len() > most-reserve {
			b.Truncate(end)
			break
		}
		before = ","
	}
	if before == "," {
		b.WriteByte(']')
	}
	b.WriteByte('}')
	return b.Bytes()
}

const (
	MaxNode  = 8192 // bytes of the longest data parsed
	MaxLease = 2048 // bytes of the data of permits, many in one request
	TurnBits = 10   // of a fencing token; above are the bits of the node's order number

	reserve = 300 // bytes of a record for later additions: Downgraded
	maxText = 200 // bytes of the longest text repeated
)

// Parse reads the data of a node, possibly written by any client. Nothing is trusted: texts
// are shortened, and unprintable texts omitted.
func Parse(data []byte) (r Record) {
	if len(data) > MaxNode || json.Unmarshal(data, &r) != nil || !r.IsOurs() {
		if len(data) > MaxNode || !utf8.Valid(data) {
			return Record{}
		}
		return Record{text: printable(string(data))}
	}
	r.Owner, r.Host, r.Trace, r.At = printable(r.Owner), printable(r.Host), printable(r.Trace), printable(r.At)
	return r
}

// IsOurs reports whether lockpool has written the record.
func (o Origin) IsOurs() bool { return o.Host != "" || o.PID != 0 }

// printable returns the beginning of s, or nothing if s cannot safely be logged.
func printable(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxText)], "")
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return s
}

// String names the owner as far as known.
func (r Record) String() string {
	if !r.IsOurs() {
		return r.text
	}
	return r.Origin.String()
}

// String names the owner, or nothing if unknown.
func (o Origin) String() string {
	switch {
	case !o.IsOurs():
		return ""
	case o.Owner == "":
		return fmt.Sprintf("process %d on %s", o.PID, o.Host)
	}
	return fmt.Sprintf("%s, process %d on %s", o.Owner, o.PID, o.Host)
}

// SpanContext returns the requesting span, not valid if there is none.
func (o Origin) SpanContext() trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": o.Trace})
	return trace.SpanContextFromContext(ctx)
}
