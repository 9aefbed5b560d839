package lockpool_test

// This file tests many waiters and contenders.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

func TestTenThousandContendersAreAwaited(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	b.Unlock(b.Lock(p, "a"))
	remove := b.CreateContenders("a", 10_000)
	_, err := p.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.Enqueue(p, "a", 10_001)
	remove()
	b.Unlock(w.Granted())
}
