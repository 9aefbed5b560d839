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

func TestQueueTellsHoldersWaitersAndForeignNodesApart(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p, others := b.Pool(), b.Pool()
	first, second := b.Lock(p, "a", lockpool.Shared()), b.Lock(others, "a", lockpool.Shared())
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
