package lockpool_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Scenario 27.
func TestDeadlineEndsAWaitInTime(t *testing.T) { // measures time: not beside others
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	const wait = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(b.ctx, wait)
	defer cancel()
	clock := startClock()
	_, err := p.Lock(ctx, "a")
	clock.took(t, wait-time.Millisecond, wait+200*time.Millisecond, "the wait")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, b.children("a")[0], "the error names who is in the way")
	var lockErr *lockpool.LockError
	require.ErrorAs(t, err, &lockErr)
	require.Equal(t, "a", lockErr.Name)
	require.Equal(t, "timeout", lockErr.ErrorType())
	b.queued("a", 1)
	b.unlock(holder)
}

// Scenario 28. (kazoo begins its timeout anew at every wake-up.)
func TestDeadlineCoversTheWholeWait(t *testing.T) { // measures time: not beside others
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	var ahead []*waiter
	for i := range 5 {
		ahead = append(ahead, b.wait(p, "a", i+2))
	}
	const wait = time.Second
	ctx, cancel := context.WithTimeout(b.ctx, wait)
	defer cancel()
	clock := startClock()
	done := make(chan error)
	go func() {
		_, err := p.Lock(ctx, "a")
		done <- err
	}()
	b.queued("a", 7)
	for i := len(ahead) - 1; i > 0; i-- { // each leaves just before the last one's time is up
		ahead[i].cancel()
		b.queued("a", i+2)
	}
	require.ErrorIs(t, <-done, context.DeadlineExceeded)
	clock.took(t, wait-time.Millisecond, wait+200*time.Millisecond, "the wait")
	b.unlock(holder)
	b.unlock(b.granted(ahead[0]))
}

// Scenario 29.
func TestSilentServerDoesNotHoldUpADeadline(t *testing.T) { // measures time: not beside others
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	b.unlock(b.lock(p, "a"))
	require.NoError(t, own.Pause())
	for range 5 {
		const wait = 100 * time.Millisecond
		ctx, cancel := context.WithTimeout(b.ctx, wait)
		clock := startClock()
		_, err := p.Lock(ctx, "a")
		cancel()
		clock.took(t, wait-time.Millisecond, wait+100*time.Millisecond, "the attempt")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NoError(t, own.Resume())
	b.until(func() bool { return len(b.contenders("/")) == 0 }, "the nodes of abandoned attempts go")
	b.unlock(b.lock(p, "a"))
}

// Scenario 32.
func TestWaiterBehindACancelledWaiterIsGrantedInOrder(t *testing.T) { // measures time: not beside others
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	second, third, fourth := b.wait(p, "a", 2), b.wait(p, "a", 3), b.wait(p, "a", 4)
	queue := b.children("a")

	clock := startClock()
	second.cancel()
	<-second.done
	clock.took(t, 0, 100*time.Millisecond, "giving up")
	require.ErrorIs(t, second.err, context.Canceled)
	b.queued("a", 3)
	b.stillWaits(third)

	b.unlock(holder)
	l := b.granted(third)
	require.Equal(t, queue[2:], b.children("a"))
	b.stillWaits(fourth)
	b.unlock(l)
	b.unlock(b.granted(fourth))
}

// Scenario 33, at any point of the recipe: whatever the server was doing, no
// node, watch or waiter is left.
func TestCancelAtAnyPointLeavesNothing(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	holder := b.lock(p, "held")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				for _, name := range []string{"held", "free"} {
					ctx, cancel := context.WithTimeout(b.ctx, rand.N(3*time.Millisecond))
					l, err := p.Lock(ctx, name)
					cancel()
					switch {
					case err == nil:
						err = l.Unlock(b.ctx)
					case errors.Is(err, context.DeadlineExceeded):
						err = nil
					}
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	b.until(func() bool { return len(b.contenders("/")) == 1 }, "only the holder stays")
	require.LessOrEqual(t, b.watched(own), 1)
	b.unlock(holder)
	b.until(func() bool { return b.watched(own) == 0 }, "no watch stays")
	require.Zero(t, p.Stats().InUse)
}

// Scenario 35.
func TestCancelledLockDoesNotPoisonTheSession(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s := b.session(p)
	mine, err := s.Lock(b.ctx, "mine")
	require.NoError(t, err)
	holder := b.lock(p, "a")
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Millisecond)
	defer cancel()
	_, err = s.Lock(ctx, "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 1, mine.Depth())
	_, err = s.Lock(ctx, "mine")
	require.ErrorIs(t, err, context.DeadlineExceeded, "an ended context is an error also for reentry")
	require.Equal(t, 1, mine.Depth())
	b.unlock(holder)
	for _, name := range []string{"mine", "a", "mine"} {
		_, err = s.Lock(b.ctx, name)
		require.NoError(t, err)
	}
	require.Equal(t, 3, mine.Depth())
	require.NoError(t, s.Close(b.ctx))
}

// Scenario 37. The one watch on the holder's node is shared by all who come
// after, and goes with the holder: ZooKeeper's Go client can not take it back.
func TestTimedOutWaitersLeaveNoWatchOfTheirOwn(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	holder := b.lock(p, "a")
	for range 5 {
		ctx, cancel := context.WithTimeout(b.ctx, 20*time.Millisecond)
		_, err := p.Lock(ctx, "a")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	b.queued("a", 1)
	watched, err := own.Command(b.ctx, "wchp")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(watched, b.chroot), watched)
	require.Contains(t, watched, b.children("a")[0])
	b.unlock(holder)
	b.until(func() bool { return b.stat(own, "zk_watch_count") == 0 }, "the watch goes with the holder")
}

// 2,000 attempts against a held lock leave nothing that grows.
func TestTwoThousandTimeoutsLeaveNothing(t *testing.T) {
	own := zktest.StartReal(t) // in a process of its own, because the heap of this one is measured
	b := newBenchOn(t, own.Addr())
	b.ctx = context.Background() // it takes longer than other tests
	p := b.pool()
	holder := b.lock(p, "a")
	attempt := func() {
		ctx, cancel := context.WithTimeout(b.ctx, 5*time.Millisecond)
		_, err := p.Lock(ctx, "a")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for range 100 {
		attempt()
	}
	before, goroutines := heap(), runtime.NumGoroutine()
	for range 2000 {
		attempt()
	}
	b.queued("a", 1)
	require.LessOrEqual(t, b.stat(own, "zk_watch_count"), 1)
	b.until(func() bool { return runtime.NumGoroutine() <= goroutines }, "goroutines end")
	require.InDelta(t, before, heap(), 200<<10)
	b.unlock(holder)
}

func TestEndedContextDoesNothingAtTheServer(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	cfg := b.config()
	cfg.SessionTimeout = 10 * time.Second
	p := b.poolWith(cfg)
	s := b.session(p)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	before := b.stat(own, "zk_packets_received")
	for range 1000 {
		_, err := s.Lock(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
		_, err = p.TryLock(ctx, "a")
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Less(t, b.stat(own, "zk_packets_received")-before, 20)
	require.NoError(t, s.Close(b.ctx))
}

func TestCauseOfACancelIsInTheError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	reason := errors.New("the request was withdrawn")
	ctx, cancel := context.WithCancelCause(b.ctx)
	done := make(chan error)
	go func() {
		_, err := p.Lock(ctx, "a")
		done <- err
	}()
	b.queued("a", 2)
	cancel(reason)
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, reason)
	b.unlock(holder)
}

// Unlock's context bounds the waiting, never whether the release happens.
func TestUnlockWithAnEndedContextStillUnlocks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	l := b.lock(p, "a")
	w := b.wait(p, "a", 2)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	if err := l.Unlock(ctx); err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Zero(t, l.Depth())
	b.unlock(b.granted(w))
}

func TestUnlockDoesNotHangOnASilentServer(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	l := b.lock(p, "a")
	require.NoError(t, own.Pause())
	ctx, cancel := context.WithTimeout(b.ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, l.Unlock(ctx), context.DeadlineExceeded)
	require.ErrorIs(t, l.Unlock(ctx), lockpool.ErrNotHeld)
	require.NoError(t, own.Resume())
	b.until(func() bool { return len(b.contenders("/")) == 0 }, "it is unlocked in the background")
}

// Now or not at all.
func TestWaitAtMostOfNothingTries(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	nothing := func(context.Context) error { return nil }
	for _, d := range []time.Duration{0, -time.Second} {
		now := lockpool.WaitAtMost(d)
		require.NoError(t, p.Do(b.ctx, "a", nothing, now), "a free lock")
		require.NoError(t, p.Do(b.ctx, "a", nothing, now, lockpool.Shared()))
		require.NoError(t, p.Do(b.ctx, "a/plain", nothing, now, lockpool.Plain()))
		l, err := p.TryLock(b.ctx, "a", now)
		require.NoError(t, err)
		for _, opts := range [][]lockpool.LockOption{{now}, {now, lockpool.Shared()}, {lockpool.Shared(), now}} {
			err = others.Do(b.ctx, "a", nothing, opts...)
			require.ErrorIs(t, err, lockpool.ErrLocked)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		}
		_, err = others.RLock(b.ctx, "a", now)
		require.ErrorIs(t, err, lockpool.ErrLocked)
		b.unlock(l)
	}
	read, err := p.Lock(b.ctx, "a", lockpool.Shared())
	require.NoError(t, err)
	both, err := others.RLock(b.ctx, "a", lockpool.Shared())
	require.NoError(t, err)
	b.unlock(read)
	b.unlock(both)
	_, err = p.TryLock(b.ctx, "a", lockpool.WaitAtMost(time.Second))
	require.ErrorContains(t, err, "leave out WaitAtMost, or use Lock")
	require.Empty(t, b.contenders("/"))
}
