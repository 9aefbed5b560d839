package lockpool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

// ask asks for a lock of some kind with a handle. What it gets is released when the handle
// is closed.
type ask func(ctx context.Context, h *lockpool.Handle, name string) error

func exclusively(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.Lock(ctx, name)
	return err
}

func plainly(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.Lock(ctx, name, lockpool.Plain())
	return err
}

func toRead(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.Lock(ctx, name, lockpool.Shared())
	return err
}

func withAll(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.LockAll(ctx, []string{name, name + "-too"})
	return err
}

// permits asks for n permits of limit.
func permits(n, limit int) ask {
	return func(ctx context.Context, h *lockpool.Handle, name string) error {
		_, err := h.Semaphore(name, limit).Acquire(ctx, n)
		return err
	}
}

// party is a handle that holds some locks and then waits for another one.
type party struct {
	*lockpool.Handle
	done chan struct{} // closed when the following is set
	err  error
}

// waitFor starts to wait for a lock.
func (p *party) waitFor(ctx context.Context, get ask, name string) {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		p.err = get(ctx, p.Handle, name)
	}()
}

// awaitVictim waits until one of the parties fails, and then lets it go and the others on.
// It returns the victims and how long the first took.
func awaitVictims(t *testing.T, b *locktest.Bench, parties []*party) (victims []int, first time.Duration) {
	t.Helper()
	began := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, p := range parties {
		all.Go(func() {
			<-p.done
			mu.Lock()
			if p.err != nil {
				if len(victims) == 0 {
					first = time.Since(began)
				}
				victims = append(victims, i)
				assert.ErrorIs(t, p.err, lockpool.ErrDeadlock)
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
		p.waitFor(b.Ctx, want((i+1)%n), name(i+1))
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
