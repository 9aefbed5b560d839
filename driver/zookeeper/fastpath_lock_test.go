package zookeeper_test

// This file has a test of the fast path with queues that are created again.

import (
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// The number after that of our last node proves that no contender joined, unless
// the queue was removed and created again: then the numbers started again.
func TestFastPathNoticesARecreatedQueue(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	h := b.Handle(p)
	const turns = 30
	for range turns { // until no listing is needed
		l := b.Lock(h, "a")
		b.Unlock(l)
	}
	require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
	world := zk.WorldACL(zk.PermAll)
	_, err := b.Admin.Create(b.Chroot+"/a", nil, 0, world)
	require.NoError(t, err)
	for range turns { // as many nodes in the new queue
		_, err = b.Admin.Create(b.Chroot+"/a/x-lock-", nil, zk.FlagEphemeral|zk.FlagSequence, world)
		require.NoError(t, err)
	}
	_, err = h.TryLock(b.Ctx, "a") // gets the number after that of its own last node
	require.ErrorIs(t, err, lockpool.ErrLocked)
	for _, child := range b.Children("a") {
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+child, -1))
	}
	require.NoError(t, h.Close(b.Ctx))
}
