package lockpool_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who asks for more permits than the limit allows holds up nobody: it waits for
// another limit, and then for its turn.
func TestWhoAsksForMoreThanTheLimitHoldsUpNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	sem, same := p.Semaphore("s", 0), others.Semaphore("s", 0)
	require.NoError(t, same.SetLimit(b.ctx, 2))
	defer func() { require.NoError(t, b.admin.Delete(b.chroot+"/s/limit", -1)) }()
	many := b.beginPermits(sem, 3)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it waits")
	b.release(b.acquire(same, 2))
	one, err := same.TryAcquire(b.ctx, 1)
	require.NoError(t, err, "there are two")
	b.noPermits(many)

	// The limit suffices now, the permits that are free do not.
	require.NoError(t, same.SetLimit(b.ctx, 3))
	b.queued("s/leases", 4)
	b.noPermits(many)
	few := b.awaitPermits(same, 1, 2)

	// And now it does not any more. Its leases go, and who came later is let in.
	require.NoError(t, same.SetLimit(b.ctx, 2))
	b.release(b.obtained(few))
	b.noPermits(many)
	require.NoError(t, same.SetLimit(b.ctx, 3))
	b.release(one)
	b.release(b.obtained(many))

	require.NoError(t, same.SetLimit(b.ctx, 0))
	none := b.beginPermits(sem, 1)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it waits")
	b.until(func() bool { return len(b.contenders("/s")) == 0 }, "without a place in the queue")
	none.cancel()
	<-none.done
	require.ErrorIs(t, none.err, context.Canceled)
	require.ErrorContains(t, none.err, "waiting for a limit of 1, which is 0")
}
