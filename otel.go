package lockpool

// This file has the options for telemetry.

import (
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/telemetry"
)

// WithTracerProvider sets the provider that spans go to. The default is the global
// provider. Nil is ignored.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return func(c *config) error {
		if tp != nil {
			c.telemetry.Tracers = tp
		}
		return nil
	}
}

// WithMeterProvider sets the provider that metrics go to. The default is the global
// provider. Nil is ignored.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return func(c *config) error {
		if mp != nil {
			c.telemetry.Meters = mp
		}
		return nil
	}
}

// WithLogger sets the logger for the pool's warnings, as about lost locks, long waits and
// deadlocks. (The driver has a logger of its own.) The default is slog.Default(). Nil is ignored.
// The logger's handler must not close the pool.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l != nil {
			c.telemetry.Logger = l
		}
		return nil
	}
}

// WithMetricName adds lock names to metrics, which have none otherwise: the attribute
// lockpool.lock.name is the result of the function for the lock's name. The function
// must map many names to few, such as orders/42 to orders, or each lock is a time
// series of its own. It must be safe for concurrent use, and always return the same
// result for the same name.
func WithMetricName(name func(lock string) string) Option {
	return func(c *config) error { c.telemetry.MetricName = name; return nil }
}

// WithTraceLinks turns links between traces on or off: the node of a lock carries the
// span that asked for the lock (W3C's traceparent) and the place of the call in the program,
// at most 130 bytes, and a wait is linked to the spans in the nodes ahead, or of the calls of
// the same deadlock. Links are on by default. Without them, the pool publishes no costs (see
// [Pool.Costs]), and only the node of a call that waits while its handle has other locks carries
// the place, for a [DeadlockError].
func WithTraceLinks(on bool) Option {
	return func(c *config) error { c.telemetry.NoLinks = !on; return nil }
}

// WithHoldSpans adds a span lockpool.lock.hold from the grant of a lock to its end.
// Spans are exported when they end, so it is not for locks that are held for days.
func WithHoldSpans() Option {
	return func(c *config) error { c.telemetry.HoldSpans = true; return nil }
}

// WithProfiles adds the stacks of holders and waiters to the runtime/pprof profiles
// lockpool.held and lockpool.waiting, which net/http/pprof serves at /debug/pprof/ with
// the others. Each acquisition then records its stack.
func WithProfiles() Option {
	return func(c *config) error { c.telemetry.Profiles = true; return nil }
}

// WithLongWait logs a warning when a call has waited for a lock for d, at most once per
// d and lock, however many calls wait. The warning names the holder and the contender
// that is next in the way, and says how much longer the wait will last if the holds are as long
// as those of the last hour. The record's context is that of the acquisition's span. The default
// is no warning.
func WithLongWait(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("WithLongWait(%s): not positive", d)
		}
		c.telemetry.LongWait = d
		return nil
	}
}

// WithMaxHold tells when a lock has been held for d: once for each hold, by a warning with
// the place of the call, the metric lockpool.lock.overdue, and an event of the span of the
// hold. If revoke is true, the holder is then asked for the lock: [Lock.Revoked] is closed, and
// contexts end if the lock was requested with [Revocable]. Other holders of a shared lock are
// asked in their own time. Terms of [Pool.Elect] may last for longer. The default is no bound.
func WithMaxHold(d time.Duration, revoke bool) Option {
	return func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("WithMaxHold(%s): not positive", d)
		}
		c.maxHold, c.revokeOverdue = d, revoke
		return nil
	}
}

func newTelemetry(cfg config, c driver.Connector) *telemetry.Telemetry {
	cfg.telemetry.Driver, cfg.telemetry.Pool, cfg.telemetry.ErrorType = c.DriverName(), cfg.owner, errorType
	return telemetry.New(cfg.telemetry)
}

// observe registers metrics of the pool's figures.
func (p *Pool) observe() (unregister func()) {
	return p.telemetry.Observe(func() telemetry.Stats {
		s := p.Stats()
		return telemetry.Stats{
			Sessions: s.OpenSessions, MaxSessions: s.MaxSessions, Handles: s.InUse, MaxHandles: s.MaxHandles,
			Keeps: p.cfg.keptLocks > 0, Kept: int64(s.Kept), KeptTurns: s.KeptTurns, AskedBack: s.AskedBack,
			Holds: p.oldestHolds(),
		}
	})
}

// oldestHolds returns when the oldest hold of each lock began.
func (p *Pool) oldestHolds() telemetry.Oldest {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := telemetry.Oldest{}
	for _, s := range p.sessions {
		for _, tenancies := range s.tenancies {
			for _, t := range tenancies {
				for _, h := range t.holds {
					all.Add(h.lock(), h.life.began)
				}
			}
		}
	}
	return all
}

// errorType is the attribute error.type of an error.
func errorType(err error) string {
	return (&LockError{Err: err}).ErrorType()
}
