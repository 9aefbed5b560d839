package lockpool_test

// This file tests plain locks.

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestPlainLockIsOneNode(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	l := b.Lock(b.Pool(), "x/a", lockpool.Plain())
	_, stat, err := b.Admin.Get(b.Chroot + "/x/a")
	require.NoError(t, err)
	require.NotZero(t, stat.EphemeralOwner)
	require.Equal(t, stat.Czxid<<10, b.Token(l))
	b.Unlock(l)
	exists, _, err := b.Admin.Exists(b.Chroot + "/x/a")
	require.NoError(t, err)
	require.False(t, exists)
}

// The event of the node's deletion can come before the end of the session is known. It
// does not mean that the delete that was sent has been carried out.
func TestPlainLockOfAnEndedSessionIsNotReleased(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	l := b.Lock(b.Pool(), "a", lockpool.Plain())
	require.NoError(t, own.WaitWatch(b.Ctx, b.Chroot+"/a", 1)) // the guard's
	own.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Do: zktest.DelayReply(100 * time.Millisecond)})
	del := own.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.HoldApply()})
	released := make(chan error, 1)
	go func() { released <- l.Unlock(b.Ctx) }()
	require.NoError(t, del.Wait(b.Ctx))
	expire(b, "/a")
	require.ErrorIs(t, <-released, lockpool.ErrLockLost)
}

// An ephemeral node of any other client is a plain lock.
func TestAnyEphemeralNodeIsAPlainLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	b.Unlock(b.Lock(p, "x/other"))
	_, err := b.Admin.Create(b.Chroot+"/x/a", []byte("by hand"), zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = p.TryLock(b.Ctx, "x/a", lockpool.Plain())
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := startLockOf(b.Ctx, p, "x/a", lockpool.Plain())
	q, err := p.Queue(b.Ctx, "x/a")
	require.NoError(t, err)
	b.AwaitWaiting(p, 1)
	require.NoError(t, p.Revoke(b.Ctx, "x/a"))
	data, _, err := b.Admin.Get(b.Chroot + "/x/a")
	require.NoError(t, err)
	require.Equal(t, "__REVOKE__", string(data))
	require.NoError(t, p.Break(b.Ctx, "x/a", q.Contenders[0].Node))
	require.NoError(t, <-w)
}

// watchedPlainLock takes a plain lock and waits until its node is watched.
func watchedPlainLock(b *locktest.Bench, p *lockpool.Pool, name string) *lockpool.Lock {
	l := b.Lock(p, name, lockpool.Plain())
	b.Token(l)
	return l
}

// A revocation arrives when the plain lock has another holder.
func TestLateRevokeSparesTheNextPlainHolder(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others, operator, third := b.Pool(), b.Pool(), b.Pool(), b.Pool()
	first := watchedPlainLock(b, p, "a")
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: []zktest.Op{zktest.OpSetData}},
		Do:    zktest.HoldApply(),
	})
	revoked := make(chan error, 1)
	go func() { revoked <- operator.Revoke(b.Ctx, "a") }()
	require.NoError(t, held.Wait(b.Ctx))
	b.Unlock(first)
	next := watchedPlainLock(b, others, "a")
	held.Release()
	<-revoked
	require.NoError(t, next.Verify(b.Ctx), "the next holder has lost its lock")
	b.Unlock(next)
	requireFree(b, third)
}

// requireFree requires that the plain lock "a" is free, and that its node does not stay until
// the former holder's session ends.
func requireFree(b *locktest.Bench, p *lockpool.Pool) {
	b.Helper()
	b.Unlock(b.Lock(p, "a", lockpool.Plain(), lockpool.WaitAtMost(2*time.Second)))
}

// The documentation of Revoked names ZooKeeper's way: __REVOKE__ is written into
// the lock's node.
func TestPlainLockCanBeRevokedByHand(t *testing.T) {
	t.Parallel()
	b := locktest.NewOn(t, zktest.Start(t))
	p, third := b.Pool(), b.Pool()
	holder := watchedPlainLock(b, p, "a")
	_, err := b.Admin.Set(b.Chroot+"/a", []byte("__REVOKE__"), -1)
	require.NoError(t, err)
	b.AwaitRevocation(holder)
	b.Unlock(holder) // which has not lost the lock
	requireFree(b, third)
}

// The reply to the delete of Break is lost. It must not be repeated unseen.
func TestRepeatedBreakSparesTheNextPlainHolder(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others, operator := b.Pool(), b.Pool(), b.Pool()
	watchedPlainLock(b, p, "a")
	q, err := operator.Queue(b.Ctx, "a")
	require.NoError(t, err)
	w := b.StartLock(others, "a", lockpool.Plain())
	b.AwaitWaiting(others, 1)
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: []zktest.Op{zktest.OpDelete}},
		Do:    zktest.DropAfterApply(),
	})
	require.NoError(t, operator.Break(b.Ctx, "a", q.Contenders[0].Node))
	next := w.Granted()
	err = next.Verify(b.Ctx)
	_ = next.Unlock(b.Ctx)
	require.NoError(t, err, "the next holder's node was removed")
}

// A holder looks for its plain node and finds one that it may not read. It belongs
// to another holder, which took the lock when the first one's node was removed.
func TestHiddenForeignPlainNodeIsNotRemoved(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	require.NoError(t, b.Admin.AddAuth("digest", []byte("lockpool:s3cret")))
	b.Unlock(b.Lock(b.Pool(), "x/other"))
	cfg := b.Config()
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	p, others := b.Pool(), b.PoolWith(cfg)
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/x/a", Ops: []zktest.Op{zktest.OpGetData}},
		Do:    zktest.HoldApply(),
	})
	l := b.Lock(p, "x/a", lockpool.Plain())
	require.NoError(t, held.Wait(b.Ctx)) // the first read, after 20 ms
	held.Remove()
	require.NoError(t, b.Admin.Delete(b.Chroot+"/x/a", -1))
	next := watchedPlainLock(b, others, "x/a")
	held.Release()
	<-l.Lost()
	b.Until(func() bool { // the removal continues in the background
		deletes := 0
		for _, r := range own.Trace() {
			if strings.Contains(r.String(), "/x/a") && strings.Contains(r.String(), "delete") {
				deletes++
			}
		}
		return deletes >= 2
	}, "two deletes")
	err := next.Verify(b.Ctx)
	_ = next.Unlock(b.Ctx)
	require.NoError(t, err, "the next holder's node was removed")
}

// A waiter must not fail because the plain lock changes hands while it looks.
func TestRapidlyChangingPlainLockIsNoError(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p := b.Pool()
	b.Unlock(b.Lock(p, "x/other"))
	path := b.Chroot + "/x/a"
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: path, Ops: zktest.Creates}, Times: 12,
		Do: zktest.Call(func(zktest.Request) { _ = own.Create(path, nil) }),
	})
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: path, Ops: []zktest.Op{zktest.OpGetData}}, Times: 12,
		Do: zktest.Call(func(zktest.Request) { _ = own.Delete(path) }),
	})
	l := b.Lock(p, "x/a", lockpool.Plain())
	b.Unlock(l)
}

// The removal of a plain lock's node is not confirmed, and the server throttles
// the check that follows once. See rules 12 and 13 of DESIGN.md.
func TestPlainNodeIsRemovedAfterAThrottledCheck(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
		p, others := b.Pool(lockpool.WithMaxSessions(1)), b.Pool()
		other := b.Lock(p, "other") // keeps the session open
		defer b.Unlock(other)
		l := watchedPlainLock(b, p, "a")
		session := own.State().Nodes[b.Chroot+"/a"].Stat.EphemeralOwner
		own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: []zktest.Op{zktest.OpDelete}},
			Do:    zktest.DropBeforeApply(),
		})
		own.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Selector: zktest.Selector{Session: session}},
			Do:    zktest.FailWith(-127),
			Times: 3, // of which some are proofs for the lease
		})
		b.Unlock(l)
		requireFree(b, others) // although the session holds another lock
	})
}
