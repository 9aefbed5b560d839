package lockpool_test

// This file tests rests.

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
)

// A short rest is only a pause between two turns: the lock is passed on in memory.
func TestHoldAtLeastDelaysTheNextTurn(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		const d = 50 * time.Millisecond
		l := b.Lock(p, "a", lockpool.HoldAtLeast(d))
		granted := time.Now()
		w := b.StartLock(p, "a")
		synctest.Wait()
		b.Unlock(l)
		synctest.Wait()
		w.StillWaits()
		require.Equal(t, 1, p.Stats().Resting)
		next := w.Granted()
		require.Equal(t, d, time.Since(granted))
		require.EqualValues(t, 1, p.Stats().LocalTurns)
		b.Unlock(next)
		require.Empty(t, b.Children("a"))
	})
}

// Readers share the lock that another one has left, as if that still read.
func TestHoldAtLeastOfAReaderIsSharedByReaders(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		const d = time.Second
		granted := time.Now()
		first, second := b.Lock(p, "a", lockpool.Shared()), b.Lock(p, "a", lockpool.Shared(), lockpool.HoldAtLeast(d))
		require.Len(t, b.Children("a"), 1, "they share a node")
		b.Unlock(second)
		b.Unlock(b.Lock(p, "a", lockpool.Shared()))
		b.Unlock(b.Lock(b.Pool(), "a", lockpool.Shared()))
		require.Zero(t, p.Stats().Resting, "a reader has the lock")
		require.Equal(t, 1, p.Stats().Held)
		b.Unlock(first)
		require.Equal(t, 1, p.Stats().Resting)
		third := b.Lock(p, "a", lockpool.Shared())
		require.Zero(t, p.Stats().Resting)
		b.Unlock(third)
		b.Unlock(b.Lock(b.Pool(), "a"))
		require.Equal(t, d, time.Since(granted))
		require.Zero(t, p.Stats().Resting)

		first, second = b.Lock(p, "a", lockpool.Shared()), b.Lock(p, "a", lockpool.Shared(), lockpool.HoldAtLeast(d))
		b.Unlock(second)
		time.Sleep(2 * d) // the other one reads for longer
		require.Zero(t, p.Stats().Resting)
		w := b.Enqueue(b.Pool(), "a", 2)
		w.StillWaits()
		b.Unlock(first)
		b.Unlock(w.Granted())
	})
}

// A rest ends with the node, and for nobody: the next in the queue has the lock.
func TestRestEndsWithItsNode(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		p, others := b.Pool(), b.Pool()
		option := lockpool.HoldAtLeast(time.Hour)
		h := b.Handle(p)
		l := b.Lock(h, "a", option)
		lost := l.Lost()
		b.Unlock(l)
		w := b.StartLock(p, "a")
		b.AwaitWaiting(p, 1)
		b.Until(func() bool { return b.WatchedIn("a") > 0 }, "the node is watched")
		queue, err := p.Queue(b.Ctx, "a")
		require.NoError(t, err)
		require.NoError(t, others.Break(b.Ctx, "a", queue.Contenders[0].Node))
		b.Unlock(w.Granted())
		// The waiter and the one who had the lock learn of it by watches of their own.
		b.Until(func() bool { return p.Stats().Resting == 0 }, "the rest has ended")
		require.False(t, plays.Closed(lost), "it was unlocked")

		// What is left of a contender goes with it.
		permits, err := p.Semaphore("s", 3).Acquire(b.Ctx, 2, option)
		require.NoError(t, err)
		_, err = permits.Token(b.Ctx) // so that the node is watched
		require.NoError(t, err)
		b.Unlock(permits)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/s/leases/"+b.Children("s/leases")[0], -1))
		b.Unlock(b.Acquire(others.Semaphore("s", 3), 3))
		require.Zero(t, p.Stats().Resting)

		// Of a lock that was lost before Unlock, nothing rests.
		l = b.Lock(p, "d", option)
		b.Token(l)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/d/"+b.Children("d")[0], -1))
		b.AwaitLoss(l)
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
		require.Zero(t, p.Stats().Resting)

		// The timer of a rest that has ended keeps nothing.
		handle := func() weak.Pointer[lockpool.Handle] {
			h, err := p.Handle(b.Ctx)
			require.NoError(t, err)
			b.Unlock(b.Lock(h, "e", option))
			require.NoError(t, h.Close(b.Ctx))
			return weak.Make(h)
		}()
		require.NoError(t, b.Admin.Delete(b.Chroot+"/e/"+b.Children("e")[0], -1))
		b.Until(func() bool { return p.Stats().Resting == 0 }, "the rest has ended")
		b.Until(func() bool {
			runtime.GC()
			return handle.Value() == nil
		}, "the handle is garbage")
	})
}

// The pool forgets a rest whose session is over.
func TestRestEndsWithItsSession(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		p := b.PoolWithTimeout(6 * time.Second)
		b.Unlock(b.Lock(p, "a", lockpool.HoldAtLeast(time.Hour)))
		w := b.StartLock(p, "a")
		b.AwaitWaiting(p, 1)
		require.NoError(t, own.Pause())
		b.Until(func() bool { return p.Stats().Resting == 0 }, "the session is over")
		w.StillWaits()
		require.NoError(t, own.Resume())
		b.Unlock(w.Granted())
	})
}

// A session with a node that cannot be removed is closed when nothing is held on it; a
// lock that rests is.
func TestRestKeepsItsSession(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(lockpool.WithMaxSessions(1))
		granted := time.Now()
		const d = 5 * time.Second
		rests := b.Lock(p, "rests", lockpool.HoldAtLeast(d))
		b.Restrict("/a", zk.PermRead|zk.PermCreate)
		require.ErrorIs(t, b.Lock(p, "a").Unlock(b.Ctx), lockpool.ErrNoPermission)
		synctest.Wait() // until the pool has heard of it
		b.Unlock(rests)
		b.Unlock(b.Lock(b.Pool(), "rests"))
		require.Equal(t, d, time.Since(granted))
		b.AwaitQueue("a", 0)
	})
}

// A rest is not revoked: it has no holder who could give it up.
func TestRevokeEndsNoRest(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool()
		granted := time.Now()
		err := p.Do(b.Ctx, "a", func(ctx context.Context) error {
			require.NoError(t, p.Revoke(ctx, "a"))
			<-ctx.Done()
			return ctx.Err()
		}, lockpool.Revocable(), lockpool.HoldAtLeast(time.Second))
		require.ErrorIs(t, err, lockpool.ErrRevoked)
		require.NoError(t, p.Revoke(b.Ctx, "a"))
		b.Unlock(b.Lock(p, "a"))
		require.Equal(t, time.Second, time.Since(granted).Truncate(20*time.Millisecond))
	})
}

// A goroutine that waits for a rest of its own handle does not wait for itself.
func TestWaitForARestIsNoSelfDeadlock(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		logged := new(locktest.Log)
		p := b.Pool(lockpool.WithLogger(slog.New(slog.NewTextHandler(logged, nil))))
		h := b.Handle(p)
		require.NoError(t, h.Do(b.Ctx, "other", func(ctx context.Context) error {
			b.Unlock(b.Lock(h, "a", lockpool.HoldAtLeast(time.Second)))
			return <-startLock(ctx, p)
		}))
		require.Empty(t, logged.String())
	})
}

// gate is a parent of a lock's context. When it is armed, it keeps the first call that
// asks for Done, which Unlock does before the lock leaves its handle.
type gate struct {
	context.Context
	armed          atomic.Bool
	entered, leave chan struct{}
}

func (g *gate) Done() <-chan struct{} {
	if g.armed.CompareAndSwap(true, false) {
		close(g.entered)
		<-g.leave
	}
	return nil
}

// A rest does not begin after what would have ended it, though the Unlock came first, and a
// reader leaves the lock to no rest that has ended.
func TestUnlockBesideTheEndLeavesNoRest(t *testing.T) {
	rests := lockpool.HoldAtLeast(time.Hour)
	for end, opts := range map[string][]lockpool.LockOption{
		"pool": {rests}, "node": {rests}, "node of readers": {lockpool.Shared()},
	} {
		t.Run(end, func(t *testing.T) {
			locktest.Bubble(t, func(t *testing.T) {
				b := locktest.New(t)
				p := b.Pool()
				l := b.Lock(b.Handle(p), "a", opts...)
				if end == "node of readers" {
					b.Unlock(b.Lock(p, "a", lockpool.Shared(), rests))
				}
				time.Sleep(30 * time.Millisecond) // so that the node is watched
				g := &gate{Context: b.Ctx, entered: make(chan struct{}), leave: make(chan struct{})}
				ctx := l.Context(g)
				g.armed.Store(true)
				unlocked := make(chan error)
				go func() { unlocked <- l.Unlock(b.Ctx) }()
				<-g.entered
				if end == "pool" {
					_ = p.Close()
				} else {
					require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1))
				}
				synctest.Wait()
				close(g.leave)
				switch err := <-unlocked; {
				case end == "node of readers":
					require.ErrorIs(t, err, lockpool.ErrLockLost)
				case end == "node" && err != nil:
					require.ErrorIs(t, err, lockpool.ErrLockLost)
				}
				<-ctx.Done()
				require.Zero(t, p.Stats().Resting)
				require.Empty(t, b.Children("a"))
			})
		})
	}
}
