package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"

	"github.com/lockpool/lockpool"
)

// openPool is what tracing takes: a tracer provider, here given as an option and
// otherwise the global one, and a name by which the pool's locks are known.
func openPool(service, address string, tracers *tracers) (*lockpool.Pool, error) {
	// Each run has locks of its own, below a path with the id of the process
	// that started us.
	return lockpool.Open("zookeeper",
		fmt.Sprintf("%s/tracing-%d?session_timeout=10s", address, os.Getppid()),
		lockpool.WithTracerProvider(tracers),
		lockpool.WithOwner(service),
		lockpool.WithHoldSpans())
}

// tracers is the tracer provider of a service.
type tracers struct {
	*sdktrace.TracerProvider
	mu  sync.Mutex
	err error // the first one of the exporter
}

// newTracers returns a provider whose spans go to the parent and, if the
// environment says where, to a collector.
func newTracers(p *parent) (*tracers, error) {
	about, err := resource.Merge(resource.Default(), resource.NewSchemaless(
		semconv.ServiceName(p.service), semconv.ServiceNamespace("shop")))
	if err != nil {
		return nil, err
	}
	opts := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // all, to draw them
		sdktrace.WithSpanProcessor(recorder{p}),
	}
	t := new(tracers)
	if exporting() != "" {
		// It reads OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS, _CERTIFICATE and so on.
		exporter, err := otlptracehttp.New(context.Background(), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: 100 * time.Millisecond, MaxInterval: time.Second, MaxElapsedTime: 2 * time.Second}))
		if err != nil {
			return nil, err
		}
		opts = append(opts, sdktrace.WithBatcher(exporter))
		otel.SetErrorHandler(otel.ErrorHandlerFunc(t.failed))
	}
	t.TracerProvider = sdktrace.NewTracerProvider(opts...)
	return t, nil
}

// exporting returns where spans are sent, if anywhere.
func exporting() string {
	if to := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"); to != "" {
		return to
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
}

func (t *tracers) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
}

// shutdown sends what has not been sent, and returns what went wrong with that
// or earlier.
func (t *tracers) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := t.Shutdown(ctx); err != nil {
		t.failed(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// recorder gives spans to the parent. It implements sdktrace.SpanProcessor.
type recorder struct{ *parent }

func (r recorder) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if s.Name() == spanWait {
		r.send(report{State: waiting, ID: requestOf(ctx)})
	}
}

func (r recorder) OnEnd(s sdktrace.ReadOnlySpan) { r.send(report{Span: newSpan(r.service, s)}) }

func (recorder) Shutdown(context.Context) error   { return nil }
func (recorder) ForceFlush(context.Context) error { return nil }
