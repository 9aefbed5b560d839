package tracing

// This file tests tracer providers: nil, global, slow and failing ones.

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/lockpool/lockpool"
)

func TestNilTracerProviderIsIgnored(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Unlock(b.lock(b.Ctx, b.open(lockpool.WithTracerProvider(nil)), "a"))
	require.Empty(t, b.recorder.Started())
	p := b.open(lockpool.WithTracerProvider(b.provider), lockpool.WithTracerProvider(nil))
	b.Unlock(b.lock(b.Ctx, p, "a"))
	require.Len(t, b.named(acquireName), 1)
}

// Not parallel: the test changes the global provider.
func TestGlobalTracerProviderIsTheDefault(t *testing.T) {
	b := newBench(t)
	early := b.open()
	for range 3 {
		b.Unlock(b.lock(b.Ctx, early, "a")) // without any provider
	}
	defer otel.SetTracerProvider(otel.GetTracerProvider())
	otel.SetTracerProvider(b.provider)
	for _, p := range []*lockpool.Pool{early, b.open()} {
		b.Unlock(b.lock(b.Ctx, p, "a"))
	}
	require.Len(t, b.named(acquireName), 2)
	other := newBench(t)
	b.Unlock(b.lock(b.Ctx, b.open(lockpool.WithTracerProvider(other.provider)), "a"))
	require.Len(t, b.named(acquireName), 2, "the option prevails")
	require.Len(t, other.named(acquireName), 1)
}

// slowProcessor is a slow span processor.
type slowProcessor struct {
	sdktrace.SpanProcessor
	ended atomic.Int32
}

func (*slowProcessor) OnStart(context.Context, sdktrace.ReadWriteSpan) {
	time.Sleep(20 * time.Millisecond)
}

func (p *slowProcessor) OnEnd(sdktrace.ReadOnlySpan) {
	time.Sleep(50 * time.Millisecond)
	p.ended.Add(1)
}

func (*slowProcessor) Shutdown(context.Context) error { return nil }

// failingExporter is an always failing span exporter.
type failingExporter struct{ tried atomic.Int32 }

func (e *failingExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	e.tried.Add(1)
	return errors.New("the collector is down")
}

func (*failingExporter) Shutdown(context.Context) error { return errors.New("the collector is down") }

func TestLockingDoesNotDependOnTheTracerProvider(t *testing.T) {
	t.Parallel()
	for name, provider := range map[string]func(b *bench) (p trace.TracerProvider, used func() bool){
		"none": func(*bench) (trace.TracerProvider, func() bool) {
			return noop.NewTracerProvider(), func() bool { return true }
		},
		"recording": func(b *bench) (trace.TracerProvider, func() bool) {
			return b.provider, func() bool { return len(b.recorder.Ended()) > 0 }
		},
		"never sampling": func(b *bench) (trace.TracerProvider, func() bool) {
			return b.newProvider(sdktrace.WithSampler(sdktrace.NeverSample()), sdktrace.WithSpanProcessor(b.recorder)),
				func() bool { return len(b.recorder.Started()) == 0 }
		},
		"shut down": func(b *bench) (trace.TracerProvider, func() bool) {
			require.NoError(b, b.provider.Shutdown(b.Ctx))
			return b.provider, func() bool { return len(b.recorder.Started()) == 0 }
		},
		"slow": func(b *bench) (trace.TracerProvider, func() bool) {
			processor := new(slowProcessor)
			return b.newProvider(sdktrace.WithSpanProcessor(processor)), func() bool { return processor.ended.Load() > 0 }
		},
		"failing synchronously": func(b *bench) (trace.TracerProvider, func() bool) {
			exporter := new(failingExporter)
			return b.newProvider(sdktrace.WithSyncer(exporter)), func() bool { return exporter.tried.Load() > 0 }
		},
		"failing in the background": func(b *bench) (trace.TracerProvider, func() bool) {
			exporter := new(failingExporter)
			p := b.newProvider(sdktrace.WithBatcher(exporter))
			return p, func() bool { _ = p.ForceFlush(b.Ctx); return exporter.tried.Load() > 0 }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			tp, used := provider(b)
			b.exerciseLocking(b.open(lockpool.WithTracerProvider(tp)))
			require.True(t, used(), "the provider was not used as expected")
		})
	}
}

// exerciseLocking brings about all outcomes of locking, and closes p.
func (b *bench) exerciseLocking(p *lockpool.Pool) {
	waiting := func() *waiter {
		w := b.start(b.Ctx, p, "a")
		b.AwaitWaiting(p, 1)
		return w
	}
	outer := b.lock(b.Ctx, p, "a")
	require.NoError(b, p.Do(outer.Context(b.Ctx), "a", func(context.Context) error { return nil }))

	_, err := p.TryLock(b.Ctx, "a")
	require.ErrorIs(b, err, lockpool.ErrLocked)

	err = p.Do(b.Ctx, "a", func(context.Context) error { return nil }, lockpool.WaitAtMost(100*time.Millisecond))
	require.ErrorIs(b, err, context.DeadlineExceeded)

	w := waiting()
	w.Cancel()
	err = w.failed()
	require.ErrorIs(b, err, context.Canceled)
	b.awaitQueue("a", 1)

	w = waiting()
	b.Unlock(outer)
	l := w.Granted()
	require.Zero(b, p.Stats().Waiting)
	b.awaitQueue("a", 1)

	b.Unlock(l)

	l = b.lock(b.Ctx, p, "a")
	w = waiting()
	require.NoError(b, p.Close())
	err = w.failed()
	require.ErrorIs(b, err, lockpool.ErrPoolClosed)
	require.ErrorIs(b, l.Unlock(b.Ctx), lockpool.ErrNotHeld)
	b.awaitQueue("a", 0)
}
