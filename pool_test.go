package lockpool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestOpenNeverDials(t *testing.T) {
	t.Parallel()
	p, err := lockpool.Open("zookeeper", "host.invalid:1")
	require.NoError(t, err)
	require.NoError(t, p.Close())
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
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

func TestUnreachableServerIsInTheError(t *testing.T) {
	t.Parallel()
	refusing := zktest.StartProxy(t, server.Addr()) // which keeps its port
	require.NoError(t, refusing.RefuseConnections())
	p, err := lockpool.Open("zookeeper", refusing.Addr())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = p.Lock(ctx, "a")
	require.Less(t, time.Since(start), time.Second)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused")
	require.Error(t, p.Ping(ctx))
	require.NoError(t, p.Close())
}

func TestServerThatComesUpLateIsFound(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	ctx := testContext(t)
	require.NoError(t, own.Stop(ctx))
	p, err := lockpool.Open("zookeeper", own.Addr())
	require.NoError(t, err)
	defer p.Close()
	done := make(chan error)
	go func() { done <- p.Ping(ctx) }()
	require.NoError(t, own.Start(ctx))
	require.NoError(t, <-done)
}

func TestHandlesShareFewSessions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithMaxSessions(2))
	var sessions []*lockpool.Handle
	for range 200 {
		sessions = append(sessions, b.session(p))
	}
	stats := p.Stats()
	require.Equal(t, 200, stats.InUse)
	require.LessOrEqual(t, stats.OpenSessions, 2)
	for _, s := range sessions {
		require.NoError(t, s.Close(b.ctx))
	}
	require.Zero(t, p.Stats().InUse)
}

func TestWaitingForAHandleHonoursTheContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithMaxHandles(1))
	s := b.session(p)
	ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := p.Handle(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = p.Lock(ctx, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithTimeout(b.ctx, 50*time.Millisecond)
	defer cancel()
	_, err = p.TryLock(ctx, "a")
	require.ErrorContains(t, err, "no free handle, all 1 are in use")

	done := make(chan error)
	go func() { done <- p.Do(b.ctx, "a", func(context.Context) error { return nil }) }()
	require.NoError(t, s.Close(b.ctx))
	require.NoError(t, <-done)
	stats := p.Stats()
	require.NotZero(t, stats.WaitCount)
	require.NotZero(t, stats.WaitDuration)
}

func TestStatsCountHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	w := b.wait(p, "a", 2)
	b.until(func() bool { return p.Stats().Waiting == 1 }, "one waits")
	require.Equal(t, 1, p.Stats().Held)
	require.Equal(t, 2, p.Stats().InUse)
	require.Equal(t, 1, p.Stats().OpenSessions)
	b.unlock(holder)
	b.unlock(b.granted(w))
	require.Zero(t, p.Stats().Held)
	require.Zero(t, p.Stats().Waiting)
	require.Zero(t, p.Stats().InUse)
}

// Scenario 41.
func TestClosedPoolRefusesAtOnce(t *testing.T) { // measures time: not beside others
	b := newBench(t)
	p := b.pool()
	s := b.session(p)
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	for what, call := range map[string]func() error{
		"Lock":          func() error { _, err := p.Lock(b.ctx, "a"); return err },
		"TryLock":       func() error { _, err := p.TryLock(b.ctx, "a"); return err },
		"Do":            func() error { return p.Do(b.ctx, "a", func(context.Context) error { panic("called") }) },
		"Session":       func() error { _, err := p.Handle(b.ctx); return err },
		"Ping":          func() error { return p.Ping(b.ctx) },
		"Session.Lock":  func() error { _, err := s.Lock(b.ctx, "a"); return err },
		"Session.TryLo": func() error { _, err := s.TryLock(b.ctx, "a"); return err },
	} {
		clock := startClock()
		require.ErrorIs(t, call(), lockpool.ErrPoolClosed, what)
		clock.took(t, 0, 100*time.Millisecond, what)
	}
	require.NoError(t, s.Close(b.ctx))
	require.NoError(t, p.Shutdown(b.ctx))
}

// Scenarios 13 and 128.
func TestCloseWakesWaitersAndReleasesHolders(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, other := b.pool(), b.pool()
	held := b.lock(p, "a")
	ctx := held.Context(b.ctx)
	waiters := []*waiter{b.wait(p, "a", 2), b.wait(p, "a", 3)}
	rival := b.wait(other, "a", 4)
	start := time.Now()
	require.NoError(t, p.Close())
	for _, w := range waiters {
		<-w.done
		require.ErrorIs(t, w.err, lockpool.ErrPoolClosed)
		require.NotErrorIs(t, w.err, context.Canceled, "nobody's context was cancelled")
	}
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrPoolClosed)
	_, err := p.Lock(ctx, "b")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed, "whoever was inside is told why, too")
	<-held.Lost()
	err = held.Unlock(b.ctx)
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	l := b.granted(rival)
	require.Less(t, time.Since(start), 2*time.Second, "the session was closed, not left to expire")
	require.Len(t, b.children("a"), 1)
	b.unlock(l)
}

func TestCloseWhileManyComeAndGo(t *testing.T) {
	t.Parallel()
	for range 5 {
		b := newBench(t)
		p := b.pool()
		var wg sync.WaitGroup
		started := make(chan struct{}, 1000)
		for i := range 20 {
			wg.Go(func() {
				for {
					err := p.Do(b.ctx, fmt.Sprintf("a%d", i%3), func(ctx context.Context) error {
						select {
						case started <- struct{}{}:
						default:
						}
						return p.Do(ctx, "b", func(context.Context) error { return nil })
					})
					if err != nil {
						if !errorsIsAny(err, lockpool.ErrPoolClosed, lockpool.ErrNotHeld) {
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
					s, err := p.Handle(b.ctx)
					if err != nil {
						require.ErrorIs(t, err, lockpool.ErrPoolClosed)
						return
					}
					_ = s.Close(b.ctx)
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

func TestShutdownLetsHoldersFinish(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s := b.session(p)
	held, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	w := b.wait(p, "a", 2)
	done := make(chan error)
	go func() { done <- p.Shutdown(b.ctx) }()
	<-w.done
	require.ErrorIs(t, w.err, lockpool.ErrPoolClosed)
	_, err = p.Lock(b.ctx, "b")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	again, err := s.Lock(b.ctx, "a")
	require.NoError(t, err, "a holder may still enter what it holds")
	b.unlock(again)
	require.Equal(t, 1, held.Depth())
	select {
	case err := <-done:
		require.Fail(t, "it did not wait for the holder", "%v", err)
	default:
	}
	b.unlock(held)
	require.NoError(t, <-done)
}

func TestShutdownGivesUpWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	held := b.lock(p, "a")
	ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Shutdown(ctx), context.DeadlineExceeded)
	require.Empty(t, b.children("a"))
	require.ErrorIs(t, held.Unlock(b.ctx), lockpool.ErrPoolClosed)
}

func TestDoSaysThatTheClosingPoolTookItsLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	err := p.Do(b.ctx, "a", func(ctx context.Context) error {
		require.NoError(t, p.Close())
		require.ErrorIs(t, context.Cause(ctx), lockpool.ErrPoolClosed)
		return nil
	})
	require.ErrorIs(t, err, lockpool.ErrNotHeld)
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
}

func TestDoRefusesNil(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	require.ErrorContains(t, p.Do(b.ctx, "a", nil), "nil function")
	require.ErrorContains(t, p.Do(b.ctx, "a", func(context.Context) error { return nil }, nil), "nil LockOption")
	require.Zero(t, p.Stats().OpenSessions)
}

// A holder may need another lock to finish.
func TestShutdownLetsHoldersLockWhatTheyNeed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	held := b.lock(others, "b")
	began, waiting := make(chan struct{}), make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		done <- p.Do(b.ctx, "a", func(ctx context.Context) error {
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
	idle := b.session(p)
	outsider := b.wait(p, "b", 2)
	down := make(chan error, 1)
	go func() { down <- p.Shutdown(b.ctx) }()
	<-outsider.done
	require.ErrorIs(t, outsider.err, lockpool.ErrPoolClosed)
	_, err := idle.Lock(b.ctx, "d")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	_, err = p.Lock(b.ctx, "d")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	_, err = p.Handle(b.ctx)
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	waiting <- nil
	b.queued("b", 2)
	b.unlock(held)
	require.NoError(t, <-done)
	require.NoError(t, <-down)
}

// slowContext is one whose Done returns only when it may.
type slowContext struct {
	context.Context
	asked, answer chan struct{}
}

func (c slowContext) Done() <-chan struct{} {
	close(c.asked)
	<-c.answer
	return c.Context.Done()
}

// Between the end of the last lock and the closing nobody is granted another,
// whose end would be the last once more.
func TestShutdownGrantsNothingAfterTheLastLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	s, held := b.session(p), b.lock(others, "b")
	l, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	w := b.waitFor(s.Lock, "b", 2)
	ctx := slowContext{b.ctx, make(chan struct{}), make(chan struct{})}
	down := make(chan error, 1)
	go func() { down <- p.Shutdown(ctx) }()
	<-ctx.asked
	b.unlock(l) // the last
	b.unlock(held)
	<-w.done
	require.ErrorIs(t, w.err, lockpool.ErrPoolClosed)
	require.Zero(t, p.Stats().Held)
	close(ctx.answer)
	require.NoError(t, <-down)
}
