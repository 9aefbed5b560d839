// Package telemetry reports on a pool: spans, metrics, logs and profiles. The package is
// given values, and sends no requests.
//
// The package calls user code (span processors, meters, slog handlers, metric names). User
// code may block or panic: no function of this package may be called under a mutex, and a
// lock must be safe before being reported.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
)

// scope is the name of the instrumentation, version the instrumentation's version.
const (
	scope   = "github.com/lockpool/lockpool"
	version = "0.1.0"
)

// The spans. OpenTelemetry has no conventions for locks, so their names are in a
// namespace of our own.
const (
	spanAcquire = "lockpool.lock.acquire"
	spanWait    = "lockpool.lock.wait"
	spanRelease = "lockpool.lock.release"
	spanHold    = "lockpool.lock.hold"
	spanSlot    = "lockpool.session.acquire"
	spanConnect = "lockpool.session.connect"
)

// The attributes. Package lockpool documents them.
const (
	keyDriver        = attribute.Key("lockpool.driver.name")
	keyPool          = attribute.Key("lockpool.pool.name")
	keyName          = attribute.Key("lockpool.lock.name")
	keyKind          = attribute.Key("lockpool.lock.kind")
	keyPermits       = attribute.Key("lockpool.lock.permits")
	keyOutcome       = attribute.Key("lockpool.lock.outcome")
	keyContended     = attribute.Key("lockpool.lock.contended")
	keyPosition      = attribute.Key("lockpool.lock.queue.position")
	keyLength        = attribute.Key("lockpool.lock.queue.length")
	keyPredicted     = attribute.Key("lockpool.lock.queue.predicted_wait")
	keyWakeups       = attribute.Key("lockpool.lock.wakeups")
	keyRequeues      = attribute.Key("lockpool.lock.requeues")
	keyRequeuedAfter = attribute.Key("lockpool.lock.requeued_after")
	keyNode          = attribute.Key("lockpool.lock.node")
	keyToken         = attribute.Key("lockpool.lock.token")
	keyBlocker       = attribute.Key("lockpool.lock.waiting_for")
	keyBlockerOwner  = attribute.Key("lockpool.lock.waiting_for.owner")
	keyBlockerKept   = attribute.Key("lockpool.lock.waiting_for.kept")
	keyLink          = attribute.Key("lockpool.link")
	keyTenancy       = attribute.Key("lockpool.link.tenancy")
	keySession       = attribute.Key("lockpool.session.id")
	keyLocal         = attribute.Key("lockpool.lock.local")
	keyCycle         = attribute.Key("lockpool.deadlock.length")
	keyLossReason    = attribute.Key("lockpool.lost.reason")
)

// Config holds a pool's options for telemetry. Providers and the logger are the global
// ones if they are nil.
type Config struct {
	Tracers trace.TracerProvider
	Meters  metric.MeterProvider
	Logger  *slog.Logger

	Driver     string
	Pool       string                   // the pool's name, or empty
	MetricName func(lock string) string // nil if metrics have no lock names
	NoLinks    bool
	HoldSpans  bool
	Profiles   bool
	LongWait   time.Duration // after which a wait is logged; 0 for never

	ErrorType func(error) string // the value of the attribute error.type
}

// Telemetry is the telemetry of one pool.
type Telemetry struct {
	Config
	tracer    trace.Tracer
	start     []trace.SpanStartOption
	longWaits longWaits
	global    trace.TracerProvider // whose spans these are; nil if of another one
	traces    atomic.Bool          // the latest acquisition, if any, had a tracer provider
	tried     atomic.Int64         // when a span was started although the one before was not valid
	meters

	waits      waits
	shortWaits atomic.Bool // the latest wait in memory alone was shorter than longInMemory
}

// New returns the telemetry of a pool.
func New(cfg Config) *Telemetry {
	isGlobal := cfg.Tracers == nil
	if isGlobal {
		cfg.Tracers = otel.GetTracerProvider()
	}
	if cfg.Meters == nil {
		cfg.Meters = otel.GetMeterProvider()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	t := &Telemetry{
		Config: cfg,
		tracer: cfg.Tracers.Tracer(scope,
			trace.WithInstrumentationVersion(version), trace.WithSchemaURL(semconv.SchemaURL)),
		start: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)},
	}
	t.traces.Store(true)
	if isGlobal && reflect.ValueOf(cfg.Tracers).Comparable() {
		t.global = cfg.Tracers
	}
	t.meters.make(cfg)
	if cfg.Profiles {
		profiles() // to be listed before the first lock
	}
	return t
}

// Lock describes a lock in all reports.
type Lock struct {
	Name string
	Kind driver.Kind
}

// SlotAcquired reports a wait for a slot, with a span unless negligible.
func (t *Telemetry) SlotAcquired(ctx context.Context, began time.Time, err error) {
	const atOnce = time.Millisecond
	t.recordDuration(t.slotTime, began, err)
	if time.Since(began) < atOnce {
		return
	}
	_, span := t.tracer.Start(ctx, spanSlot, trace.WithTimestamp(began))
	if err != nil && span.IsRecording() {
		t.fail(span, err)
	}
	span.End()
}

// Connecting reports that a session is being opened, and returns the function to report the
// outcome.
func (t *Telemetry) Connecting(ctx context.Context) (context.Context, func(driver.Session, error)) {
	began := time.Now()
	ctx, span := t.tracer.Start(ctx, spanConnect, t.start...)
	return ctx, func(s driver.Session, err error) {
		t.recordDuration(t.connectTime, began, err)
		if span.IsRecording() {
			span.SetAttributes(keyDriver.String(t.Driver))
			if err != nil {
				t.fail(span, err)
			} else {
				var attrs attributes
				attrs.addSession(s.Info())
				attrs.setOn(span)
			}
		}
		span.End()
	}
}

// fail marks a span as failed.
func (t *Telemetry) fail(span trace.Span, err error) {
	span.SetAttributes(semconv.ErrorTypeKey.String(t.ErrorType(err)))
	span.SetStatus(codes.Error, err.Error())
}

// busy is the type of the error of a try when the lock is held.
const busy = "busy"

// outcome returns the outcome of an acquisition, and the type of an error: for a try, a
// held lock is a valid outcome.
func (m *meters) outcome(err error) (outcome, errorType string) {
	if err == nil {
		return "acquired", ""
	}
	if outcome = m.errorType(err); outcome != busy {
		errorType = outcome
	}
	return outcome, errorType
}

// lossReason says in one word why a lock was lost.
func lossReason(cause error) string {
	switch {
	case errors.Is(cause, driver.ErrRemoved):
		return "node_removed"
	case errors.Is(cause, driver.ErrNoPermission):
		return "no_permission"
	}
	return "session_lost"
}
