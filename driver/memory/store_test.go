package memory_test

// This file has what a test can do with a store, and the numbers of nodes.

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/memory"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

func TestOpenSharesAStoreByName(t *testing.T) {
	t.Parallel()
	open := func(dsn string) *lockpool.Pool {
		p, err := lockpool.Open("memory", dsn)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		return p
	}
	held := must(open("").Lock(t.Context(), "a"))(t)
	_, err := open("").TryLock(t.Context(), "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	_, err = open("another").TryLock(t.Context(), "a")
	require.NoError(t, err)
	_, err = openPool(t, memory.Shared("")).TryLock(t.Context(), "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	_, err = openPool(t, memory.New()).TryLock(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, held.Unlock(t.Context()))
	require.Contains(t, driver.Drivers(), "memory")
}

// Break takes the names of nodes shown by Queue.
func TestIsContender(t *testing.T) {
	t.Parallel()
	store := memory.New()
	for node, is := range map[string]bool{
		"mutex-1": true, "read-20": true, "semaphore-3": true, "plain-4": true, "guard-1": false,
		"mutex-": false, "mutex": false, "mutex-x": false, "": false, "1-mutex": false, "local-a-1": false,
	} {
		require.Equal(t, is, store.IsContender(node), node)
	}
}

// No time runs out for a lock ended only by the holder or the store, so no time is counted.
func TestExpiringIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		l := must(a.Lock(t.Context(), "a"))(t)
		require.Equal(t, l.Lost(), l.Expiring(math.MaxInt64))
		select {
		case <-l.Lost():
			require.Fail(t, "it is held")
		default:
		}
		require.NoError(t, l.Unlock(t.Context()))
	})
}

func TestExpireOfAllSessions(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		locks := []*lockpool.Lock{
			must(a.Lock(t.Context(), "a"))(t), must(a.Semaphore("s", 1).Acquire(t.Context(), 1))(t), must(b.Lock(t.Context(), "b"))(t),
		}
		require.Zero(t, store.Expire("session-0"))
		require.Equal(t, 2, store.Expire())
		for _, l := range locks {
			<-l.Lost()
		}
	}, lockpool.WithLocalTurns(0))
}

// The store goes on when each pause has been resumed, and what was unlocked is free then.
func TestPause(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		held := must(a.Lock(t.Context(), "a"))(t)
		waiter := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a") })
		await()
		resume, resumeToo := store.Pause(), store.Pause()
		time.Sleep(time.Hour)
		require.False(t, plays.Closed(held.Lost()), "its session has not ended")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.ErrorIs(t, held.Unlock(ctx), context.DeadlineExceeded, "it continues in the background")
		later := start(func() (*lockpool.Lock, error) { return a.Lock(t.Context(), "c") })
		resume()
		resume()
		await()
		require.False(t, waiter.isDone(), "the store is still paused")
		require.False(t, later.isDone())
		resumeToo()
		must(waiter.wait())(t)
		must(later.wait())(t)
	})
}

// While the store is paused, only the owners of the sessions are told of Expire and Remove.
func TestExpireWhileTheStoreIsPaused(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		held, removed := must(a.Lock(t.Context(), "a"))(t), must(b.Lock(t.Context(), "b"))(t)
		waiter := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a") })
		await()
		q := must(a.Queue(t.Context(), "a"))(t)
		node := queue(t, b, "b")[0]
		resume := store.Pause()
		store.Expire(q.Contenders[0].Session)
		require.True(t, store.Remove("b", node))
		await()
		require.True(t, plays.Closed(held.Lost()))
		require.False(t, plays.Closed(removed.Lost()))
		require.False(t, waiter.isDone())
		resume()
		must(waiter.wait())(t)
		await()
		require.True(t, plays.Closed(removed.Lost()))
	})
}

// A call that was waiting removes a node after the nodes already removed, so watches fire later.
func TestEventsOfAPausedStoreAreInOrder(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(bubble.Enter())
		store := memory.New()
		s, other := must(store.Connect(t.Context()))(t), must(store.Connect(t.Context()))(t)
		join := func(s driver.Session) driver.Node {
			return must(s.Join(t.Context(), "a", driver.Request{Kind: driver.Exclusive}))(t).Node
		}
		leaving, removed := join(s), join(other)
		watches := must(other.Watch(t.Context(), "a", leaving, removed))(t)
		var seen driver.Event
		watches[0].OnFire(func() { seen = watches[1].Fired() })
		resume := store.Pause()
		left := start(func() (any, error) { return nil, s.Leave(t.Context(), "a", leaving) })
		await()
		require.True(t, store.Remove("a", removed.Name))
		resume()
		_, err := left.wait()
		require.NoError(t, err)
		require.Equal(t, driver.Deleted, watches[0].Fired())
		require.Equal(t, driver.Missing, seen, "the other node was removed before")
	})
}

func TestCloseWhileTheStoreIsPaused(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		must(a.Lock(t.Context(), "a"))(t)
		waiter := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a") })
		await()
		resume := store.Pause()
		began := time.Now()
		require.NoError(t, a.Close())
		require.Equal(t, 5*time.Second, time.Since(began))
		require.False(t, waiter.isDone())
		resume()
		must(waiter.wait())(t)
	})
}

func TestRemove(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		held := must(a.Lock(t.Context(), "a"))(t)
		node := queue(t, a, "a")[0]
		require.False(t, store.Remove("b", node))
		require.True(t, store.Remove("a", node))
		require.False(t, store.Remove("a", node))
		<-held.Lost()

		permits := must(a.Semaphore("s", 2).Acquire(t.Context(), 2))(t)
		require.True(t, store.Remove("s", queue(t, a, "s")[0]))
		<-permits.Lost()

		require.NoError(t, b.Semaphore("limited", 0).SetLimit(t.Context(), 0))
		one := start(func() (*lockpool.Lock, error) { return b.Semaphore("limited", 1).Acquire(t.Context(), 1) })
		await()
		require.True(t, store.Remove("limited", driver.Limit))
		require.False(t, store.Remove("limited", driver.Limit))
		must(one.wait())(t)
	}, lockpool.WithLocalTurns(0))
}

// A bubble ends only when all goroutines have ended: the driver has none, even with an open
// session, a waiter in a queue, and a paused store.
func TestNothingRuns(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(bubble.Enter())
		store := memory.New()
		s := must(store.Connect(t.Context()))(t)
		first := must(s.Join(t.Context(), "a", driver.Request{Kind: driver.Exclusive}))(t)
		must(s.Watch(t.Context(), "a", first.Node))(t)
		must(s.Join(t.Context(), "a", driver.Request{Kind: driver.Exclusive}))(t)
		store.Pause()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, s.Leave(ctx, "a", first.Node))
	})
}

// A session expires before its nodes go, so who sees a node gone finds the session over.
func TestSessionIsOverBeforeItsNodesAreGone(t *testing.T) {
	t.Parallel()
	store := memory.New()
	s, other := must(store.Connect(t.Context()))(t), must(store.Connect(t.Context()))(t)
	var nodes []driver.Node
	for range 5000 {
		nodes = append(nodes, must(s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive}))(t).Node)
	}
	watches := must(other.Watch(t.Context(), "q", nodes...))(t)
	go store.Expire(s.Info().ID) // ends when all nodes are gone
	for watches[0].Fired() == 0 && watches[4999].Fired() == 0 {
		runtime.Gosched()
	}
	require.Error(t, s.Err())
}

// Order numbers say which node is older, also when the numbers of a queue start over.
func TestNumbersOfAnEmptyQueueStartOver(t *testing.T) {
	t.Parallel()
	s := must(memory.New().Connect(t.Context()))(t)
	join := func() driver.Node {
		return must(s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive}))(t).Node
	}
	first, last := join(), join()
	require.NoError(t, s.Leave(t.Context(), "q", first))
	require.NoError(t, s.Leave(t.Context(), "q", last))
	again := join()
	require.Equal(t, first.Seq, again.Seq)
	require.NotEqual(t, first.Name, again.Name)
	require.ErrorIs(t, s.Leave(t.Context(), "q", first), driver.ErrRemoved)
}
