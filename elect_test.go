package lockpool_test

// This file tests elections beside failures.

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

var silent = lockpool.WithLogger(slog.New(slog.DiscardHandler))

func TestElectStandsAgainWhenTheServiceRefuses(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		var log locktest.Log
		p := b.Pool(lockpool.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, p.Ping(b.Ctx))
		server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpCreate, zktest.OpMulti}, Where: func(r zktest.Request) bool { return len(r.Paths) > 0 && r.Paths[0] != "/" }},
			Times: 3, Do: zktest.FailWith(zktest.ErrThrottled),
		})
		require.NoError(t, p.Elect(b.Ctx, "a", func(context.Context) error { return nil }))
		require.Contains(t, log.String(), "overloaded")
	})
}

func TestElectEndsWithTheSequenceNumbers(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(silent)
		b.Unlock(b.Lock(p, "a"))
		require.NoError(t, server.SetSequence(b.Chroot+"/a", 2147483647))
		require.ErrorIs(t, p.Elect(b.Ctx, "a", func(context.Context) error { return nil }), lockpool.ErrSequenceExhausted)
	})
}

func TestElectDoesNotRepeatWhatIsForbidden(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	b.Restrict("/r", zk.PermRead)
	require.ErrorIs(t, b.Pool().Elect(b.Ctx, "r/a", func(context.Context) error { return nil }), lockpool.ErrNoPermission)
}

// sawOneLeader requires that all states until the last one had one leader at most.
func sawOneLeader(f *plays.Observer, last string) {
	f.Helper()
	states := 0
	for v := f.Next(); v.String() != last; v = f.Next() {
		states++
		require.True(f, v.Err != nil || len(v.Contenders) < 2 || len(v.Contenders) == 2 && v.Contenders[0].Holds && !v.Contenders[1].Holds, "%s", v)
	}
	if locktest.Embedded() { // a few seconds on a real server have few terms
		require.Greater(f, states, 3)
	}
}

// Candidates of one process, and of others, whose networks and servers fail at random, and
// observers, all of which come to see the last state.
func TestOneLeaderAtATime(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		rounds := 60
		if !locktest.Embedded() {
			rounds = 4
		}
		b.Ctx = locktest.Timeout(t, time.Hour)
		ctx, stop := context.WithCancel(b.Ctx)
		var all sync.WaitGroup
		defer all.Wait()
		defer stop()
		var leaders, failures atomic.Int32
		var mu sync.Mutex
		var tokens []int64
		terms := map[int]int{}
		lead := func(n int) func(context.Context) error {
			return func(ctx context.Context) error {
				if leaders.Add(1) != 1 && locktest.Embedded() { // a stalled process learns of a loss late
					t.Error("two leaders")
				}
				defer leaders.Add(-1)
				lock, _ := lockpool.LockFromContext(ctx)
				token, err := lock.Token(ctx)
				if err != nil {
					return err
				}
				mu.Lock()
				tokens = append(tokens, token)
				terms[n]++
				mu.Unlock()
				select {
				case <-ctx.Done():
					return nil // not a resignation
				case <-time.After(rand.N(20 * time.Second)):
					failures.Add(1)
					return errors.New("failed")
				}
			}
		}
		var proxies []*zktest.Proxy
		var followers []*plays.Observer
		for n := range 6 {
			if n%2 == 0 { // each pool has two candidates
				proxies = append(proxies, b.Proxy())
			}
			p := b.PoolWithTimeout(4*time.Second, silent)
			followers = append(followers, plays.Observe(b.Ctx, b, p, "a"))
			all.Go(func() { _ = p.Elect(ctx, "a", lead(n)) })
		}
		for range rounds {
			proxy := proxies[rand.N(len(proxies))]
			switch rand.N(5) {
			case 0:
				proxy.Cut(zktest.Selector{})
			case 1: // a partition
				require.NoError(t, proxy.HangConnections())
				proxy.HalfOpen(zktest.Selector{})
				time.Sleep(rand.N(10 * time.Second))
				require.NoError(t, proxy.AcceptConnections())
			case 2:
				require.NoError(t, own.Stop(b.Ctx))
				time.Sleep(rand.N(6 * time.Second))
				require.NoError(t, own.Start(b.Ctx))
			case 3:
				require.NoError(t, own.Pause())
				time.Sleep(rand.N(6 * time.Second))
				require.NoError(t, own.Resume())
			case 4:
				if embedded, ok := own.(*zktest.Server); ok {
					embedded.ReapContainers()
				}
			}
			time.Sleep(rand.N(6 * time.Second))
		}
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(tokens)
		}
		before := count()
		b.Until(func() bool { return count() > before }, "there is another leader when all is well again")
		if locktest.Embedded() {
			time.Sleep(3 * time.Minute) // more than the longest terms of all candidates
		}
		stop()
		all.Wait()
		b.Lock(named(b, "last"), "a")
		for _, f := range followers {
			sawOneLeader(f, "last")
		}
		mu.Lock()
		defer mu.Unlock()
		require.IsIncreasing(t, tokens)
		t.Logf("%d terms (%v), of which %d failed", len(tokens), terms, failures.Load())
		if locktest.Embedded() {
			require.Len(t, terms, 6, "every candidate has led")
		}
	})
}
