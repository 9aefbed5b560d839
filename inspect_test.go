package lockpool_test

// This file tests Queue.

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Look/Queue of testing/behavior tests what Queue says of contenders of lockpool.
func TestQueueTellsContendersAndForeignNodesApart(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "a")
	curator, err := b.Admin.CreateProtectedEphemeralSequential(b.Chroot+"/a/lock-", []byte{0xff}, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	for _, name := range []string{"config", "0"} {
		_, err := b.Admin.Create(b.Chroot+"/a/"+name, nil, 0, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	q, err := p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	require.Equal(t, []string{"0", "config"}, q.Foreign)
	require.Len(t, q.Contenders, 2)
	foreign := q.Contenders[1]
	require.Equal(t, []any{curator, "mutex", false, 0}, []any{b.Chroot + "/a/" + foreign.Node, foreign.Kind, foreign.Holds, foreign.PID})
	watched, err := locktest.Shared().Command(b.Ctx, "wchp")
	require.NoError(t, err)
	require.NotContains(t, watched, curator, "Queue leaves no watch")

	_, err = p.Queue(b.Ctx, "not/there")
	require.NoError(t, err)
	exists, _, err := b.Admin.Exists(b.Chroot + "/not")
	require.NoError(t, err)
	require.False(t, exists, "Queue creates nothing")
	require.NoError(t, b.Admin.Delete(curator, -1))
	b.Unlock(l)
}

// A waiter in memory whose turn it is to queue at the service does so while Queue reads.
func TestQueueShowsEachWaiterOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		p := b.Pool()
		l := b.Lock(p, "a")
		first := b.StartLock(p, "a")
		b.AwaitWaiting(p, 1)
		second := b.StartLock(p, "a")
		b.AwaitWaiting(p, 2)
		read := s.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetChildren2}}, Times: 100, Do: zktest.DelayReply(200 * time.Millisecond)})
		q, err := p.Queue(b.Ctx, "a")
		require.NoError(t, err)
		require.Positive(t, read.Fired())
		read.Remove()
		require.Len(t, q.Contenders, 3)
		time.Sleep(time.Second)
		b.AwaitQueue("a", 2)
		q, err = p.Queue(b.Ctx, "a")
		require.NoError(t, err)
		require.Len(t, q.Contenders, 3)
		require.Equal(t, []bool{false, false, true}, []bool{q.Contenders[0].Local, q.Contenders[1].Local, q.Contenders[2].Local})
		b.Unlock(l)
		b.Unlock(first.Granted())
		b.Unlock(second.Granted())
	})
}
