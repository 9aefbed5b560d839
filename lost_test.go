package lockpool_test

// This file tests how a loss is noticed.

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The watch is set again when a write has used it up, and when the connection
// breaks.
func TestRemovalIsNoticedAfterTheWatchFired(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	node := b.Chroot + "/a/" + b.Children("a")[0]
	b.Until(func() bool { return b.WatchedIn("a") > 0 }, "the node is watched")
	_, err := b.Admin.Set(node, []byte("of another client"), -1)
	require.NoError(t, err)
	proxy.Cut(zktest.Selector{})
	require.NoError(t, p.Ping(b.Ctx))
	require.NoError(t, b.Admin.Delete(node, -1))
	require.ErrorContains(t, b.AwaitLoss(l), "removed")
	require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
}

// ZooKeeper fires no watch when an ACL changes, so only the next read notices.
func TestHolderLearnsThatItsNodeWasHidden(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	require.NoError(t, b.Admin.AddAuth("digest", []byte("admin:x")))
	b.Token(l) // the node is watched from now on
	_, err := b.Admin.SetACL(b.Chroot+"/a/"+b.Children("a")[0], zk.DigestACL(zk.PermAll, "admin", "x"), -1)
	require.NoError(t, err)
	select {
	case <-l.Lost(): // the node stands, so the lock is still exclusive
		require.FailNow(t, "lost")
	case <-time.After(100 * time.Millisecond):
	}
	proxy.Cut(zktest.Selector{}) // makes the holder look again
	cause := b.AwaitLoss(l)
	require.ErrorIs(t, cause, lockpool.ErrNoPermission)
	require.ErrorContains(t, cause, "READ on "+b.Chroot+"/a/_c_")
	require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
	b.AwaitQueue("a", 0) // released, because its removal would go unnoticed
	b.Unlock(b.Lock(p, "a"))
}

// The pool closes the session of a node that it may not remove as soon as nothing else is held
// on that session. Until then the session does not count as one of those that the pool may open.
func TestUnremovableNodeGoesWithItsSession(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(lockpool.WithMaxSessions(2))
		other := b.Lock(p, "other")
		b.Restrict("/a", zk.PermRead|zk.PermCreate)
		err := b.Lock(p, "a").Unlock(b.Ctx)
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
		require.ErrorContains(t, err, "DELETE on "+b.Chroot+"/a")
		synctest.Wait()              // until the pool has heard of it
		b.Unlock(b.Lock(p, "third")) // on another session
		var handles []*lockpool.Handle
		for range 64 {
			handles = append(handles, b.Handle(p))
		}
		require.Equal(t, 3, p.Stats().OpenSessions)
		require.NoError(t, other.Verify(b.Ctx), "other locks of the session stay held")
		require.Len(t, b.Children("a"), 1)
		b.Unlock(other)
		b.AwaitQueue("a", 0)
		for _, h := range handles {
			require.NoError(t, h.Close(b.Ctx))
		}
	})
}
