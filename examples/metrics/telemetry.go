package main

// This file sets up metrics for a pool.

import (
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/otlptranslator"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
)

// newMeters returns a meter provider and the registry of the metrics.
func newMeters() (*prometheus.Registry, *sdkmetric.MeterProvider, error) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry),
		// lockpool.lock.wait.duration becomes lockpool_lock_wait_duration_seconds.
		exporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes),
		exporter.WithoutScopeInfo())
	if err != nil {
		return nil, nil, err
	}
	return registry, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil
}

// openPool opens a pool with metrics: with a meter provider (the default is the
// global one), a name for the pool, and names for locks.
func openPool(name, address string, meters metric.MeterProvider) (*lockpool.Pool, error) {
	// Each run has separate locks, below a path with the process ID.
	return lockpool.Open("zookeeper", fmt.Sprintf("%s/metrics-%d?session_timeout=30s", address, os.Getpid()),
		lockpool.WithMeterProvider(meters),
		lockpool.WithOwner(name),
		lockpool.WithMetricName(metricName),
		lockpool.WithMaxHandles(12))
}

// metricName returns orders for orders/42. There are many orders, and every name in a
// metric creates more time series.
func metricName(lock string) string {
	first, _, _ := strings.Cut(lock, "/")
	return first
}
