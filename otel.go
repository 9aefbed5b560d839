package lockpool

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/telemetry"
	"github.com/lockpool/lockpool/recipe"
)

// WithTracerProvider sets where spans go, instead of the global provider. Nil is
// ignored.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return func(c *config) error {
		if tp != nil {
			c.telemetry.Tracers = tp
		}
		return nil
	}
}

// WithMeterProvider sets where metrics go, instead of the global provider. Nil is
// ignored.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return func(c *config) error {
		if mp != nil {
			c.telemetry.Meters = mp
		}
		return nil
	}
}

// WithLogger sets where the pool warns of locks that are lost or waited for long. Nil
// is ignored. The default is slog.Default(). The logger's handler must not close the
// pool.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error {
		if l != nil {
			c.telemetry.Logger = l
		}
		return nil
	}
}

// WithMetricName puts lock names on metrics, which have none otherwise: the attribute
// lockpool.lock.name is what the function returns for a name. It must map many names
// to few, such as orders/42 to orders, or each lock is a time series of its own. It
// must be safe for concurrent use, and return the same for the same name.
func WithMetricName(name func(lock string) string) Option {
	return func(c *config) error { c.telemetry.MetricName = name; return nil }
}

// WithTraceLinks switches links between traces off, or on again: the node of a lock
// carries the span that asked for it (W3C's traceparent), and a wait is linked to the
// spans in the nodes that it waits for. The default is on.
func WithTraceLinks(on bool) Option {
	return func(c *config) error { c.telemetry.NoLinks = !on; return nil }
}

// WithHoldSpans adds a span lockpool.lock.hold from the grant of a lock to its end.
// Spans are exported when they end, so it is not for locks that are held for days.
func WithHoldSpans() Option {
	return func(c *config) error { c.telemetry.HoldSpans = true; return nil }
}

// WithProfiles adds to the profiles lockpool.held and lockpool.waiting of
// runtime/pprof: the stacks of the holders and the waiters. net/http/pprof serves them
// at /debug/pprof/ with the others. Each acquisition then records its stack.
func WithProfiles() Option {
	return func(c *config) error { c.telemetry.Profiles = true; return nil }
}

// WithLongWait logs a warning when a call has waited for a lock for d, at most once in
// that time for a lock, however many wait. It names the holder and the contender that
// is next in the way. The record's context is that of the wait's span. The default is
// no warning.
func WithLongWait(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("WithLongWait(%s): not positive", d)
		}
		c.telemetry.LongWait = d
		return nil
	}
}

func newTelemetry(cfg config, c driver.Connector) *telemetry.Telemetry {
	cfg.telemetry.Driver, cfg.telemetry.Pool, cfg.telemetry.ErrorType = c.DriverName(), cfg.owner, errorType
	return telemetry.New(cfg.telemetry)
}

// observe makes metrics of the pool's figures.
func (p *Pool) observe() (unregister func()) {
	return p.telemetry.Observe(func() telemetry.Stats {
		s := p.Stats()
		return telemetry.Stats{Sessions: s.OpenSessions, MaxSessions: s.MaxSessions, Handles: s.InUse, MaxHandles: s.MaxHandles}
	})
}

// nodeData returns what the node of a request says of its owner.
func (p *Pool) nodeData(ctx context.Context, req request) []byte {
	var span trace.SpanContext
	if !p.telemetry.NoLinks {
		span = trace.SpanContextFromContext(ctx)
	}
	return p.owner.Data(span, req.permits > 0)
}

// acquisition follows a request for a lock that goes to the service: for telemetry,
// for the pool's figures, and for the text of its error. It is the recipe's Observer.
type acquisition struct {
	telemetry.Acquisition
	pool *Pool
	name string
	req  request

	call     context.Context // of the caller
	ctx      context.Context // with the span
	waiting  bool
	longWait *time.Timer

	mu      sync.Mutex // because the timer looks at the following
	session *session
	blocker recipe.Wait
}

func (a *acquisition) lock() telemetry.Lock {
	return telemetry.Lock{Name: a.name, Kind: a.req.kind()}
}

func (a *acquisition) begin(ctx context.Context) context.Context {
	a.call = ctx
	a.ctx = a.Begin(ctx, a.pool.telemetry, a.lock(), a.req.permits)
	return a.ctx
}

func (a *acquisition) onSession(s *session) {
	a.mu.Lock()
	a.session = s
	a.mu.Unlock()
	a.OnSession(s)
}

// Waiting implements recipe.Observer.
func (a *acquisition) Waiting(w recipe.Wait) (wantHolder bool) {
	a.mu.Lock()
	if w.Data == nil && w.Behind == a.blocker.Behind {
		w.Data = a.blocker.Data // as it was before the lock was asked back
	}
	a.blocker = w
	a.mu.Unlock()
	if !a.waiting {
		a.waiting = true
		a.pool.waiting.Add(1)
		if d := a.pool.telemetry.LongWait; d > 0 {
			a.longWait = time.AfterFunc(max(d-time.Since(a.Began()), 0), a.warnLongWait)
		}
		if a.pool.seemsToWaitForItself(a.call, a.name) {
			a.pool.telemetry.LogSelfDeadlock(a.call, a.name)
		}
	}
	return a.Acquisition.Waiting(w)
}

// Woken implements recipe.Observer.
func (a *acquisition) Woken(e driver.Event) {
	if e == driver.Deleted || e == driver.Missing || e == driver.Unnoticed {
		a.mu.Lock()
		a.blocker = recipe.Wait{}
		a.mu.Unlock()
	}
	a.Acquisition.Woken(e)
}

func (a *acquisition) granted(h *hold) {
	h.telemetry.Begin(a.call, a.pool.telemetry, a.lock())
	a.Granted(h.node.node)
}

func (a *acquisition) end(err error) {
	if a.waiting {
		a.pool.waiting.Add(-1)
	}
	if a.longWait != nil {
		a.longWait.Stop()
	}
	a.End(err)
}

// warnLongWait is called when the wait has lasted for as long as WithLongWait says.
func (a *acquisition) warnLongWait() {
	const patience = 5 * time.Second // for the holder's name
	t := a.pool.telemetry
	if !t.ShouldLogLongWait(a.name) || !a.pool.begin() {
		return
	}
	defer a.pool.work.Done()
	a.mu.Lock()
	w, s := a.blocker, a.session
	a.mu.Unlock()
	var holder driver.Node
	var data []byte
	if a.req.kind() != driver.Plain { // whose waiters wait for its holder
		ctx, cancel := context.WithTimeout(a.ctx, patience)
		defer cancel()
		queue := w.Queue
		if queue == a.name+"/"+driver.Guards {
			queue = a.name + "/" + driver.Leases
		}
		holder, data = recipe.FindHolder(ctx, s, queue)
	}
	t.LogLongWait(a.ctx, a.lock(), a.Began(), w, holder, data)
}

// describeBlocker adds to the error of a wait whose context has ended which node was
// waited for, and whose it is, as far as that is known.
func (a *acquisition) describeBlocker(ctx context.Context, err error) error {
	a.mu.Lock()
	w := a.blocker
	a.mu.Unlock()
	switch node := w.Behind.String(); {
	case node == "" && err == ctx.Err():
		err = fmt.Errorf("no place in the queue yet: %w", err)
	case node != "" && !strings.Contains(err.Error(), node):
		err = fmt.Errorf("waiting behind %s: %w", node, err)
	}
	if owner := nodedata.Parse(w.Data).String(); owner != "" {
		err = fmt.Errorf("%w (it is that of %s)", err, owner)
	}
	return err
}

// errorType is the attribute error.type of an error.
func errorType(err error) string {
	return (&LockError{Err: err}).ErrorType()
}
