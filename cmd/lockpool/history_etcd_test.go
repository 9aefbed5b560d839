//go:build unix

package main

// This file tests the command history on etcd.

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// onEtcdWithPools returns a function that opens pools as well.
func onEtcdWithPools(t *testing.T) (s *shell, admin *clientv3.Client, connector *etcd.Connector, open func(...lockpool.Option) *lockpool.Pool) {
	s, admin = onEtcd(t)
	cfg, err := etcd.ParseDSN(strings.TrimPrefix(s.env[len(s.env)-1], "LOCKPOOL_SERVER=etcd://"))
	require.NoError(t, err)
	connector, err = etcd.NewConnector(cfg)
	require.NoError(t, err)
	return s, admin, connector, func(opts ...lockpool.Option) *lockpool.Pool {
		pool, err := lockpool.OpenConnector(connector, opts...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = pool.Close() })
		return pool
	}
}

// The revisions of etcd tell at each moment what Pool.Queue has told then, also after a
// compaction.
func TestRevisionsAreWhatQueueSaid(t *testing.T) {
	t.Parallel()
	s, admin, connector, open := onEtcdWithPools(t)
	mark := func() int64 {
		got, err := admin.Put(s.Ctx, "marker", "")
		require.NoError(t, err)
		return got.Header.Revision
	}
	mutex := func(ctx context.Context, r *rand.Rand) {
		session, err := concurrency.NewSession(admin)
		require.NoError(t, err)
		defer session.Close()
		m := concurrency.NewMutex(session, "team/curator")
		if m.Lock(ctx) == nil {
			s.rest(ctx, r)
			_ = m.Unlock(s.Ctx) // perhaps broken
		}
	}
	var pools []*lockpool.Pool
	for i := range 2 {
		pools = append(pools, open(ofWorker(i)...))
	}
	stop := s.work(pools, mutex)
	moments := s.watch(20, open(), mark)
	middle := mark()
	moments = append(moments, s.watch(20, open(), mark)...)
	stop()
	session, err := concurrency.NewSession(admin)
	require.NoError(t, err)
	require.NoError(t, concurrency.NewMutex(session, "team/curator").Lock(s.Ctx))
	s.pose(open(), open())
	moments = append(moments, s.watch(3, open(), mark)...)

	for _, compacted := range []int64{0, middle} {
		if compacted > 0 {
			_, err := admin.Compact(s.Ctx, compacted)
			require.NoError(t, err)
		}
		h := newRevisionHistory(nil)
		h.To = time.Now()
		c := s.compare(moments, func(lock string) []*waitgraph.Contender { return shown(lock, h.queue) })
		require.NoError(t, connector.History(s.Ctx, func(r etcd.Revision) {
			require.GreaterOrEqual(t, r.Number, compacted)
			h.apply(r)
			c.take(r.Number)
		}))
		c.take(math.MaxInt64)
		require.Empty(t, c.moments)
		for _, kind := range []string{"mutex true", "mutex false", "read true", "read false", "semaphore true", "semaphore false", "plain true"} {
			require.Positive(t, c.kinds[kind], kind)
		}
	}
}

var processes = regexp.MustCompile(`, process \d+ on \S+ \(mutex\)|, in \S+ \(\S+\)`)

// Only joins have times, so any other change is told with the time in which it was.
func TestHistoryOnEtcd(t *testing.T) {
	t.Parallel()
	s, admin, _, open := onEtcdWithPools(t)
	lock := func(name, owner string) (*lockpool.Pool, chan *lockpool.Lock) {
		pool, locked := open(lockpool.WithOwner(owner)), make(chan *lockpool.Lock, 1)
		go func() { // ends with the pool
			l, _ := pool.Lock(s.Ctx, name)
			locked <- l
		}()
		s.Until(func() bool {
			q, err := pool.Queue(s.Ctx, name)
			require.NoError(t, err)
			return len(q.Contenders) > 0 && q.Contenders[len(q.Contenders)-1].Owner == owner
		}, "%s asks for %s", owner, name)
		return pool, locked
	}
	_, billing := lock("orders/42", "billing")
	_, cart := lock("orders/42", "cart")
	const quiet = 300 * time.Millisecond
	time.Sleep(quiet)
	require.NoError(t, (<-billing).Unlock(s.Ctx))
	require.NoError(t, (<-cart).Unlock(s.Ctx))
	pool, depot := lock("stock", "depot")
	<-depot
	q, err := pool.Queue(s.Ctx, "stock")
	require.NoError(t, err)
	lease, err := strconv.ParseInt(q.Contenders[0].Session, 16, 64)
	require.NoError(t, err)
	_, err = admin.Revoke(s.Ctx, clientv3.LeaseID(lease))
	require.NoError(t, err)

	text := s.prints("history")
	require.Equal(t, `
TIME     1     0  holds            orders/42: billing
TIME     1     1  waits            orders/42: cart
TIME+    0     1  released         orders/42: billing, held for LONG to LONG
TIME+    1     0  holds            orders/42: cart, waited for LONG to LONG
TIME+    0     0  released         orders/42: cart, held for LONG to LONG
TIME     1     0  holds            stock: depot
TIME+    0     0  session ended    stock: depot, held for LONG to LONG
`[1:], processes.ReplaceAllString(changes(text), ""))
	require.Contains(t, text, "note: only joins have times")
	require.NotContains(t, text, "compacted")

	var out history
	require.NoError(t, json.Unmarshal([]byte(s.prints("history", "--json", "orders")), &out))
	require.Len(t, out.Intervals, 3)
	require.Nil(t, out.Intervals[0].FromLatest)
	waited := out.Intervals[1]
	require.Equal(t, *waited.From, waited.Asked)
	require.Equal(t, waited.To.UnixNano(), waited.Asked.UnixNano(), "cart joined last")
	require.Greater(t, waited.ToLatest.Sub(*waited.To), quiet)
	require.Equal(t, waited.ToLatest, out.Intervals[2].FromLatest)
	require.NotZero(t, out.Intervals[2].Token)

	got, err := admin.Put(s.Ctx, "marker", "")
	require.NoError(t, err)
	_, err = admin.Compact(s.Ctx, got.Header.Revision)
	require.NoError(t, err)
	require.Contains(t, s.prints("history"), "note: etcd has compacted what was before")
	s.says(118, "nothing is between", "history", "--from", "1h", "--to", "2h")
	s.says(118, "--snapshots and --chroot need --txnlog", "history", "--chroot", "/locks")
}

func TestHistoryOnEtcdFollowsContendersToTheirNextKeys(t *testing.T) {
	t.Parallel()
	s, _, _, open := onEtcdWithPools(t)
	out := s.next(open(lockpool.WithOwner("billing")), open(lockpool.WithOwner("cart")))
	require.Len(t, out.Notes, 6)
}

// A compaction while the history is read, even one of everything, ends nothing. A thousand
// revisions may have any size.
func TestHistoryOfACompactedEtcd(t *testing.T) {
	t.Parallel()
	s, admin, connector, open := onEtcdWithPools(t)
	s.Ctx = t.Context() // the disk may need minutes
	const writes = 2000 // more than the servers send ahead
	for range writes {
		_, err := admin.Put(s.Ctx, "team/b/plain", strings.Repeat("x", 6000))
		require.NoError(t, err)
		_, err = admin.Delete(s.Ctx, "team/b/plain")
		require.NoError(t, err)
	}
	s.Lock(open(), "a")
	require.Contains(t, s.prints("history"), "holds            a: ")

	var all []etcd.Revision
	require.NoError(t, connector.History(s.Ctx, func(r etcd.Revision) {
		if all = append(all, r); len(all) == 1 {
			time.Sleep(300 * time.Millisecond) // the servers prepare the next revisions meanwhile
			got, err := admin.Delete(s.Ctx, "nothing")
			require.NoError(t, err)
			_, err = admin.Compact(s.Ctx, got.Header.Revision)
			require.NoError(t, err)
		}
	}))
	last := all[len(all)-1]
	require.True(t, last.All)
	require.Len(t, last.Changes, 1)
	require.Equal(t, "a", last.Changes[0].Queue)
}

// The shortest and the longest time contain the truth, as far as the clocks of clients tell it.
func TestTimesOfRevisions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	joined := func(queue string, number int64, at time.Time) etcd.Change {
		return etcd.Change{Queue: queue, Contender: driver.Contender{Node: driver.Node{Name: strconv.FormatInt(number, 10), Seq: number}, Created: number, Joined: at}}
	}
	left := func(c etcd.Change) etcd.Change {
		c.Left = true
		return c
	}
	foreign, a := joined("a", 1, time.Time{}), joined("a", 2, ago(20*time.Minute))
	ahead, behind, last := joined("b", 8, now.Add(time.Hour)), joined("c", 4, ago(21*time.Minute)), joined("d", 9, ago(time.Minute))
	for name, test := range map[string]struct {
		to        time.Duration
		revisions []etcd.Revision
		want      string
	}{
		"left before the next join": {0, []etcd.Revision{{Number: 2, Changes: []etcd.Change{a}}, {Number: 3, Changes: []etcd.Change{left(a)}}, {Number: 9, Changes: []etcd.Change{last}}},
			"a 20m0s [0s 19m0s] released"},
		"still held": {0, []etcd.Revision{{Number: 2, Changes: []etcd.Change{a}}}, "a 20m0s [20m0s 20m0s] "},
		"held at a compaction": {0, []etcd.Revision{{Number: 2, All: true, Changes: []etcd.Change{a}}, {Number: 3, Changes: []etcd.Change{left(a)}}, {Number: 9, Changes: []etcd.Change{last}}},
			"a 20m0s [0s 19m0s] released"},
		"gone after a compaction": {0, []etcd.Revision{{Number: 2, Changes: []etcd.Change{a}}, {Number: 3, All: true}, {Number: 9, Changes: []etcd.Change{last}}},
			"a 20m0s [0s 19m0s] unknown"},
		"a clock behind": {0, []etcd.Revision{{Number: 2, Changes: []etcd.Change{a}}, {Number: 3, Changes: []etcd.Change{left(a)}}, {Number: 4, Changes: []etcd.Change{behind}}, {Number: 9, Changes: []etcd.Change{last}}},
			"a 20m0s [0s 19m0s] released"},
		"a clock ahead at a compaction": {0, []etcd.Revision{{Number: 8, All: true, Changes: []etcd.Change{a, ahead}}, {Number: 9, Changes: []etcd.Change{left(a), last}}},
			"a 20m0s [0s 19m0s] released"},
		"after the end": {5 * time.Minute, []etcd.Revision{{Number: 2, Changes: []etcd.Change{a}}, {Number: 8, Changes: []etcd.Change{ahead}}, {Number: 9, Changes: []etcd.Change{left(a)}}},
			"a 20m0s [15m0s 15m0s] "},
		"without a time": {0, []etcd.Revision{{Number: 1, Changes: []etcd.Change{foreign}}, {Number: 2, Changes: []etcd.Change{left(foreign), a}}},
			"a null [0s 40m0s] released, a 20m0s [20m0s 20m0s] "},
	} {
		h := newRevisionHistory([]string{"a"})
		h.From, h.To = ago(time.Hour), ago(test.to)
		for _, r := range test.revisions {
			h.apply(r)
		}
		h.done()
		var told []string
		for _, i := range h.Intervals {
			from := "null"
			if i.From != nil {
				from = now.Sub(*i.From).String()
			}
			least, most := h.lengths(i)
			told = append(told, fmt.Sprint(i.Lock, " ", from, " [", least.Round(time.Second), " ", most.Round(time.Second), "] ", i.End))
		}
		require.Equal(t, test.want, strings.Join(told, ", "), name)
	}
}
