package lockpool_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestHolderLearnsThatItsNodeWasRemoved(t *testing.T) {
	t.Parallel()
	for name, watched := range map[string]bool{"before it is watched": false, "when it is watched": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			p, others := b.Pool(), b.Pool()
			h := b.Handle(p)
			l := b.Lock(h, "a")
			rival := b.Enqueue(others, "a", 2)
			if watched {
				b.Token(l)
			}
			require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1))
			require.ErrorContains(t, b.AwaitLoss(l), "removed")
			_, err := h.Lock(b.Ctx, "a")
			require.ErrorIs(t, err, lockpool.ErrLockLost)
			_, err = l.Token(b.Ctx)
			require.ErrorIs(t, err, lockpool.ErrLockLost)
			require.ErrorIs(t, l.Verify(b.Ctx), lockpool.ErrLockLost)
			require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
			held := rival.Granted()
			require.Equal(t, 1, p.Stats().OpenSessions, "the session lives on")
			require.NoError(t, held.Verify(b.Ctx), "the next holder's node stands")
			b.Unlock(held)
			again := b.Lock(h, "a")
			b.Unlock(again)
		})
	}
}

func TestHolderLearnsThatTheWholeTreeWasRemoved(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	one, two := b.Lock(p, "tree/a"), b.Lock(p, "tree/b/c")
	waiter := b.Enqueue(p, "tree/a", 2)
	var remove func(path string)
	remove = func(path string) {
		children, _, err := b.Admin.Children(path)
		if err == zk.ErrNoNode {
			return
		}
		require.NoError(t, err)
		slices.SortFunc(children, func(x, y string) int { return strings.Compare(locktest.Sequence(y), locktest.Sequence(x)) })
		for _, child := range children { // the waiter first: it would be granted the lock, and lose it as well
			remove(path + "/" + child)
		}
		if err := b.Admin.Delete(path, -1); err != zk.ErrNotEmpty { // the waiter has queued again
			require.True(t, err == nil || err == zk.ErrNoNode, "%v", err)
		}
	}
	remove(b.Chroot + "/tree")
	b.AwaitLoss(one)
	b.AwaitLoss(two)
	require.ErrorIs(t, one.Unlock(b.Ctx), lockpool.ErrLockLost)
	require.ErrorIs(t, two.Unlock(b.Ctx), lockpool.ErrLockLost)
	b.Unlock(waiter.Granted())
}

// The watch is set again when a write has used it up, and when the connection
// breaks.
func TestRemovalIsNoticedAfterTheWatchFired(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	node := b.Chroot + "/a/" + b.Children("a")[0]
	b.Until(func() bool { return b.Watched(locktest.Shared()) > 0 }, "the node is watched")
	_, err := b.Admin.Set(node, []byte("of another client"), -1)
	require.NoError(t, err)
	proxy.Cut(zktest.Selector{})
	require.NoError(t, p.Ping(b.Ctx))
	require.NoError(t, b.Admin.Delete(node, -1))
	b.AwaitLoss(l)
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

// The pool closes the session of a node that it may not remove as soon as nothing
// else is held on that session.
func TestUnremovableNodeGoesWithItsSession(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithMaxSessions(1))
	other := b.Lock(p, "other")
	b.Restrict("/a", zk.PermRead|zk.PermCreate)
	l := b.Lock(p, "a")
	err := l.Unlock(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.ErrorContains(t, err, "DELETE on "+b.Chroot+"/a")
	require.Equal(t, 1, other.Depth())
	require.NoError(t, other.Verify(b.Ctx), "other locks of the session stay held")
	require.Len(t, b.Children("a"), 1)
	b.Unlock(b.Lock(p, "third")) // on another session
	b.Unlock(other)
	b.AwaitQueue("a", 0)
}

// A session with a node that the service refuses to remove does not count as one of those
// that the pool may open.
func TestSessionThatTakesNoMoreHandlesDoesNotCount(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(lockpool.WithMaxSessions(2))
		other := b.Lock(p, "other")
		b.Restrict("/a", zk.PermRead|zk.PermCreate)
		require.ErrorIs(t, b.Lock(p, "a").Unlock(b.Ctx), lockpool.ErrNoPermission)
		synctest.Wait() // until the pool has heard of it
		var handles []*lockpool.Handle
		for range 64 {
			handles = append(handles, b.Handle(p))
		}
		require.Equal(t, 3, p.Stats().OpenSessions)
		b.Unlock(other)
		for _, h := range handles {
			require.NoError(t, h.Close(b.Ctx))
		}
		b.AwaitQueue("a", 0)
	})
}

// A waiter whose node is removed keeps its turn ahead of callers that come later.
func TestWaiterWithARemovedNodeIsNotOvertaken(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	held := b.Lock(b.Pool(), "a")
	first, second, third := b.Enqueue(b.Pool(), "a", 2), b.Enqueue(p, "a", 3), b.Enqueue(b.Pool(), "a", 4)
	node := b.Children("a")[2]
	b.Until(func() bool { return b.WatchedIn("a") == 4 }, "each node is watched by its owner or by the contender behind it")
	require.NoError(t, b.Pool().Break(b.Ctx, "a", node))
	b.Until(func() bool { return len(b.Children("a")) == 4 && !slices.Contains(b.Children("a"), node) }, "the waiter queues again")
	latecomer := b.Enqueue(b.Pool(), "a", 5)
	b.Unlock(held)
	for _, w := range []*locktest.Waiter{first, third, second, latecomer} {
		b.Unlock(w.Granted())
	}
}

func TestExpiredSessionTakesOnlyItsOwnLocks(t *testing.T) {
	t.Parallel()
	embedded := zktest.Start(t)
	b := locktest.NewOn(t, embedded)
	p := b.Pool(lockpool.WithMaxSessions(3))
	var locks []*lockpool.Lock
	for i := range 90 {
		locks = append(locks, b.Lock(p, fmt.Sprint("many/", i)))
	}
	state := embedded.State()
	var victim zktest.Session
	for _, s := range state.Sessions {
		if len(s.Ephemerals) > 0 {
			victim = s
		}
	}
	require.NoError(t, embedded.ExpireSession(victim.ID))
	var gone sync.WaitGroup
	lost := 0
	for i, l := range locks {
		if _, was := state.Nodes[victim.Ephemerals[0]]; was && contains(victim.Ephemerals, fmt.Sprintf("%s/many/%d/", b.Chroot, i)) {
			lost++
			gone.Go(func() { b.AwaitLoss(l) })
		}
	}
	gone.Wait()
	require.Equal(t, len(victim.Ephemerals), lost)
	held := 0
	for _, l := range locks {
		held += l.Depth()
		if err := l.Unlock(b.Ctx); err != nil {
			require.ErrorIs(t, err, lockpool.ErrLockLost)
		}
	}
	require.Equal(t, 90-lost, held)
}

func contains(paths []string, prefix string) bool {
	for _, p := range paths {
		if len(p) > len(prefix) && p[:len(prefix)] == prefix {
			return true
		}
	}
	return false
}

// No new session takes the place of an expired one under a held lock.
func TestExpiredSessionEndsItsLocks(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		p := b.PoolWithTimeout(time.Second)
		h := b.Handle(p)
		held := b.Lock(h, "a")
		ctx := held.Context(b.Ctx)
		require.NoError(t, own.Pause())
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), lockpool.ErrLockLost)
		<-held.Lost()
		require.Zero(t, held.Depth())
		_, err := h.Lock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLockLost, "a lost lock cannot be reentered")
		require.NoError(t, own.Resume())
		require.ErrorIs(t, held.Unlock(b.Ctx), lockpool.ErrLockLost)
		require.ErrorIs(t, held.Unlock(b.Ctx), lockpool.ErrNotHeld)

		again, err := h.Lock(b.Ctx, "a") // on another session, behind the expired one's node
		require.NoError(t, err)
		b.Unlock(again)
		require.NoError(t, h.Close(b.Ctx))
	})
}

func TestDoJoinsALossWithItsFunctionsError(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		p := b.PoolWithTimeout(time.Second)
		err := p.Do(b.Ctx, "a", func(ctx context.Context) error {
			require.NoError(t, own.Pause())
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, lockpool.ErrLockLost)
		require.NoError(t, own.Resume())
		b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "the server has expired the session")
	})
}

func TestWaiterWhoseNodeIsRemovedQueuesAgain(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	holder := b.Lock(p, "a")
	w := b.Enqueue(p, "a", 2)
	mine := b.Children("a")[1]
	require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+mine, -1))
	b.Unlock(holder)
	l := w.Granted()
	require.NotEqual(t, []string{mine}, b.Children("a"))
	require.Len(t, b.Children("a"), 1)
	b.Unlock(l)
}
