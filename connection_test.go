package lockpool_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

var (
	creates = zktest.Match{Ops: zktest.Creates}
	deletes = zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}
	lists   = zktest.Match{Ops: zktest.Lists}
	pings   = zktest.Match{Ops: []zktest.Op{zktest.OpPing}}

	// cuts are the moments at which a request's connection is lost.
	cuts = map[string]zktest.Action{"before": zktest.DropBeforeApply(), "after": zktest.DropAfterApply()}
)

// Kazoo leaves a contender behind that later holds the lock.
func TestTryLockThatLosesItsConnectionLeavesNoContender(t *testing.T) {
	t.Parallel()
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, proxy := locktest.NewBehindProxy(t)
			holder := b.Lock(b.Pool(), "a")
			p := b.Pool()
			b.Unlock(b.Lock(p, "other")) // connected
			f := proxy.Inject(zktest.Rule{Match: deletes, Do: cut})
			_, err := p.TryLock(b.Ctx, "a")
			require.ErrorIs(t, err, lockpool.ErrLocked)
			require.NoError(t, f.Wait(b.Ctx))
			b.AwaitQueue("a", 1)
			b.Unlock(holder)
			l := b.Lock(p, "a")
			require.Equal(t, 1, p.Stats().OpenSessions)
			b.Unlock(l)
		})
	}
}

// Whether a request or its reply is lost, at any step there is one node while
// the lock is held, and then none.
func TestLockAndUnlockSurviveALostConnection(t *testing.T) {
	t.Parallel()
	for step, match := range map[string]zktest.Match{"create": creates, "list": lists, "delete": deletes} {
		for name, cut := range cuts {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Parallel()
				b, proxy := locktest.NewBehindProxy(t)
				p := b.Pool()
				b.Unlock(b.Lock(p, "a"))
				f := proxy.Inject(zktest.Rule{Match: match, Do: cut})
				l := b.Lock(p, "a")
				require.Len(t, b.Children("a"), 1)
				b.Unlock(l)
				require.NoError(t, f.Wait(b.Ctx))
				require.Empty(t, b.Children("a"))
			})
		}
	}
}

func TestWaiterSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	holder := b.Lock(p, "a")
	w := b.Enqueue(p, "a", 2)
	for range 3 {
		proxy.Cut(zktest.Selector{})
		require.NoError(t, p.Ping(b.Ctx))
	}
	w.StillWaits()
	require.Equal(t, 1, holder.Depth(), "the session survives")
	proxy.Cut(zktest.Selector{}) // once more, so that the deletion is not seen
	b.Unlock(holder)
	b.Unlock(w.Granted())
}

func TestCanceledCreateLeavesNoNode(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		p := b.Pool()
		b.Unlock(b.Lock(p, "a"))
		f := proxy.Inject(zktest.Rule{Match: creates, Do: zktest.HoldReply()})
		ctx, cancel := context.WithCancel(b.Ctx)
		done := make(chan error)
		go func() {
			_, err := p.Lock(ctx, "a")
			done <- err
		}()
		require.NoError(t, f.Wait(b.Ctx))
		clock := locktest.StartClock()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		clock.Took(t, 0, 200*time.Millisecond, "giving up")
		require.Len(t, b.Children("a"), 1, "the server has created it")
		f.Release()
		b.AwaitQueue("a", 0)
	})
}

func TestLocksSurviveAServerRestart(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		p, other := b.PoolWithTimeout(10*time.Second), b.PoolWithTimeout(10*time.Second)
		held := b.Lock(p, "a")
		waiters := []*locktest.Waiter{b.Enqueue(other, "a", 2), b.Enqueue(p, "a", 3)}
		for range 2 {
			require.NoError(t, own.Kill())
			require.NoError(t, own.Start(b.Ctx))
			require.NoError(t, p.Ping(b.Ctx))
			require.NoError(t, other.Ping(b.Ctx))
		}
		require.Equal(t, 1, held.Depth())
		for _, w := range waiters {
			w.StillWaits()
		}
		b.Unlock(held)
		for _, w := range waiters {
			b.Unlock(w.Granted())
		}
	})
}

func TestWaiterQueuesAgainOnANewSession(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		direct := b.Config()
		direct.Servers = []string{b.Server.Addr()}
		holder := b.PoolWith(direct)
		held := b.Lock(holder, "a")
		p := b.PoolWithTimeout(time.Second)
		w := b.Enqueue(p, "a", 2)
		first := b.Children("a")[1]
		require.NoError(t, proxy.RejectConnections())
		proxy.Cut(zktest.Selector{})
		b.AwaitQueue("a", 1) // the server has expired the session
		w.StillWaits()
		require.NoError(t, proxy.AcceptConnections())
		b.Until(func() bool { queue := b.Children("a"); return len(queue) == 2 && queue[1] != first }, "the waiter queues again")
		b.Unlock(held)
		b.Unlock(w.Granted())
	})
}

// Servers count the session timeout from the arrival of a request, not from the
// arrival of the reply at the client.
func TestLateRepliesNeverMakeTwoHolders(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		direct := b.Config()
		direct.Servers = []string{b.Server.Addr()}
		rival := b.PoolWith(direct)
		cfg := b.Config()
		cfg.SessionTimeout = 4 * time.Second
		p := b.PoolWith(cfg)
		held := b.Lock(p, "a")
		ctx := held.Context(b.Ctx)
		w := b.Enqueue(rival, "a", 2)

		// A delay that a lease survives: a session leaves a server that is silent for
		// T/4, and the last reply before that may be T/12 old.
		late := zktest.DelayReply(cfg.SessionTimeout / 8)
		lag := []*zktest.Fault{
			proxy.Inject(zktest.Rule{Times: zktest.Always, Do: late}),
			proxy.Inject(zktest.Rule{Match: pings, Times: zktest.Always, Do: late}),
		}
		require.NoError(t, p.Ping(b.Ctx)) // this reply was sent long ago
		proxy.Partition(zktest.Selector{}, zktest.Inbound)
		<-ctx.Done()
		w.StillWaits()
		require.ErrorIs(t, context.Cause(ctx), lockpool.ErrLockLost)
		b.Unlock(w.Granted())
		for _, f := range lag {
			f.Remove()
		}
		proxy.Heal()
	})
}

// A sync or a write that waits delays every later reply of its connection. A
// server that answers slowly must not cost a holder its lock: neither if every
// answer takes a tenth of the timeout, nor if one takes a quarter of it.
func TestSlowServerCostsNoLock(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b, proxy := locktest.NewBehindProxy(t)
		cfg := b.Config()
		cfg.SessionTimeout = 4 * time.Second
		p := b.PoolWith(cfg)
		l := b.Lock(p, "a")
		proofs := zktest.Match{Ops: []zktest.Op{zktest.OpSync, zktest.OpMulti}}
		halt := proxy.Inject(zktest.Rule{Match: proofs, Skip: 4, Do: zktest.DelayReply(cfg.SessionTimeout / 4)})
		slow := proxy.Inject(zktest.Rule{Match: proofs, Skip: 6, Times: zktest.Always, Do: zktest.DelayReply(cfg.SessionTimeout / 10)})
		b.Until(func() bool {
			require.Equal(t, 1, l.Depth(), "%v", context.Cause(l.Context(b.Ctx)))
			return slow.Fired() >= 12
		}, "twelve slow answers")
		require.Equal(t, 1, halt.Fired())
		slow.Remove()
		b.Unlock(l)
	})
}

// While the service is silent, every call that was to get a lock says that the service is
// unavailable, and not that another holder has the lock.
func TestErrorsOfASilentService(t *testing.T) {
	locktest.Once(t)
	const wait = 6 * time.Second // longer than it takes to leave a silent server
	for name, silent := range map[string]bool{"before the session": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			locktest.Bubble(t, func(t *testing.T) {
				b := locktest.New(t)
				p, s := b.PoolWithTimeout(20*time.Second), b.Server.(*zktest.Server)
				if !silent {
					b.Lock(b.PoolWithTimeout(time.Minute), "a")
					b.Unlock(b.Lock(p, "other"))
				}
				never := func(context.Context) error { require.FailNow(t, "called"); return nil }
				calls := map[string]func(ctx context.Context, opts ...lockpool.LockOption) error{
					"Do":    func(ctx context.Context, opts ...lockpool.LockOption) error { return p.Do(ctx, "a", never, opts...) },
					"Local": func(ctx context.Context, opts ...lockpool.LockOption) error { return p.Do(ctx, "a", never, opts...) },
					"Plain": func(ctx context.Context, opts ...lockpool.LockOption) error {
						return p.Do(ctx, "p", never, append(opts, lockpool.Plain())...)
					},
					"Acquire": func(ctx context.Context, opts ...lockpool.LockOption) error {
						return p.Semaphore("s", 1).Do(ctx, 1, never, opts...)
					},
					"LockAll": func(ctx context.Context, opts ...lockpool.LockOption) error {
						_, err := p.LockAll(ctx, []string{"b", "c"}, opts...)
						return err
					},
					"Once": func(ctx context.Context, opts ...lockpool.LockOption) error {
						return p.Once(ctx, "job", "1", never, opts...)
					},
				}
				var all sync.WaitGroup
				begin := func(what string) {
					all.Go(func() {
						err := calls[what](b.Ctx, lockpool.WaitAtMost(wait))
						require.ErrorIs(t, err, lockpool.ErrUnavailable, what)
						require.ErrorIs(t, err, lockpool.ErrNotAcquired, what)
						require.ErrorIs(t, err, context.DeadlineExceeded, what)
						require.NotErrorIs(t, err, lockpool.ErrLocked, what)
					})
				}
				if !silent {
					begin("Do") // both wait for the holder
					begin("Local")
					synctest.Wait()
				}
				s.Partition(zktest.Selector{}, zktest.Both)
				for what := range calls {
					begin(what)
				}
				all.Wait()
				s.Heal()
			})
		})
	}
}
