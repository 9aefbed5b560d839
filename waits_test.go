package lockpool_test

// This file tests Waits.

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// stranger adds a contender of another process, which may name what it holds, and returns
// its node.
func stranger(b *locktest.Bench, dir, holds string) string {
	b.Helper()
	conn, path := b.Dial(), ""
	for part := range strings.SplitSeq(b.Chroot[1:]+"/"+dir, "/") {
		path += "/" + part
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNodeExists) {
			require.NoError(b, err)
		}
	}
	data := fmt.Sprintf(`{"owner":"stranger","host":"h","pid":1,"ask":"1","holds":[%s]}`, holds)
	node, err := conn.CreateProtectedEphemeralSequential(path+"/lock-", []byte(data), zk.WorldACL(zk.PermAll))
	require.NoError(b, err)
	return node[len(path)+1:]
}

// Whoever has the guard, and no leases yet, may be about to be granted its permits.
func TestWaitsOfAStrangerWithTheGuard(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	b.Acquire(b.Pool().Semaphore("s", 2), 1)
	b.AwaitQueue("s/locks", 0)
	stranger(b, "s/locks", "")
	g, err := b.Pool().Waits(b.Ctx, "")
	require.NoError(t, err)
	require.Len(t, g.Parties, 2)
	require.Empty(t, g.Parties[1].For)
}

func TestWaitsShowsDeadlocksOverPlainLocks(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	h := b.Handle(b.Pool(lockpool.WithDeadlockCheck(0)))
	b.Lock(h, "plain", lockpool.Plain())
	node := stranger(b, "x", "")
	stranger(b, ".waits/plain", fmt.Sprintf(`{"lock":"x","node":%q}`, node))
	w := b.Enqueue(h, "x", 2)
	g, err := b.Pool().Waits(b.Ctx, "")
	require.NoError(t, err)
	require.Equal(t, [][]int{{0, 1}}, g.Deadlocks)
	require.Equal(t, []string{"plain", "x"}, []string{g.Parties[0].Wait.Lock, g.Parties[1].Wait.Lock})
	w.Cancel()
	<-w.Done
}

// A node that cannot be read hides its lock, and no other.
func TestWaitsWithoutRights(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithOwner("me"))
	b.Lock(p, "a")
	b.Restrict("/hidden", zk.PermRead)
	b.Restrict("/secret", zk.PermCreate)
	node, err := b.Admin.Create(b.Chroot+"/hidden/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.DigestACL(zk.PermAll, "admin", "x"))
	require.NoError(t, err)
	g, err := p.Waits(b.Ctx, "")
	require.NoError(t, err)
	require.Len(t, g.Parties, 1)
	require.Equal(t, "a", g.Parties[0].Holds[0].Lock)
	require.Equal(t, []string{"hidden", "secret"}, g.Unread)
	require.Len(t, g.Queues, 1)
	names, err := p.List(b.Ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "hidden", "secret"}, names)
	_, err = p.Waits(b.Ctx, "secret")
	require.ErrorIs(t, err, lockpool.ErrNoPermission, "it is the prefix itself")
	require.NoError(t, b.Admin.Delete(node, -1))
}

// Whoever names what it does not hold, or names it twice, is not believed more than that.
func TestWaitsReadsHostileNodes(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithOwner("me"))
	b.Lock(p, "a")
	q, err := p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	hold := fmt.Sprintf(`{"lock":"a","node":%q}`, q.Contenders[0].Node)
	waiting := stranger(b, "a", `{"lock":"../..","node":"x"},{"lock":"a","node":"gone"},`+hold+","+hold)
	stranger(b, "a", fmt.Sprintf(`{"lock":"a","node":%q}`, waiting))
	g, err := p.Waits(b.Ctx, "")
	require.NoError(t, err)
	require.Len(t, g.Parties, 2)
	require.Empty(t, g.Parties[1].Holds, "a waiter holds nothing")
	require.Equal(t, []int{0}, g.Parties[1].For)
	require.Len(t, g.Parties[0].Holds, 1)
	require.Empty(t, g.Parties[0].For, "nobody waits for itself")
}
