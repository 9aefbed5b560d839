package lockpool_test

// This file tests what pools publish of the costs of locks.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// costWrites counts what pools write to publish costs.
func costWrites(server *zktest.Server) *zktest.Fault {
	return server.Inject(zktest.Rule{Match: zktest.Match{Ops: append(zktest.Creates, zktest.OpMulti, zktest.OpSetData, zktest.OpDelete), Prefix: "/" + driver.Costs}, Times: zktest.Always, Do: zktest.Pass()})
}

// take has each pool take the lock in turn, so often, each for the given time.
func take(t *testing.T, d time.Duration, times int, name string, pools ...*lockpool.Pool) {
	for range times {
		for _, pool := range pools {
			require.NoError(t, pool.Do(t.Context(), name, func(context.Context) error { time.Sleep(d); return nil }))
		}
	}
}

// Costs are published at most once a minute and only after a second of waits, and an hour
// without removes them.
func TestCostsAreWrittenSeldom(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pool, other := bubblePool(t, server), bubblePool(t, server)
		silent := bubblePool(t, server, lockpool.WithTraceLinks(false))
		writes := costWrites(server)
		take(t, time.Second, 1000, "a", pool, other, silent)
		require.Zero(t, writes.Fired(), "nothing has waited")
		contend := func(minutes int) {
			end := time.Now().Add(time.Duration(minutes) * time.Minute)
			for time.Now().Before(end) {
				go take(t, time.Second, 1, "a", pool)
				go take(t, time.Second, 1, "a", silent)
				take(t, time.Second, 1, "a", other)
				synctest.Wait()
			}
		}
		contend(10)
		require.InDelta(t, 2*10, writes.Fired(), 5, "and directories")
		all, err := other.Costs(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 2)
		for _, p := range all {
			require.NotEmpty(t, p.Host)
			require.True(t, p.LocalTurns)
			require.Contains(t, p.Costs[0].At, "cost_test.go")
			require.InDelta(t, 10*time.Minute, p.Over, float64(3001*time.Second))
		}
		time.Sleep(59 * time.Minute)
		all, err = other.Costs(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 2)
		time.Sleep(3 * time.Minute)
		all, err = other.Costs(t.Context())
		require.NoError(t, err)
		require.Empty(t, all)
		before := writes.Fired()
		contend(2)
		require.Greater(t, writes.Fired(), before)
		time.Sleep(5 * time.Second) // for the last calls
	})
}

// The expensive lines are known among thousands of locks, and counted without error.
func TestCostsOfManyLocks(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pools := []*lockpool.Pool{bubblePool(t, server, lockpool.WithLocalTurns(0)), bubblePool(t, server)}
		for i := range 1000 {
			take(t, time.Millisecond, 1, fmt.Sprintf("cheap/%d", i), pools...)
			if i%10 == 0 {
				go take(t, 50*time.Millisecond, 1, "hot", pools[0])
				synctest.Wait()
				go take(t, 50*time.Millisecond, 1, "hot", pools[1]) // waits
				time.Sleep(200 * time.Millisecond)
			}
		}
		time.Sleep(time.Minute)
		all, err := pools[0].Costs(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.LessOrEqual(t, len(all[0].Costs), 50, "what fits into a node")
		hot := all[0].Costs[0]
		require.Equal(t, "hot", hot.Lock)
		require.InDelta(t, 100, hot.Waits, 0.1)
		require.InDelta(t, 100, hot.Holds, 0.1)
		require.InDelta(t, 5*time.Second, hot.Held, float64(50*time.Millisecond))
	})
}

// Of the short turns in memory, and of the turns of a kept lock, one in 64 counts, for all of them.
func TestCostsOfShortTurns(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pool := bubblePool(t, server, lockpool.WithKeptLocks(0, 0))
		const callers, turns = 5, 8000
		for range callers {
			go take(t, time.Millisecond, turns, "a", pool)
		}
		go take(t, time.Millisecond, callers*turns, "kept", pool)
		time.Sleep(time.Duration(callers*turns) * time.Millisecond)
		time.Sleep(2 * time.Minute)
		all, err := pool.Costs(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		sums := map[string]lockpool.Cost{}
		for _, c := range all[0].Costs {
			sum := sums[c.Lock]
			sum.Holds, sum.Held, sum.Waited = sum.Holds+c.Holds, sum.Held+c.Held, sum.Waited+c.Waited
			sums[c.Lock] = sum
			require.Contains(t, c.At, "cost_test.go")
		}
		for _, name := range []string{"a", "kept"} {
			require.InEpsilon(t, callers*turns, sums[name].Holds, 0.25)
			require.InEpsilon(t, callers*turns*time.Millisecond, sums[name].Held, 0.25)
		}
		require.InEpsilon(t, (callers-1)*callers*turns*time.Millisecond, sums["a"].Waited, 0.25)
	})
}

// What others hold is seen by the waiters, and a wait for another lock by the holder.
func TestCostsOfOthers(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pool := bubblePool(t, server)
		connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: server.Members(), Dial: server.Dial})
		require.NoError(t, err)
		stranger, err := connector.Connect(t.Context())
		require.NoError(t, err)
		defer stranger.Close(t.Context())
		for range 10 {
			held, err := stranger.Join(t.Context(), "a", driver.Request{Data: []byte(`{"host":"elsewhere","pid":7,"at":"main.hang (main.go:1)"}`)})
			require.NoError(t, err)
			time.AfterFunc(300*time.Millisecond, func() { _ = stranger.Leave(t.Context(), "a", held.Node) })
			require.NoError(t, pool.Do(t.Context(), "outer", func(ctx context.Context) error {
				time.Sleep(100 * time.Millisecond)
				return pool.Do(ctx, "a", func(context.Context) error { return nil })
			}))
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			held, err = stranger.Join(t.Context(), "a", driver.Request{})
			require.NoError(t, err)
			require.Error(t, pool.Do(short, "a", func(context.Context) error { return nil }))
			cancel()
			require.NoError(t, stranger.Leave(t.Context(), "a", held.Node))
		}
		time.Sleep(time.Minute)
		all, err := pool.Costs(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		found := map[string]lockpool.Cost{}
		for _, c := range all[0].Costs {
			found[fmt.Sprintf("%s %v %v", c.Lock, c.Foreign, strings.HasPrefix(c.At, "main.hang"))] = c
			if !c.Foreign && c.GaveUp > 0 {
				require.InDelta(t, 10, c.GaveUp, 0.1)
				require.Equal(t, c.Waited, c.Vain)
			}
		}
		hang := found["a true true"]
		require.InDelta(t, 10, hang.Holds, 0.1)
		require.InDelta(t, 2*time.Second, hang.Held, float64(50*time.Millisecond))
		require.InDelta(t, 500*time.Millisecond, found["a true false"].Held, float64(50*time.Millisecond))
		outer := found["outer false false"]
		require.Equal(t, "a", outer.Within)
		require.InDelta(t, 2*time.Second, outer.Inside, float64(50*time.Millisecond))
		require.InDelta(t, 3*time.Second, outer.Held, float64(50*time.Millisecond))
	})
}

// A long wait tells how much longer it will last, unless the queue does not move as usual.
func TestWhatIsLeftOfAWait(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		var log locktest.Log
		holder, other := bubblePool(t, server), bubblePool(t, server)
		pool := bubblePool(t, server, lockpool.WithLongWait(time.Second), lockpool.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		take(t, 2*time.Second, 20, "a", pool)
		logged := func(hold time.Duration) string {
			before := len(log.String())
			go take(t, hold, 1, "a", holder)
			synctest.Wait()
			go take(t, 2*time.Second, 1, "a", other)
			synctest.Wait()
			go take(t, 2*time.Second, 1, "a", pool)
			synctest.Wait()
			time.Sleep(time.Millisecond) // the next is not the first that has waited for so long
			go take(t, 2*time.Second, 1, "a", pool)
			time.Sleep(hold + 10*time.Second)
			return log.String()[before:]
		}
		require.Regexp(t, `waited=1s .*holder_at=.* left=4s\n`, logged(2*time.Second))
		take(t, 20*time.Millisecond, 10_000, "a", pool)
		require.NotContains(t, logged(2*time.Second), "left=", "the holder hangs, compared with the last hour")
	})
}

// A long wait names the holder also while the node of the call is being created.
func TestLongWaitWithoutANode(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		var log locktest.Log
		p := b.Pool(lockpool.WithLocalTurns(2), lockpool.WithLongWait(time.Second), lockpool.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		l := b.Lock(p, "a")
		node := b.Children("a")[0]
		next, w := waitLocally(b, p), waitLocally(b, p)
		server.Inject(zktest.Rule{Match: zktest.Match{Ops: zktest.Creates, Prefix: b.Chroot + "/a/"}, Do: zktest.DelayReply(2 * time.Second)})
		b.Unlock(l) // the next turn is the last
		time.Sleep(3 * time.Second)
		require.Regexp(t, "behind=\"\" .*holder=[^ ]*"+node, log.String())
		b.Unlock(next.Granted())
		b.Unlock(w.Granted())
	})
}

// A long wait tells the place of the present holder, not of the one that the node was created for.
func TestLongWaitBehindALaterTurn(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, _ *zktest.Server) {
		var log locktest.Log
		p := b.Pool(lockpool.WithLongWait(500*time.Millisecond), lockpool.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		l := b.Lock(p, "a")
		time.Sleep(20 * time.Millisecond) // later calls note their places
		next, w := waitLocally(b, p), waitLocally(b, p)
		b.Unlock(l)
		time.Sleep(600 * time.Millisecond) // before the pool reports
		require.Regexp(t, `holder_at=[^=]*StartLock`, log.String())
		b.Unlock(next.Granted())
		b.Unlock(w.Granted())
	})
}

// Calls that come together, and wait for long, count once each, from the opening of the pool on.
func TestCostsOfLongWaits(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pool := bubblePool(t, server)
		for range 10 {
			go take(t, 30*time.Second, 1, "a", pool)
			synctest.Wait()
			for range 10 {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					_, err := pool.Lock(ctx, "a")
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}()
			}
			time.Sleep(time.Minute)
		}
		time.Sleep(15 * time.Minute) // then all is published
		all, err := pool.Costs(t.Context())
		require.NoError(t, err)
		require.Greater(t, all[0].Over, 9*time.Minute)
		c := all[0].Costs[0]
		require.InDelta(t, 100, c.Waits, 0.1)
		require.InDelta(t, 100, c.GaveUp, 0.1)
		require.InDelta(t, 500*time.Second, c.Vain, float64(time.Second))
	})
}

// Costs that the service did not take are published later.
func TestCostsArePublishedInTheEnd(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pool := bubblePool(t, server)
		go take(t, 2*time.Second, 1, "a", pool)
		synctest.Wait()
		go take(t, 2*time.Second, 1, "a", pool)
		time.Sleep(30 * time.Second)
		require.NoError(t, server.Pause())
		time.Sleep(45 * time.Second)
		require.NoError(t, server.Resume())
		time.Sleep(3 * time.Minute)
		all, err := pool.Costs(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		for _, s := range server.State().Sessions {
			require.NoError(t, server.ExpireSession(s.ID))
		}
		go take(t, 2*time.Second, 1, "a", pool)
		time.Sleep(20 * time.Minute)
		all, err = pool.Costs(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Greater(t, all[0].Over, 15*time.Minute, "written again")
	})
}

// A downgraded hold is two, the rest of HoldAtLeast counts as held, and locks that are asked for
// together do not contain waits for each other. A canceled call is none that gave up.
func TestCostsOfHolds(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, _ *locktest.Bench, server *zktest.Server) {
		pool, other := bubblePool(t, server), bubblePool(t, server)
		for range 10 {
			l, err := pool.Lock(t.Context(), "downgraded")
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
			shared, err := pool.Lock(l.Context(t.Context()), "downgraded", lockpool.Shared())
			require.NoError(t, err)
			require.NoError(t, l.Unlock(t.Context()))
			time.Sleep(time.Second)
			require.NoError(t, shared.Unlock(t.Context()))
			require.NoError(t, pool.Do(t.Context(), "rests", func(context.Context) error { return nil }, lockpool.HoldAtLeast(time.Second)))
			go take(t, 500*time.Millisecond, 1, "b", other)
			synctest.Wait()
			all, err := pool.LockAll(t.Context(), []string{"a", "b"})
			require.NoError(t, err)
			require.NoError(t, all.Unlock(t.Context()))
			go take(t, 500*time.Millisecond, 1, "b", other)
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(200*time.Millisecond, cancel)
			_, err = pool.Lock(ctx, "b")
			require.True(t, errors.Is(err, context.Canceled), err)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		all, err := pool.Costs(t.Context())
		require.NoError(t, err)
		held := map[string]time.Duration{}
		for _, c := range all[0].Costs {
			held[c.Lock+" "+c.Kind] += c.Held
			require.Zero(t, c.Inside, c.Lock)
			require.Zero(t, c.GaveUp, c.Lock)
		}
		require.InDelta(t, time.Second, held["downgraded mutex"], float64(50*time.Millisecond))
		require.InDelta(t, 10*time.Second, held["downgraded read"], float64(50*time.Millisecond))
		require.InDelta(t, 10*time.Second, held["rests mutex"], float64(50*time.Millisecond))
	})
}
