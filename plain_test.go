package lockpool_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestPlainLockIsOneNode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(lockpool.WithOwner("billing")), b.pool()
	var last int64
	for range 3 {
		l, err := p.TryLock(b.ctx, "x/a", lockpool.Plain())
		require.NoError(t, err)
		_, stat, err := b.admin.Get(b.chroot + "/x/a")
		require.NoError(t, err)
		require.NotZero(t, stat.EphemeralOwner)
		require.Greater(t, b.token(l), last)
		require.Equal(t, stat.Czxid, b.token(l))
		last = stat.Czxid
		require.NoError(t, l.Verify(b.ctx))
		_, err = others.TryLock(b.ctx, "x/a", lockpool.Plain())
		require.ErrorIs(t, err, lockpool.ErrLocked)

		q, err := others.Queue(b.ctx, "x/a")
		require.NoError(t, err)
		require.Len(t, q.Contenders, 1)
		c := q.Contenders[0]
		require.Equal(t, []any{"plain", true, "billing", b.token(l)}, []any{c.Kind, c.Holds, c.Owner, c.Token})
		names, err := others.List(b.ctx, "")
		require.NoError(t, err)
		require.Equal(t, []string{"x/a"}, names)

		b.unlock(l)
		exists, _, err := b.admin.Exists(b.chroot + "/x/a")
		require.NoError(t, err)
		require.False(t, exists)
	}
}

func TestPlainLockIsWaitedForAndEnteredAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	var inside, turns atomic.Int32
	var all sync.WaitGroup
	for i := range 20 {
		pool := []*lockpool.Pool{p, others}[i%2]
		all.Go(func() {
			for range 5 {
				err := pool.Do(b.ctx, "a", func(ctx context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two inside")
					}
					defer inside.Add(-1)
					turns.Add(1)
					return pool.Do(ctx, "a", func(context.Context) error { return nil }, lockpool.Plain())
				}, lockpool.Plain())
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, int32(100), turns.Load())
}

func TestWaiterForAPlainLockGivesUpAndLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	l, err := p.Lock(b.ctx, "a", lockpool.Plain())
	require.NoError(t, err)
	_, err = others.Lock(b.ctx, "a", lockpool.Plain(), lockpool.WaitAtMost(50*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "waiting behind _c_")
	b.unlock(l)
	got, err := others.TryLock(b.ctx, "a", lockpool.Plain())
	require.NoError(t, err)
	b.unlock(got)
}

func TestHolderOfAPlainLockIsToldWhenItIsBroken(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	for _, watched := range []bool{true, false} {
		l, err := p.Lock(b.ctx, "a", lockpool.Plain())
		require.NoError(t, err)
		if watched {
			b.token(l)
		}
		q, err := others.Queue(b.ctx, "a")
		require.NoError(t, err)
		require.NoError(t, others.Break(b.ctx, "a", q.Contenders[0].Node))
		// Another one takes it at once. It must not be mistaken for ours.
		next, err := others.TryLock(b.ctx, "a", lockpool.Plain())
		require.NoError(t, err)
		require.ErrorIs(t, l.Verify(b.ctx), lockpool.ErrLockLost)
		b.lost(l)
		require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost)
		require.ErrorIs(t, others.Break(b.ctx, "a", q.Contenders[0].Node), lockpool.ErrNotHeld)
		require.NoError(t, next.Verify(b.ctx), "the next holder's node stands")
		b.unlock(next)
	}
}

// Somebody else's ephemeral node is a plain lock, too.
func TestEphemeralNodeOfAnybodyIsAPlainLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	b.unlock(b.lock(p, "x/other"))
	_, err := b.admin.Create(b.chroot+"/x/a", []byte("by hand"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = p.TryLock(b.ctx, "x/a", lockpool.Plain())
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := make(chan error)
	go func() {
		l, err := p.Lock(b.ctx, "x/a", lockpool.Plain())
		if err == nil {
			err = l.Unlock(b.ctx)
		}
		w <- err
	}()
	q, err := p.Queue(b.ctx, "x/a")
	require.NoError(t, err)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "it waits")
	require.NoError(t, p.Revoke(b.ctx, "x/a"))
	data, _, err := b.admin.Get(b.chroot + "/x/a")
	require.NoError(t, err)
	require.Equal(t, "__REVOKE__", string(data))
	require.NoError(t, p.Break(b.ctx, "x/a", q.Contenders[0].Node))
	require.NoError(t, <-w)
}

func TestPlainLockCannotBeShared(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.pool().RLock(b.ctx, "a", lockpool.Plain())
	require.ErrorContains(t, err, "a plain lock cannot be shared")
	require.ErrorContains(t, b.pool().Do(b.ctx, "a", func(context.Context) error { return nil }, lockpool.Plain(), lockpool.Shared()), "cannot be shared")
}

// One write to take and one to give back, and nothing else.
func TestPlainLockCostsTwoRequests(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	l, err := p.Lock(b.ctx, "a", lockpool.Plain())
	require.NoError(t, err)
	b.unlock(l)
	var requests atomic.Int32
	own.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.Pass(), Match: zktest.Match{Where: func(r zktest.Request) bool {
		if len(r.Paths) > 0 && r.Paths[0] != "/" {
			requests.Add(1)
		}
		return true
	}}})
	l, err = p.Lock(b.ctx, "a", lockpool.Plain())
	require.NoError(t, err)
	b.unlock(l)
	require.Equal(t, int32(2), requests.Load())
}
