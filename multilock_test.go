package lockpool_test

// This file tests LockAll on a silent server.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

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
