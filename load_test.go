package lockpool_test

// This file tests how handles are spread over sessions.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// nodesOf returns how many nodes each session of the server has.
func nodesOf(server *zktest.Server) (nodes []int) {
	for _, s := range server.State().Sessions {
		nodes = append(nodes, len(s.Ephemerals))
	}
	return nodes
}

// createsOf returns how many nodes below the paths each session has created.
func createsOf(server *zktest.Server, prefix string) map[int64]int {
	creates := map[int64]int{}
	for _, r := range server.Trace() {
		if r.Kind == zktest.Requested && r.Op == zktest.OpCreate && strings.HasPrefix(r.Paths[0], prefix) {
			creates[r.Session]++
		}
	}
	return creates
}

// The sessions share what begins at once on a new pool.
func TestSessionsShareTheFirstBurst(t *testing.T) {
	bubble.Parallel(t)
	for callers, want := range map[int][]int{1: {1}, 32: {32}, 64: {32, 32}, 200: {50, 50, 50, 50}} {
		synctest.Test(t, func(t *testing.T) {
			server := zktest.StartBubble(t)
			pool := bubblePool(t, server)
			plays.Together(t, callers, func(i int) error {
				_, err := pool.Lock(t.Context(), fmt.Sprint("a", i))
				return err
			})
			require.Equal(t, want, nodesOf(server))
		})
	}
}

func TestOneGoroutineUsesOneSession(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		pool := bubblePool(t, zktest.StartBubble(t))
		for i := range 200 {
			l, err := pool.Lock(t.Context(), fmt.Sprint("a", i))
			require.NoError(t, err)
			require.NoError(t, l.Unlock(t.Context()))
			_, err = pool.Queue(t.Context(), "a")
			require.NoError(t, err)
		}
		require.Equal(t, 1, pool.Stats().OpenSessions)
	})
}

// While a second session is being opened, the first one serves everybody, and calls wait
// for the second one only for a moment. When it is there, handles that hold nothing move.
func TestIdleHandlesMoveToAnotherSession(t *testing.T) {
	bubble.Parallel(t)
	const workers = 64
	for _, kind := range []string{"pool", "handle"} {
		synctest.Test(t, func(t *testing.T) {
			server := zktest.StartBubble(t)
			pool := bubblePool(t, server)
			second := server.Inject(zktest.Rule{
				Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Skip: 1, Do: zktest.DelayReply(time.Second),
			})
			handles := make([]*lockpool.Handle, workers)
			turn := func(i int) error {
				lock := pool.Lock
				if kind == "handle" {
					if handles[i] == nil {
						h, err := pool.Handle(t.Context())
						if err != nil {
							return err
						}
						handles[i] = h
					}
					lock = handles[i].Lock
				}
				l, err := lock(t.Context(), fmt.Sprint("before/", i))
				if err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
				return l.Unlock(t.Context())
			}
			began := time.Now()
			plays.Together(t, workers, turn)
			require.Less(t, time.Since(began), 200*time.Millisecond)
			began = time.Now()
			plays.Together(t, workers, turn)
			require.Less(t, time.Since(began), 10*time.Millisecond, "they wait again")
			require.NoError(t, second.Wait(t.Context()))
			require.Len(t, createsOf(server, "/before/"), 1)
			keeper, err := pool.Handle(t.Context())
			require.NoError(t, err)
			kept, err := keeper.Lock(t.Context(), "kept/0")
			require.NoError(t, err)

			time.Sleep(time.Second)
			require.Equal(t, 2, pool.Stats().OpenSessions)
			also, err := keeper.Lock(t.Context(), "kept/1")
			require.NoError(t, err)
			require.Len(t, createsOf(server, "/kept/"), 1, "what a handle holds depends on one session")
			require.NoError(t, also.Unlock(t.Context()))

			plays.Together(t, workers, turn)
			creates := createsOf(server, "/before/")
			require.Len(t, creates, 2)
			for _, n := range creates {
				require.GreaterOrEqual(t, n, workers/2-4, "the second session has few")
			}

			require.NoError(t, kept.Unlock(t.Context()))
		})
	}
}

// Handles stay on the session that knows their queues while a few others come and go.
func TestHandlesDoNotMoveWithoutNeed(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		pool := bubblePool(t, server)
		handles := make([]*lockpool.Handle, 64)
		lock := func(i int) error {
			l, err := handles[i].Lock(t.Context(), fmt.Sprint("a/", i))
			if err != nil {
				return err
			}
			return l.Unlock(t.Context())
		}
		plays.Together(t, len(handles), func(i int) (err error) {
			handles[i], err = pool.Handle(t.Context())
			return err
		})
		session := map[int64][]int{} // the handles on it
		for i := range handles {
			require.NoError(t, lock(i))
			for id := range createsOf(server, fmt.Sprintf("/a/%d/", i)) {
				session[id] = append(session[id], i)
			}
		}
		require.Len(t, session, 2)
		var left []int
		for _, on := range session {
			if left == nil {
				for _, i := range on[:5] {
					require.NoError(t, handles[i].Close(t.Context()))
				}
				on = on[5:]
			}
			left = append(left, on...)
		}
		for _, i := range left {
			require.NoError(t, lock(i))
			require.Len(t, createsOf(server, fmt.Sprintf("/a/%d/", i)), 1)
		}
	})
}

// The waiters for a lock meet on one session, where a turn costs one request. Their handles have
// other locks on all sessions, and readers do not all depend on one.
func TestWaitersForALockMeet(t *testing.T) {
	bubble.Parallel(t)
	const waiters = 128
	type take = func(ctx context.Context, p *lockpool.Pool, h *lockpool.Handle) (*lockpool.Lock, error)
	for name, kind := range map[string]struct {
		take take
		meet bool
	}{
		"handle's lock": {func(ctx context.Context, _ *lockpool.Pool, h *lockpool.Handle) (*lockpool.Lock, error) {
			return h.Lock(ctx, "a")
		}, true},
		"pool's lock": {func(ctx context.Context, p *lockpool.Pool, _ *lockpool.Handle) (*lockpool.Lock, error) {
			return p.Lock(ctx, "a")
		}, true},
		"read lock": {func(ctx context.Context, _ *lockpool.Pool, h *lockpool.Handle) (*lockpool.Lock, error) {
			return h.Lock(ctx, "a", lockpool.Shared())
		}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := zktest.StartBubble(t)
			pool := bubblePool(t, server, lockpool.WithLocalTurns(0))
			handles := make([]*lockpool.Handle, waiters)
			plays.Together(t, waiters, func(i int) (err error) {
				handles[i], err = pool.Handle(t.Context())
				return err
			})
			require.Equal(t, 4, pool.Stats().OpenSessions)
			writer, err := pool.Lock(t.Context(), "a")
			require.NoError(t, err)
			var all sync.WaitGroup
			for i, h := range handles {
				all.Go(func() {
					l, err := kind.take(t.Context(), pool, h)
					if assert.NoError(t, err) {
						time.Sleep(time.Second)
						assert.NoError(t, l.Unlock(t.Context()))
					}
				})
				if i == 0 {
					synctest.Wait() // the first waiter knows the queue
				}
			}
			synctest.Wait()
			require.NoError(t, writer.Unlock(t.Context()))
			all.Wait()
			most := slices.Max(slices.Collect(maps.Values(createsOf(server, "/a/"))))
			require.Equal(t, kind.meet, most > waiters*9/10, "%s: %d on one session", name, most)
			plays.Together(t, waiters, func(i int) error {
				_, err := handles[i].Lock(t.Context(), fmt.Sprint("b/", i))
				return err
			})
			for _, n := range createsOf(server, "/b/") {
				require.GreaterOrEqual(t, n, waiters/4-8, "%s", name)
			}
		})
	}
}

// A call without an answer on a silent session draws no other call there.
func TestSilentSessionDrawsNobody(t *testing.T) {
	bubble.Parallel(t)
	for name, take := range map[string]func(ctx context.Context, h *lockpool.Handle) (*lockpool.Lock, error){
		"lock": func(ctx context.Context, h *lockpool.Handle) (*lockpool.Lock, error) { return h.Lock(ctx, "a") },
		"try":  func(ctx context.Context, h *lockpool.Handle) (*lockpool.Lock, error) { return h.TryLock(ctx, "a") },
		"permit": func(ctx context.Context, h *lockpool.Handle) (*lockpool.Lock, error) {
			return h.Semaphore("a", 1).Acquire(ctx, 1)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := zktest.StartBubble(t)
			pool := bubblePool(t, server, lockpool.WithLocalTurns(0))
			handles := make([]*lockpool.Handle, 64)
			plays.Together(t, len(handles), func(i int) (err error) {
				handles[i], err = pool.Handle(t.Context())
				return err
			})
			on := map[int64][]*lockpool.Handle{}
			for i, h := range handles {
				l, err := h.Lock(t.Context(), fmt.Sprint("own/", i))
				require.NoError(t, err)
				require.NoError(t, l.Unlock(t.Context()))
				for id := range createsOf(server, fmt.Sprintf("/own/%d/", i)) {
					on[id] = append(on[id], h)
				}
			}
			ids := slices.Collect(maps.Keys(on))
			require.Len(t, ids, 2)
			server.Partition(zktest.Selector{Session: ids[0]}, zktest.Both)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var hangs sync.WaitGroup
			hangs.Go(func() {
				_, err := take(ctx, on[ids[0]][0])
				assert.Error(t, err)
			})
			synctest.Wait()
			for _, h := range on[ids[1]] {
				l, err := take(ctx, h)
				if assert.NoError(t, err, "%s", name) {
					assert.NoError(t, l.Unlock(ctx))
				}
			}
			hangs.Wait()
			server.Heal()
		})
	}
}

// A service that accepts no further connection delays no more than one burst, and that
// for a moment only.
func TestRefusedSessionDelaysNobody(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		pool := bubblePool(t, server)
		server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Skip: 1, Times: zktest.Always, Do: zktest.DropBeforeApply(),
		})
		for i := range 3 {
			time.Sleep(10 * time.Second)
			began := time.Now()
			plays.Together(t, 64, func(j int) error {
				return pool.Do(t.Context(), fmt.Sprint(i, "/", j), func(context.Context) error {
					time.Sleep(time.Millisecond) // so that all are there at once, which is too much for one session
					return nil
				})
			})
			if i == 0 {
				require.LessOrEqual(t, time.Since(began), 150*time.Millisecond)
			} else {
				require.Less(t, time.Since(began), 10*time.Millisecond)
			}
		}
		require.Equal(t, 1, pool.Stats().OpenSessions)
	})
}
