package tracing

// This file has the meters of the tests, and the expected points.

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// points are the collected metrics: the sum of each metric by attributes, or the number of
// values of a histogram.
type points map[string]map[string]int64

func (p points) with(more points) points {
	p = maps.Clone(p)
	maps.Copy(p, more)
	return p
}

// Attributes of points, in their encoded form.
const (
	mutex   = "lockpool.lock.kind=mutex"
	free    = "lockpool.lock.contended=false,lockpool.lock.kind=mutex,lockpool.lock.outcome=acquired"
	awaited = "lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=acquired"
)

// Names of metrics.
const (
	waitTime = "lockpool.lock.wait.duration"
	holdTime = "lockpool.lock.hold.duration"
	depth    = "lockpool.lock.queue.length"
	held     = "lockpool.lock.held"
	waiters  = "lockpool.lock.waiters"
	sessions = "lockpool.session.count"
	handles  = "lockpool.handle.count"

	kept      = "lockpool.lock.kept"
	keptTurns = "lockpool.lock.kept_turns"
	askedBack = "lockpool.lock.asked_back"
)

// idle are the points of a pool with one session and no handle in use, after the given
// number of acquisitions of a handle.
func idle(acquisitions int64) points {
	return points{
		"lockpool.session.wait_time":   {"": acquisitions},
		"lockpool.session.create_time": {"": 1},
		sessions:                       {"": 1},
		"lockpool.session.max":         {"": 4},
		handles:                        {"": 0},
		"lockpool.handle.max":          {"": 10_000},
	}
}

// meter is a meter provider with a reader.
type meter struct {
	testing.TB
	*sdkmetric.MeterProvider
	reader *sdkmetric.ManualReader
}

func (b *bench) newMeter() *meter {
	reader := sdkmetric.NewManualReader()
	m := &meter{b, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), reader}
	b.Cleanup(func() { require.NoError(b, m.Shutdown(b.Ctx)) })
	return m
}

func (m *meter) collect() []metricdata.Metrics {
	m.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(m, m.reader.Collect(m.Context(), &all))
	if len(all.ScopeMetrics) == 0 {
		return nil
	}
	require.Len(m, all.ScopeMetrics, 1)
	scope := all.ScopeMetrics[0].Scope
	require.Equal(m, "github.com/lockpool/lockpool", scope.Name)
	require.Equal(m, "0.1.0", scope.Version)
	require.Equal(m, "https://opentelemetry.io/schemas/1.39.0", scope.SchemaURL)
	return all.ScopeMetrics[0].Metrics
}

// points collects the points.
func (m *meter) points() points {
	m.Helper()
	all := points{}
	for _, metric := range m.collect() {
		of := map[string]int64{}
		put := func(set attribute.Set, value int64) { of[set.Encoded(attribute.DefaultEncoder())] = value }
		switch data := metric.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, p.Value)
			}
		case metricdata.Histogram[int64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, int64(p.Count))
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				require.GreaterOrEqual(m, p.Sum, 0.)
				require.Less(m, p.Sum, locktest.Patience.Seconds()*float64(p.Count), "seconds")
				put(p.Attributes, int64(p.Count))
			}
		case metricdata.Gauge[float64]: // see oldest_test.go
			continue
		default:
			require.Failf(m, "unexpected metric", "%s: %T", metric.Name, data)
		}
		require.NotContains(m, all, metric.Name)
		all[metric.Name] = of
	}
	return all
}

// metered returns a pool with a session whose spans and metrics are recorded.
func (b *bench) metered(opts ...lockpool.Option) (*lockpool.Pool, *meter) {
	b.Helper()
	m := b.newMeter()
	return b.pool(append([]lockpool.Option{lockpool.WithMeterProvider(m)}, opts...)...), m
}
