package lockpool_test

// This file tests the end of outages.

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A call that ends while the service has not answered was kept from the lock by a contender
// that the call knew of.
func TestWaitWithoutAnAnswerIsForTheLock(t *testing.T) {
	locktest.Once(t)
	for name, c := range map[string]struct {
		unanswered zktest.Op
		local      bool // the holder is of the same pool
		released   bool // during the wait, so that the call tries again
		opts       []lockpool.LockOption
	}{
		"the watch":          {unanswered: zktest.OpGetData},
		"the next try":       {unanswered: zktest.OpCreate, released: true, opts: []lockpool.LockOption{lockpool.Plain()}},
		"the wait was local": {unanswered: zktest.OpCreate, local: true},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				holders, p := b.Pool(), b.Pool()
				if c.local {
					p = holders
				}
				held := b.Lock(holders, "a", c.opts...)
				require.NoError(t, p.Ping(b.Ctx))
				delayed := zktest.Rule{
					Match: zktest.Match{Ops: []zktest.Op{c.unanswered}, Prefix: b.Chroot + "/a"}, Do: zktest.DelayReply(time.Second),
				}
				if c.released {
					delayed.Skip = 1
					time.AfterFunc(50*time.Millisecond, func() { b.Unlock(held) })
				}
				fault := server.Inject(delayed)
				_, err := p.Lock(b.Ctx, "a", append(c.opts, lockpool.WaitAtMost(150*time.Millisecond))...)
				require.ErrorIs(t, err, lockpool.ErrLocked)
				require.NotErrorIs(t, err, lockpool.ErrUnavailable)
				require.ErrorContains(t, err, "no answer")
				require.Equal(t, 1, fault.Fired())
			})
		})
	}
}

// A process that has lost its sessions to an outage does not wait for the servers to expire
// them, though they may do so long after the outage.
func TestOwnLocksAreFreeSoonAfterAnOutage(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		for name, outage := range map[string]struct {
			begin, end func(locktest.Server, *locktest.Bench) error
		}{
			"restart": {
				func(s locktest.Server, _ *locktest.Bench) error { return s.Kill() },
				func(s locktest.Server, b *locktest.Bench) error { return s.Start(b.Ctx) },
			},
			"pause": {
				func(s locktest.Server, _ *locktest.Bench) error { return s.Pause() },
				func(s locktest.Server, _ *locktest.Bench) error { return s.Resume() },
			},
		} {
			if name == "restart" && locktest.Embedded() {
				continue // the test's own client would not let a bubble's time pass
			}
			own := locktest.StartServer(t)
			b := locktest.NewOn(t, own)
			p := b.PoolWithTimeout(timeout, lockpool.WithMaxSessions(1))
			held, plain := b.Lock(p, "queue"), b.Lock(p, "plain", lockpool.Plain())
			require.NoError(t, outage.begin(own, b))
			b.AwaitLoss(held)
			b.AwaitLoss(plain)
			require.ErrorIs(t, errors.Join(held.Unlock(b.Ctx), plain.Unlock(b.Ctx)), lockpool.ErrLockLost)
			again, plainly := b.StartLock(p, "queue"), b.StartLock(p, "plain", lockpool.Plain())
			time.Sleep(timeout / 20) // the servers cannot have expired the session by themselves
			require.NoError(t, outage.end(own, b))
			require.NoError(t, p.Ping(b.Ctx))
			clock := locktest.StartClock()
			began := time.Now()
			b.Unlock(again.Granted())
			b.Unlock(plainly.Granted())
			t.Logf("%s: %v after the first answer", name, time.Since(began))
			clock.Took(t, 0, timeout/2, "the locks of the session that was lost: "+name)
		}
	})
}

// The place of a call that has returned during an outage goes with the first answers after
// it, whatever the call was doing, and so does what was unlocked meanwhile.
func TestNoPlaceOfAnAbandonedCallSurvivesTheNextContact(t *testing.T) {
	outages := map[string]struct{ begin, end func(*zktest.Proxy) error }{
		"silence": {
			func(p *zktest.Proxy) error { p.Partition(zktest.Selector{}, zktest.Both); return nil },
			func(p *zktest.Proxy) error { p.Heal(); return nil },
		},
		"lost replies": {
			func(p *zktest.Proxy) error { p.Partition(zktest.Selector{}, zktest.Inbound); return nil },
			func(p *zktest.Proxy) error { p.Heal(); return nil },
		},
		"no connection": {
			func(p *zktest.Proxy) error { defer p.Cut(zktest.Selector{}); return p.RejectConnections() },
			func(p *zktest.Proxy) error { return p.AcceptConnections() },
		},
	}
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			locktest.Slow(t, func(t *testing.T) {
				b, proxy := locktest.NewBehindProxy(t)
				direct := b.Config()
				direct.Servers = []string{b.Server.Addr()}
				others := b.PoolWith(direct)
				p := b.PoolWithTimeout(20*time.Second, lockpool.WithMaxSessions(1))
				var held []*lockpool.Lock
				for _, name := range []string{"queue", "read", "nested"} {
					held = append(held, b.Lock(others, name))
				}
				plain, permits := b.Lock(others, "plain", lockpool.Plain()), b.Acquire(others.Semaphore("permits", 1), 1)
				mine, h := b.Lock(p, "mine"), b.Handle(p)
				b.Lock(h, "outer")
				b.Acquire(p.Semaphore("own", 2), 1)

				ctx, cancel := context.WithCancel(b.Ctx)
				var calls sync.WaitGroup
				ask := func() {
					for _, call := range []func() error{
						func() error { _, err := p.Lock(ctx, "queue"); return err },
						func() error { _, err := p.Lock(ctx, "read", lockpool.Shared()); return err },
						func() error { _, err := p.Lock(ctx, "plain", lockpool.Plain()); return err },
						func() error { _, err := p.Semaphore("permits", 1).Acquire(ctx, 1); return err },
						func() error { _, err := p.Semaphore("own", 2).Acquire(ctx, 2); return err },
					} {
						calls.Go(func() { _ = call() })
					}
				}
				ask()
				calls.Go(func() { _, _ = h.Lock(ctx, "plain", lockpool.Plain()) })
				b.Until(func() bool { return len(b.Contenders("/.waits")) == 1 }, "the nested call has looked")
				require.NoError(t, outage.begin(proxy))
				ask()
				calls.Go(func() { _, _ = p.Lock(ctx, "free") })
				calls.Go(func() { _, _ = p.Lock(ctx, "new/plain", lockpool.Plain()) })
				calls.Go(func() { _, _ = p.Semaphore("new", 1).Acquire(ctx, 1) })
				calls.Go(func() { _ = mine.Unlock(ctx) })
				time.Sleep(time.Second)
				cancel()
				calls.Wait()
				_ = h.Close(ctx)
				require.NoError(t, outage.end(proxy))
				require.NoError(t, p.Ping(b.Ctx))
				clock := locktest.StartClock()
				kept := len(held) + 3 // the plain lock, and the permits of others and of p
				b.Until(func() bool { return len(b.Contenders("/")) <= kept }, "the others are gone")
				require.Len(t, b.Contenders("/"), kept)
				clock.Took(t, 0, 3*time.Second, "after the next contact")
				for _, l := range append(held, plain) {
					b.Unlock(l)
				}
				b.Unlock(permits)
			})
		})
	}
}
