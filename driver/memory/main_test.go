package memory_test

// This file has the helpers of the tests: pools, bubbles and calls on goroutines.

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/memory"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openPool returns a pool on the store, closed when the test ends.
func openPool(t testing.TB, store *memory.Store, opts ...lockpool.Option) *lockpool.Pool {
	p, err := lockpool.OpenConnector(store, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// inBubble runs a test in a bubble, with a store and two pools, each in place of a process.
func inBubble(t *testing.T, test func(t *testing.T, store *memory.Store, a, b *lockpool.Pool), opts ...lockpool.Option) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(bubble.Enter())
		store := memory.New()
		a, b := openPool(t, store, opts...), openPool(t, store, opts...)
		test(t, store, a, b)
	})
}

// await waits until all goroutines of the bubble wait, and everything told by the driver is
// done. (A pool just granted a lock watches the node after 20 ms.)
func await() {
	time.Sleep(30 * time.Millisecond)
	synctest.Wait()
}

// result is what a goroutine's call returns.
type result[T any] struct {
	done chan struct{}
	got  T
	err  error
}

// start makes a call on a new goroutine.
func start[T any](call func() (T, error)) *result[T] {
	r := &result[T]{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.got, r.err = call()
	}()
	return r
}

func (r *result[T]) isDone() bool { return plays.Closed(r.done) }

// wait returns the result.
func (r *result[T]) wait() (T, error) {
	<-r.done
	return r.got, r.err
}

// queue returns the nodes in the queue of a lock.
func queue(t *testing.T, p *lockpool.Pool, name string) (nodes []string) {
	q, err := p.Queue(t.Context(), name)
	require.NoError(t, err)
	for _, c := range q.Contenders {
		nodes = append(nodes, c.Node)
	}
	return nodes
}

func must[T any](got T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return got
	}
}
