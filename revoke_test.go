package lockpool_test

// This file tests Revoke.

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

func TestRevokeNeedsARightAndAContender(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
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

// A revocation arrives just before the holder downgrades to another node, which
// does not carry it.
func TestRevokeBeforeADowngradeIsSeen(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others := b.Pool(), b.Pool()
	h := b.Handle(p)
	defer func() { require.NoError(t, h.Close(b.Ctx)) }()
	l := b.Lock(h, "a", lockpool.Revocable())
	b.Token(l) // its node is watched
	require.NoError(t, own.WaitWatch(b.Ctx, b.Chroot+"/a/"+b.Children("a")[0], 1))
	r := b.Lock(h, "a", lockpool.Shared())
	asked := make(chan error, 1)
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/a/", Ops: []zktest.Op{zktest.OpMulti}},
		Do:    zktest.Call(func(zktest.Request) { asked <- others.Revoke(b.Ctx, "a") }),
	})
	b.Unlock(l)
	require.NoError(t, <-asked, "Revoke reports success")
	b.AwaitRevocation(r)
}

// A revocation is in flight when the holder downgrades. Revoke must not take the
// change of nodes for the end of the hold.
func TestRevokeReachesAHolderThatDowngrades(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others := b.Pool(), b.Pool()
	h := b.Handle(p)
	defer func() { require.NoError(t, h.Close(b.Ctx)) }()
	l := b.Lock(h, "a")
	r := b.Lock(h, "a", lockpool.Shared())
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
	b.AwaitRevocation(r)
}

// A waiter in memory is revoked by its name there also while its node is being created.
func TestRevokeADelegateWithoutANode(t *testing.T) {
	for what, opts := range map[string][]lockpool.LockOption{"deaf": nil, "revocable": {lockpool.Revocable()}} {
		t.Run(what, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				p := b.Pool(lockpool.WithLocalTurns(2))
				l := b.Lock(p, "a")
				next, w := waitLocally(b, p), waitLocally(b, p, opts...)
				q, err := p.Queue(b.Ctx, "a")
				require.NoError(t, err)
				create := server.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Creates, Prefix: b.Chroot + "/a/"}, Do: zktest.HoldReply()})
				b.Unlock(l) // the next turn is the last
				require.NoError(t, create.Wait(b.Ctx))
				require.NoError(t, p.Revoke(b.Ctx, "a", q.Contenders[2].Node))
				if opts == nil {
					create.Release()
					b.Unlock(next.Granted())
					b.AwaitRevocation(w.Granted())
					b.Unlock(w.Granted())
					return
				}
				<-w.Done
				require.ErrorIs(t, w.Err, lockpool.ErrRevoked)
				require.NotErrorIs(t, w.Err, context.Canceled)
				create.Release()
				b.Unlock(next.Granted())
				b.Unlock(b.Lock(p, "a"))
			})
		})
	}
}
