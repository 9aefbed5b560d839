package telemetry

// This file tests the spans of providers that begin to trace late.

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// lateProvider is a global provider that begins to trace without being set again, as agents do.
// Providers of the type cannot be compared.
type lateProvider struct {
	noop.TracerProvider
	tracer lateTracer
	_      []int
}

func (p lateProvider) Tracer(string, ...trace.TracerOption) trace.Tracer { return p.tracer }

type lateTracer struct {
	noop.Tracer
	traces  *bool
	started *int
}

func (l lateTracer) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	*l.started++
	if *l.traces {
		ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	}
	return ctx, trace.SpanFromContext(ctx)
}

// Without spans, a pool of the global provider tries to start a span once a second.
func TestProviderThatBeginsLate(t *testing.T) {
	defer otel.SetTracerProvider(otel.GetTracerProvider())
	for name, provider := range map[string]func(p lateProvider) trace.TracerProvider{
		"comparable":     func(p lateProvider) trace.TracerProvider { return &p },
		"not comparable": func(p lateProvider) trace.TracerProvider { return p },
	} {
		synctest.Test(t, func(t *testing.T) {
			traces, started := false, 0
			otel.SetTracerProvider(provider(lateProvider{tracer: lateTracer{traces: &traces, started: &started}}))
			tel := New(Config{})
			begin := func() (traced bool) {
				var a Acquisition
				a.Begin(t.Context(), tel, Lock{Name: "a"}, 0)
				return a.Traced()
			}
			for range 10 {
				require.False(t, begin())
			}
			if name == "comparable" {
				require.Equal(t, 2, started)
			}
			traces = true
			time.Sleep(1100 * time.Millisecond)
			require.True(t, begin())
			require.True(t, begin())
		})
	}
}
