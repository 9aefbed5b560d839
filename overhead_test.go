package lockpool

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// instrumented does what an acquisition of a free lock does for spans, metrics,
// logs and profiles. Nothing of it is in a lock without instrumentation.
func instrumented(p *Pool, h *Handle, home *session) {
	self := driver.Node{Name: "_c_8d2c8a2e-4e57-4a0b-9d39-7d0c6ee3d8a1-lock-0000000000"}
	began := time.Now()
	p.telemetry.slotAcquired(context.Background(), began, nil)
	req := request{op: opLock}
	ctx, trail := h.startAcquisition(context.Background(), "a", req)
	_ = p.owner.data(ctx, req, p.telemetry.links)
	trail.onSession(home)
	trail.Queued(self, 0, 1)
	trail.granted(self)
	trail.end(nil)
}

// uninstrumented is a pool of a program that has set up no provider.
func uninstrumented(t testing.TB) (*Pool, *Handle, *session) {
	p, err := OpenConnector(nameless{})
	require.NoError(t, err)
	return p, &Handle{pool: p}, &session{}
}

// released is the same for a hold, from its grant to its end.
func released(p *Pool, h *hold) {
	p.telemetry.granted(context.Background(), h)
	h.reportEnd(ErrNotHeld)
	p.telemetry.released(context.Background(), release{hold: h, began: h.began})
	p.telemetry.countReentries(h)
}

// There is no provider in these tests, so this is what it costs who has none.
func TestInstrumentationWithoutAProviderCostsFewAllocations(t *testing.T) {
	p, handle, home := uninstrumented(t)
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { instrumented(p, handle, home) }), 3.)
	h := (&hold{handle: handle, name: "a", session: home}).begun()
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { released(p, h) }), 5.)
}

// It is half a microsecond, see the benchmark. This finds what is of another
// order, on any machine: the fastest of many tries, with the race detector.
func TestInstrumentationWithoutAProviderTakesNoTime(t *testing.T) {
	p, h, home := uninstrumented(t)
	const rounds = 1000
	fastest := time.Hour
	for range 50 {
		began := time.Now()
		for range rounds {
			instrumented(p, h, home)
		}
		fastest = min(fastest, time.Since(began)/rounds)
	}
	require.Less(t, fastest, 10*time.Microsecond)
}

func TestEnteringAgainCostsNoAllocation(t *testing.T) {
	_, handle, home := uninstrumented(t)
	h := (&hold{handle: handle, name: "a", session: home}).begun()
	h.enter(false)
	handle.holds = map[string]*hold{"a": h}
	ctx := context.Background()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		l, err := handle.Lock(ctx, "a")
		if err != nil || l.Unlock(ctx) != nil {
			t.Fail()
		}
	}))
}

func BenchmarkInstrumentationOfAnAcquisition(b *testing.B) {
	p, h, home := uninstrumented(b)
	b.ReportAllocs()
	for b.Loop() {
		instrumented(p, h, home)
	}
}

func BenchmarkInstrumentationOfARelease(b *testing.B) {
	p, handle, home := uninstrumented(b)
	h := (&hold{handle: handle, name: "a", session: home}).begun()
	b.ReportAllocs()
	for b.Loop() {
		p.telemetry.granted(context.Background(), h)
		h.reportEnd(ErrNotHeld)
		released(p, h)
	}
}
