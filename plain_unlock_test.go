package lockpool_test

// This file tests that the release of a plain lock spares the next holder.

import (
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A plain lock's node is removed by hand, and another holder takes the lock before
// the first one unlocks it. The first one's unlock must not remove the new node.
func TestPlainUnlockSparesTheNextHolder(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"on one session", "in one pool", "in another pool", "in another pool, watched"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			p := b.Pool()
			others := p
			switch where {
			case "on one session":
				p = b.Pool(lockpool.WithMaxSessions(1))
				others = p
			case "in another pool", "in another pool, watched":
				others = b.Pool()
			}
			b.Unlock(b.Lock(others, "x")) // opens a session
			for range 5 {
				l := b.Lock(p, "a", lockpool.Plain())
				if where == "in another pool, watched" {
					b.Token(l)
				}
				require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
				next := b.Lock(others, "a", lockpool.Plain())
				requireLoss(t, l.Unlock(b.Ctx))
				require.NoError(t, next.Verify(b.Ctx), "the next holder's node stands")
				b.Unlock(next)
			}
			// The lock has no next holder.
			l := b.Lock(p, "a", lockpool.Plain())
			require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
			requireLoss(t, l.Unlock(b.Ctx))
		})
	}
}

// As above, but the next holder has no reply to its create yet.
func TestPlainUnlockSparesACreateInFlight(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	for _, sessions := range []int{1, 4} {
		b := locktest.NewOn(t, own)
		p, others := b.Pool(lockpool.WithMaxSessions(sessions)), b.Pool()
		if sessions == 1 {
			others = p
		}
		b.Unlock(b.Lock(others, "x"))
		l := b.Lock(p, "a", lockpool.Plain())
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
		held := own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: zktest.Creates},
			Do:    zktest.DelayReply(200 * time.Millisecond),
		})
		w := b.StartLock(others, "a", lockpool.Plain())
		require.NoError(t, held.Wait(b.Ctx))
		requireLoss(t, l.Unlock(b.Ctx))
		next := w.Granted()
		require.NoError(t, next.Verify(b.Ctx), "the next holder's node stands")
		b.Unlock(next)
	}
}

// As above, but a delete is in flight when the node is removed: the holder's, or that of Break
// when the holder unlocks first. Waiters of the same process wait for the delete's reply.
func TestDeleteInFlightSparesTheNextPlainHolder(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others, operator := b.Pool(), b.Pool(), b.Pool()
	path := b.Chroot + "/a"
	for i := range 20 {
		l := b.Lock(p, "a", lockpool.Plain())
		q, err := operator.Queue(b.Ctx, "a")
		require.NoError(t, err)
		unlock := func() error { return l.Unlock(b.Ctx) }
		late, first, want := unlock, func() error { return own.Delete(path) }, []error{driver.ErrRemoved, lockpool.ErrLockLost}
		if i%2 == 0 {
			late, first, want = func() error { return operator.Break(b.Ctx, "a", q.Contenders[0].Node) }, unlock, []error{lockpool.ErrNotHeld}
		}
		w := b.StartLock(others, "a", lockpool.Plain())
		require.NoError(t, own.WaitWatch(b.Ctx, path, 1))
		held := own.Inject(zktest.Rule{Match: zktest.Match{Prefix: path, Ops: []zktest.Op{zktest.OpDelete}}, Times: 1, Do: zktest.HoldApply()})
		began, ended := time.Now(), make(chan error, 1)
		go func() { ended <- late() }()
		require.NoError(t, held.Wait(b.Ctx))
		from := len(own.Trace())
		require.NoError(t, first())
		watchForCreate(b, own, from)
		held.Release()
		err = <-ended
		next := w.Granted()
		if time.Since(began) >= 100*time.Millisecond { // a create waits no longer
			_ = next.Unlock(b.Ctx)
			continue
		}
		require.True(t, locktest.IsAny(err, want...), "%v", err)
		require.NoError(t, next.Verify(b.Ctx), "the next holder's node stands")
		b.Unlock(next)
	}
}

// A session that lost a plain lock creates the node again. The reply is lost, and
// a revocation replaces the node's data before the session finds the node: it must
// still recognize it.
func TestSessionRecognizesItsNextPlainNode(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p := b.Pool(lockpool.WithMaxSessions(1))
	other := b.Lock(p, "other") // keeps the session open
	defer b.Unlock(other)
	for _, noticed := range []string{"by its watch", "by Verify"} {
		l := b.Lock(p, "a", lockpool.Plain())
		if noticed == "by its watch" {
			b.Token(l)
		}
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
		if noticed == "by Verify" {
			require.ErrorIs(t, l.Verify(b.Ctx), lockpool.ErrLockLost)
		}
		b.AwaitLoss(l)
		own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: zktest.Creates},
			Do:    zktest.DropAfterApply(),
		})
		own.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}},
			Do:    zktest.Call(func(zktest.Request) { _ = own.Set(b.Chroot+"/a", []byte("__REVOKE__")) }),
		})
		next, err := p.Lock(locktest.Timeout(t, 4*time.Second), "a", lockpool.Plain())
		require.NoError(t, err, "it waits behind its own node")
		b.Unlock(next)
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
	}
}

// A plain lock that has been held long enough to be watched is removed without a
// read.
func TestUnlockOfAWatchedPlainLockReadsNothing(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	l := watchedPlainLock(b, b.Pool(), "a")
	time.Sleep(60 * time.Millisecond) // the work
	for _, r := range locktest.Requests(own, func() { b.Unlock(l) }) {
		require.False(t, r.Op == zktest.OpGetData && r.Paths[0] == b.Chroot+"/a", "%v", r)
	}
}

// requireLoss requires the error of a release that found no node of its own.
func requireLoss(t testing.TB, err error) {
	t.Helper()
	require.True(t, locktest.IsAny(err, driver.ErrRemoved, lockpool.ErrLockLost), "%v", err)
}

// watchForCreate gives a waiter the time to send a create that it must not send
// yet.
func watchForCreate(b *locktest.Bench, own *zktest.Server, from int) {
	late := time.Now().Add(15 * time.Millisecond)
	b.Until(func() bool {
		return time.Now().After(late) || slices.ContainsFunc(own.Trace()[from:], func(r zktest.Record) bool {
			return r.Kind == zktest.Requested && r.Op == zktest.OpCreate
		})
	}, "the time to send a create")
}

// Unlock looks at the node before it repeats a delete. If it may not read the node, the
// error says so, and not that a delete was refused.
func TestPlainUnlockThatCannotReadItsNodeSaysSo(t *testing.T) {
	t.Parallel()
	b, server := locktest.NewEmbedded(t)
	l := b.Lock(b.Pool(), "a", lockpool.Plain())
	server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}, Prefix: b.Chroot + "/a"}, Times: 1, Do: zktest.DropBeforeApply()})
	_, err := b.Admin.SetACL(b.Chroot+"/a", zk.DigestACL(zk.PermAll, "another", "secret"), -1)
	require.NoError(t, err)
	err = l.Unlock(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.ErrorContains(t, err, "needs the right READ on "+b.Chroot+"/a")
	b.Until(func() bool { // the node goes with its session
		exists, _, err := b.Admin.Exists(b.Chroot + "/a")
		return err == nil && !exists
	}, "the node is gone")
}
