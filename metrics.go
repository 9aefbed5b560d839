package lockpool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"

	"github.com/lockpool/lockpool/driver"
)

// meters are the instruments of a pool. Durations are in seconds. The attributes
// are few: pool, kind, outcome, whether somebody was in the way, the type of an
// error, and the lock only as WithMetricName maps it.
type meters struct {
	waitTime, holdTime            metric.Float64Histogram
	slotTime, connectTime         metric.Float64Histogram
	depth                         metric.Int64Histogram
	waiters, held                 metric.Int64UpDownCounter
	reentries, lost, sessionsLost metric.Int64Counter
	rescues                       metric.Int64Counter

	sessions, maxSessions, handles, maxHandles metric.Int64ObservableUpDownCounter

	meter metric.Meter

	pool string
	name func(string) string
	sets sync.Map // labels to metric.MeasurementOption
}

var (
	waitBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	holdBounds = append(waitBounds[:len(waitBounds):len(waitBounds)], 1800, 7200)
)

func (m *meters) make(cfg config) {
	m.pool, m.name = cfg.owner, cfg.metricName
	meter := cfg.meters.Meter(scope, metric.WithInstrumentationVersion(version), metric.WithSchemaURL(semconv.SchemaURL))
	m.meter = meter
	seconds := func(name, description string, bounds []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...))
		return usable(h, err, metric.Float64Histogram(noop.Float64Histogram{}))
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return usable(c, err, metric.Int64Counter(noop.Int64Counter{}))
	}
	upDown := func(name, unit, description string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return usable(c, err, metric.Int64UpDownCounter(noop.Int64UpDownCounter{}))
	}
	observed := func(name, unit, description string) metric.Int64ObservableUpDownCounter {
		c, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return usable(c, err, metric.Int64ObservableUpDownCounter(noop.Int64ObservableUpDownCounter{}))
	}
	m.waitTime = seconds("lockpool.lock.wait.duration", "Time from asking for a lock to its grant, or to the error.", waitBounds)
	m.holdTime = seconds("lockpool.lock.hold.duration", "Time from the grant of a lock until it is let go or lost.", holdBounds)
	m.slotTime = seconds("lockpool.session.wait_time", "Time spent waiting for a free handle and for a session.", waitBounds)
	m.connectTime = seconds("lockpool.session.create_time", "Time to open a session with the service.", waitBounds)
	depth, err := meter.Int64Histogram("lockpool.lock.queue.length", metric.WithUnit("{contender}"),
		metric.WithDescription("Contenders in the queue of a lock when joining it, oneself included."),
		metric.WithExplicitBucketBoundaries(1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 5000))
	m.depth = usable(depth, err, metric.Int64Histogram(noop.Int64Histogram{}))
	m.waiters = upDown("lockpool.lock.waiters", "{waiter}", "Calls that wait for a lock.")
	m.held = upDown("lockpool.lock.held", "{lock}", "Locks that are held.")
	m.reentries = counter("lockpool.lock.reentries", "{entry}", "Entries into locks that were held already, counted when these are let go.")
	m.lost = counter("lockpool.lock.lost", "{lock}", "Locks that were lost while they were held.")
	m.rescues = counter("lockpool.lock.rescues", "{rescue}", "Ends of nodes that the service did not tell of, and that were found by looking again.")
	m.sessionsLost = counter("lockpool.session.lost", "{session}", "Sessions with the service that ended otherwise than by being closed.")
	m.sessions = observed("lockpool.session.count", "{session}", "Open sessions with the service.")
	m.maxSessions = observed("lockpool.session.max", "{session}", "Sessions with the service, at the most.")
	m.handles = observed("lockpool.handle.count", "{handle}", "Handles that are given out.")
	m.maxHandles = observed("lockpool.handle.max", "{handle}", "Handles, at the most.")
}

// usable returns the instrument, or none in its place: what a provider can not do
// is told to OpenTelemetry's error handler, and locks go on without it.
func usable[T any](instrument T, err error, none T) T {
	if err != nil {
		otel.Handle(err)
	}
	if any(instrument) == nil {
		return none
	}
	return instrument
}

// observe registers what is asked for and not counted, and returns what ends it.
func (p *Pool) observe() (unregister func()) {
	m := &p.telemetry.meters
	attrs := m.option(labels{})
	r, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := p.Stats()
		o.ObserveInt64(m.sessions, int64(s.OpenSessions), attrs)
		o.ObserveInt64(m.maxSessions, int64(s.MaxSessions), attrs)
		o.ObserveInt64(m.handles, int64(s.InUse), attrs)
		o.ObserveInt64(m.maxHandles, int64(s.MaxHandles), attrs)
		return nil
	}, m.sessions, m.maxSessions, m.handles, m.maxHandles)
	r = usable(r, err, metric.Registration(noop.Registration{}))
	return sync.OnceFunc(func() {
		if err := r.Unregister(); err != nil {
			otel.Handle(err)
		}
	})
}

// labels are what a measurement is told apart by.
type labels struct {
	kind      string
	name      string // as mapped
	failed    string // error.type
	reason    string
	outcome   string
	contended bool // if there is an outcome
}

// with returns the labels as the API wants them, made once for each set.
func (m *meters) option(l labels) metric.MeasurementOption {
	if set, ok := m.sets.Load(l); ok {
		return set.(metric.MeasurementOption)
	}
	var attrs []attribute.KeyValue
	add := func(key attribute.Key, value string) {
		if value != "" {
			attrs = append(attrs, key.String(value))
		}
	}
	add(keyPool, m.pool)
	add(keyKind, l.kind)
	add(keyName, l.name)
	add(keyReason, l.reason)
	add(semconv.ErrorTypeKey, l.failed)
	add(keyOutcome, l.outcome)
	if l.outcome != "" {
		attrs = append(attrs, keyContend.Bool(l.contended))
	}
	set, _ := m.sets.LoadOrStore(l, metric.WithAttributeSet(attribute.NewSet(attrs...)))
	return set.(metric.MeasurementOption)
}

func (m *meters) labelsOf(kind driver.Kind, name string) labels {
	l := labels{kind: kind.String()}
	if m.name != nil {
		l.name = m.mappedName(name)
	}
	return l
}

// mapped calls the user's function, of which a panic must not keep a lock.
func (m *meters) mappedName(name string) (mapped string) {
	defer func() {
		if r := recover(); r != nil {
			otel.Handle(fmt.Errorf("lockpool: WithMetricName: the function panics for %q: %v", name, r))
		}
	}()
	return m.name(name)
}

func (m *meters) queued(ctx context.Context, t *acquisition, length int) {
	if m.depth.Enabled(ctx) {
		m.depth.Record(ctx, int64(length), m.option(m.labelsOf(t.req.kind(), t.name)))
	}
}

func (m *meters) countWaiter(ctx context.Context, t *acquisition, n int64) {
	if n > 0 { // the global provider may get a delegate in between
		t.counted = m.waiters.Enabled(ctx)
	}
	if t.counted {
		m.waiters.Add(ctx, n, m.option(m.labelsOf(t.req.kind(), t.name)))
	}
}

// acquired is told of the end of an acquisition.
func (m *meters) acquired(ctx context.Context, t *acquisition, contended bool, err error) {
	if !m.waitTime.Enabled(ctx) {
		return
	}
	l := m.labelsOf(t.req.kind(), t.name)
	l.outcome, l.failed = outcome(err)
	l.contended = contended
	m.waitTime.Record(ctx, time.Since(t.began).Seconds(), m.option(l))
}

// ended counts a hold out.
func (m *meters) holdEnded(h *hold) {
	if ctx := context.Background(); m.holdTime.Enabled(ctx) {
		m.holdTime.Record(ctx, h.ended.Sub(h.began).Seconds(), m.option(m.labelsOf(h.kind, h.name)))
	}
	m.countHeld(h, -1)
}

func (m *meters) countHeld(h *hold, n int64) {
	ctx := context.Background()
	if n > 0 {
		h.counted = m.held.Enabled(ctx)
	}
	if h.counted {
		m.held.Add(ctx, n, m.option(m.labelsOf(h.kind, h.name)))
	}
}

// entered counts how often a hold was entered again.
func (m *meters) countReentries(h *hold) {
	again := int64(h.last/2) - 1 // the first is 2, or 3 of one that only reads; then 4 or 5
	if ctx := context.Background(); again > 0 && m.reentries.Enabled(ctx) {
		m.reentries.Add(ctx, again, m.option(m.labelsOf(h.kind, h.name)))
	}
}

// sessionLost counts a member that has ended, unless the pool has closed it.
func (m *meters) sessionLost(of *session) {
	if ctx := context.Background(); !of.closed.Load() && m.sessionsLost.Enabled(ctx) {
		m.sessionsLost.Add(ctx, 1, m.option(labels{}))
	}
}

// rescued counts a wait or a hold that has missed the end of a node.
func (m *meters) rescued(ctx context.Context, kind driver.Kind, name string) {
	if m.rescues.Enabled(ctx) {
		m.rescues.Add(ctx, 1, m.option(m.labelsOf(kind, name)))
	}
}

func (m *meters) lockLost(h *hold, cause error) {
	if ctx := context.Background(); m.lost.Enabled(ctx) {
		l := m.labelsOf(h.kind, h.name)
		l.reason = lossReason(cause)
		m.lost.Add(ctx, 1, m.option(l))
	}
}

// lossReason says in a word how a lock was lost.
func lossReason(cause error) string {
	switch {
	case errors.Is(cause, driver.ErrRemoved):
		return "node_removed"
	case errors.Is(cause, driver.ErrNoPermission):
		return "no_permission"
	}
	return "session_lost"
}

// took records how long something of a session took.
func (m *meters) recordDuration(h metric.Float64Histogram, began time.Time, err error) {
	ctx := context.Background()
	if !h.Enabled(ctx) {
		return
	}
	l := labels{}
	if err != nil {
		l.failed = errorType(err)
	}
	h.Record(ctx, time.Since(began).Seconds(), m.option(l))
}
