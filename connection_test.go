package lockpool_test

// This file tests locks on slow, silent and restarted servers.

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Tokens grow with each restart, and when the sequence of a queue starts again.
func TestLocksSurviveAServerRestart(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t, zktest.ContainerInterval(time.Hour)) // the test removes directories itself
		b := locktest.NewOn(t, own)
		p, other := b.PoolWithTimeout(40*time.Second), b.PoolWithTimeout(40*time.Second)
		last := int64(0)
		use := func(l *lockpool.Lock) {
			token := b.Token(l)
			require.Greater(t, token, last)
			last = token
			b.Unlock(l)
		}
		use(b.Lock(p, "a"))
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
		use(held)
		for _, w := range waiters {
			use(w.Granted())
		}
		for range 3 {
			require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1))
			use(b.Lock(p, "a"))
		}
		require.NoError(t, own.Kill())
		require.NoError(t, own.Start(b.Ctx))
		use(b.Lock(p, "a"))
	})
}

// A sync or a write that waits delays every later reply of its connection. A
// server that answers slowly must not cost a holder its lock: neither if every
// answer takes a tenth of the timeout, nor if one takes a quarter of it.
func TestSlowServerCostsNoLock(t *testing.T) {
	locktest.Once(t) // a real server's own delays would come on top
	locktest.Bubble(t, func(t *testing.T) {
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

// While the service is silent, every call that was to get a lock ends in time, and says that the
// service is unavailable, and not that another holder has the lock. LockAll has a lock already,
// whose release is a part of the wait.
func TestErrorsOfASilentService(t *testing.T) {
	locktest.Once(t)
	const wait = 6 * time.Second // longer than it takes to leave a silent server
	for name, silent := range map[string]bool{"before the session": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
				p := b.PoolWithTimeout(20 * time.Second)
				if !silent {
					others := b.PoolWithTimeout(time.Minute)
					b.Lock(others, "a")
					b.Lock(others, "b")
					b.Unlock(b.Lock(p, "other"))
				}
				never, atMost := plays.Never(t), lockpool.WaitAtMost(wait)
				calls := map[string]func() error{
					"Do":      func() error { return p.Do(b.Ctx, "a", never, atMost) },
					"Local":   func() error { return p.Do(b.Ctx, "a", never, atMost) },
					"Plain":   func() error { return p.Do(b.Ctx, "p", never, atMost, lockpool.Plain()) },
					"Acquire": func() error { return p.Semaphore("s", 1).Do(b.Ctx, 1, never, atMost) },
					"LockAll": func() error { _, err := p.LockAll(b.Ctx, []string{"0", "b"}, atMost); return err },
					"Once":    func() error { return p.Once(b.Ctx, "job", "1", never, atMost) },
				}
				var all sync.WaitGroup
				begin := func(what string) {
					all.Go(func() {
						began := time.Now()
						err := calls[what]()
						require.InDelta(t, wait, time.Since(began), float64(100*time.Millisecond), what)
						require.ErrorIs(t, err, lockpool.ErrUnavailable, what)
						require.ErrorIs(t, err, lockpool.ErrNotAcquired, what)
						require.ErrorIs(t, err, context.DeadlineExceeded, what)
						require.NotErrorIs(t, err, lockpool.ErrLocked, what)
					})
				}
				if !silent {
					begin("Do") // all wait for the holder
					begin("Local")
					begin("LockAll")
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
