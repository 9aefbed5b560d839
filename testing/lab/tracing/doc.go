// Package tracing tests lockpool's spans, metrics and logs with OpenTelemetry's
// SDK. It is a module of its own, so that lockpool itself depends only on
// OpenTelemetry's API. It contains only tests.
package tracing
