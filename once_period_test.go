package lockpool_test

// This file tests runs of one job for many periods, beside faults.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Three machines, whose clocks differ by 20 ms and by 2 s, run the job of each period. In
// most periods a machine is killed: its process, its session, or its network. Every
// period finishes exactly once, and starts once more at most for each kill.
func TestEveryPeriodFinishesOnce(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		const period, periods = 10 * time.Second, 120
		b := locktest.New(t)
		server := b.Server.(*zktest.Server)
		ctx := context.Background()
		chance := rand.New(rand.NewPCG(1, 2))

		var mu sync.Mutex // guards the following
		starts, finished, kills := make([]int, periods), make([]int, periods), make([]int, periods)
		var pools [3]*lockpool.Pool
		running := map[int]bool{} // by machine
		host := func(machine int) string { return fmt.Sprintf("10.0.0.%d", machine+1) }
		start := func(machine int) {
			cfg := b.Config()
			cfg.Dial = server.DialFrom(host(machine))
			pools[machine] = b.PoolWith(cfg)
		}
		for machine := range pools {
			start(machine)
		}

		run := func(machine, i int, long time.Duration) {
			mu.Lock()
			p := pools[machine]
			mu.Unlock()
			err := p.Once(ctx, "report", fmt.Sprint(i), func(ctx context.Context) error {
				mu.Lock()
				starts[i]++
				running[machine] = true
				mu.Unlock()
				defer func() {
					mu.Lock()
					defer mu.Unlock()
					delete(running, machine)
				}()
				select {
				case <-time.After(long):
				case <-ctx.Done():
				}
				return ctx.Err()
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				finished[i]++
			case !errors.Is(err, lockpool.ErrDone) && kills[i] == 0:
				t.Errorf("period %d: %v", i, err)
			}
		}
		kill := func(i int) {
			mu.Lock()
			victim := chance.IntN(len(pools))
			for machine := range running {
				victim = machine
			}
			p, how := pools[victim], chance.IntN(4)
			kills[i]++
			mu.Unlock()
			cut := zktest.Selector{Host: host(victim)}
			switch how {
			case 0: // the process, and another one starts
				mu.Lock()
				start(victim)
				mu.Unlock()
				require.NoError(t, p.Close())
			case 1: // the session
				for _, s := range server.State().Sessions {
					for _, c := range server.State().Conns {
						if c.Session == s.ID && c.Addr[:len(host(0))] == host(victim) {
							require.NoError(t, server.ExpireSession(s.ID))
						}
					}
				}
			case 2: // the network, until the session is over
				server.Partition(cut, zktest.Both)
				time.Sleep(7 * time.Second)
				server.Heal()
			case 3: // the replies, for a moment
				server.Partition(cut, zktest.Outbound)
				time.Sleep(time.Second)
				server.Heal()
			}
		}

		begin := time.Now()
		var all sync.WaitGroup
		for machine, late := range []time.Duration{0, 20 * time.Millisecond, 2 * time.Second} {
			all.Go(func() {
				for i := range periods {
					time.Sleep(time.Until(begin.Add(time.Duration(i)*period + late)))
					run(machine, i, time.Duration(i%4)*300*time.Millisecond)
				}
			})
		}
		for i := range periods {
			if i%5 > 0 {
				time.Sleep(time.Until(begin.Add(time.Duration(i)*period + time.Duration(chance.IntN(1200))*time.Millisecond)))
				kill(i)
			}
		}
		all.Wait()
		repeated := 0
		for i := range periods {
			require.LessOrEqual(t, finished[i], 1, "period %d", i) // a pool that is closed may not know
			require.LessOrEqual(t, starts[i], 1+kills[i], "period %d", i)
			repeated += starts[i] - 1
		}
		runs, err := pools[0].Finished(ctx, "report")
		require.NoError(t, err)
		require.Len(t, runs, periods)
		require.Greater(t, repeated, periods/10, "kills do not interrupt runs")
		t.Logf("%d periods, of which %d runs were repeated", periods, repeated)
	})
}
