// Package tracing tests the spans of lockpool with the recorder of
// OpenTelemetry's SDK, against a real ZooKeeper. It is a module of its own, so
// that lockpool itself depends on the API of OpenTelemetry only.
package tracing
