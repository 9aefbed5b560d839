package zookeeper_test

// This file tests locks whose nodes are named for Curator or kazoo, beside each other.

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
)

// poolOfLayout returns a pool whose nodes are named in the layout.
func poolOfLayout(b *locktest.Bench, layout zookeeper.Layout) *lockpool.Pool {
	cfg := b.Config()
	cfg.Layout = layout
	return b.PoolWith(cfg)
}

func TestNodeNamesFollowTheLayout(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	const curator, kazoo = `_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-`, `[0-9a-f]{32}`
	for i, want := range []struct{ alone, read []string }{
		{[]string{curator + "lock-"}, []string{curator + "rlock-"}},
		{[]string{curator + "__WRIT__"}, []string{curator + "__READ__"}},
		{[]string{curator + "lock-", kazoo + "__lock__"}, []string{curator + "rlock-", kazoo + "__lock__"}},
		{[]string{curator + "lock-", kazoo + "__lock__"}, []string{curator + "rlock-", kazoo + "__rlock__"}},
	} {
		p, name := poolOfLayout(b, everyLayout[i]), fmt.Sprint("a", i)
		have := func(want []string) {
			children := b.Children(name)
			require.Len(t, children, len(want))
			for i, pattern := range want {
				require.Regexp(t, "^"+pattern+`\d{10}$`, children[i])
			}
			if len(want) == 2 {
				require.Equal(t, regexp.MustCompile("-").ReplaceAllString(children[0][3:39], ""), children[1][:32])
			}
		}
		for range 2 {
			l := b.Lock(p, name)
			have(want.alone)
			b.Unlock(l)
			l = b.Lock(p, name, lockpool.Shared())
			have(want.read)
			b.Unlock(l)
		}
		h := b.Handle(p)
		write := b.Lock(h, name)
		token := b.Token(write)
		read := b.Lock(h, name, lockpool.Shared())
		b.Unlock(write)
		have(want.read)
		require.Equal(t, token, b.Token(read))
		require.NoError(t, read.Verify(b.Ctx))
		b.Unlock(read)
		require.NoError(t, h.Close(b.Ctx))
		require.Empty(t, b.Children(name))
	}
}

// Twins are one contender, which loses the lock when either of them is removed.
func TestHolderLearnsThatATwinWasRemoved(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := poolOfLayout(b, zookeeper.LayoutKazoo), poolOfLayout(b, zookeeper.LayoutKazoo)
	for removed := range 2 {
		l := b.Lock(p, "a")
		b.Token(l) // its nodes are watched
		w := b.Enqueue(others, "a", 4)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[removed], -1))
		b.AwaitLoss(l)
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
		b.Unlock(w.Granted())
		b.Until(func() bool { return len(b.Children("a")) == 0 }, "the other twin is removed")
	}
}

func TestWaiterQueuesAgainWhenATwinWasRemoved(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), poolOfLayout(b, zookeeper.LayoutKazoo)
	for removed := range 2 {
		l := b.Lock(p, "a")
		w := b.Enqueue(others, "a", 3)
		b.Until(func() bool { return b.WatchedIn("a") >= 3 }, "the waiter watches the holder and its own nodes")
		old := b.Children("a")
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+old[1+removed], -1))
		w.StillWaits()
		b.Unlock(l)
		b.Unlock(w.Granted())
		require.Empty(t, b.Children("a"))
	}
}

// Curator 5.5 and later keep the sequence number in a downgrade.
func TestCuratorDowngradeIsOneContender(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p := poolOfLayout(b, zookeeper.LayoutCuratorRW)
	b.Unlock(b.Lock(p, "a"))
	write, err := b.Admin.CreateProtectedEphemeralSequential(b.Chroot+"/a/__WRIT__", nil, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	for _, guid := range []string{"00000000", "ffffffff"} { // sorted before and after the writer by name
		_, err = b.Admin.Create(b.Chroot+"/a/_c_"+guid+"-0000-0000-0000-000000000000-__READ__"+locktest.Sequence(write), nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	q, err := p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	for _, c := range q.Contenders {
		require.True(t, c.Holds, "%+v", c)
	}
	reader, writer := b.EnqueueRead(p, "a", 4), b.Enqueue(p, "a", 5)
	reader.StillWaits()
	require.NoError(t, b.Admin.Delete(write, -1))
	r := reader.Granted()
	writer.StillWaits()
	b.Unlock(r)
	for _, name := range slices.Clone(b.Children("a")) {
		if regexp.MustCompile("__READ__").MatchString(name) {
			writer.StillWaits()
			require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+name, -1))
		}
	}
	b.Unlock(writer.Granted())
}
