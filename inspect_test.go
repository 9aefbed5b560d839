package lockpool_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// Scenario 124.
func TestQueueShowsHoldersWaitersAndStrangersApart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	first, second := b.rlock(p, "a"), b.rlock(others, "a")
	w := b.wait(others, "a", 3)
	r := b.rwait(p, "a", 4)
	curator, err := b.admin.CreateProtectedEphemeralSequential(b.chroot+"/a/lock-", []byte{0xff}, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	for _, name := range []string{"config", "0"} {
		_, err := b.admin.Create(b.chroot+"/a/"+name, nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	q, err := p.Queue(b.ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "a", q.Name)
	require.Equal(t, []string{"0", "config"}, q.Foreign)
	require.Len(t, q.Contenders, 5)
	host, err := os.Hostname()
	require.NoError(t, err)
	for i, want := range []struct {
		kind  string
		holds bool
	}{{"read", true}, {"read", true}, {"mutex", false}, {"read", false}, {"mutex", false}} {
		c := q.Contenders[i]
		require.Equal(t, want.kind, c.Kind, i)
		require.Equal(t, want.holds, c.Holds, i)
		require.NotEmpty(t, c.Session)
		require.WithinDuration(t, time.Now(), c.Asked, time.Minute)
		if i == 0 {
			require.WithinDuration(t, time.Now(), c.Granted, patience)
		} else {
			require.Zero(t, c.Granted, "only its own pool knows, if it was granted")
		}
		if i < 4 {
			require.Equal(t, host, c.Host)
			require.Equal(t, os.Getpid(), c.PID)
		}
	}
	require.Equal(t, b.token(first), q.Contenders[0].Token)
	require.Equal(t, b.token(second), q.Contenders[1].Token)
	require.Equal(t, curator, b.chroot+"/a/"+q.Contenders[4].Node)
	watched, err := server.Command(b.ctx, "wchp")
	require.NoError(t, err)
	require.NotContains(t, watched, curator, "looking leaves no watch")
	require.Zero(t, q.Contenders[4].PID)

	empty, err := p.Queue(b.ctx, "nobody/knows")
	require.NoError(t, err)
	require.Empty(t, empty.Contenders)
	exists, _, err := b.admin.Exists(b.chroot + "/nobody")
	require.NoError(t, err)
	require.False(t, exists, "looking makes nothing")
	_, err = p.Queue(b.ctx, "/a")
	require.ErrorIs(t, err, lockpool.ErrInvalidName)

	require.NoError(t, b.admin.Delete(curator, -1))
	b.unlock(first)
	b.unlock(second)
	b.unlock(b.granted(w))
	b.unlock(b.granted(r))
}

func TestLocksAreFoundBelowAPrefix(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	var held []*lockpool.Lock
	for _, name := range []string{"orders/42", "orders/7", "orders", "accounts/1/x"} {
		held = append(held, b.lock(p, name))
	}
	b.unlock(b.lock(p, "orders/free"))
	for prefix, want := range map[string][]string{
		"":           {"accounts/1/x", "orders", "orders/42", "orders/7"},
		"orders":     {"orders", "orders/42", "orders/7"},
		"accounts":   {"accounts/1/x"},
		"orders/42":  {"orders/42"},
		"not/there":  nil,
		"accounts/1": {"accounts/1/x"},
	} {
		names, err := p.List(b.ctx, prefix)
		require.NoError(t, err)
		require.Equal(t, want, names, prefix)
	}
	_, err := p.List(b.ctx, "orders/")
	require.ErrorIs(t, err, lockpool.ErrInvalidName)
	for _, l := range held {
		b.unlock(l)
	}
}

func TestBreakTakesTheLockFromItsHolderWhoIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	l := b.lock(p, "a")
	w := b.wait(others, "a", 2)
	q, err := others.Queue(b.ctx, "a")
	require.NoError(t, err)
	node := q.Contenders[0].Node
	require.NoError(t, others.Break(b.ctx, "a", node))
	b.lost(l)
	require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost)
	b.unlock(b.granted(w))
	err = others.Break(b.ctx, "a", node)
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorContains(t, err, node+" has gone")
	for _, bad := range []string{"", "config", "../" + node, strings.Repeat("x", 3)} {
		require.ErrorContains(t, others.Break(b.ctx, "a", bad), "take it from Queue")
	}
}

// A pool full of waiters can break what it waits for.
func TestLookingAndBreakingTakeNoHandle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(lockpool.WithMaxHandles(2)), b.pool()
	stuck := b.lock(others, "a")
	waiters := []*waiter{b.wait(p, "a", 2), b.wait(p, "a", 3)}
	require.Equal(t, 2, p.Stats().InUse)
	names, err := p.List(b.ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
	require.NoError(t, p.Ping(b.ctx))
	require.NoError(t, p.Revoke(b.ctx, "a"))
	<-stuck.Revoked()
	q, err := p.Queue(b.ctx, "a")
	require.NoError(t, err)
	require.NoError(t, p.Break(b.ctx, "a", q.Contenders[0].Node))
	b.lost(stuck)
	for _, w := range waiters {
		b.unlock(b.granted(w))
	}
	require.ErrorIs(t, stuck.Unlock(b.ctx), lockpool.ErrLockLost)
}
