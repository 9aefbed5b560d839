package lockpool_test

import (
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// Scenario 124.
func TestQueueTellsHoldersWaitersAndForeignNodesApart(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p, others := b.Pool(), b.Pool()
	first, second := b.RLock(p, "a"), b.RLock(others, "a")
	w := b.Enqueue(others, "a", 3)
	r := b.EnqueueRead(p, "a", 4)
	curator, err := b.Admin.CreateProtectedEphemeralSequential(b.Chroot+"/a/lock-", []byte{0xff}, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	for _, name := range []string{"config", "0"} {
		_, err := b.Admin.Create(b.Chroot+"/a/"+name, nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	q, err := p.Queue(b.Ctx, "a")
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
			require.WithinDuration(t, time.Now(), c.Granted, locktest.Patience)
		} else {
			require.Zero(t, c.Granted, "only the pool of a holder knows when it was granted")
		}
		if i < 4 {
			require.Equal(t, host, c.Host)
			require.Equal(t, os.Getpid(), c.PID)
		}
	}
	require.Equal(t, b.Token(first), q.Contenders[0].Token)
	require.Equal(t, b.Token(second), q.Contenders[1].Token)
	require.Equal(t, curator, b.Chroot+"/a/"+q.Contenders[4].Node)
	watched, err := locktest.Shared().Command(b.Ctx, "wchp")
	require.NoError(t, err)
	require.NotContains(t, watched, curator, "Queue leaves no watch")
	require.Zero(t, q.Contenders[4].PID)

	empty, err := p.Queue(b.Ctx, "not/there")
	require.NoError(t, err)
	require.Empty(t, empty.Contenders)
	exists, _, err := b.Admin.Exists(b.Chroot + "/not")
	require.NoError(t, err)
	require.False(t, exists, "Queue creates nothing")
	_, err = p.Queue(b.Ctx, "/a")
	require.ErrorIs(t, err, lockpool.ErrInvalidName)

	require.NoError(t, b.Admin.Delete(curator, -1))
	b.Unlock(first)
	b.Unlock(second)
	b.Unlock(w.Granted())
	b.Unlock(r.Granted())
}

func TestListFindsLocksBelowAPrefix(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	var held []*lockpool.Lock
	for _, name := range []string{"orders/42", "orders/7", "orders", "accounts/1/x"} {
		held = append(held, b.Lock(p, name))
	}
	b.Unlock(b.Lock(p, "orders/free"))
	for prefix, want := range map[string][]string{
		"":           {"accounts/1/x", "orders", "orders/42", "orders/7"},
		"orders":     {"orders", "orders/42", "orders/7"},
		"accounts":   {"accounts/1/x"},
		"orders/42":  {"orders/42"},
		"not/there":  nil,
		"accounts/1": {"accounts/1/x"},
	} {
		names, err := p.List(b.Ctx, prefix)
		require.NoError(t, err)
		require.Equal(t, want, names, prefix)
	}
	_, err := p.List(b.Ctx, "orders/")
	require.ErrorIs(t, err, lockpool.ErrInvalidName)
	for _, l := range held {
		b.Unlock(l)
	}
}

// A pool whose handles all wait can break the lock that they wait for.
func TestInspectionTakesNoHandle(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p, others := b.Pool(lockpool.WithMaxHandles(2)), b.Pool()
	stuck := b.Lock(others, "a")
	waiters := []*locktest.LockWaiter{b.Enqueue(p, "a", 2), b.Enqueue(p, "a", 3)}
	require.Equal(t, 2, p.Stats().InUse)
	names, err := p.List(b.Ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
	require.NoError(t, p.Ping(b.Ctx))
	require.NoError(t, p.Revoke(b.Ctx, "a"))
	<-stuck.Revoked()
	q, err := p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	require.NoError(t, p.Break(b.Ctx, "a", q.Contenders[0].Node))
	b.AwaitLoss(stuck)
	for _, w := range waiters {
		b.Unlock(w.Granted())
	}
	require.ErrorIs(t, stuck.Unlock(b.Ctx), lockpool.ErrLockLost)
}
