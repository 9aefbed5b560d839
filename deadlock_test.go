package lockpool_test

// This file tests the option for deadlocks, and has the helpers of the tests of deadlocks.

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
)

// What the tests of deadlocks have in common with the plays.
type (
	ask   = plays.Ask
	party = plays.Party
)

var (
	exclusively, plainly, toRead = plays.Exclusively, plays.Plainly, plays.ToRead
	withAll, permits             = plays.WithAll, plays.Permits
)

// awaitVictim waits until one of the parties fails, and then lets it go and the others on.
// It returns the victims and how long the first took.
func awaitVictims(t *testing.T, b *locktest.Bench, parties []*party) (victims []int, first time.Duration) {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, p := range parties {
		all.Go(func() {
			<-p.Done
			mu.Lock()
			if p.Err != nil {
				if len(victims) == 0 {
					first = time.Since(began)
				}
				victims = append(victims, i)
				assert.ErrorIs(t, p.Err, lockpool.ErrDeadlock)
			}
			mu.Unlock()
			assert.NoError(t, p.Close(b.Ctx))
		})
	}
	all.Wait()
	return victims, first
}

// inCycle lets n handles of the given pools hold a lock each and ask for the next one's.
// The last one closes the cycle.
func inCycle(t *testing.T, b *locktest.Bench, pools []*lockpool.Pool, hold, want func(i int) ask) (parties []*party) {
	n := len(pools)
	name := func(i int) string { return fmt.Sprint("lock-", i%n) }
	for i, pool := range pools {
		p := &party{Handle: b.Handle(pool)}
		require.NoError(t, hold(i)(b.Ctx, p.Handle, name(i)))
		parties = append(parties, p)
	}
	for i, p := range parties {
		p.WaitFor(b.Ctx, want((i+1)%n), name(i+1))
		if i < n-1 {
			b.Until(func() bool { return pools[i].Stats().Waiting > 0 }, "party %d waits", i)
		}
	}
	return parties
}

func everybody(a ask) func(int) ask { return func(int) ask { return a } }

func somePools(b *locktest.Bench, n int, opts ...lockpool.Option) (pools []*lockpool.Pool) {
	for range n {
		pools = append(pools, b.Pool(opts...))
	}
	return pools
}

func TestWithDeadlockCheckRefusesANegativeTime(t *testing.T) {
	_, err := lockpool.Open("zookeeper", "127.0.0.1:1", lockpool.WithDeadlockCheck(-1))
	require.ErrorContains(t, err, "WithDeadlockCheck(-1ns): negative")
}
