package tracing

// This file has TestMain.

import (
	"testing"

	"go.opentelemetry.io/otel"

	"github.com/lockpool/lockpool/testing/locktest"
)

func TestMain(m *testing.M) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) // some exporters are made to fail
	locktest.Main(m)
}
