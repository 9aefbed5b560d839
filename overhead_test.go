package lockpool

// This file tests the cost of telemetry and reentry.

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/memory"
	"github.com/lockpool/lockpool/internal/nodedata"
)

// instrumentAcquisition does what the acquisition of a free lock does for spans,
// metrics, logs and profiles, and nothing else.
func instrumentAcquisition(p *Pool, s *session) {
	self := driver.Node{Name: "_c_8d2c8a2e-4e57-4a0b-9d39-7d0c6ee3d8a1-lock-0000000000"}
	p.telemetry.SlotAcquired(context.Background(), time.Now(), nil)
	a := &acquisition{pool: p, name: "a", req: request{op: opLock}}
	a.begin(context.Background())
	_ = p.owner.Data(nodedata.Request{Span: a.local.span})
	a.onSession(s)
	a.Queued(self, 0, 1)
	a.Granted(self, false)
	a.end(nil)
}

// instrumentHold does the same for a hold, from its grant to its end.
func instrumentHold(p *Pool, h *hold) {
	a := acquisition{pool: p, name: h.name, call: context.Background()}
	h.telemetry.Begin(a.call, p.telemetry, a.lock(), true)
	h.reportEnd(ErrNotHeld)
	h.telemetry.Released(a.call, h.life.began, 0, nil)
	h.telemetry.Reentered(0)
}

// uninstrumented returns a pool of a program without a telemetry provider.
func uninstrumented(t testing.TB) (*Pool, *session) {
	p, err := OpenConnector(nameless{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) }) // before the costs are published, after a minute
	return p, &session{}
}

func newTestHold(h *Handle, s *session) *hold {
	a := &acquisition{pool: h.pool, name: "a", req: request{op: opLock}}
	held := newHold(h, a.name, &a.req, newTenancy(a, s, driver.Node{}), 0)
	held.telemetry.Begin(context.Background(), h.pool.telemetry, a.lock(), true)
	return held
}

func TestInstrumentationWithoutAProviderAllocatesLittle(t *testing.T) {
	p, s := uninstrumented(t)
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { instrumentAcquisition(p, s) }), 1.)
	h := newTestHold(&Handle{pool: p}, s)
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { instrumentHold(p, h) }), 5.)
}

// It takes half a microsecond, as the benchmark shows. This test finds another
// order of magnitude on any machine, even with the race detector, because it
// takes the fastest of many tries, too short to be interrupted all.
func TestInstrumentationWithoutAProviderIsFast(t *testing.T) {
	p, s := uninstrumented(t)
	const rounds = 100
	fastest := time.Hour
	for range 500 {
		began := time.Now()
		for range rounds {
			instrumentAcquisition(p, s)
		}
		fastest = min(fastest, time.Since(began)/rounds)
	}
	require.Less(t, fastest, 10*time.Microsecond)
}

func TestReentryAllocatesNothing(t *testing.T) {
	p, s := uninstrumented(t)
	handle := &Handle{pool: p}
	h := newTestHold(handle, s)
	h.entries.add(false)
	handle.holds.add(h)
	ctx := context.Background()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		l, err := handle.Lock(ctx, "a")
		if err != nil || l.Unlock(ctx) != nil {
			t.Fail()
		}
	}))
}

func BenchmarkAcquisitionInstrumentation(b *testing.B) {
	p, s := uninstrumented(b)
	b.ReportAllocs()
	for b.Loop() {
		instrumentAcquisition(p, s)
	}
}

func BenchmarkHoldInstrumentation(b *testing.B) {
	p, s := uninstrumented(b)
	h := newTestHold(&Handle{pool: p}, s)
	b.ReportAllocs()
	for b.Loop() {
		instrumentHold(p, h)
	}
}

// A nested lock that is free pays for what its node says, and for nothing that only a wait
// needs.
func TestNestedLockThatIsFreeAllocatesLittle(t *testing.T) {
	p, err := OpenConnector(memory.New())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	h, err := p.Handle(t.Context())
	require.NoError(t, err)
	l, err := h.Lock(t.Context(), "held")
	require.NoError(t, err)
	a := &acquisition{pool: p, name: "a", req: request{op: opLock}}
	least := math.Inf(1)
	for range 100 { // the race detector now and then drops what a sync.Pool has
		least = min(least, testing.AllocsPerRun(1, func() {
			_, w := h.beginNested(t.Context(), a, l.hold.tenancy.session)
			w.joined(driver.Node{Name: "node"}, 0)
			w.end()
		}))
	}
	require.LessOrEqual(t, least, 17.)
}
