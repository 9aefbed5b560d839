package lockpool_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// lost waits until the lock is lost, and returns why.
func (b *bench) lost(l *lockpool.Lock) error {
	b.Helper()
	ctx := l.Context(b.ctx)
	select {
	case <-l.Lost():
	case <-b.ctx.Done():
		require.FailNow(b, "not lost")
	}
	<-ctx.Done()
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrLockLost)
	require.Zero(b, l.Depth())
	return context.Cause(ctx)
}

// Scenario 56.
func TestHolderLearnsThatItsNodeWasRemoved(t *testing.T) {
	t.Parallel()
	for name, watched := range map[string]bool{"before it is watched": false, "when it is watched": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p, others := b.pool(), b.pool()
			s := b.session(p)
			l, err := s.Lock(b.ctx, "a")
			require.NoError(t, err)
			rival := b.wait(others, "a", 2)
			if watched {
				b.token(l)
			}
			require.NoError(t, b.admin.Delete(b.chroot+"/a/"+b.children("a")[0], -1))
			require.ErrorContains(t, b.lost(l), "removed")
			_, err = s.Lock(b.ctx, "a")
			require.ErrorIs(t, err, lockpool.ErrLockLost)
			_, err = l.Token(b.ctx)
			require.ErrorIs(t, err, lockpool.ErrLockLost)
			require.ErrorIs(t, l.Verify(b.ctx), lockpool.ErrLockLost)
			require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost)
			held := b.granted(rival)
			require.Equal(t, 1, p.Stats().OpenSessions, "the session has nothing to do with it")
			require.NoError(t, held.Verify(b.ctx), "nobody else's node was touched")
			b.unlock(held)
			again, err := s.Lock(b.ctx, "a")
			require.NoError(t, err)
			b.unlock(again)
		})
	}
}

func TestHolderLearnsThatTheWholeTreeWasRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	one, two := b.lock(p, "tree/a"), b.lock(p, "tree/b/c")
	waiter := b.wait(p, "tree/a", 2)
	var remove func(path string)
	remove = func(path string) {
		children, _, err := b.admin.Children(path)
		if err == zk.ErrNoNode {
			return
		}
		require.NoError(t, err)
		slices.SortFunc(children, func(x, y string) int { return strings.Compare(last(y, 10), last(x, 10)) })
		for _, child := range children { // the waiter before the holder: it would be granted, and lose that again
			remove(path + "/" + child)
		}
		if err := b.admin.Delete(path, -1); err != zk.ErrNotEmpty { // the waiter is back
			require.True(t, err == nil || err == zk.ErrNoNode, "%v", err)
		}
	}
	remove(b.chroot + "/tree")
	b.lost(one)
	b.lost(two)
	require.ErrorIs(t, one.Unlock(b.ctx), lockpool.ErrLockLost)
	require.ErrorIs(t, two.Unlock(b.ctx), lockpool.ErrLockLost)
	b.unlock(b.granted(waiter))
}

// The watch is not forgotten when the connection breaks, nor when somebody
// writes to the node.
func TestRemovalIsNoticedAfterTheWatchWasUsedUp(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	p := b.pool()
	l := b.lock(p, "a")
	node := b.chroot + "/a/" + b.children("a")[0]
	b.until(func() bool { return b.watched(server) > 0 }, "a watch")
	_, err := b.admin.Set(node, []byte("from somebody"), -1)
	require.NoError(t, err)
	proxy.Cut(zktest.Selector{})
	require.NoError(t, p.Ping(b.ctx))
	require.NoError(t, b.admin.Delete(node, -1))
	b.lost(l)
	require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost)
}

// ZooKeeper fires no watch when an ACL changes, so it is noticed by looking.
func TestHolderLearnsThatItsNodeWasHidden(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	p := b.pool()
	l := b.lock(p, "a")
	require.NoError(t, b.admin.AddAuth("digest", []byte("admin:x")))
	b.token(l) // it is watched from here on
	_, err := b.admin.SetACL(b.chroot+"/a/"+b.children("a")[0], zk.DigestACL(zk.PermAll, "admin", "x"), -1)
	require.NoError(t, err)
	select {
	case <-l.Lost(): // it stands, and nobody else can have it
		require.FailNow(t, "lost")
	case <-time.After(100 * time.Millisecond):
	}
	proxy.Cut(zktest.Selector{}) // it looks again
	cause := b.lost(l)
	require.ErrorIs(t, cause, lockpool.ErrNoPermission)
	require.ErrorContains(t, cause, "READ on "+b.chroot+"/a/_c_")
	require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost)
	b.queued("a", 0) // given up, because nobody would see when it goes
	b.unlock(b.lock(p, "a"))
}

// A node that may not be removed goes with its session, which goes as soon as
// nothing else is held on it.
func TestNodeThatMayNotBeRemovedGoesWithItsSession(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithMaxSessions(1))
	other := b.lock(p, "other")
	b.forbid("/a", zk.PermRead|zk.PermCreate)
	l := b.lock(p, "a")
	err := l.Unlock(b.ctx)
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.ErrorContains(t, err, "DELETE on "+b.chroot+"/a")
	require.Equal(t, 1, other.Depth())
	require.NoError(t, other.Verify(b.ctx), "what else is held stays")
	require.Len(t, b.children("a"), 1)
	b.unlock(b.lock(p, "third")) // on another session
	b.unlock(other)
	b.queued("a", 0)
}

func TestVerifyAsksTheServer(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	p := b.pool()
	l := b.lock(p, "a")
	require.NoError(t, l.Verify(b.ctx))
	f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}}, Times: zktest.Always, Do: zktest.HoldReply()})
	ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
	defer cancel()
	err := l.Verify(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, lockpool.ErrLockLost, "no answer says nothing")
	require.Equal(t, 1, l.Depth())
	f.Remove()
	f.Release()
	require.NoError(t, l.Verify(b.ctx))
	b.unlock(l)
	require.ErrorIs(t, l.Verify(b.ctx), lockpool.ErrNotHeld)
	_, err = l.Token(b.ctx)
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorContains(t, err, `lockpool: token of "a": not held`)
}

func (b *bench) token(l *lockpool.Lock) int64 {
	b.Helper()
	token, err := l.Token(b.ctx)
	require.NoError(b, err)
	return token
}

func TestTokenGrows(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(), b.pool()
	last := int64(0)
	grows := func(l *lockpool.Lock) {
		t.Helper()
		token := b.token(l)
		require.Greater(t, token, last)
		last = token
	}
	l := b.lock(p, "a")
	grows(l)
	again, err := p.Lock(l.Context(b.ctx), "a")
	require.NoError(t, err)
	require.Equal(t, last, b.token(again), "the same hold")
	b.unlock(again)
	waiter := b.wait(others, "a", 2)
	b.unlock(l)
	l = b.granted(waiter)
	grows(l)
	b.unlock(l)

	for range 3 { // the queue's own count begins anew
		require.NoError(t, b.admin.Delete(b.chroot+"/a", -1))
		l = b.lock(p, "a")
		require.True(t, strings.HasSuffix(b.children("a")[0], "-0000000000"))
		grows(l)
		b.unlock(l)
	}
	for range 20 { // also where joining needs no listing
		l = b.lock(p, "a")
		grows(l)
		b.unlock(l)
	}
	require.NoError(t, own.Kill())
	require.NoError(t, own.Start(b.ctx))
	l = b.lock(p, "a")
	grows(l)
	b.unlock(l)
}

// A sync or a write that waits holds back all that comes after it on the
// connection. A server that answers, if slowly, must not cost anybody a lock:
// not if it always takes a tenth of the timeout, and not if it stops for a
// quarter of it.
func TestSlowServerCostsNoLock(t *testing.T) { // measures time: not beside others
	b, proxy := benchBehindProxy(t)
	cfg := b.config()
	cfg.SessionTimeout = 4 * time.Second
	p := b.poolWith(cfg)
	l := b.lock(p, "a")
	proofs := zktest.Match{Ops: []zktest.Op{zktest.OpSync, zktest.OpMulti}}
	halt := proxy.Inject(zktest.Rule{Match: proofs, Skip: 4, Do: zktest.DelayReply(cfg.SessionTimeout / 4)})
	slow := proxy.Inject(zktest.Rule{Match: proofs, Skip: 6, Times: zktest.Always, Do: zktest.DelayReply(cfg.SessionTimeout / 10)})
	b.until(func() bool {
		require.Equal(t, 1, l.Depth(), "%v", context.Cause(l.Context(b.ctx)))
		return slow.Fired() >= 12
	}, "twelve slow answers")
	require.Equal(t, 1, halt.Fired())
	slow.Remove()
	b.unlock(l)
}

// Somebody who comes later must not pass it.
func TestWaiterLearnsThatItsNodeWasRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	held := b.lock(b.pool(), "a")
	first, second, third := b.wait(b.pool(), "a", 2), b.wait(p, "a", 3), b.wait(b.pool(), "a", 4)
	node := b.children("a")[2]
	b.until(func() bool { return b.watchedIn("a") == 4 }, "that each node is watched by whose it is, or who is behind")
	require.NoError(t, b.pool().Break(b.ctx, "a", node))
	b.until(func() bool { return len(b.children("a")) == 4 && !slices.Contains(b.children("a"), node) }, "that it queues again")
	latecomer := b.wait(b.pool(), "a", 5)
	b.unlock(held)
	for _, w := range []*waiter{first, third, second, latecomer} {
		b.unlock(b.granted(w))
	}
}
