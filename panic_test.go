package lockpool_test

// This file tests panics of user code.

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

// panickingTracer is a tracer provider of which one call, the one numbered at, panics on the
// test's goroutine, or calls do. (On a goroutine of the pool, a panic ends the process, as it
// should.)
type panickingTracer struct {
	noop.TracerProvider
	goroutine int64
	at, calls int
	do        func()
}

func (p *panickingTracer) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return panickingSpans{provider: p}
}

func (p *panickingTracer) step() {
	if goid.Get() != p.goroutine {
		return
	}
	switch p.calls++; {
	case p.calls != p.at:
	case p.do != nil:
		p.do()
	default:
		panic("user code")
	}
}

type panickingSpans struct {
	noop.Tracer
	provider *panickingTracer
}

func (t panickingSpans) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.provider.step()
	span := panickingSpan{provider: t.provider}
	return trace.ContextWithSpan(ctx, span), span
}

type panickingSpan struct {
	noop.Span
	provider *panickingTracer
}

func (panickingSpan) IsRecording() bool { return true }

// SpanContext is valid, as that of each span with a provider is: without one, only one
// span of an acquisition is started.
func (panickingSpan) SpanContext() trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
}

func (s panickingSpan) SetAttributes(...attribute.KeyValue) { s.provider.step() }

func (s panickingSpan) AddEvent(string, ...trace.EventOption) { s.provider.step() }

func (s panickingSpan) AddLink(trace.Link) { s.provider.step() }

func (s panickingSpan) SetStatus(codes.Code, string) { s.provider.step() }

func (s panickingSpan) End(...trace.SpanEndOption) { s.provider.step() }

// panickingMeters and the others call step, too.
type panickingMeters struct {
	metricnoop.MeterProvider
	provider *panickingTracer
}

func (m panickingMeters) Meter(string, ...metric.MeterOption) metric.Meter {
	return panickingMeter{provider: m.provider}
}

type panickingMeter struct {
	metricnoop.Meter
	provider *panickingTracer
}

func (m panickingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return panickingCounter{provider: m.provider}, nil
}

type panickingCounter struct {
	metricnoop.Int64Counter
	provider *panickingTracer
}

func (panickingCounter) Enabled(context.Context) bool { return true }

func (c panickingCounter) Add(context.Context, int64, ...metric.AddOption) { c.provider.step() }

// onAnother calls f on a goroutine of its own.
func onAnother[T any](f func() (T, error)) (result T, err error) {
	done := make(chan struct{})
	go func() { result, err = f(); close(done) }()
	<-done
	return result, err
}

// whenWaiting calls f when n calls of the pool wait for a lock, at the latest when the
// function that it returns is called.
func whenWaiting(p *lockpool.Pool, n int, f func()) (finish func()) {
	enough, called := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(called)
		for over := false; !over && p.Stats().Waiting < n; {
			select {
			case <-enough:
				over = true
			case <-time.After(time.Millisecond):
			}
		}
		f()
	}()
	return func() { close(enough); <-called }
}

// beVictim makes the calling goroutine, which asks for a lock, the victim of a deadlock. Nothing
// is left of the wait.
func beVictim(b *locktest.Bench, get ask, lock string, p, others *lockpool.Pool) {
	mine, err := onAnother(func() (*lockpool.Handle, error) { return p.Handle(b.Ctx) })
	require.NoError(b, err)
	use := func(f func() error) {
		_, err := onAnother(func() (any, error) { return nil, f() })
		require.NoError(b, err)
	}
	use(func() error { return exclusively(b.Ctx, mine, "y") })
	theirs := &party{Handle: b.Handle(others)}
	require.NoError(b, get(b.Ctx, theirs.Handle, lock))
	theirs.WaitFor(b.Ctx, exclusively, "y")
	b.AwaitQueue("y", 2)
	before, gone := len(b.Contenders("/")), make(chan struct{})
	var panicked any
	func() {
		defer func() { panicked = recover() }()
		marked := new([64]byte)
		runtime.AddCleanup(marked, func(gone chan struct{}) { close(gone) }, gone)
		type key struct{}
		_ = get(context.WithValue(b.Ctx, key{}, marked), mine, lock)
	}()
	require.Zero(b, p.Stats().Waiting)
	require.Equal(b, 1, p.Stats().Held)
	b.Until(func() bool { return len(b.Contenders("/")) == before }, "the wait has no node")
	b.Until(func() bool { runtime.GC(); return plays.Closed(gone) }, "nothing refers to the wait")
	use(func() error { return exclusively(b.Ctx, mine, "free") })
	use(func() error { return mine.Close(b.Ctx) })
	<-theirs.Done
	require.NoError(b, theirs.Err)
	require.NoError(b, theirs.Close(b.Ctx))
	if panicked != nil {
		panic(panicked)
	}
}

// A sampler, span processor, log handler or counter that panics keeps neither a lock held nor a
// pool open.
func TestPanicInUserCodeLeavesNoLock(t *testing.T) {
	b := locktest.New(t) // not parallel: profiles are per process
	others := b.PoolWithTimeout(40*time.Second, lockpool.WithProfiles(), lockpool.WithTracerProvider(new(panickingTracer)))
	calls := map[string]func(p *lockpool.Pool){
		"free": func(p *lockpool.Pool) { _ = p.Do(b.Ctx, "a", func(context.Context) error { return nil }) },
		"try":  func(p *lockpool.Pool) { _, _ = p.TryLock(b.Ctx, "held") },
		"wait": func(p *lockpool.Pool) {
			_ = p.Do(b.Ctx, "held", func(context.Context) error { return nil }, lockpool.WaitAtMost(10*time.Millisecond))
		},
		"permits": func(p *lockpool.Pool) {
			_ = p.Semaphore("s", 1).Do(b.Ctx, 1, func(context.Context) error { return nil })
		},
		"permits wait": func(p *lockpool.Pool) {
			ctx, cancel := context.WithTimeout(b.Ctx, 20*time.Millisecond)
			defer cancel()
			_ = p.Semaphore("full", 1).Do(ctx, 1, func(context.Context) error { return nil })
		},
		"plain": func(p *lockpool.Pool) {
			_ = p.Do(b.Ctx, "plain", func(context.Context) error { return nil }, lockpool.Plain())
		},
		"several": func(p *lockpool.Pool) {
			if l, err := p.LockAll(b.Ctx, []string{"a", "b"}); err == nil {
				defer l.Unlock(b.Ctx)
			}
		},
		"handle": func(p *lockpool.Pool) {
			h, err := p.Handle(b.Ctx)
			if err == nil {
				defer h.Close(b.Ctx)
				for _, name := range []string{"a", "b"} {
					_, _ = h.Lock(b.Ctx, name)
				}
			}
		},
		"turn": func(p *lockpool.Pool) {
			l, err := onAnother(func() (*lockpool.Lock, error) { return p.Lock(b.Ctx, "a") })
			require.NoError(t, err)
			defer whenWaiting(p, 1, func() { b.Unlock(l) })()
			_ = p.Do(b.Ctx, "a", func(context.Context) error { return nil })
		},
		"place": func(p *lockpool.Pool) {
			ctx, giveUp := context.WithCancel(b.Ctx)
			first := startLockOf(ctx, p, "held")
			b.AwaitQueue("held", 2)
			b.AwaitWaiting(p, 1)
			defer func() { require.ErrorIs(t, <-first, context.Canceled) }()
			defer whenWaiting(p, 2, giveUp)()
			_ = p.Do(b.Ctx, "held", func(context.Context) error { return nil }, lockpool.WaitAtMost(30*time.Millisecond))
		},
	}
	for lock, get := range map[string]ask{"a": exclusively, "plain": plainly} {
		calls["deadlock over "+lock] = func(p *lockpool.Pool) { beVictim(b, get, lock, p, others) }
	}
	held := b.Lock(others, "held")
	full, err := others.Semaphore("full", 1).Acquire(b.Ctx, 1)
	require.NoError(t, err)
	profiled := pprof.Lookup("lockpool.held").Count()
	for name, call := range calls {
		panics := 0
		for at := 1; ; at++ {
			tracer := &panickingTracer{goroutine: goid.Get(), at: at}
			p := b.Pool(lockpool.WithTracerProvider(tracer), lockpool.WithHoldSpans(), lockpool.WithProfiles(),
				lockpool.WithLogger(slog.New(locktest.OnLog(func(slog.Record) { tracer.step() }))), lockpool.WithMeterProvider(panickingMeters{provider: tracer}),
				lockpool.WithDeadlockCheck(20*time.Millisecond))
			func() {
				defer func() {
					if r := recover(); r != nil {
						require.Equal(t, "user code", r)
						panics++
					}
				}()
				call(p)
			}()
			if tracer.calls < at { // the call returned before the panic was due
				break
			}
			b.Until(func() bool { return len(b.Contenders("/")) == 2 }, "only the two holders are left after %s, step %d", name, at)
			require.Zero(t, p.Stats().Held, "%s, step %d", name, at)
			require.Zero(t, p.Stats().Waiting, "%s, step %d", name, at)
			require.Zero(t, p.Stats().InUse, "%s, step %d", name, at)
			require.NoError(t, p.Close())
			require.Equal(t, profiled, pprof.Lookup("lockpool.held").Count(), "%s, step %d", name, at)
		}
		require.Positive(t, panics, name)
	}
	b.Unlock(held)
	require.NoError(t, full.Unlock(b.Ctx))
	var noContext context.Context
	p := b.Pool()
	require.Panics(t, func() { _, _ = p.Lock(noContext, "a") })
	h := b.Handle(p)
	require.Panics(t, func() { _, _ = h.Lock(noContext, "a") })
	l := b.Lock(h, "a")
	require.Panics(t, func() { _ = l.Context(noContext) })
	require.Panics(t, func() { _ = l.Unlock(noContext) })
	require.Panics(t, func() { _ = h.Close(noContext) })
	require.Equal(t, 1, l.Depth(), "the lock is as it was")
	b.Unlock(l)
	require.Empty(t, b.Children("a"))
	require.NoError(t, h.Close(b.Ctx))
	require.Panics(t, func() { _ = p.Shutdown(noContext) })
	b.Unlock(b.Lock(p, "a"))
}

// A release that finds the node removed reports the loss of other holds.
func TestPanicInTheReportOfAnotherHoldLeavesNoLock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(lockpool.WithLogger(slog.New(locktest.OnLog(func(r slog.Record) {
			if strings.HasSuffix(r.Message, "lock lost") {
				panic("user code")
			}
		}))))
		h, other := b.Handle(p), b.Handle(p)
		server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}, Prefix: b.Chroot + "/a/"}, Do: zktest.FailWith(zktest.ErrThrottled)})
		for _, by := range []*lockpool.Handle{h, other} {
			b.Lock(by, "a", lockpool.Shared())
		}
		b.Lock(h, "b")
		b.Lock(h, "c")
		synctest.Wait() // the pool looks again in a while
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1))
		require.PanicsWithValue(t, "user code", func() { _ = h.Close(b.Ctx) })
		require.Zero(t, p.Stats().Held)
		require.Empty(t, b.Contenders("/"))
	})
}
