package lockpool_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// crowd makes n contenders of somebody else, and returns what removes them.
func (b *bench) crowd(name string, n int) (disperse func()) {
	conn := dial(b, server.Addr())
	path := b.chroot + "/" + name
	ask := func(begin, end int, op func(i int) any) {
		for begin < end {
			var ops []any
			for ; begin < end && len(ops) < 500; begin++ {
				ops = append(ops, op(begin))
			}
			_, err := conn.Multi(ops...)
			require.NoError(b, err)
		}
	}
	node := func(i int) string { return fmt.Sprintf("%s/_c_%036d-lock-%010d", path, i, i) }
	ask(0, n, func(i int) any {
		return &zk.CreateRequest{Path: node(i), Flags: zk.FlagEphemeral, Acl: zk.WorldACL(zk.PermAll)}
	})
	return func() {
		ask(0, n, func(i int) any { return &zk.DeleteRequest{Path: node(i), Version: -1} })
	}
}

func TestTenThousandWaitersAreNoTrouble(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	b.unlock(b.lock(p, "a"))
	disperse := b.crowd("a", 10_000)
	_, err := p.TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.wait(p, "a", 10_001)
	disperse()
	b.unlock(b.granted(w))
}

// A listing over the limit breaks the connection each time it is asked for. It
// is an error that says so, and costs nobody else on the session a lock.
func TestListingOverTheLimitIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := b.config()
	cfg.MaxPacket = 64 << 10
	p := b.poolWith(cfg, lockpool.WithMaxSessions(1))
	other := b.lock(p, "other")
	b.unlock(b.lock(p, "a"))
	disperse := b.crowd("a", 2000)
	for range 3 {
		_, err := p.Lock(b.ctx, "a")
		require.ErrorContains(t, err, "the listing of "+b.chroot+"/a is longer than max_packet=65536 bytes")
		require.ErrorContains(t, err, "raise max_packet")
		require.Len(t, b.children("a"), 2000, "nothing of ours is left")
	}
	disperse()
	require.Equal(t, 1, other.Depth())
	b.unlock(b.lock(p, "a"))
	b.unlock(other)
	require.Equal(t, 1, p.Stats().OpenSessions)
}

// The server takes no more connections from one address.
func TestFullServerIsAnErrorThatSaysWhereAndPasses(t *testing.T) {
	t.Parallel()
	own := startServer(t, zktest.MaxClientConns(2))
	b := newBenchOn(t, own.Addr()) // the first
	second := dial(t, own.Addr())
	p := b.pool()
	_, err := p.Lock(expiring(t, 300*time.Millisecond), "a")
	require.ErrorContains(t, err, "no session")
	require.ErrorContains(t, err, own.Addr())
	second.Close()
	b.unlock(b.lock(p, "a"))
}

// Many holders on few sessions, and all of them find their node gone at once.
func TestSessionsThatEndTakeTheirLocksAndNoOthers(t *testing.T) {
	t.Parallel()
	embedded := zktest.Start(t)
	b := newBenchOn(t, embedded.Addr())
	p := b.pool(lockpool.WithMaxSessions(3))
	var locks []*lockpool.Lock
	for i := range 90 {
		locks = append(locks, b.lock(p, fmt.Sprint("many/", i)))
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
		if _, was := state.Nodes[victim.Ephemerals[0]]; was && contains(victim.Ephemerals, fmt.Sprintf("%s/many/%d/", b.chroot, i)) {
			lost++
			gone.Go(func() { b.lost(l) })
		}
	}
	gone.Wait()
	require.Equal(t, len(victim.Ephemerals), lost)
	held := 0
	for _, l := range locks {
		held += l.Depth()
		if err := l.Unlock(b.ctx); err != nil {
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
