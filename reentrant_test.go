package lockpool_test

// This file tests the cost of reentry.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
)

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
