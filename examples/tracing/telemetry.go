package main

// This file sets up tracing for a service.

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
	"github.com/lockpool/lockpool/examples/internal/process"
	"github.com/lockpool/lockpool/examples/internal/spans"
)

// openPool opens a pool with tracing: with a tracer provider (the default is the global
// one), and an owner, the name of its locks' holder for other processes.
func openPool(service, address string, tracers *tracers) (*lockpool.Pool, error) {
	// Each run has separate locks, below a path with the process ID of the starting
	// program.
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
	err error // the first of the exporter
}

// newTracers returns a provider whose spans go to the worker's parent and, if the
// environment names one, to a collector.
func newTracers(worker *process.Worker) (*tracers, error) {
	about, err := resource.Merge(resource.Default(), resource.NewSchemaless(
		semconv.ServiceName(worker.Name), semconv.ServiceNamespace("shop")))
	if err != nil {
		return nil, err
	}
	opts := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // the picture needs all
		sdktrace.WithSpanProcessor(recorder{worker}),
	}
	t := new(tracers)
	if endpoint() != "" {
		// The exporter reads OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS, _CERTIFICATE and so on.
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

// endpoint returns where spans are sent, or "".
func endpoint() string {
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

// shutdown sends the remaining spans. It returns the first error of the exporter,
// now or earlier.
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

// recorder reports finished spans, and beginning waits. It implements
// sdktrace.SpanProcessor.
type recorder struct{ worker *process.Worker }

func (r recorder) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if s.Name() == spans.Wait {
		r.worker.Send(report{State: waiting, ID: requestOf(ctx)})
	}
}

func (r recorder) OnEnd(s sdktrace.ReadOnlySpan) {
	r.worker.Send(report{Span: spans.Record(r.worker.Name, s)})
}

func (recorder) Shutdown(context.Context) error   { return nil }
func (recorder) ForceFlush(context.Context) error { return nil }
