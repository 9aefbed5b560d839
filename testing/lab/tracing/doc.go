// Package tracing tests lockpool's spans, metrics and logs with OpenTelemetry's SDK. The
// package is in another module than lockpool, so that lockpool itself depends only on
// OpenTelemetry's API. There are only tests here.
package tracing
