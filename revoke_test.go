package lockpool_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func awaitRevocation(b *locktest.Bench, revoked <-chan struct{}) {
	b.Helper()
	select {
	case <-revoked:
	case <-b.Ctx.Done():
		require.FailNow(b, "not revoked")
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
func TestRevokedHolderKeepsTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(lockpool.WithOwner("billing")), b.Pool()
	l := b.Lock(p, "a")
	notRevoked(t, l.Revoked())
	q, err := others.Queue(b.Ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "billing", q.Contenders[0].Owner, "a node that can be revoked still names its owner")
	ctx := l.Context(b.Ctx)
	require.NoError(t, others.Revoke(b.Ctx, "a"))
	awaitRevocation(b, l.Revoked())
	require.NoError(t, ctx.Err(), "a lock without Revocable")
	require.NoError(t, l.Verify(b.Ctx))
	_, err = others.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.Enqueue(others, "a", 2)
	b.Unlock(l)
	l = w.Granted()
	notRevoked(t, l.Revoked())
	b.Unlock(l)
}

// Scenario 121, and revocations that precede the first watch on the node.
func TestRevokeBeforeTheFirstWatchIsSeen(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	for range 3 {
		for _, watched := range []bool{false, true} {
			l := b.Lock(p, "a")
			if watched {
				b.Token(l)
			}
			require.NoError(t, others.Revoke(b.Ctx, "a"))
			awaitRevocation(b, l.Revoked())
			require.NoError(t, others.Revoke(b.Ctx, "a"), "again")
			b.Unlock(l)
		}
	}
}

func TestRevocableEndsTheContextsOfTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	err := p.Do(b.Ctx, "a", func(ctx context.Context) error {
		require.NoError(t, others.Revoke(b.Ctx, "a"))
		awaitRevocation(b, ctx.Done())
		_, err := others.TryLock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked, "the lock is still held")
		return context.Cause(ctx)
	}, lockpool.Revocable())
	require.ErrorIs(t, err, lockpool.ErrRevoked)

	l := b.Lock(p, "a", lockpool.Revocable())
	before := l.Context(b.Ctx)
	require.NoError(t, others.Revoke(b.Ctx, "a"))
	awaitRevocation(b, before.Done())
	require.Equal(t, lockpool.ErrRevoked, context.Cause(before))
	require.Equal(t, lockpool.ErrRevoked, context.Cause(l.Context(b.Ctx)), "a context made after the revocation")
	require.NoError(t, l.Verify(b.Ctx))
	b.Unlock(l)

	// A reentry makes the hold revocable.
	h := b.Handle(p)
	l = b.Lock(h, "a")
	ctx := l.Context(b.Ctx)
	require.NoError(t, others.Revoke(b.Ctx, "a"))
	awaitRevocation(b, l.Revoked())
	require.NoError(t, ctx.Err())
	inner := b.Lock(h, "a", lockpool.Revocable())
	awaitRevocation(b, ctx.Done())
	b.Unlock(inner)
	b.Unlock(l)
	require.NoError(t, h.Close(b.Ctx))
}

func TestRevocableWaiterGivesUp(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p, others := b.Pool(), b.Pool()
	l := b.Lock(p, "a")
	first := b.Enqueue(others, "a", 2, lockpool.Revocable())
	second := b.Enqueue(others, "a", 3, lockpool.Revocable(), lockpool.Shared())
	third := b.Enqueue(others, "a", 4) // not revocable
	for i, w := range []*locktest.LockWaiter{second, first} {
		q, err := p.Queue(b.Ctx, "a")
		require.NoError(t, err)
		w.StillWaits()
		require.NoError(t, p.Revoke(b.Ctx, "a", q.Contenders[2-i].Node))
		<-w.Done
		require.ErrorIs(t, w.Err, lockpool.ErrRevoked)
	}
	q, err := p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	require.Len(t, q.Contenders, 2)
	require.NoError(t, p.Revoke(b.Ctx, "a", q.Contenders[1].Node))
	notRevoked(t, l.Revoked())
	b.Unlock(l)
	got := third.Granted()
	awaitRevocation(b, got.Revoked()) // it was revoked while it waited
	b.Unlock(got)
}

func TestPermitsAndPlainLocksCanBeRevoked(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	first, second := b.Acquire(p.Semaphore("s", 5), 2), b.Acquire(others.Semaphore("s", 5), 1)
	require.NoError(t, p.Revoke(b.Ctx, "s"))
	awaitRevocation(b, first.Revoked())
	awaitRevocation(b, second.Revoked())
	b.Release(first)
	b.Release(second)
	for range 2 {
		l := b.Lock(p, "x", lockpool.Plain())
		notRevoked(t, l.Revoked())
		require.NoError(t, others.Revoke(b.Ctx, "x"))
		require.NoError(t, others.Revoke(b.Ctx, "x"))
		awaitRevocation(b, l.Revoked())
		require.NoError(t, l.Verify(b.Ctx))
		b.Unlock(l)
	}
}

// Scenario 123.
func TestRevokeNeedsARightAndAContender(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	require.NoError(t, others.Revoke(b.Ctx, "free"))
	require.ErrorIs(t, others.Revoke(b.Ctx, "/a"), lockpool.ErrInvalidName)
	require.ErrorContains(t, others.Revoke(b.Ctx, "a", "config"), "use one that Queue returns")
	l := b.Lock(p, "a")
	node := b.Children("a")[0]
	require.NoError(t, others.Revoke(b.Ctx, "a", node[:39]+"lock-0000009999"), "a contender that is gone")
	_, err := b.Admin.SetACL(b.Chroot+"/a/"+node, zk.WorldACL(zk.PermRead|zk.PermDelete), -1)
	require.NoError(t, err)
	err = others.Revoke(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.ErrorContains(t, err, "needs the right WRITE on "+b.Chroot+"/a/"+node)
	select {
	case <-l.Revoked():
		require.Fail(t, "revoked")
	case <-time.After(50 * time.Millisecond): // during which nothing happens
	}
	b.Unlock(l)
}

func TestRevokeAsksAllReaders(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	first, second := b.RLock(p, "a"), b.RLock(others, "a")
	w := b.Enqueue(p, "a", 3)
	require.NoError(t, others.Revoke(b.Ctx, "a"))
	awaitRevocation(b, first.Revoked())
	awaitRevocation(b, second.Revoked())
	b.Unlock(first)
	b.Unlock(second)
	l := w.Granted()
	notRevoked(t, l.Revoked())
	b.Unlock(l)
}

// A revocation arrives just before the holder downgrades to another node, which
// does not carry it.
func TestRevokeBeforeADowngradeIsSeen(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	p, others := b.Pool(), b.Pool()
	h := b.Handle(p)
	defer func() { require.NoError(t, h.Close(b.Ctx)) }()
	l := b.Lock(h, "a", lockpool.Revocable())
	b.Token(l) // its node is watched
	require.NoError(t, own.WaitWatch(b.Ctx, b.Chroot+"/a/"+b.Children("a")[0], 1))
	r := b.RLock(h, "a")
	asked := make(chan error, 1)
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/a/", Ops: []zktest.Op{zktest.OpMulti}},
		Do:    zktest.Call(func(zktest.Request) { asked <- others.Revoke(b.Ctx, "a") }),
	})
	b.Unlock(l)
	require.NoError(t, <-asked, "Revoke reports success")
	select {
	case <-r.Revoked():
	case <-time.After(2 * time.Second):
		require.Fail(t, "the holder never learns of the revocation")
	}
}

// A revocation is in flight when the holder downgrades. Revoke must not take the
// change of nodes for the end of the hold.
func TestRevokeReachesAHolderThatDowngrades(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	p, others := b.Pool(), b.Pool()
	h := b.Handle(p)
	defer func() { require.NoError(t, h.Close(b.Ctx)) }()
	l := b.Lock(h, "a")
	r := b.RLock(h, "a")
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/a/", Ops: []zktest.Op{zktest.OpSetData}},
		Do:    zktest.HoldApply(),
	})
	asked := make(chan error, 1)
	go func() { asked <- others.Revoke(b.Ctx, "a") }()
	require.NoError(t, held.Wait(b.Ctx))
	b.Unlock(l)
	held.Release()
	require.NoError(t, <-asked, "Revoke reports success")
	select {
	case <-r.Revoked():
	case <-time.After(2 * time.Second):
		require.Fail(t, "the holder never learns of the revocation")
	}
}

func TestDoReportsARevocation(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	err := p.Do(b.Ctx, "a", func(ctx context.Context) error {
		require.NoError(t, others.Revoke(b.Ctx, "a"))
		<-ctx.Done()
		return ctx.Err()
	}, lockpool.Revocable())
	require.ErrorIs(t, err, lockpool.ErrRevoked)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, p.Do(b.Ctx, "a", func(ctx context.Context) error {
		require.NoError(t, others.Revoke(b.Ctx, "a"))
		<-ctx.Done()
		return nil // the work was done nevertheless
	}, lockpool.Revocable()))
}

func TestDoIsNotRevokedByTheEndOfItsContext(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	var inner error
	err := p.Do(b.Ctx, "outer", func(ctx context.Context) error {
		inner = p.Do(ctx, "inner", func(ctx context.Context) error {
			require.NoError(t, p.Revoke(b.Ctx, "outer"))
			<-ctx.Done()
			return ctx.Err()
		})
		return inner
	}, lockpool.Revocable())
	require.NotErrorIs(t, inner, lockpool.ErrRevoked)
	require.ErrorIs(t, err, lockpool.ErrRevoked)
}
