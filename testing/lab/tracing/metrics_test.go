package tracing

// This file tests the metrics.

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

func TestMetricsHaveUnitsAndBuckets(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithKeptLocks(0, 0))
	l := b.lock(b.Ctx, p, "a")
	require.NoError(t, p.Do(l.Context(b.Ctx), "a", func(context.Context) error { return nil }))
	w := b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 1)
	b.Unlock(l)
	b.Unlock(w.Granted())
	l = b.lock(b.Ctx, p, "a")
	b.expire(b.session("a", b.Children("a")[0]))
	<-l.Lost()
	b.Until(func() bool {
		points := m.points()
		return points["lockpool.lock.lost"] != nil && points["lockpool.session.lost"] != nil
	}, "the losses are counted")
	wait := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	units, buckets := map[string]string{}, map[string][]float64{}
	for _, metric := range m.collect() {
		require.NotEmpty(t, metric.Description)
		units[metric.Name] = metric.Unit
		switch data := metric.Data.(type) {
		case metricdata.Histogram[float64]:
			buckets[metric.Name] = data.DataPoints[0].Bounds
		case metricdata.Histogram[int64]:
			buckets[metric.Name] = data.DataPoints[0].Bounds
		case metricdata.Sum[int64]:
			counter := metric.Name == "lockpool.lock.reentries" || metric.Name == keptTurns || metric.Name == askedBack || strings.HasSuffix(metric.Name, ".lost")
			require.Equal(t, counter, data.IsMonotonic, metric.Name)
		}
	}
	require.Equal(t, map[string]string{
		waitTime: "s", holdTime: "s", "lockpool.session.wait_time": "s", "lockpool.session.create_time": "s",
		depth: "{contender}", waiters: "{waiter}", held: "{lock}", "lockpool.lock.reentries": "{entry}", "lockpool.lock.lost": "{lock}",
		"lockpool.session.lost": "{session}", sessions: "{session}", "lockpool.session.max": "{session}",
		handles: "{handle}", "lockpool.handle.max": "{handle}",
		kept: "{lock}", keptTurns: "{turn}", askedBack: "{lock}",
	}, units)
	require.Equal(t, map[string][]float64{
		waitTime: wait, "lockpool.session.wait_time": wait, "lockpool.session.create_time": wait,
		holdTime: append(wait[:len(wait):len(wait)], 1800, 7200),
		depth:    {1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 5000},
	}, buckets)
	require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
}

// The metrics of a pool that keeps no locks lack these: see idle.
func TestMetricsOfKeptLocks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(keeping...)
	for range 4 {
		b.Unlock(b.lock(b.Ctx, p, "a"))
	}
	require.Equal(t, idle(3).with(points{
		waitTime: {free: 4}, depth: {mutex: 2}, held: {mutex: 0}, holdTime: {mutex: 4},
		kept: {"": 1}, keptTurns: {"": 2}, askedBack: {"": 0},
	}), m.points())
	b.Unlock(b.lock(b.Ctx, b.silentPool(), "a"))
	all := m.points()
	require.Equal(t, []int64{0, 2, 1}, []int64{all[kept][""], all[keptTurns][""], all[askedBack][""]})
}

func TestMetricsNameNoLockWithoutWithMetricName(t *testing.T) {
	t.Parallel()
	const key = "lockpool.lock.name="
	all := func(points points) (all string) {
		for _, of := range points {
			for attrs := range of {
				all += attrs + "\n"
			}
		}
		return all
	}
	b := newBench(t)
	p, m := b.metered()
	b.Unlock(b.lock(b.Ctx, p, "orders/42"))
	require.NotContains(t, all(m.points()), key)
	require.NotContains(t, all(m.points()), "lockpool.pool.name")

	var asked atomic.Pointer[lockpool.Pool]
	p, m = b.metered(lockpool.WithOwner("billing"), lockpool.WithMetricName(func(name string) string {
		if p := asked.Load(); p != nil {
			_ = p.Stats() // the function may use the pool
		}
		name, _, _ = strings.Cut(name, "/")
		return name
	}))
	asked.Store(p)
	for _, name := range []string{"orders/42", "orders/43", "users/7"} {
		b.Unlock(b.lock(b.Ctx, p, name))
	}
	of := func(name string) string {
		return "lockpool.lock.kind=mutex,lockpool.lock.name=" + name + ",lockpool.pool.name=billing"
	}
	require.Equal(t, map[string]int64{of("orders"): 2, of("users"): 1}, m.points()[holdTime])
	require.Equal(t, map[string]int64{of("orders"): 2, of("users"): 1}, m.points()[depth])
	require.Equal(t, map[string]int64{of("orders"): 0, of("users"): 0}, m.points()[held])
	require.Equal(t, map[string]int64{"lockpool.pool.name=billing": 1}, m.points()[sessions])
	require.NotContains(t, all(m.points()), "42")

	p, m = b.metered(lockpool.WithMetricName(func(string) string { return "" }))
	b.Unlock(b.lock(b.Ctx, p, "orders/42"))
	require.NotContains(t, all(m.points()), key, "an empty name is left out")
}

func TestClosedPoolReportsNoMetrics(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.newMeter()
	gone := make(chan struct{})
	func() {
		p, err := lockpool.Open("zookeeper", b.server().Addr()+b.Chroot, lockpool.WithMeterProvider(m))
		require.NoError(t, err)
		runtime.AddCleanup(p, func(gone chan struct{}) { close(gone) }, gone)
		require.Equal(t, map[string]int64{"": 0}, m.points()[sessions], "the pool has not been used")
		h, err := p.Handle(b.Ctx)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"": 1}, m.points()[sessions])
		require.Equal(t, map[string]int64{"": 1}, m.points()[handles])
		require.NoError(t, h.Close(b.Ctx))
		require.Equal(t, map[string]int64{"": 0}, m.points()[handles])
		require.NoError(t, p.Close())
		require.NoError(t, p.Close(), "a second time")
	}()
	require.NotContains(t, m.points(), sessions)
	require.NotContains(t, m.points(), handles)
	b.Until(func() bool {
		runtime.GC()
		return plays.Closed(gone)
	}, "the pool was collected: the provider does not refer to it")
	runtime.KeepAlive(m)
}

// Not parallel: the test changes the global provider.
func TestGlobalMeterProviderIsTheDefault(t *testing.T) {
	b := newBench(t)
	defer otel.SetMeterProvider(otel.GetMeterProvider())
	m, other := b.newMeter(), b.newMeter()
	otel.SetMeterProvider(m)
	p := b.open()
	b.Unlock(b.lock(b.Ctx, p, "a"))
	require.Equal(t, map[string]int64{free: 1}, m.points()[waitTime])
	b.Unlock(b.lock(b.Ctx, b.open(lockpool.WithMeterProvider(nil)), "a"))
	require.Equal(t, map[string]int64{free: 2}, m.points()[waitTime], "nil is ignored")
	b.Unlock(b.lock(b.Ctx, b.open(lockpool.WithMeterProvider(other)), "a"))
	require.Equal(t, map[string]int64{free: 2}, m.points()[waitTime], "the option prevails")
	require.Equal(t, map[string]int64{free: 1}, other.points()[waitTime])
}

// refusing is a provider whose meters refuse all instruments.
type refusing struct{ noop.MeterProvider }

type refusingMeter struct{ noop.Meter }

var errRefused = errors.New("no metrics")

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

func (refusingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errRefused
}

func (refusingMeter) Int64UpDownCounter(string, ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return nil, errRefused
}

func (refusingMeter) Int64Histogram(string, ...metric.Int64HistogramOption) (metric.Int64Histogram, error) {
	return nil, errRefused
}

func (refusingMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errRefused
}

func (refusingMeter) Int64ObservableUpDownCounter(string, ...metric.Int64ObservableUpDownCounterOption) (metric.Int64ObservableUpDownCounter, error) {
	return nil, errRefused
}

func (refusingMeter) Int64ObservableCounter(string, ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return nil, errRefused
}

func (refusingMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return nil, errRefused
}

// faultyExporter is a slow or failing exporter of metrics.
type faultyExporter struct {
	sdkmetric.Exporter
	pause time.Duration
	err   error
	tried atomic.Int32
}

func (e *faultyExporter) Temporality(k sdkmetric.InstrumentKind) metricdata.Temporality {
	return sdkmetric.DefaultTemporalitySelector(k)
}

func (e *faultyExporter) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func (e *faultyExporter) Export(context.Context, *metricdata.ResourceMetrics) error {
	e.tried.Add(1)
	time.Sleep(e.pause)
	return e.err
}

func (*faultyExporter) ForceFlush(context.Context) error { return nil }
func (*faultyExporter) Shutdown(context.Context) error   { return nil }

// slowName is a slow metric name function.
func slowName(string) string { time.Sleep(5 * time.Millisecond); return "" }

func TestLockingDoesNotDependOnTheMeterProvider(t *testing.T) {
	t.Parallel()
	exported := func(b *bench, e *faultyExporter) (metric.MeterProvider, func() bool) {
		p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(e)))
		// A reader with a short interval may collect before being known to the provider, a
		// data race in the SDK. So the test asks the reader to collect.
		ctx, cancel := context.WithCancel(context.Background())
		var flushing sync.WaitGroup
		flushing.Go(func() {
			for ctx.Err() == nil {
				_ = p.ForceFlush(ctx)
				time.Sleep(time.Millisecond)
			}
		})
		b.Cleanup(func() { cancel(); flushing.Wait(); _ = p.Shutdown(context.Background()) })
		return p, func() bool { return e.tried.Load() > 0 }
	}
	for name, provider := range map[string]func(b *bench) (p metric.MeterProvider, used func() bool){
		"refusing": func(*bench) (metric.MeterProvider, func() bool) { return refusing{}, func() bool { return true } },
		"slow": func(b *bench) (metric.MeterProvider, func() bool) {
			return exported(b, &faultyExporter{pause: 100 * time.Millisecond})
		},
		"failing": func(b *bench) (metric.MeterProvider, func() bool) {
			return exported(b, &faultyExporter{err: errors.New("the collector is down")})
		},
		"shut down": func(b *bench) (metric.MeterProvider, func() bool) {
			p := sdkmetric.NewMeterProvider()
			require.NoError(b, p.Shutdown(b.Ctx))
			return p, func() bool { return true }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			mp, used := provider(b)
			b.exerciseLocking(b.pool(lockpool.WithMeterProvider(mp), lockpool.WithMetricName(slowName)))
			b.Until(used, "the provider was used")
		})
	}
}
