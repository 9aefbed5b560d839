package lockpool

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// instrumented does what the acquisition of a free lock does for spans, metrics,
// logs and profiles, and nothing else.
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

// uninstrumented returns a pool of a program without a telemetry provider.
func uninstrumented(t testing.TB) (*Pool, *Handle, *session) {
	p, err := OpenConnector(nameless{})
	require.NoError(t, err)
	return p, &Handle{pool: p}, &session{}
}

// released does the same for a hold, from its grant to its end.
func released(p *Pool, h *hold) {
	p.telemetry.granted(context.Background(), h)
	h.reportEnd(ErrNotHeld)
	p.telemetry.released(context.Background(), release{hold: h, began: h.began})
	p.telemetry.countReentries(h)
}

func TestInstrumentationWithoutAProviderAllocatesLittle(t *testing.T) {
	p, handle, home := uninstrumented(t)
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { instrumented(p, handle, home) }), 3.)
	h := (&hold{handle: handle, name: "a", session: home}).begun()
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { released(p, h) }), 5.)
}

// It takes half a microsecond, as the benchmark shows. This test finds another
// order of magnitude on any machine, even with the race detector, because it
// takes the fastest of many tries.
func TestInstrumentationWithoutAProviderIsFast(t *testing.T) {
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

func TestReentryAllocatesNothing(t *testing.T) {
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

func BenchmarkAcquisitionInstrumentation(b *testing.B) {
	p, h, home := uninstrumented(b)
	b.ReportAllocs()
	for b.Loop() {
		instrumented(p, h, home)
	}
}

func BenchmarkReleaseInstrumentation(b *testing.B) {
	p, handle, home := uninstrumented(b)
	h := (&hold{handle: handle, name: "a", session: home}).begun()
	b.ReportAllocs()
	for b.Loop() {
		p.telemetry.granted(context.Background(), h)
		h.reportEnd(ErrNotHeld)
		released(p, h)
	}
}
