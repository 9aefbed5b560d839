package memory_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/memory"
)

// fullSession is what a session of this driver can do.
type fullSession interface {
	driver.Session
	driver.PlainLocker
	driver.Limiter
	driver.Downgrader
	driver.Inspector
	driver.Follower
	driver.Breaker
	driver.Revoker
	driver.Recorder
}

// twoSessions returns two sessions of a store.
func twoSessions(t *testing.T) (store *memory.Store, a, b fullSession) {
	t.Parallel()
	store = memory.New()
	return store, must(store.Connect(t.Context()))(t).(fullSession), must(store.Connect(t.Context()))(t).(fullSession)
}

func join(t *testing.T, s fullSession, queue string) driver.Node {
	return must(s.Join(t.Context(), queue, driver.Request{Kind: driver.Exclusive, Data: []byte("data")}))(t).Node
}

func watch(t *testing.T, s fullSession, queue string, node driver.Node) *driver.Watch {
	return must(s.Watch(t.Context(), queue, node))(t)[0]
}

func TestEvents(t *testing.T) {
	for name, c := range map[string]struct {
		do       func(t *testing.T, store *memory.Store, owner, other fullSession, node driver.Node)
		own, its driver.Event // that the owner of the node sees, and the other session
	}{
		"left": {func(t *testing.T, _ *memory.Store, owner, _ fullSession, node driver.Node) {
			require.NoError(t, owner.Leave(t.Context(), "a", node))
		}, driver.Deleted, driver.Deleted},
		"finished": {func(t *testing.T, _ *memory.Store, owner, _ fullSession, node driver.Node) {
			require.NoError(t, owner.Finish(t.Context(), "a", node, driver.Record{Name: "n", Key: "k"}))
		}, 0, 0},
		"broken": {func(t *testing.T, _ *memory.Store, _, other fullSession, node driver.Node) {
			require.NoError(t, other.Break(t.Context(), "a", node))
		}, driver.Missing, driver.Deleted},
		"removed": {func(t *testing.T, store *memory.Store, _, _ fullSession, node driver.Node) {
			require.True(t, store.Remove("a", node.Name))
		}, driver.Missing, driver.Deleted},
		"settled": {func(t *testing.T, _ *memory.Store, _, other fullSession, node driver.Node) {
			recorded, err := other.Settle(t.Context(), "a", node, driver.Record{Name: "n", Key: "k"})
			require.NoError(t, err)
			require.False(t, recorded)
		}, driver.Missing, driver.Deleted},
		"downgraded": {func(t *testing.T, _ *memory.Store, owner, _ fullSession, node driver.Node) {
			read := must(owner.Downgrade("a", node, nil))(t)
			require.Equal(t, driver.Node{Name: read.Name, Kind: driver.Shared, Seq: node.Seq}, read)
			require.NotEqual(t, node.Name, read.Name)
		}, driver.Changed, driver.Changed},
		"revoked": {func(t *testing.T, _ *memory.Store, owner, other fullSession, node driver.Node) {
			require.NoError(t, other.Revoke(t.Context(), "a", node, true))
			require.True(t, watch(t, owner, "a", node).Revoked)
		}, driver.Changed, driver.Changed},
		"closed": {func(t *testing.T, _ *memory.Store, owner, _ fullSession, node driver.Node) {
			require.NoError(t, owner.Close(t.Context()))
		}, driver.Interrupted, driver.Deleted},
		"another left": {func(t *testing.T, _ *memory.Store, owner, _ fullSession, node driver.Node) {
			require.NoError(t, owner.Leave(t.Context(), "a", join(t, owner, "a")))
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			store, owner, other := twoSessions(t)
			node := join(t, owner, "a")
			own, its := watch(t, owner, "a", node), watch(t, other, "a", node)
			require.Same(t, own, watch(t, owner, "a", node), "a session has one watch on a node")
			require.Positive(t, own.Created)
			require.Equal(t, "data", string(own.Data))
			c.do(t, store, owner, other, node)
			require.Equal(t, c.own, own.Fired())
			require.Equal(t, c.its, its.Fired())
			if c.its == driver.Deleted || name == "downgraded" {
				require.Equal(t, driver.Missing, watch(t, other, "a", node).Fired())
				require.ErrorIs(t, other.Break(t.Context(), "a", node), driver.ErrRemoved)
				require.ErrorIs(t, other.Verify(t.Context(), driver.Located{Queue: "a", Node: node}), driver.ErrRemoved)
				_, err := other.Data(t.Context(), "a", node)
				require.ErrorIs(t, err, driver.ErrRemoved)
			}
		})
	}
}

// A slice that a session was given never changes, and nothing can be appended to its array.
func TestListings(t *testing.T) {
	_, a, b := twoSessions(t)
	var nodes []driver.Node
	for range 5 {
		nodes = append(nodes, join(t, a, "q"))
	}
	before := must(b.List(t.Context(), "q"))(t)
	require.Equal(t, nodes, before)
	for _, i := range []int{0, 3} {
		require.NoError(t, a.Leave(t.Context(), "q", nodes[i]))
	}
	joined := must(b.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive}))(t)
	last := join(t, a, "q")
	after := must(a.List(t.Context(), "q"))(t)
	newest := join(t, a, "q")
	_ = append(after, driver.Node{Name: "another"})
	now := must(a.List(t.Context(), "q"))(t)
	require.Equal(t, newest, now[len(now)-1])
	read := must(a.Downgrade("q", nodes[2], nil))(t)
	require.Equal(t, nodes, before)
	require.Equal(t, []driver.Node{nodes[1], nodes[2], nodes[4], joined.Node}, joined.Queue)
	require.Equal(t, []driver.Node{nodes[1], read, nodes[4], joined.Node, last, newest}, must(a.List(t.Context(), "q"))(t))
}

func TestNumbersOfAnEmptyQueueStartOver(t *testing.T) {
	_, a, _ := twoSessions(t)
	first, last := join(t, a, "q"), join(t, a, "q")
	require.NoError(t, a.Leave(t.Context(), "q", first))
	require.NoError(t, a.Leave(t.Context(), "q", last))
	again := join(t, a, "q")
	require.Equal(t, first.Seq, again.Seq)
	require.NotEqual(t, first.Name, again.Name)
	require.Greater(t, watch(t, a, "q", again).Created, int64(0))
	require.ErrorIs(t, a.Leave(t.Context(), "q", first), driver.ErrRemoved)
}

func TestOrderNumbersGrowAcrossQueues(t *testing.T) {
	_, a, b := twoSessions(t)
	newest := int64(0)
	for i, queue := range []string{"x", "y", "x", "z", "y"} {
		s := []fullSession{a, b}[i%2]
		created := watch(t, s, queue, join(t, s, queue)).Created
		require.Greater(t, created, newest)
		newest = created
	}
}

func TestSessionThatIsOver(t *testing.T) {
	store, a, b := twoSessions(t)
	node := join(t, a, "q")
	other := watch(t, a, "q", join(t, b, "q"))
	require.NoError(t, a.Err())
	require.Positive(t, a.Lease())
	require.NotEqual(t, a.Info().ID, b.Info().ID)
	require.Equal(t, 1, store.Expire(a.Info().ID))
	<-a.Done()
	require.ErrorIs(t, a.Err(), driver.ErrSessionLost)
	require.ErrorIs(t, a.Err(), driver.ErrExpired)
	require.ErrorIs(t, a.Alive(t.Context()), driver.ErrSessionLost)
	require.ErrorIs(t, a.Leave(t.Context(), "q", node), driver.ErrSessionLost)
	_, err := a.List(t.Context(), "q")
	require.ErrorIs(t, err, driver.ErrSessionLost)
	require.Zero(t, a.Lease())
	require.Equal(t, driver.Interrupted, other.Fired())
	require.NoError(t, a.Close(t.Context()))
	require.Len(t, must(b.List(t.Context(), "q"))(t), 1)
}

// A call whose context has ended does nothing, except Leave.
func TestEndedContext(t *testing.T) {
	store, a, b := twoSessions(t)
	node := join(t, a, "q")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := store.Connect(ended)
	require.ErrorIs(t, err, context.Canceled)
	_, err = b.Join(ended, "q", driver.Request{Kind: driver.Exclusive})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, b.Break(ended, "q", node), context.Canceled)
	require.Len(t, must(b.List(t.Context(), "q"))(t), 1)
	require.NoError(t, a.Leave(ended, "q", node))
	require.Empty(t, must(b.List(t.Context(), "q"))(t))
}

// The request to release a lock stays with its holder when that shares the lock.
func TestDowngradeKeepsTheRevocation(t *testing.T) {
	_, a, b := twoSessions(t)
	node := join(t, a, "q")
	require.NoError(t, b.Revoke(t.Context(), "q", node, true))
	require.True(t, watch(t, b, "q", must(a.Downgrade("q", node, nil))(t)).Revoked)
}

func TestWatchOnALimit(t *testing.T) {
	store, a, b := twoSessions(t)
	limit := driver.Node{Name: driver.Limit}
	require.Equal(t, driver.Missing, watch(t, a, "s", limit).Fired())
	require.NoError(t, b.SetLimit(t.Context(), "s", 1))
	w := watch(t, a, "s", limit)
	require.Zero(t, w.Fired())
	require.NoError(t, b.SetLimit(t.Context(), "s", 2))
	require.Equal(t, driver.Changed, w.Fired())
	w = watch(t, a, "s", limit)
	require.True(t, store.Remove("s", driver.Limit))
	require.Equal(t, driver.Deleted, w.Fired())
}

// The guard's node is a Mutex, which an operator can name.
func TestGuardIsAMutex(t *testing.T) {
	store, a, _ := twoSessions(t)
	guard := must(a.Join(t.Context(), "s/locks", driver.Request{Kind: driver.Guard}))(t).Node
	require.Equal(t, driver.Exclusive, guard.Kind)
	require.True(t, store.IsContender(guard.Name))
}

func TestFollow(t *testing.T) {
	_, a, b := twoSessions(t)
	first := join(t, a, "q")
	follow := func(n int, complete bool) driver.Followed {
		return must(b.Follow(t.Context(), "q", func(queue []driver.Node) (int, bool) { return min(n, len(queue)), complete }))(t)
	}
	fired := func(f driver.Followed) (events []driver.Event) {
		for _, w := range f.Watches {
			events = append(events, w.Fired())
		}
		return events
	}
	head, all, none := follow(1, true), follow(1, false), follow(0, false)
	require.Equal(t, first, head.Contenders[0].Node)
	require.Same(t, head.Watches[0], all.Watches[0])
	require.Same(t, all.Watches[1], none.Watches[0])
	second := join(t, a, "q")
	require.Equal(t, []driver.Event{0}, fired(head), "who joins behind it changes nothing")
	require.Equal(t, []driver.Event{0, driver.Changed}, fired(all))
	none = follow(0, false)
	require.NoError(t, a.Leave(t.Context(), "q", second))
	require.Equal(t, []driver.Event{driver.Changed}, fired(none))
	require.NoError(t, a.Leave(t.Context(), "q", first))
	require.Equal(t, []driver.Event{driver.Deleted}, fired(head))
}

func TestQueuesHidesWaits(t *testing.T) {
	_, a, _ := twoSessions(t)
	join(t, a, driver.Waits+"/q")
	require.Empty(t, must(a.Queues(t.Context(), ""))(t))
}

// Whoever hears that a node of a session that has ended is gone finds that session over.
func TestSessionIsOverBeforeItsNodesAreGone(t *testing.T) {
	store, a, b := twoSessions(t)
	var nodes []driver.Node
	for range 5000 {
		nodes = append(nodes, join(t, a, "q"))
	}
	watches := must(b.Watch(t.Context(), "q", nodes...))(t)
	go store.Expire(a.Info().ID) // ends when all the nodes are gone
	for !slices.ContainsFunc([]*driver.Watch{watches[0], watches[4999]}, func(w *driver.Watch) bool { return w.Fired() != 0 }) {
		runtime.Gosched()
	}
	require.Error(t, a.Err())
}

func TestFinishAndSettle(t *testing.T) {
	_, a, b := twoSessions(t)
	node, r := join(t, a, "q"), driver.Record{Name: "n", Key: "k", Data: []byte("1"), Keep: time.Hour}
	require.NoError(t, a.Finish(t.Context(), "q", node, r))
	require.ErrorIs(t, a.Finish(t.Context(), "q", node, r), driver.ErrRecorded)
	require.NoError(t, a.Verify(t.Context(), driver.Located{Queue: "q", Node: node}))
	require.True(t, must(b.Settle(t.Context(), "q", node, r))(t))
	require.ErrorIs(t, a.Finish(t.Context(), "q", node, r), driver.ErrRemoved)
	r.Data = []byte("another")
	require.False(t, must(b.Settle(t.Context(), "q", node, r))(t))
}
