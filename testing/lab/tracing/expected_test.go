package tracing

// This file has the expected spans.

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"os"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/testing/locktest"
)

// Names of spans.
const (
	acquireName = "lockpool.lock.acquire"
	waitName    = "lockpool.lock.wait"
	releaseName = "lockpool.lock.release"
	holdName    = "lockpool.lock.hold"
	handleName  = "lockpool.session.acquire"
	connectName = "lockpool.session.connect"
)

// Names of events.
const (
	goneEvent     = "lockpool.predecessor.gone"
	seenEvent     = "lockpool.queue.seen"
	deadlockEvent = "lockpool.deadlock"
)

var (
	enqueued = []string{"lockpool.enqueued"}
	requeued = []string{"lockpool.enqueued", "lockpool.requeued", "lockpool.enqueued"}
)

// saw is the event of a listing with the given number of contenders in front.
func saw(position, length int) string {
	return fmt.Sprintf("%s %d of %d", seenEvent, position, length)
}

const (
	nodeKey  = attribute.Key("lockpool.lock.node")
	tokenKey = attribute.Key("lockpool.lock.token")
)

// Texts of lockpool.
const (
	longWaitMessage     = "lockpool: long wait for a lock"
	lostMessage         = "lockpool: lock lost"
	selfDeadlockMessage = "lockpool: a goroutine waits for a lock that the holder in its context has on another goroutine; " +
		"if that one waits for this one, both wait forever"
)

// waitingBehind is the error of a wait behind a node, whose owner may be unknown.
func waitingBehind(node, cause, owner string) string {
	text := "waiting behind " + node + ": " + cause
	if owner != "" {
		text += " (owner: " + owner + ")"
	}
	return text
}

// me is how this process names itself in nodes, unless the pool has an owner.
var me = "tracing.test, " + thisProcess

var thisProcess = func() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
}()

// span is an expected span.
type span struct {
	Name       string
	Kind       trace.SpanKind
	Status     sdktrace.Status
	Attributes attributes
	Events     []string
	Links      []link
	Children   []span // in the order of their beginning
}

// link is a link to a span, with a role.
type link struct {
	Role    string
	TraceID trace.TraceID
	SpanID  trace.SpanID
}

func linkTo(role string, to trace.SpanContext) link { return link{role, to.TraceID(), to.SpanID()} }

type attributes map[attribute.Key]any

func (a attributes) with(more attributes) attributes {
	a = maps.Clone(a)
	maps.Copy(a, more)
	return a
}

func (a attributes) without(keys ...attribute.Key) attributes {
	a = maps.Clone(a)
	for _, key := range keys {
		delete(a, key)
	}
	return a
}

// ok is the status of spans without an error.
var ok sdktrace.Status

func failed(description string) sdktrace.Status {
	return sdktrace.Status{Code: codes.Error, Description: description}
}

// ofSession are the attributes of a span on a session with the shared server.
func ofSession(session string) attributes {
	host, port, _ := net.SplitHostPort(locktest.Shared().Addr())
	number, _ := strconv.ParseInt(port, 10, 64)
	return attributes{
		"lockpool.driver.name": "zookeeper",
		"lockpool.session.id":  session,
		"server.address":       host,
		"server.port":          number,
	}
}

// acquire is the span of an acquisition on a session with the shared server.
func acquire(session string, more attributes, status sdktrace.Status, events []string, children ...span) span {
	return span{acquireName, trace.SpanKindClient, status, ofSession(session).with(attributes{
		"lockpool.lock.name": "a",
		"lockpool.lock.kind": "mutex",
	}).with(more), events, nil, children}
}

// uncontended are the attributes of an acquisition of a free lock.
func uncontended() attributes {
	return attributes{
		"lockpool.lock.queue.position": int64(0),
		"lockpool.lock.queue.length":   int64(1),
		"lockpool.lock.contended":      false,
		"lockpool.lock.wakeups":        int64(0),
		"lockpool.lock.outcome":        "acquired",
	}
}

// acquireUncontended is the span of an acquisition of a free lock.
func acquireUncontended(session string) span {
	return acquire(session, uncontended(), ok, enqueued)
}

// waiting is an expected acquisition with a wait.
type waiting struct {
	position int64  // in the queue, as the last contender
	behind   string // node
	owner    string // of the predecessor; me if empty
	wakeups  any
	events   []string // of the wait
	links    []link   // of the wait

	outcome string          // of both spans; acquired if empty
	status  sdktrace.Status // of both spans
	both    attributes      // further attributes of both spans

	acquire  attributes // further attributes of the acquisition
	enqueued []string   // events of the acquisition; enqueued if nil
	children []span     // further children of the acquisition
}

// acquireWaiting is the span of a waiting acquisition.
func acquireWaiting(session string, w waiting) span {
	both := attributes{
		"lockpool.lock.queue.position": w.position,
		"lockpool.lock.wakeups":        w.wakeups,
		"lockpool.lock.outcome":        cmp.Or(w.outcome, "acquired"),
	}.with(w.both)
	if w.outcome != "" {
		both["error.type"] = w.outcome
	}
	if w.enqueued == nil {
		w.enqueued = enqueued
	}
	wait := wait(both.with(attributes{
		"lockpool.lock.waiting_for":       w.behind,
		"lockpool.lock.waiting_for.owner": cmp.Or(w.owner, me),
	}), w.status, w.events...).linkedTo(w.links...)
	return acquire(session, both.with(attributes{
		"lockpool.lock.queue.length": w.position + 1,
		"lockpool.lock.contended":    true,
	}).with(w.acquire), w.status, w.enqueued, append([]span{wait}, w.children...)...)
}

// wait is the span of a wait behind a node of this process.
func wait(more attributes, status sdktrace.Status, events ...string) span {
	return span{waitName, trace.SpanKindInternal, status, attributes{
		"lockpool.lock.name":              "a",
		"lockpool.lock.kind":              "mutex",
		"lockpool.lock.waiting_for.owner": me,
	}.with(more), events, nil, nil}
}

func (s span) linkedTo(links ...link) span { s.Links = links; return s }

// release is the span of a release.
func release(more attributes) span {
	return span{releaseName, trace.SpanKindClient, ok, attributes{
		"lockpool.driver.name": "zookeeper",
		"lockpool.lock.name":   "a",
		"lockpool.lock.kind":   "mutex",
	}.with(more), nil, nil, nil}
}

// hold is the span of a hold.
func hold() span {
	s := release(nil)
	s.Name, s.Kind = holdName, trace.SpanKindInternal
	return s
}

// connect is the span of a new session.
func connect(session string, more attributes) span {
	return span{connectName, trace.SpanKindClient, ok, ofSession(session).with(more), nil, nil, nil}
}

// handleWait is the span of a wait for a handle and a session.
func handleWait() span {
	return span{handleName, trace.SpanKindInternal, ok, attributes{}, nil, nil, nil}
}
