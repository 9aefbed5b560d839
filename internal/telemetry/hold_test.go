package telemetry

// This file tests the counts of held locks.

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// brokenMeters is a provider whose histograms panic, and whose counters count.
type brokenMeters struct {
	noop.MeterProvider
	held int64
}

func (m *brokenMeters) Meter(string, ...metric.MeterOption) metric.Meter {
	return brokenMeter{meters: m}
}

type brokenMeter struct {
	noop.Meter
	meters *brokenMeters
}

func (brokenMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return brokenHistogram{}, nil
}

func (m brokenMeter) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	if name == "lockpool.lock.held" {
		return heldCounter{meters: m.meters}, nil
	}
	return noop.Int64UpDownCounter{}, nil
}

type brokenHistogram struct{ noop.Float64Histogram }

func (brokenHistogram) Enabled(context.Context) bool { return true }
func (brokenHistogram) Record(context.Context, float64, ...metric.RecordOption) {
	panic("broken")
}

type heldCounter struct {
	noop.Int64UpDownCounter
	meters *brokenMeters
}

func (c heldCounter) Enabled(context.Context) bool { return true }
func (c heldCounter) Add(_ context.Context, n int64, _ ...metric.AddOption) {
	c.meters.held += n
}

// An ended lock must not be counted as held forever.
func TestPanicOfAHistogramLeavesNoLockCounted(t *testing.T) {
	t.Parallel()
	meters := new(brokenMeters)
	telemetry := New(Config{Meters: meters, Logger: slog.New(slog.DiscardHandler), ErrorType: func(error) string { return "" }})
	var h Hold
	h.Begin(t.Context(), telemetry, Lock{Name: "a"}, true)
	require.Equal(t, int64(1), meters.held)
	require.PanicsWithValue(t, "broken", func() { h.End(time.Now(), time.Now(), 0, nil) })
	require.Zero(t, meters.held)
}
