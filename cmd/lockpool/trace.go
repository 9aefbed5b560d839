package main

// This file sets up tracing for the command.

import (
	"context"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

var tracer = otel.Tracer("github.com/lockpool/lockpool/cmd/lockpool")

// startTracing returns a context with the span in TRACEPARENT, if any, and makes the
// process export spans if OpenTelemetry's environment variables say so. end exports the
// ended spans.
func startTracing(ctx context.Context) (_ context.Context, end func()) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
		"traceparent": os.Getenv("TRACEPARENT"),
		"tracestate":  os.Getenv("TRACESTATE"),
	})
	if !tracingConfigured() {
		return ctx, func() {}
	}
	// A collector out of service is no concern of the running command.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		slog.Warn("there will be no spans", "error", err)
		return ctx, func() {}
	}
	res, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "lockpool")), resource.WithFromEnv())
	if err != nil { // of OTEL_RESOURCE_ATTRIBUTES
		slog.Warn("some resource attributes of the spans are missing", "error", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	otel.SetTracerProvider(provider)
	return ctx, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = provider.Shutdown(ctx)
	}
}

// tracingConfigured reports whether the environment names an exporter or a collector.
// Without either, autoexport would try a collector on this machine.
func tracingConfigured() bool {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return false
	}
	if exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter != "" {
		return exporter != "none"
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}
