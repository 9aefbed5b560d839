package lockpool

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

const (
	// DefaultMaxSessions is how many sessions a pool opens at the most.
	DefaultMaxSessions = 4

	// DefaultMaxHandles is how many handles a pool gives out at the most.
	DefaultMaxHandles = 10_000

	// sessionLoad is how many handles a session carries before another is
	// opened. It is no limit: with the maximum of sessions open, they share.
	sessionLoad = 32

	// closePatience bounds how long Close waits for the service to confirm the
	// end of the sessions.
	closePatience = 5 * time.Second
)

// Option configures a Pool.
type Option func(*config) error

type config struct {
	maxSessions int
	maxHandles  int
	tracers     trace.TracerProvider
	owner       string
	meters      metric.MeterProvider
	metricName  func(string) string
	noLinks     bool
	holdSpans   bool
	profiles    bool
	longWait    time.Duration
	logger      *slog.Logger
}

func newConfig(opts []Option) (config, error) {
	cfg := config{
		maxSessions: DefaultMaxSessions,
		maxHandles:  DefaultMaxHandles,
		tracers:     otel.GetTracerProvider(),
		meters:      otel.GetMeterProvider(),
		logger:      slog.Default(),
	}
	for _, opt := range opts {
		if opt == nil {
			return config{}, errors.New("lockpool: a nil Option was given")
		}
		if err := opt(&cfg); err != nil {
			return config{}, fmt.Errorf("lockpool: %w", err)
		}
	}
	return cfg, nil
}

// WithMaxSessions bounds the sessions (connections) to the service that the
// pool opens, at least 1. Handles share them; a session carries 32 handles
// before another is opened. ZooKeeper servers accept 60 connections from one
// address unless configured otherwise. Not counted are sessions with a node that
// the service refuses to remove: they end when nothing is held on them any more.
func WithMaxSessions(n int) Option {
	return func(c *config) error {
		if n < 1 || n > 1000 {
			return fmt.Errorf("WithMaxSessions(%d): not between 1 and 1000", n)
		}
		c.maxSessions = n
		return nil
	}
}

// WithMaxHandles bounds the handles that exist at one time, at least 1: the
// open Sessions, and the holders and waiters of Pool.Lock and Pool.Do. Who asks
// for one more waits until one is given back.
func WithMaxHandles(n int) Option {
	return func(c *config) error {
		if n < 1 || n > 1<<30 {
			return fmt.Errorf("WithMaxHandles(%d): not between 1 and 1<<30", n)
		}
		c.maxHandles = n
		return nil
	}
}

// WithTracerProvider sets where spans go, instead of the global provider. Nil
// is ignored.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return func(c *config) error {
		if tp != nil {
			c.tracers = tp
		}
		return nil
	}
}

// WithOwner sets the name by which people will know the pool's holders and
// waiters, such as "billing", in [Pool.Queue] and for other clients: at most 200
// bytes of UTF-8. It is stored in every node of the pool, for everybody who may
// read there. Default: the program's name. Telemetry carries only a name that
// was set.
func WithOwner(name string) Option {
	return func(c *config) error {
		if len(name) > 200 || !utf8.ValidString(name) {
			return fmt.Errorf("WithOwner(%q): longer than 200 bytes, or no UTF-8", name)
		}
		c.owner = name
		return nil
	}
}

// WithMeterProvider sets where metrics go, instead of the global provider. Nil is
// ignored.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return func(c *config) error {
		if mp != nil {
			c.meters = mp
		}
		return nil
	}
}

// WithMetricName puts lock names on metrics, which have none otherwise: what the
// function makes of a name is the attribute lockpool.lock.name. It must make few
// out of many, such as orders out of orders/42, or each lock is a time series of
// its own. It must be safe for concurrent use, and give one name one answer.
func WithMetricName(name func(lock string) string) Option {
	return func(c *config) error { c.metricName = name; return nil }
}

// WithTraceLinks switches off, or on again, that the node of a lock carries the
// span of who asked for it (W3C's traceparent), and that waits are linked to the
// spans found in the nodes that are in the way. Default: on.
func WithTraceLinks(on bool) Option {
	return func(c *config) error { c.noLinks = !on; return nil }
}

// WithHoldSpans adds a span lockpool.lock.hold from the grant of a lock to its
// end. Spans are exported when they end, so it is not for locks that are held for
// days.
func WithHoldSpans() Option {
	return func(c *config) error { c.holdSpans = true; return nil }
}

// WithProfiles adds to the profiles lockpool.held and lockpool.waiting of
// runtime/pprof: the stacks of who holds a lock and of who waits for one. They
// are at /debug/pprof/ with the others, if net/http/pprof is. Each acquisition
// then records its stack.
func WithProfiles() Option {
	return func(c *config) error { c.profiles = true; return nil }
}

// WithLongWait logs a warning when a lock has been waited for so long, at most
// once in that time for a lock, however many wait. It names the holder, and who
// is next in the way. The record's context is that of the wait's span. Default:
// no warning.
func WithLongWait(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("WithLongWait(%s): not positive", d)
		}
		c.longWait = d
		return nil
	}
}

// WithLogger sets where the pool warns of locks that are lost or waited for long.
// Nil is ignored. Default: slog.Default(). Its handler must not close the pool.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l != nil {
			c.logger = l
		}
		return nil
	}
}
