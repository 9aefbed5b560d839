package lockpool_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

func (b *bench) revoked(revoked <-chan struct{}) {
	b.Helper()
	select {
	case <-revoked:
	case <-b.ctx.Done():
		require.FailNow(b, "nobody was told")
	}
}

func notRevoked(t *testing.T, revoked <-chan struct{}) {
	t.Helper()
	select {
	case <-revoked:
		require.FailNow(t, "revoked")
	default:
	}
}

// Scenarios 118, 122.
func TestHolderThatListensIsToldAndKeepsTheLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(lockpool.WithOwner("billing")), b.pool()
	l := b.lock(p, "a")
	notRevoked(t, l.Revoked())
	q, err := others.Queue(b.ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "billing", q.Contenders[0].Owner, "its data are there as well")
	ctx := l.Context(b.ctx)
	require.NoError(t, others.Revoke(b.ctx, "a"))
	b.revoked(l.Revoked())
	require.NoError(t, ctx.Err(), "a lock that was not taken with Revocable")
	require.NoError(t, l.Verify(b.ctx))
	_, err = others.TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.wait(others, "a", 2)
	b.unlock(l)
	l = b.granted(w)
	notRevoked(t, l.Revoked())
	b.unlock(l)
}

// Scenario 121 and: a request that came before anybody listened.
func TestRequestThatCameBeforeItListenedIsSeen(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	for range 3 {
		for _, watched := range []bool{false, true} {
			l := b.lock(p, "a")
			if watched {
				b.token(l)
			}
			require.NoError(t, others.Revoke(b.ctx, "a"))
			b.revoked(l.Revoked())
			require.NoError(t, others.Revoke(b.ctx, "a"), "again")
			b.unlock(l)
		}
	}
}

func TestRevocableEndsTheContextsOfAHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	err := p.Do(b.ctx, "a", func(ctx context.Context) error {
		require.NoError(t, others.Revoke(b.ctx, "a"))
		b.revoked(ctx.Done())
		_, err := others.TryLock(b.ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked, "still held")
		return context.Cause(ctx)
	}, lockpool.Revocable())
	require.ErrorIs(t, err, lockpool.ErrRevoked)

	l, err := p.Lock(b.ctx, "a", lockpool.Revocable())
	require.NoError(t, err)
	before := l.Context(b.ctx)
	require.NoError(t, others.Revoke(b.ctx, "a"))
	b.revoked(before.Done())
	require.Equal(t, lockpool.ErrRevoked, context.Cause(before))
	require.Equal(t, lockpool.ErrRevoked, context.Cause(l.Context(b.ctx)), "one that is asked for later")
	require.NoError(t, l.Verify(b.ctx))
	b.unlock(l)

	// Deeper in the code somebody declares it.
	s := b.session(p)
	l, err = s.Lock(b.ctx, "a")
	require.NoError(t, err)
	ctx := l.Context(b.ctx)
	require.NoError(t, others.Revoke(b.ctx, "a"))
	b.revoked(l.Revoked())
	require.NoError(t, ctx.Err())
	inner, err := s.Lock(b.ctx, "a", lockpool.Revocable())
	require.NoError(t, err)
	b.revoked(ctx.Done())
	b.unlock(inner)
	b.unlock(l)
	require.NoError(t, s.Close(b.ctx))
}

func TestWaiterThatMayBeRevokedGivesUp(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	l := b.lock(p, "a")
	first := b.waitFor(func(ctx context.Context, name string, opts ...lockpool.LockOption) (*lockpool.Lock, error) {
		return others.Lock(ctx, name, lockpool.Revocable())
	}, "a", 2)
	second := b.waitFor(func(ctx context.Context, name string, opts ...lockpool.LockOption) (*lockpool.Lock, error) {
		return others.RLock(ctx, name, lockpool.Revocable())
	}, "a", 3)
	third := b.wait(others, "a", 4) // does not listen
	for i, w := range []*waiter{second, first} {
		q, err := p.Queue(b.ctx, "a")
		require.NoError(t, err)
		b.stillWaits(w)
		require.NoError(t, p.Revoke(b.ctx, "a", q.Contenders[2-i].Node))
		<-w.done
		require.ErrorIs(t, w.err, lockpool.ErrRevoked)
	}
	q, err := p.Queue(b.ctx, "a")
	require.NoError(t, err)
	require.Len(t, q.Contenders, 2)
	require.NoError(t, p.Revoke(b.ctx, "a", q.Contenders[1].Node))
	notRevoked(t, l.Revoked())
	b.unlock(l)
	got := b.granted(third)
	b.revoked(got.Revoked()) // it was asked as a waiter
	b.unlock(got)
}

func TestPermitsAndPlainLocksAreRevoked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	first, second := b.acquire(p.Semaphore("s", 5), 2), b.acquire(others.Semaphore("s", 5), 1)
	require.NoError(t, p.Revoke(b.ctx, "s"))
	b.revoked(first.Revoked())
	b.revoked(second.Revoked())
	b.release(first)
	b.release(second)
	for range 2 {
		l, err := p.Lock(b.ctx, "x", lockpool.Plain())
		require.NoError(t, err)
		notRevoked(t, l.Revoked())
		require.NoError(t, others.Revoke(b.ctx, "x"))
		require.NoError(t, others.Revoke(b.ctx, "x"))
		b.revoked(l.Revoked())
		require.NoError(t, l.Verify(b.ctx))
		b.unlock(l)
	}
}

// Scenario 123.
func TestRevokingNeedsTheRightAndSomebody(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	require.NoError(t, others.Revoke(b.ctx, "nobody"))
	require.ErrorIs(t, others.Revoke(b.ctx, "/a"), lockpool.ErrInvalidName)
	require.ErrorContains(t, others.Revoke(b.ctx, "a", "config"), "take it from Queue")
	l := b.lock(p, "a")
	node := b.children("a")[0]
	require.NoError(t, others.Revoke(b.ctx, "a", node[:39]+"lock-0000009999"), "it has gone")
	_, err := b.admin.SetACL(b.chroot+"/a/"+node, zk.WorldACL(zk.PermRead|zk.PermDelete), -1)
	require.NoError(t, err)
	err = others.Revoke(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.ErrorContains(t, err, "needs the right WRITE on "+b.chroot+"/a/"+node)
	select {
	case <-l.Revoked():
		require.Fail(t, "revoked")
	case <-time.After(50 * time.Millisecond): // of nothing happening
	}
	b.unlock(l)
}

func TestReadersAreAskedTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	first, second := b.rlock(p, "a"), b.rlock(others, "a")
	w := b.wait(p, "a", 3)
	require.NoError(t, others.Revoke(b.ctx, "a"))
	b.revoked(first.Revoked())
	b.revoked(second.Revoked())
	b.unlock(first)
	b.unlock(second)
	l := b.granted(w)
	notRevoked(t, l.Revoked())
	b.unlock(l)
}
