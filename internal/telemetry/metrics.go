package telemetry

// This file has the metrics of a pool.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
)

// meters are the instruments of a pool. Durations are in seconds. There are few
// attributes: the pool, the kind of lock, the outcome, whether there was contention,
// the type of an error, and the lock's name, only as mapped by Config.MetricName.
type meters struct {
	waitTime, holdTime            metric.Float64Histogram
	slotTime, connectTime         metric.Float64Histogram
	depth                         metric.Int64Histogram
	waiters, held                 metric.Int64UpDownCounter
	reentries, lost, sessionsLost metric.Int64Counter
	rescues, deadlocks, overdue   metric.Int64Counter

	sessions, maxSessions, handles, maxHandles, kept metric.Int64ObservableUpDownCounter
	keptTurns, askedBack                             metric.Int64ObservableCounter
	oldestWait, oldestHold                           metric.Float64ObservableGauge

	meter metric.Meter

	pool      string
	name      func(string) string
	errorType func(error) string
	options   sync.Map // of labels: their metric.MeasurementOption
}

var (
	waitBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	holdBounds = append(waitBounds[:len(waitBounds):len(waitBounds)], 1800, 7200)
)

func (m *meters) make(cfg Config) {
	m.pool, m.name, m.errorType = cfg.Pool, cfg.MetricName, cfg.ErrorType
	meter := cfg.Meters.Meter(scope, metric.WithInstrumentationVersion(version), metric.WithSchemaURL(semconv.SchemaURL))
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
	total := func(name, unit, description string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		return usable(c, err, metric.Int64ObservableCounter(noop.Int64ObservableCounter{}))
	}
	age := func(name, description string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
		return usable(g, err, metric.Float64ObservableGauge(noop.Float64ObservableGauge{}))
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
	m.oldestWait = age("lockpool.lock.oldest_wait", "For how long the longest of the calls has waited that wait for a lock now.")
	m.oldestHold = age("lockpool.lock.oldest_hold", "For how long the longest of the present holds has lasted.")
	m.reentries = counter("lockpool.lock.reentries", "{entry}", "Entries into locks that were held already, counted when those are released.")
	m.lost = counter("lockpool.lock.lost", "{lock}", "Locks that were lost while they were held.")
	m.rescues = counter("lockpool.lock.rescues", "{rescue}", "Ends of nodes that the service did not tell of, and that were found by looking again.")
	m.deadlocks = counter("lockpool.lock.deadlocks", "{deadlock}", "Calls that ended because they were part of a deadlock.")
	m.overdue = counter("lockpool.lock.overdue", "{lock}", "Holds that lasted for longer than allowed.")
	m.sessionsLost = counter("lockpool.session.lost", "{session}", "Sessions with the service that ended otherwise than by being closed.")
	m.sessions = observed("lockpool.session.count", "{session}", "Open sessions with the service.")
	m.maxSessions = observed("lockpool.session.max", "{session}", "Sessions with the service at most.")
	m.handles = observed("lockpool.handle.count", "{handle}", "Handles that are given out.")
	m.maxHandles = observed("lockpool.handle.max", "{handle}", "Handles at most.")
	m.kept = observed("lockpool.lock.kept", "{lock}", "Locks that are kept and unused.")
	m.keptTurns = total("lockpool.lock.kept_turns", "{turn}", "Turns of kept locks, which cost no request.")
	m.askedBack = total("lockpool.lock.asked_back", "{lock}", "Kept locks that other contenders wanted.")
}

// usable returns the instrument, or none if there is no instrument: a failing provider is
// reported to OpenTelemetry's error handler, and locks work without metrics.
func usable[T any](instrument T, err error, none T) T {
	if err != nil {
		otel.Handle(err)
	}
	if any(instrument) == nil {
		return none
	}
	return instrument
}

// Stats are the figures of a pool, observed rather than counted.
type Stats struct {
	Sessions, MaxSessions, Handles, MaxHandles int

	Keeps                      bool // whether the pool may keep locks; otherwise there are no metrics of that
	Kept, KeptTurns, AskedBack int64

	Holds Oldest
}

// Observe reports the figures as metrics until unregister is called.
func (t *Telemetry) Observe(stats func() Stats) (unregister func()) {
	m, option := &t.meters, t.option(labels{})
	r, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		o.ObserveInt64(m.sessions, int64(s.Sessions), option)
		o.ObserveInt64(m.maxSessions, int64(s.MaxSessions), option)
		o.ObserveInt64(m.handles, int64(s.Handles), option)
		o.ObserveInt64(m.maxHandles, int64(s.MaxHandles), option)
		if s.Keeps {
			o.ObserveInt64(m.kept, s.Kept, option)
			o.ObserveInt64(m.keptTurns, s.KeptTurns, option)
			o.ObserveInt64(m.askedBack, s.AskedBack, option)
		}
		now := time.Now()
		t.waits.oldest().observe(o, m.oldestWait, m, now)
		s.Holds.observe(o, m.oldestHold, m, now)
		return nil
	}, m.sessions, m.maxSessions, m.handles, m.maxHandles, m.kept, m.keptTurns, m.askedBack, m.oldestWait, m.oldestHold)
	r = usable(r, err, metric.Registration(noop.Registration{}))
	return sync.OnceFunc(func() {
		if err := r.Unregister(); err != nil {
			otel.Handle(err)
		}
	})
}

// labels are the attributes of a measurement, without the pool's.
type labels struct {
	kind       string
	name       string // as mapped
	errorType  string
	lossReason string
	outcome    string
	contended  bool // only with an outcome
}

// option returns the labels in the form of the API, created once for each set.
func (m *meters) option(l labels) metric.MeasurementOption {
	if option, ok := m.options.Load(l); ok {
		return option.(metric.MeasurementOption)
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
	add(keyLossReason, l.lossReason)
	add(semconv.ErrorTypeKey, l.errorType)
	add(keyOutcome, l.outcome)
	if l.outcome != "" {
		attrs = append(attrs, keyContended.Bool(l.contended))
	}
	option, _ := m.options.LoadOrStore(l, metric.WithAttributeSet(attribute.NewSet(attrs...)))
	return option.(metric.MeasurementOption)
}

func (m *meters) labelsOf(lock Lock) labels {
	l := labels{kind: lock.Kind.String()}
	if m.name != nil {
		l.name = m.mappedName(lock.Name)
	}
	return l
}

// mappedName calls the user's function. A panic there must not leave a lock held.
func (m *meters) mappedName(name string) (mapped string) {
	defer func() {
		if r := recover(); r != nil {
			otel.Handle(fmt.Errorf("lockpool: WithMetricName: the function panicked for %q: %v", name, r))
		}
	}()
	return m.name(name)
}

func (m *meters) queued(ctx context.Context, lock Lock, length int) {
	if m.depth.Enabled(ctx) {
		m.depth.Record(ctx, int64(length), m.option(m.labelsOf(lock)))
	}
}

// countWaiter adds n to the waiters. A waiter is added only if the metric is enabled, and
// an added one is always subtracted: the global provider may get a delegate in between.
func (m *meters) countWaiter(ctx context.Context, lock Lock, n int64) (counted bool) {
	counted = n < 0 || m.waiters.Enabled(ctx)
	if counted {
		m.add(ctx, m.waiters, lock, n)
	}
	return counted
}

// countHeld is countWaiter for a held lock.
func (m *meters) countHeld(lock Lock, n int64) (counted bool) {
	ctx := context.Background()
	counted = n < 0 || m.held.Enabled(ctx)
	if counted {
		m.add(ctx, m.held, lock, n)
	}
	return counted
}

func (m *meters) add(ctx context.Context, c metric.Int64UpDownCounter, lock Lock, n int64) {
	c.Add(ctx, n, m.option(m.labelsOf(lock)))
}

// acquired records the end of an acquisition.
func (m *meters) acquired(ctx context.Context, lock Lock, began time.Time, contended bool, err error) {
	if !m.waitTime.Enabled(ctx) {
		return
	}
	l := m.labelsOf(lock)
	l.outcome, l.errorType = m.outcome(err)
	l.contended = contended
	m.waitTime.Record(ctx, time.Since(began).Seconds(), m.option(l))
}

func (m *meters) recordHold(lock Lock, held time.Duration) {
	if ctx := context.Background(); m.holdTime.Enabled(ctx) {
		m.holdTime.Record(ctx, held.Seconds(), m.option(m.labelsOf(lock)))
	}
}

func (m *meters) countReentries(lock Lock, n int) {
	if ctx := context.Background(); n > 0 && m.reentries.Enabled(ctx) {
		m.reentries.Add(ctx, int64(n), m.option(m.labelsOf(lock)))
	}
}

// SessionLost counts a session ended without Close.
func (m *meters) SessionLost() {
	if ctx := context.Background(); m.sessionsLost.Enabled(ctx) {
		m.sessionsLost.Add(ctx, 1, m.option(labels{}))
	}
}

// Rescued counts a removal not reported by the service, but found by a later check.
func (m *meters) Rescued(ctx context.Context, lock Lock) {
	if m.rescues.Enabled(ctx) {
		m.rescues.Add(ctx, 1, m.option(m.labelsOf(lock)))
	}
}

func (m *meters) deadlock(ctx context.Context, lock Lock) {
	if m.deadlocks.Enabled(ctx) {
		m.deadlocks.Add(ctx, 1, m.option(m.labelsOf(lock)))
	}
}

func (m *meters) lockLost(lock Lock, cause error) {
	if ctx := context.Background(); m.lost.Enabled(ctx) {
		l := m.labelsOf(lock)
		l.lossReason = lossReason(cause)
		m.lost.Add(ctx, 1, m.option(l))
	}
}

// recordDuration records how long getting a slot or a session took.
func (m *meters) recordDuration(h metric.Float64Histogram, began time.Time, err error) {
	ctx := context.Background()
	if !h.Enabled(ctx) {
		return
	}
	l := labels{}
	if err != nil {
		l.errorType = m.errorType(err)
	}
	h.Record(ctx, time.Since(began).Seconds(), m.option(l))
}
