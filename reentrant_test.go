package lockpool_test

// This file tests the cost of reentry.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

// Package tracing tests that no span is recorded.
func TestReentrySendsNothing(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t) // counts only this test's packets
	b := locktest.NewOn(t, own)
	p := b.PoolWithTimeout(10 * time.Second)
	h := b.Handle(p)
	outer := b.Lock(h, "a")
	ctx := outer.Context(b.Ctx)

	received := func() int { return b.Stat(own, "zk_packets_received") }
	const rounds = 10_000
	before := received()
	for range rounds {
		l := b.Lock(h, "a")
		l2, err := h.TryLock(b.Ctx, "a")
		require.NoError(t, err)
		l3, err := p.Lock(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, p.Do(ctx, "a", func(context.Context) error { return nil }))
		b.Unlock(l3)
		b.Unlock(l2)
		b.Unlock(l)
	}
	// Asking for the figure is a packet, and two clients ping now and then.
	require.Less(t, received()-before, 100)
	b.Unlock(outer)
	require.NoError(t, h.Close(b.Ctx))
}

func BenchmarkReentry(b *testing.B) {
	h := locktest.New(b)
	handle := h.Handle(h.Pool())
	outer, err := handle.Lock(h.Ctx, "a")
	require.NoError(b, err)
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := handle.Lock(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(ctx); err != nil {
			b.Fatal(err)
		}
	}
	h.Unlock(outer)
	require.NoError(b, handle.Close(h.Ctx))
}
