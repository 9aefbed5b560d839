package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/memory"
)

func TestExpireTakesTheLocksOfASession(t *testing.T) {
	for name, lock := range map[string]func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error){
		"queue": func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error) { return p.Lock(ctx, "a") },
		"plain": func(ctx context.Context, p *lockpool.Pool) (*lockpool.Lock, error) {
			return p.Lock(ctx, "a", lockpool.Plain())
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
				held := must(lock(t.Context(), a))(t)
				work := held.Context(t.Context())
				unrelated := must(b.Lock(t.Context(), "b"))(t)
				waiter := start(func() (*lockpool.Lock, error) { return lock(t.Context(), b) })
				await()
				require.Zero(t, store.Expire("session-0"))
				q := must(a.Queue(t.Context(), "a"))(t)
				require.Equal(t, 1, store.Expire(q.Contenders[0].Session))
				require.Zero(t, store.Expire(q.Contenders[0].Session))
				next := must(waiter.wait())(t)
				<-work.Done()
				require.ErrorIs(t, context.Cause(work), lockpool.ErrLockLost)
				require.ErrorIs(t, context.Cause(work), driver.ErrExpired)
				require.ErrorIs(t, held.Unlock(t.Context()), lockpool.ErrLockLost)
				require.NoError(t, unrelated.Verify(t.Context()))
				require.NoError(t, next.Unlock(t.Context()))
				must(lock(t.Context(), a))(t) // on a new session
			})
		})
	}
}

// Those who wait on a session that ends queue again, and get the lock.
func TestExpireOfAllSessions(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		held := must(a.Lock(t.Context(), "a"))(t)
		semaphore := must(a.Semaphore("s", 1).Acquire(t.Context(), 1))(t)
		var waiters []*result[*lockpool.Lock]
		for _, p := range []*lockpool.Pool{a, b, b} {
			waiters = append(waiters, start(func() (*lockpool.Lock, error) { return p.Lock(t.Context(), "a") }))
		}
		permit := start(func() (*lockpool.Lock, error) { return b.Semaphore("s", 1).Acquire(t.Context(), 1) })
		await()
		require.Equal(t, 2, store.Expire())
		for _, done := range []<-chan struct{}{held.Lost(), semaphore.Lost()} {
			<-done
		}
		must(permit.wait())(t)
		for len(waiters) > 0 {
			await()
			for i, w := range waiters {
				if w.isDone() {
					require.NoError(t, must(w.wait())(t).Unlock(t.Context()))
					waiters = append(waiters[:i:i], waiters[i+1:]...)
					break
				}
			}
		}
		require.Empty(t, queue(t, a, "a"))
	}, lockpool.WithLocalTurns(0))
}

func TestPause(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		held := must(a.Lock(t.Context(), "a"))(t)
		waiter := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a") })
		await()
		resume, resumeToo := store.Pause(), store.Pause()

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		_, err := a.Lock(ctx, "b")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Hour, time.Since(began))
		require.ErrorIs(t, a.Ping(ctx), context.DeadlineExceeded)
		require.False(t, isClosed(held.Lost()), "its session has not ended")

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
		require.Empty(t, queue(t, a, "b"))
		require.NoError(t, a.Ping(t.Context()))
		require.Equal(t, []string{"a", "c"}, must(a.List(t.Context(), ""))(t))
	})
}

// While the store is paused, what Expire and Remove do is told to nobody but the owners of
// the sessions.
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
		require.True(t, isClosed(held.Lost()))
		require.False(t, isClosed(removed.Lost()))
		require.False(t, waiter.isDone())
		resume()
		must(waiter.wait())(t)
		await()
		require.True(t, isClosed(removed.Lost()))
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
		second := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a") })
		await()
		third := start(func() (*lockpool.Lock, error) { return a.Lock(t.Context(), "a") })
		await()
		nodes := queue(t, a, "a")
		require.Len(t, nodes, 3)
		require.True(t, store.Remove("a", nodes[1])) // of a waiter, which queues again
		require.False(t, store.Remove("a", nodes[1]))
		require.False(t, store.Remove("b", nodes[0]))
		await()
		require.True(t, store.Remove("a", nodes[0]))
		<-held.Lost()
		l := must(third.wait())(t)
		require.False(t, second.isDone())
		require.NoError(t, l.Unlock(t.Context()))
		must(second.wait())(t)

		permits := must(a.Semaphore("s", 2).Acquire(t.Context(), 2))(t)
		plain := must(a.Lock(t.Context(), "p", lockpool.Plain()))(t)
		await()
		require.True(t, store.Remove("s", queue(t, a, "s")[0]))
		require.True(t, store.Remove("p", queue(t, a, "p")[0]))
		<-permits.Lost()
		<-plain.Lost()
		require.ErrorIs(t, permits.Unlock(t.Context()), lockpool.ErrLockLost)
	}, lockpool.WithLocalTurns(0))
}

func TestCloseFreesTheLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, store *memory.Store, a, b *lockpool.Pool) {
		held := must(a.Lock(t.Context(), "a"))(t)
		waiter := start(func() (*lockpool.Lock, error) { return b.Lock(t.Context(), "a") })
		await()
		require.NoError(t, a.Close())
		must(waiter.wait())(t)
		require.ErrorIs(t, held.Unlock(t.Context()), lockpool.ErrPoolClosed)
		require.Len(t, queue(t, b, "a"), 1)
	})
}

// A bubble ends only when all its goroutines have ended: the driver has none, even while a
// session is open, somebody waits in a queue, and the store is paused.
func TestNothingRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
