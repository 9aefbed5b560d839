package tracing

// This file tests the gauges of the oldest wait and the oldest hold.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockpool/lockpool"
)

// ages collects the gauges, by metric and attributes.
func (m *meter) ages() map[string]time.Duration {
	all := map[string]time.Duration{}
	for _, metric := range m.collect() {
		if gauge, ok := metric.Data.(metricdata.Gauge[float64]); ok {
			for _, p := range gauge.DataPoints {
				all[strings.TrimPrefix(metric.Name, "lockpool.lock.")+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = time.Duration(p.Value * float64(time.Second))
			}
		}
	}
	return all
}

// The oldest wait and the oldest hold of each name grow while nothing ends.
func TestOldestWaitAndHold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithMetricName(func(name string) string { return name[:1] }))
	require.Empty(t, m.ages())
	began := time.Now()
	first := b.Lock(p, "a/1")
	mid := time.Now()
	second := b.Lock(p, "a/2")
	var waits []<-chan struct{}
	for _, name := range []string{"a/1", "a/1", "a/2"} {
		done := make(chan struct{})
		waits = append(waits, done)
		go func() {
			defer close(done)
			b.Unlock(b.Lock(p, name))
		}()
		count := int64(len(waits))
		b.Until(func() bool { return m.points()[waiters]["lockpool.lock.kind=mutex,lockpool.lock.name=a"] == count }, "%d waiters", count)
	}
	const series = " lockpool.lock.kind=mutex,lockpool.lock.name=a"
	sinceMid := time.Since(mid)
	ages := m.ages()
	require.Len(t, ages, 2)
	require.Greater(t, ages["oldest_hold"+series], sinceMid, "of the first hold")
	require.LessOrEqual(t, ages["oldest_hold"+series], time.Since(began))
	require.Positive(t, ages["oldest_wait"+series])
	require.Less(t, ages["oldest_wait"+series], ages["oldest_hold"+series])
	later := m.ages()
	for name, age := range ages {
		require.Greater(t, later[name], age)
	}

	b.Unlock(second)
	<-waits[2]
	require.Greater(t, m.ages()["oldest_wait"+series], later["oldest_wait"+series], "the oldest still waits")
	b.Unlock(first)
	<-waits[0]
	<-waits[1]
	require.Empty(t, m.ages())
}

// A hold that lasts for too long is counted, and an event of its span.
func TestOverdueHold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithMaxHold(time.Millisecond, false), lockpool.WithHoldSpans())
	l := b.Lock(p, "a")
	b.Until(func() bool { return m.points()["lockpool.lock.overdue"][mutex] == 1 }, "the hold is counted")
	b.Unlock(l)
	b.Until(func() bool { return len(b.named("lockpool.lock.hold")) == 1 }, "the span of the hold")
	require.Equal(t, "lockpool.overdue", b.named("lockpool.lock.hold")[0].Events()[0].Name)
}
