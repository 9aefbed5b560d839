package lockpool_test

// This file tests LockAll and a loss meanwhile.

import (
	"testing"
	"time"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// LockAll does not succeed if a lock was lost meanwhile, whatever LockAll was doing.
func TestLockAllTellsALoss(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	others, losses := b.Pool(), 0
	for at, more := 1, true; more; at++ {
		tracer := &panickingTracer{goroutine: goid.Get(), at: at}
		p, lost := b.Pool(lockpool.WithTracerProvider(tracer), lockpool.WithLocalTurns(0)), false
		tracer.do = func() {
			held := p.Stats().Held
			q, err := others.Queue(b.Ctx, "a")
			require.NoError(t, err)
			if held == 0 || len(q.Contenders) == 0 {
				return
			}
			lost = true
			require.NoError(t, others.Break(b.Ctx, "a", q.Contenders[0].Node))
			require.Eventually(t, func() bool { return p.Stats().Held < held }, time.Minute, time.Millisecond)
		}
		all, err := p.LockAll(b.Ctx, []string{"a", "c"})
		more = tracer.calls >= at
		tracer.do = func() {}
		if lost {
			losses++
			require.ErrorIs(t, err, lockpool.ErrLockLost, "call %d of the tracer", at)
		} else {
			require.NoError(t, err)
			require.NoError(t, all.Unlock(b.Ctx))
		}
		require.NoError(t, p.Close())
	}
	require.Positive(t, losses)
}
