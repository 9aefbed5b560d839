package lockpool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestOpenNeverDials(t *testing.T) {
	t.Parallel()
	p, err := lockpool.Open("zookeeper", "host.invalid:1")
	require.NoError(t, err)
	require.NoError(t, p.Close())
}

func TestOpenErrorsNameTheCause(t *testing.T) {
	t.Parallel()
	_, err := lockpool.Open("zoo", "localhost")
	require.ErrorContains(t, err, `"zoo"`)
	require.ErrorContains(t, err, "import")
	_, err = lockpool.Open("zookeeper", "localhost?sesion_timeout=1s")
	require.ErrorContains(t, err, `"sesion_timeout"`)
	_, err = lockpool.Open("zookeeper", "localhost", lockpool.WithMaxSessions(0))
	require.ErrorContains(t, err, "WithMaxSessions(0)")
	_, err = lockpool.Open("zookeeper", "localhost", lockpool.WithMaxHandles(-1))
	require.ErrorContains(t, err, "WithMaxHandles(-1)")
	_, err = lockpool.Open("zookeeper", "localhost", nil)
	require.Error(t, err)
	_, err = lockpool.OpenConnector(nil)
	require.Error(t, err)
}

func TestDriversAreListed(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"memory", "zookeeper"}, lockpool.Drivers())
	_, err := lockpool.Open("zoo", "localhost")
	require.ErrorContains(t, err, "zookeeper", "the error lists the drivers")
}

func TestErrorNamesAnUnreachableServer(t *testing.T) {
	t.Parallel()
	refusing := zktest.StartProxy(t, locktest.Shared().Addr()) // keeps its port
	require.NoError(t, refusing.RefuseConnections())
	p, err := lockpool.Open("zookeeper", refusing.Addr())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(locktest.Context(t), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = p.Lock(ctx, "a")
	require.Less(t, time.Since(start), time.Second)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused")
	require.Error(t, p.Ping(ctx))
	require.NoError(t, p.Close())
}

func TestPoolConnectsToAServerThatStartsLater(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t)
	ctx := locktest.Context(t)
	require.NoError(t, own.Stop(ctx))
	p, err := lockpool.Open("zookeeper", own.Addr())
	require.NoError(t, err)
	defer p.Close()
	done := make(chan error)
	go func() { done <- p.Ping(ctx) }()
	require.NoError(t, own.Start(ctx))
	require.NoError(t, <-done)
}

func TestStatsCountHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	holder := b.Lock(p, "a")
	w := b.Enqueue(p, "a", 2)
	b.AwaitWaiting(p, 1)
	require.Equal(t, 1, p.Stats().Held)
	require.Equal(t, 2, p.Stats().InUse)
	require.Equal(t, 1, p.Stats().OpenSessions)
	b.Unlock(holder)
	b.Unlock(w.Granted())
	require.Zero(t, p.Stats().Held)
	require.Zero(t, p.Stats().Waiting)
	require.Zero(t, p.Stats().InUse)
}

// Scenario 41.
func TestClosedPoolRefusesAtOnce(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		h := b.Handle(p)
		require.NoError(t, p.Close())
		require.NoError(t, p.Close())
		for what, call := range map[string]func() error{
			"Lock":           func() error { _, err := p.Lock(b.Ctx, "a"); return err },
			"TryLock":        func() error { _, err := p.TryLock(b.Ctx, "a"); return err },
			"Do":             func() error { return p.Do(b.Ctx, "a", func(context.Context) error { panic("called") }) },
			"Handle":         func() error { _, err := p.Handle(b.Ctx); return err },
			"Ping":           func() error { return p.Ping(b.Ctx) },
			"Handle.Lock":    func() error { _, err := h.Lock(b.Ctx, "a"); return err },
			"Handle.TryLock": func() error { _, err := h.TryLock(b.Ctx, "a"); return err },
		} {
			clock := locktest.StartClock()
			require.ErrorIs(t, call(), lockpool.ErrPoolClosed, what)
			clock.Took(t, 0, 100*time.Millisecond, what)
		}
		require.NoError(t, h.Close(b.Ctx))
		require.NoError(t, p.Shutdown(b.Ctx))
	})
}

// Scenarios 13 and 128.
func TestCloseWakesWaitersAndReleasesHolders(t *testing.T) {
	t.Parallel()
	b := locktest.New(t).AtService()
	p, other := b.Pool(), b.Pool()
	held := b.Lock(p, "a")
	ctx := held.Context(b.Ctx)
	waiters := []*locktest.LockWaiter{b.Enqueue(p, "a", 2), b.Enqueue(p, "a", 3)}
	rival := b.Enqueue(other, "a", 4)
	start := time.Now()
	require.NoError(t, p.Close())
	for _, w := range waiters {
		<-w.Done
		require.ErrorIs(t, w.Err, lockpool.ErrPoolClosed)
		require.NotErrorIs(t, w.Err, context.Canceled, "no context was canceled")
	}
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrPoolClosed)
	_, err := p.Lock(ctx, "b")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed, "a context of the holder reports the cause")
	<-held.Lost()
	err = held.Unlock(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	l := rival.Granted()
	require.Less(t, time.Since(start), 2*time.Second, "the session is closed, not left to expire")
	require.Len(t, b.Children("a"), 1)
	b.Unlock(l)
}

func TestCloseBesideManyCalls(t *testing.T) {
	t.Parallel()
	for range 5 {
		b := locktest.New(t)
		p := b.Pool()
		var wg sync.WaitGroup
		started := make(chan struct{}, 1000)
		for i := range 20 {
			wg.Go(func() {
				for {
					err := p.Do(b.Ctx, fmt.Sprintf("a%d", i%3), func(ctx context.Context) error {
						select {
						case started <- struct{}{}:
						default:
						}
						return p.Do(ctx, "b", func(context.Context) error { return nil })
					})
					if err != nil {
						if !locktest.IsAny(err, lockpool.ErrPoolClosed, lockpool.ErrNotHeld) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		for range 5 {
			wg.Go(func() {
				for {
					h, err := p.Handle(b.Ctx)
					if err != nil {
						require.ErrorIs(t, err, lockpool.ErrPoolClosed)
						return
					}
					_ = h.Close(b.Ctx)
				}
			})
		}
		for range 10 {
			<-started
		}
		require.NoError(t, p.Close())
		wg.Wait()
		require.Zero(t, p.Stats().InUse)
		require.Zero(t, p.Stats().Held)
	}
}

func TestShutdownWaitsForHolders(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	h := b.Handle(p)
	held := b.Lock(h, "a")
	w := b.Enqueue(p, "a", 2)
	done := make(chan error)
	go func() { done <- p.Shutdown(b.Ctx) }()
	<-w.Done
	require.ErrorIs(t, w.Err, lockpool.ErrPoolClosed)
	_, err := p.Lock(b.Ctx, "b")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	again, err := h.Lock(b.Ctx, "a")
	require.NoError(t, err, "a holder may still reenter its lock")
	b.Unlock(again)
	require.Equal(t, 1, held.Depth())
	select {
	case err := <-done:
		require.Fail(t, "it does not wait for the holder", "%v", err)
	default:
	}
	b.Unlock(held)
	require.NoError(t, <-done)
}

func TestShutdownClosesWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	held := b.Lock(p, "a")
	ctx, cancel := context.WithTimeout(b.Ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Shutdown(ctx), context.DeadlineExceeded)
	require.Empty(t, b.Children("a"))
	require.ErrorIs(t, held.Unlock(b.Ctx), lockpool.ErrPoolClosed)
}

func TestDoReportsThatItsFunctionClosedThePool(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	err := p.Do(b.Ctx, "a", func(ctx context.Context) error {
		require.NoError(t, p.Close())
		require.ErrorIs(t, context.Cause(ctx), lockpool.ErrPoolClosed)
		return nil
	})
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
}

func TestDoRejectsNil(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	require.ErrorContains(t, p.Do(b.Ctx, "a", nil), "function is nil")
	require.ErrorContains(t, p.Do(b.Ctx, "a", func(context.Context) error { return nil }, nil), "nil LockOption")
	require.Zero(t, p.Stats().OpenSessions)
}

// A holder may need another lock to finish its work.
func TestShutdownLetsHoldersTakeFurtherLocks(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	held := b.Lock(others, "b")
	began, waiting := make(chan struct{}), make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		done <- p.Do(b.Ctx, "a", func(ctx context.Context) error {
			close(began)
			if err := <-waiting; err != nil {
				return err
			}
			return p.Do(ctx, "b", func(ctx context.Context) error {
				return p.Do(ctx, "c", func(context.Context) error { return nil })
			})
		})
	}()
	<-began
	idle := b.Handle(p)
	outsider := b.Enqueue(p, "b", 2)
	down := make(chan error, 1)
	go func() { down <- p.Shutdown(b.Ctx) }()
	<-outsider.Done
	require.ErrorIs(t, outsider.Err, lockpool.ErrPoolClosed)
	_, err := idle.Lock(b.Ctx, "d")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	_, err = p.Lock(b.Ctx, "d")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	_, err = p.Handle(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	waiting <- nil
	b.AwaitQueue("b", 2)
	b.Unlock(held)
	require.NoError(t, <-done)
	require.NoError(t, <-down)
}

// slowContext is a context whose Done blocks until the test answers.
type slowContext struct {
	context.Context
	asked, answer chan struct{}
}

func (c slowContext) Done() <-chan struct{} {
	close(c.asked)
	<-c.answer
	return c.Context.Done()
}

// Once the last lock is released no waiter is granted another one before the pool
// closes, or Shutdown would have to wait again.
func TestShutdownGrantsNothingAfterTheLastLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	h, held := b.Handle(p), b.Lock(others, "b")
	l := b.Lock(h, "a")
	w := b.Enqueue(h, "b", 2)
	ctx := slowContext{b.Ctx, make(chan struct{}), make(chan struct{})}
	down := make(chan error, 1)
	go func() { down <- p.Shutdown(ctx) }()
	<-ctx.asked
	b.Unlock(l) // the last one held
	b.Unlock(held)
	<-w.Done
	require.ErrorIs(t, w.Err, lockpool.ErrPoolClosed)
	require.Zero(t, p.Stats().Held)
	close(ctx.answer)
	require.NoError(t, <-down)
}
