package etcdtest

// This file tests sessions across elections.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool"
)

// elect has the members elect another leader.
func elect(t *testing.T, c *Cluster) {
	leader, err := c.Leader(t.Context())
	require.NoError(t, err)
	status, err := c.admin.Status(t.Context(), c.members[(leader+1)%len(c.members)].client)
	require.NoError(t, err)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{c.members[leader].client}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer admin.Close()
	_, err = admin.MoveLeader(t.Context(), status.Header.MemberId)
	require.NoError(t, err)
}

// A replaced leader, not knowing of the election, may end known leases. So a session is
// granted another lease after an election, and keeps all nodes and their places.
func TestSessionHasAnotherLeaseAfterAnElection(t *testing.T) {
	t.Parallel()
	onEach(t, leaseChanges)
}

func leaseChanges(t *testing.T, version Option) {
	const locks = 2*100 + 20 // are moved by three transactions
	c := Start(t, 3, version)
	holder, rival := open(t, c.connector(t), lockpool.WithMaxSessions(1)), open(t, c.connector(t), lockpool.WithMaxSessions(1))
	var held []*lockpool.Lock
	for i := range locks {
		option := lockpool.Plain()
		if i%2 == 0 {
			option = lockpool.Shared()
		}
		l, err := holder.Lock(t.Context(), fmt.Sprint("a/", i), option)
		require.NoError(t, err)
		held = append(held, l)
	}
	before, err := rival.Queue(t.Context(), "a/0")
	require.NoError(t, err)
	token, err := held[0].Token(t.Context())
	require.NoError(t, err)
	next := make(chan error, 1)
	go func() { // ends with the unlock
		l, err := rival.Lock(t.Context(), "a/0")
		if err == nil {
			err = l.Unlock(t.Context())
		}
		next <- err
	}()
	require.Eventually(t, func() bool {
		q, err := rival.Queue(t.Context(), "a/0")
		return err == nil && len(q.Contenders) == 2
	}, time.Minute, 10*time.Millisecond)

	leases := func() map[int64]int {
		got, err := c.admin.Get(t.Context(), "lockpool/", clientv3.WithPrefix())
		require.NoError(t, err)
		all := map[int64]int{}
		for _, kv := range got.Kvs {
			all[kv.Lease]++
		}
		return all
	}
	used := map[int64]bool{}
	for range 3 {
		for lease := range leases() {
			used[lease] = true
		}
		elect(t, c)
		var now map[int64]int
		changed := func() bool {
			now = leases()
			for lease := range now {
				if used[lease] {
					return false
				}
			}
			return true
		}
		require.Eventually(t, changed, time.Minute, 10*time.Millisecond, "no key has a lease that it had before: %v, %v", &now, used)
		require.ElementsMatch(t, []int{1 + locks, 1 + 1}, slices.Collect(maps.Values(now)))
	}
	require.Eventually(t, func() bool { // the session ends them, and so may a replaced leader
		got, err := c.admin.Leases(t.Context())
		return err == nil && !slices.ContainsFunc(got.Leases, func(l clientv3.LeaseStatus) bool { return used[int64(l.ID)] })
	}, time.Minute, 10*time.Millisecond, "leases are left that the session had before")
	for _, l := range held {
		require.NoError(t, l.Verify(t.Context()))
	}
	after, err := rival.Queue(t.Context(), "a/0")
	require.NoError(t, err)
	require.Len(t, after.Contenders, 2)
	require.Equal(t, before.Contenders[0], after.Contenders[0])
	again, err := held[0].Token(t.Context())
	require.NoError(t, err)
	require.Equal(t, token, again)
	for _, l := range held {
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.NoError(t, <-next)
	require.NoError(t, holder.Close())
	require.NoError(t, rival.Close())
	admin, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints()[:1], Logger: zap.NewNop()})
	require.NoError(t, err)
	defer admin.Close()
	_, err = admin.Get(t.Context(), "lockpool/") // else the member may be behind
	require.NoError(t, err)
	left, err := admin.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, left.Leases)
}

// Anything a session is about to do during a change of the lease comes with the new lease,
// or is done again.
func TestNothingIsLostInElections(t *testing.T) {
	t.Parallel()
	onEach(t, electionsAmongTurns)
}

func electionsAmongTurns(t *testing.T, version Option) {
	c := Start(t, 3, version)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	counts := map[string]int{}
	for process := range 2 {
		p := open(t, c.connector(t), lockpool.WithMaxSessions(2))
		for i := range 6 {
			name := fmt.Sprint("a/", i%3)
			all.Go(func() {
				for ctx.Err() == nil {
					l, err := p.Lock(t.Context(), name)
					if err != nil {
						t.Errorf("process %d: %v", process, err)
						return
					}
					mu.Lock()
					counts[name]++
					n := counts[name]
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					if counts[name] != n {
						t.Errorf("two have %s", name)
					}
					mu.Unlock()
					if err := l.Unlock(t.Context()); err != nil {
						t.Errorf("process %d: %v", process, err)
						return
					}
				}
			})
		}
	}
	for range 8 {
		elect(t, c)
		time.Sleep(500 * time.Millisecond) // several proofs
	}
	stop()
	all.Wait()
	t.Log("turns:", counts)
}
