package tracing

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
)

// points are what a reader has collected: of each metric, by attributes, the sum,
// or of a histogram how many values there are.
type points map[string]map[string]int64

func (p points) with(more points) points {
	p = maps.Clone(p)
	maps.Copy(p, more)
	return p
}

// Attributes of points.
const (
	mutex    = "lockpool.lock.kind=mutex"
	free     = "lockpool.lock.contended=false,lockpool.lock.kind=mutex,lockpool.lock.outcome=acquired"
	awaited  = "lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=acquired"
	timedOut = "error.type=timeout,lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=timeout"
	canceled = "error.type=canceled,lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=canceled"
)

// Of metrics with a longer name.
const (
	waitTime = "lockpool.lock.wait.duration"
	holdTime = "lockpool.lock.hold.duration"
	depth    = "lockpool.lock.queue.length"
	held     = "lockpool.lock.held"
	waiters  = "lockpool.lock.waiters"
	sessions = "lockpool.session.count"
	handles  = "lockpool.handle.count"
)

// idle are the points of a pool with one session and no handle given out, after
// so many times that a handle was taken.
func idle(handlesTaken int64) points {
	return points{
		"lockpool.session.wait_time":   {"": handlesTaken},
		"lockpool.session.create_time": {"": 1},
		sessions:                       {"": 1},
		"lockpool.session.max":         {"": 4},
		handles:                        {"": 0},
		"lockpool.handle.max":          {"": 10_000},
	}
}

// meter is a provider of meters, and its reader.
type meter struct {
	testing.TB
	*sdkmetric.MeterProvider
	reader *sdkmetric.ManualReader
}

func (b *bench) newMeter() *meter {
	reader := sdkmetric.NewManualReader()
	m := &meter{b, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), reader}
	b.Cleanup(func() { require.NoError(b, m.Shutdown(b.ctx)) })
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

// points collects.
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
				require.Less(m, p.Sum, patience.Seconds()*float64(p.Count), "seconds")
				put(p.Attributes, int64(p.Count))
			}
		default:
			require.Failf(m, "what is it?", "%s: %T", metric.Name, data)
		}
		require.NotContains(m, all, metric.Name)
		all[metric.Name] = of
	}
	return all
}

// metered returns a pool that is traced and metered, with a session.
func (b *bench) metered(opts ...lockpool.Option) (*lockpool.Pool, *meter) {
	b.Helper()
	m := b.newMeter()
	return b.pool(append([]lockpool.Option{lockpool.WithMeterProvider(m)}, opts...)...), m
}

// stranger is somebody with a pool and a trace of their own.
type stranger struct {
	*lockpool.Pool
	recorder *tracetest.SpanRecorder
}

func (b *bench) stranger(opts ...lockpool.Option) *stranger {
	recorder := tracetest.NewSpanRecorder()
	provider := b.newProvider(sdktrace.WithSpanProcessor(recorder))
	return &stranger{b.open("", append([]lockpool.Option{lockpool.WithTracerProvider(provider)}, opts...)...), recorder}
}

// asked returns the spans of their acquisitions, in order.
func (s *stranger) asked() (asked []trace.SpanContext) {
	for _, span := range s.recorder.Started() {
		if span.Name() == acquireName {
			asked = append(asked, span.SpanContext())
		}
	}
	return asked
}
