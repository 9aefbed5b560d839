package lockpool

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
)

// scope is the name of the instrumentation, version its version.
const (
	scope   = "github.com/lockpool/lockpool"
	version = "0.1.0"
)

// The spans. OpenTelemetry has no convention for locks, so the names are in a
// namespace of our own.
const (
	spanAcquire = "lockpool.lock.acquire" // a request for a lock that goes to the service
	spanWait    = "lockpool.lock.wait"    // the part of it spent behind others
)

const (
	keyDriver   = attribute.Key("lockpool.driver.name")
	keyName     = attribute.Key("lockpool.lock.name")
	keyKind     = attribute.Key("lockpool.lock.kind")
	keyPermits  = attribute.Key("lockpool.lock.permits") // of a semaphore: how many it asks for
	keyOutcome  = attribute.Key("lockpool.lock.outcome") // acquired, busy, timeout, canceled, ...
	keyContend  = attribute.Key("lockpool.lock.contended")
	keyPosition = attribute.Key("lockpool.lock.queue.position") // when joining; 0 is the head
	keyLength   = attribute.Key("lockpool.lock.queue.length")   // when joining, oneself included
	keyWakeups  = attribute.Key("lockpool.lock.wakeups")
	keyRequeues = attribute.Key("lockpool.lock.requeues")       // how often it had to join again; only if it had
	keyRequeued = attribute.Key("lockpool.lock.requeued_after") // the last time: session_lost or node_removed
	keyNode     = attribute.Key("lockpool.lock.node")           // our own, as others see it in waiting_for
	keyBehind   = attribute.Key("lockpool.lock.waiting_for")    // the node that was in the way
	keySession  = attribute.Key("lockpool.session.id")
)

type tracing struct {
	tracer     trace.Tracer
	start      []trace.SpanStartOption
	driverName string
}

func newTracing(cfg config, connector driver.Connector) tracing {
	name := connector.DriverName()
	return tracing{
		tracer: cfg.tracers.Tracer(scope,
			trace.WithInstrumentationVersion(version), trace.WithSchemaURL(semconv.SchemaURL)),
		start:      []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)},
		driverName: name,
	}
}

// trail follows one acquisition. It is its recipe.Observer.
type trail struct {
	tracing  *tracing
	ctx      context.Context // with the acquire span
	name     string
	kind     attribute.KeyValue
	span     trace.Span
	wait     trace.Span // nil until it has to wait
	waiting  *atomic.Int32
	place    int // in the queue when joining
	wakeups  int
	requeues int
}

// acquire begins the span of an acquisition.
func (t *tracing) acquire(ctx context.Context, name string, req request, waiting *atomic.Int32) (context.Context, *trail) {
	ctx, span := t.tracer.Start(ctx, spanAcquire, t.start...)
	kind := keyKind.String(req.kind().String())
	if span.IsRecording() {
		span.SetAttributes(keyName.String(name), kind, keyDriver.String(t.driverName))
		if req.permits > 0 {
			span.SetAttributes(keyPermits.Int(req.permits))
		}
	}
	return ctx, &trail{tracing: t, ctx: ctx, name: name, kind: kind, span: span, waiting: waiting, place: -1}
}

// on tells which session the acquisition uses.
func (t *trail) on(m *member) {
	if t.span.IsRecording() {
		info := m.Info()
		t.span.SetAttributes(keySession.String(info.ID))
		t.span.SetAttributes(serverOf(info)...)
	}
}

// serverOf names the server as the connect string does. What a name there was
// resolved to, which would be network.peer.address, is not known.
func serverOf(info driver.Info) []attribute.KeyValue {
	host, digits, err := net.SplitHostPort(info.Peer)
	if err != nil {
		return []attribute.KeyValue{semconv.ServerAddress(info.Peer)}
	}
	attrs := []attribute.KeyValue{semconv.ServerAddress(host)}
	if port, err := strconv.Atoi(digits); err == nil {
		attrs = append(attrs, semconv.ServerPort(port))
	}
	return attrs
}

// Queued implements recipe.Observer.
func (t *trail) Queued(self driver.Node, place, length int) {
	if t.span.IsRecording() {
		t.span.SetAttributes(keyNode.String(self.Name))
	}
	if self.Kind == driver.Permit { // it has queued already, for the guard
		return
	}
	t.place = place
	if t.span.IsRecording() {
		t.span.AddEvent("lockpool.enqueued")
		t.span.SetAttributes(keyPosition.Int(place), keyLength.Int(length))
	}
}

// Waiting implements recipe.Observer.
func (t *trail) Waiting(behind driver.Node) {
	if t.wait == nil {
		t.waiting.Add(1)
		_, t.wait = t.tracing.tracer.Start(t.ctx, spanWait)
		if t.wait.IsRecording() {
			t.wait.SetAttributes(keyName.String(t.name), t.kind)
			if t.place >= 0 {
				t.wait.SetAttributes(keyPosition.Int(t.place))
			}
		}
	}
	if t.wait.IsRecording() {
		t.wait.SetAttributes(keyBehind.String(behind.Name))
	}
}

// Woken implements recipe.Observer.
func (t *trail) Woken(e driver.Event) {
	t.wakeups++
	if (e == driver.Deleted || e == driver.Missing) && t.wait.IsRecording() {
		t.wait.AddEvent("lockpool.predecessor.gone")
	}
}

// granted tells which node holds the lock.
func (t *trail) granted(node driver.Node) {
	if t.span.IsRecording() {
		t.span.SetAttributes(keyNode.String(node.Name))
	}
}

// requeued tells why the claim joins again: its session is over, or somebody
// has removed its node.
func (t *trail) requeued(why error) {
	t.requeues++
	if t.span.IsRecording() {
		t.span.AddEvent("lockpool.requeued")
		t.span.SetAttributes(keyRequeued.String((&LockError{Err: why}).ErrorType()))
	}
}

// end ends the spans. Somebody else being there first is an answer of a
// TryLock, not an error.
func (t *trail) end(err error) {
	if t.wait != nil {
		t.waiting.Add(-1)
		t.finish(t.wait, err)
	}
	if t.span.IsRecording() {
		t.span.SetAttributes(keyContend.Bool(t.wait != nil || errors.Is(err, ErrLocked)))
	}
	t.finish(t.span, err)
}

func (t *trail) finish(span trace.Span, err error) {
	if span.IsRecording() {
		outcome := "acquired"
		if err != nil {
			outcome = (&LockError{Err: err}).ErrorType()
		}
		span.SetAttributes(keyOutcome.String(outcome), keyWakeups.Int(t.wakeups))
		if t.requeues > 0 {
			span.SetAttributes(keyRequeues.Int(t.requeues))
		}
		if err != nil && !errors.Is(err, ErrLocked) {
			span.SetAttributes(semconv.ErrorTypeKey.String(outcome))
			span.SetStatus(codes.Error, err.Error())
		}
	}
	span.End()
}
