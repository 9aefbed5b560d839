package lockpool_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A request to give the lock back, and then its holder goes on reading: the new
// node does not say that somebody has asked.
func TestRequestSurvivesSharing(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(), b.pool()
	s := b.session(p)
	defer func() { require.NoError(t, s.Close(b.ctx)) }()
	l, err := s.Lock(b.ctx, "a", lockpool.Revocable())
	require.NoError(t, err)
	b.token(l) // it is watched: it listens
	require.NoError(t, own.WaitWatch(b.ctx, b.chroot+"/a/"+b.children("a")[0], 1))
	r, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	// Somebody asks just before the transaction that shares comes in.
	asked := make(chan error, 1)
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/a/", Ops: []zktest.Op{zktest.OpMulti}},
		Do:    zktest.Call(func(zktest.Request) { asked <- others.Revoke(b.ctx, "a") }),
	})
	b.unlock(l)
	require.NoError(t, <-asked, "it was asked, and Revoke said so")
	select {
	case <-r.Revoked():
	case <-time.After(2 * time.Second):
		require.Fail(t, "the holder will never learn that it was asked")
	}
}

// A request on its way while the holder begins to share: it has another node then,
// and Revoke takes that for a holder who has gone.
func TestRequestReachesAHolderThatSharesMeanwhile(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(), b.pool()
	s := b.session(p)
	defer func() { require.NoError(t, s.Close(b.ctx)) }()
	l, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	r, err := s.RLock(b.ctx, "a")
	require.NoError(t, err)
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/a/", Ops: []zktest.Op{zktest.OpSetData}},
		Do:    zktest.HoldApply(),
	})
	asked := make(chan error, 1)
	go func() { asked <- others.Revoke(b.ctx, "a") }()
	require.NoError(t, held.Wait(b.ctx))
	b.unlock(l)
	held.Release()
	require.NoError(t, <-asked, "Revoke says that it has asked who holds the lock")
	select {
	case <-r.Revoked():
	case <-time.After(2 * time.Second):
		require.Fail(t, "nobody asked the holder, who held the lock all the time")
	}
}
