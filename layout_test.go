package lockpool_test

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

var everyLayout = []zookeeper.Layout{
	zookeeper.LayoutCurator, zookeeper.LayoutCuratorRW, zookeeper.LayoutKazoo, zookeeper.LayoutKazooRW,
}

// in returns a pool whose nodes are named in that layout.
func (b *bench) in(layout zookeeper.Layout) *lockpool.Pool {
	cfg := b.config()
	cfg.Layout = layout
	return b.poolWith(cfg)
}

func TestNodesAreNamedAsTheLayoutHasThem(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const curator, kazoo = `_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-`, `[0-9a-f]{32}`
	for i, want := range []struct{ alone, read []string }{
		{[]string{curator + "lock-"}, []string{curator + "rlock-"}},
		{[]string{curator + "__WRIT__"}, []string{curator + "__READ__"}},
		{[]string{curator + "lock-", kazoo + "__lock__"}, []string{curator + "rlock-", kazoo + "__lock__"}},
		{[]string{curator + "lock-", kazoo + "__lock__"}, []string{curator + "rlock-", kazoo + "__rlock__"}},
	} {
		p, name := b.in(everyLayout[i]), fmt.Sprint("a", i)
		have := func(want []string) {
			children := b.children(name)
			require.Len(t, children, len(want))
			for i, pattern := range want {
				require.Regexp(t, "^"+pattern+`\d{10}$`, children[i])
			}
			if len(want) == 2 {
				require.Equal(t, regexp.MustCompile("-").ReplaceAllString(children[0][3:39], ""), children[1][:32])
			}
		}
		for range 2 {
			l := b.lock(p, name)
			have(want.alone)
			b.unlock(l)
			l = b.rlock(p, name)
			have(want.read)
			b.unlock(l)
		}
		s := b.session(p)
		write, err := s.Lock(b.ctx, name)
		require.NoError(t, err)
		token := b.token(write)
		read, err := s.RLock(b.ctx, name)
		require.NoError(t, err)
		b.unlock(write)
		have(want.read)
		require.Equal(t, token, b.token(read))
		require.NoError(t, read.Verify(b.ctx))
		b.unlock(read)
		require.NoError(t, s.Close(b.ctx))
		require.Empty(t, b.children(name))
	}
}

func TestPoolsOfAllLayoutsExcludeEachOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	pools := make([]*lockpool.Pool, len(everyLayout))
	for i, layout := range everyLayout {
		pools[i] = b.in(layout)
	}
	for i, first := range pools {
		for j, second := range pools {
			name := fmt.Sprintf("a%d%d", i, j)
			refuses := func(try lockFunc) {
				_, err := try(b.ctx, name)
				require.ErrorIs(t, err, lockpool.ErrLocked)
			}
			l := b.lock(first, name)
			refuses(second.TryLock)
			refuses(second.TryRLock)
			b.unlock(l)
			l = b.rlock(first, name)
			refuses(second.TryLock)
			b.unlock(b.rlock(second, name))
			b.unlock(l)
		}
	}
}

// A contender of two nodes is one: who removes either of them takes the lock.
func TestHolderOfTwinsIsToldWhenEitherIsRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.in(zookeeper.LayoutKazoo), b.in(zookeeper.LayoutKazoo)
	for removed := range 2 {
		l := b.lock(p, "a")
		b.token(l) // and so it is watched
		w := b.waitFor(others.Lock, "a", 4)
		require.NoError(t, b.admin.Delete(b.chroot+"/a/"+b.children("a")[removed], -1))
		b.lost(l)
		require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost)
		b.unlock(b.granted(w))
		b.until(func() bool { return len(b.children("a")) == 0 }, "the other one goes, too")
	}
}

func TestWaiterWithTwinsQueuesAgainWhenEitherIsRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.in(zookeeper.LayoutKazoo)
	for removed := range 2 {
		l := b.lock(p, "a")
		w := b.waitFor(others.Lock, "a", 3)
		b.until(func() bool { return b.watchedIn("a") >= 3 }, "it watches the holder and itself")
		old := b.children("a")
		require.NoError(t, b.admin.Delete(b.chroot+"/a/"+old[1+removed], -1))
		b.stillWaits(w)
		b.unlock(l)
		b.unlock(b.granted(w))
		require.Empty(t, b.children("a"))
	}
}

// Scenario 86: Curator 5.5 and later keeps the number when it goes on reading.
func TestDowngradeOfCuratorIsOnePlaceInTheQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.in(zookeeper.LayoutCuratorRW)
	b.unlock(b.lock(p, "a"))
	write, err := b.admin.CreateProtectedEphemeralSequential(b.chroot+"/a/__WRIT__", nil, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	for _, guid := range []string{"00000000", "ffffffff"} { // sorts before or after it, by name
		_, err = b.admin.Create(b.chroot+"/a/_c_"+guid+"-0000-0000-0000-000000000000-__READ__"+last(write, 10), nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	q, err := p.Queue(b.ctx, "a")
	require.NoError(t, err)
	for _, c := range q.Contenders {
		require.True(t, c.Holds, "%+v", c)
	}
	reader, writer := b.rwait(p, "a", 4), b.wait(p, "a", 5)
	b.stillWaits(reader)
	require.NoError(t, b.admin.Delete(write, -1))
	r := b.granted(reader)
	b.stillWaits(writer)
	b.unlock(r)
	for _, name := range slices.Clone(b.children("a")) {
		if regexp.MustCompile("__READ__").MatchString(name) {
			b.stillWaits(writer)
			require.NoError(t, b.admin.Delete(b.chroot+"/a/"+name, -1))
		}
	}
	b.unlock(b.granted(writer))
}
