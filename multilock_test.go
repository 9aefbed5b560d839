package lockpool_test

// This file tests LockAll on a silent server, and a loss meanwhile.

import (
	"context"
	"testing"
	"time"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/assert"
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

// Releasing what it has is part of the wait.
func TestLockAllOnSilentServerEndsWithWaitAtMost(t *testing.T) {
	t.Parallel()
	server := locktest.StartServer(t)
	b := locktest.NewOn(t, server)
	held := b.Lock(b.Pool(), "b")
	p := b.Pool()
	done := make(chan time.Duration, 1)
	go func() {
		began := time.Now()
		_, err := p.LockAll(b.Ctx, []string{"a", "b"}, lockpool.WaitAtMost(500*time.Millisecond))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		done <- time.Since(began)
	}()
	b.AwaitQueue("b", 2)
	require.NoError(t, server.Pause())
	require.Less(t, <-done, 2*time.Second)
	require.NoError(t, server.Resume())
	b.Unlock(held)
}
