package lockpool_test

// This file tests what a session costs while nothing depends on it, and the first lock after
// that.

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A session on which nothing is held or awaited sends a sync after 0.28 of the session timeout,
// and nothing else; every other session sends writes, too.
func TestIdleSessionSendsFewRequests(t *testing.T) {
	locktest.Once(t)
	const timeout = 4 * time.Second
	for name, use := range map[string]func(b *locktest.Bench, p, other *lockpool.Pool) (idle bool){
		"read now and then": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			go func() { // ends with the test
				for {
					if _, err := p.Queue(b.Ctx, "a"); err != nil {
						return
					}
					time.Sleep(timeout / 4)
				}
			}()
			return false
		},
		"on a slow server": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			b.Server.(*zktest.Server).Inject(zktest.Rule{
				Match: zktest.Match{Ops: []zktest.Op{zktest.OpSync}},
				Times: zktest.Always, Do: zktest.DelayReply(timeout / 20),
			})
			return false
		},
		"unused": func(b *locktest.Bench, p, other *lockpool.Pool) bool { return true },
		"used before": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			b.Unlock(b.Lock(p, "a"))
			return true
		},
		"a handle": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			h, err := p.Handle(b.Ctx)
			require.NoError(b, err)
			b.Unlock(b.Lock(h, "a"))
			return true
		},
		"a lock given back": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			for range 3 {
				b.Unlock(b.Lock(p, "a"))
			}
			b.Unlock(b.Lock(other, "a"))
			return true
		},
		"a wait given up": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			b.Lock(other, "a")
			ctx, cancel := context.WithTimeout(b.Ctx, time.Second)
			defer cancel()
			_, err := p.Lock(ctx, "a")
			require.ErrorIs(b, err, context.DeadlineExceeded)
			return true
		},
		"held": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			b.Lock(p, "a")
			return false
		},
		"at rest": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			b.Unlock(b.Lock(p, "a", lockpool.HoldAtLeast(12*timeout)))
			return false
		},
		"waits": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			b.Lock(other, "a")
			b.Enqueue(p, "a", 2)
			return false
		},
		"observes": func(b *locktest.Bench, p, other *lockpool.Pool) bool {
			b.Lock(other, "a")
			go func() { // ends with the test
				for range p.Observe(b.Ctx, "a") {
					time.Sleep(2 * timeout)
				}
			}()
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				b.Ctx = ctx
				p, other := b.PoolWithTimeout(timeout, lockpool.WithKeptLocks(10, time.Hour)), b.PoolWithTimeout(3*timeout)
				require.NoError(t, other.Ping(ctx))
				id := sessionsOf(b, p)[0]
				idle := use(b, p, other)
				time.Sleep(2 * timeout)
				sent := func(ops ...zktest.Op) *zktest.Fault {
					return s.Inject(zktest.Rule{
						Match: zktest.Match{Selector: zktest.Selector{Session: id}, Ops: ops},
						Times: zktest.Always, Do: zktest.Pass(),
					})
				}
				all, syncs, writes := sent(), sent(zktest.OpSync), sent(zktest.OpMulti)
				time.Sleep(10 * timeout)
				if !idle {
					require.InDelta(t, 30, writes.Fired(), 3, "the lease needs writes")
					cancel()
					time.Sleep(3 * timeout) // until nothing rests, and all goroutines have ended
					return
				}
				require.InDelta(t, 36, syncs.Fired(), 1)
				require.Equal(t, syncs.Fired(), all.Fired())
				for _, r := range locktest.Requests(s, func() { b.Unlock(b.Lock(p, "new")) }) {
					require.Contains(t, r.Paths[len(r.Paths)-1], "/new", "The creation of the node is the write that settles the doubt.")
				}
			})
		})
	}
}

// An idle session lives through an outage shorter than the session timeout. After a longer
// outage, or on a machine that was stopped, the next call gets another session.
func TestIdleSessionAfterAnOutage(t *testing.T) {
	locktest.Once(t)
	const timeout = 12 * time.Second
	for _, lasts := range []time.Duration{timeout / 4, timeout / 2, 3 * timeout} {
		t.Run(lasts.String(), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
				b.Ctx = locktest.Timeout(t, time.Hour)
				p := b.PoolWithTimeout(timeout)
				id := sessionsOf(b, p)[0]
				time.Sleep(3 * timeout)
				s.Partition(zktest.Selector{}, zktest.Both)
				time.Sleep(lasts)
				s.Heal()
				time.Sleep(timeout / 4)
				l := b.Lock(p, "a")
				require.Equal(t, lasts < timeout, holderOf(s) == id)
				require.NoError(t, l.Verify(b.Ctx))
				b.Unlock(l)
			})
		})
	}
}

// While no server accepts an idle session, as during an election, the session asks a few times.
// The next call does not wait for the end of a pause. After a short outage, the session is
// connected again before the outage would be reported.
func TestIdleSessionDuringAnElection(t *testing.T) {
	locktest.Once(t)
	const timeout = 12 * time.Second
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		b.Ctx = locktest.Timeout(t, time.Hour)
		p := b.PoolWithTimeout(timeout)
		id := sessionsOf(b, p)[0]
		attempts := zktest.Match{Selector: zktest.Selector{Session: id}, Ops: []zktest.Op{zktest.OpConnect}}
		for range 10 {
			time.Sleep(3 * timeout)
			refused := s.Inject(zktest.Rule{Match: attempts, Times: zktest.Always, Do: zktest.DropBeforeApply()})
			s.Cut(zktest.Selector{})
			time.Sleep(100 * time.Millisecond)
			refused.Remove()
			time.Sleep(700 * time.Millisecond)
			require.True(t, slices.ContainsFunc(s.State().Conns, func(c zktest.Conn) bool { return c.Session == id }))
		}
		for _, lasts := range []time.Duration{timeout / 3, timeout / 2} {
			time.Sleep(3 * timeout)
			refused := s.Inject(zktest.Rule{Match: attempts, Times: zktest.Always, Do: zktest.DropBeforeApply()})
			s.Cut(zktest.Selector{})
			time.Sleep(lasts)
			require.LessOrEqual(t, refused.Fired(), 2+int(lasts/time.Second))
			refused.Remove()
			clock := locktest.StartClock()
			b.Unlock(b.Lock(p, "a"))
			clock.Took(t, 0, 100*time.Millisecond, "the first lock")
		}
	})
}

// A holder whose server falls silent tries the silent server last in each round, while the others
// elect a leader.
func TestHolderOutlivesASilentServerAndAnElection(t *testing.T) {
	locktest.Once(t)
	const timeout = 15 * time.Second
	for i := range 10 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
				b.Ctx = locktest.Timeout(t, time.Hour)
				var silent atomic.Pointer[string]
				cfg := b.Config()
				cfg.Servers, cfg.SessionTimeout = s.Members(), timeout
				cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
					if dead := silent.Load(); dead != nil && *dead == address {
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return s.Dial(ctx, address)
				}
				l := b.Lock(b.PoolWith(cfg), "a")
				time.Sleep(timeout + time.Duration(i)*100*time.Millisecond)
				conns, holder := s.State().Conns, holderOf(s)
				member := conns[slices.IndexFunc(conns, func(c zktest.Conn) bool { return c.Session == holder })].Member
				silent.Store(&s.Members()[member-1])
				s.Partition(zktest.Selector{Member: member}, zktest.Both)
				refused := s.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}}, Times: zktest.Always, Do: zktest.DropBeforeApply()})
				time.Sleep(3500 * time.Millisecond)
				refused.Remove()
				time.Sleep(timeout)
				require.NoError(t, l.Unlock(b.Ctx))
				silent.Store(nil)
				s.Heal()
			}, zktest.Members(3))
		})
	}
}

// The first call after idleness leaves a silent server as soon as any call.
func TestIdleSessionLeavesASilentServer(t *testing.T) {
	locktest.Once(t)
	const timeout = 12 * time.Second
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		b.Ctx = locktest.Timeout(t, time.Hour)
		cfg := b.Config()
		cfg.Servers, cfg.SessionTimeout = s.Members(), timeout
		p := b.PoolWith(cfg)
		id := sessionsOf(b, p)[0]
		time.Sleep(3 * timeout)
		conns := s.State().Conns
		i := slices.IndexFunc(conns, func(c zktest.Conn) bool { return c.Session == id })
		s.Partition(zktest.Selector{Member: conns[i].Member}, zktest.Both)
		clock := locktest.StartClock()
		b.Unlock(b.Lock(p, "a"))
		clock.Took(t, timeout/10, timeout*45/100, "the first lock")
		s.Heal()
		time.Sleep(timeout)
	}, zktest.Members(3))
}

// From the first use after idleness on, proofs are sent as often as ever, and the clock is read:
// a machine that wakes learns of the end of the lease at once.
func TestIdleSessionThatIsUsedAgain(t *testing.T) {
	locktest.Once(t)
	const timeout = 12 * time.Second
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		b.Ctx = locktest.Timeout(t, time.Hour)
		m := b.Machine()
		p := b.PoolWithTimeout(timeout)
		id := sessionsOf(b, p)[0]
		time.Sleep(3 * timeout)
		syncs := s.Inject(zktest.Rule{
			Match: zktest.Match{Selector: zktest.Selector{Session: id}, Ops: []zktest.Op{zktest.OpSync}},
			Times: zktest.Always, Do: zktest.Pass(),
		})
		b.Until(func() bool { return syncs.Fired() == 1 }, "a sync has just been sent, and the next one is not due for a quarter of the timeout")
		l := b.Lock(p, "a")
		time.Sleep(timeout / 4)
		require.GreaterOrEqual(t, syncs.Fired(), 3)
		m.Suspend(timeout)
		time.Sleep(100 * time.Millisecond)
		require.Error(t, l.Context(b.Ctx).Err())
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)

		id = sessionsOf(b, p)[0]
		time.Sleep(3 * timeout)
		m.SetWallClock(time.Hour)
		l = b.Lock(p, "a")
		require.NotEqual(t, id, holderOf(s), "The proofs of the idle session may be older than the clock says.")
		id = holderOf(s)
		b.Unlock(l)

		time.Sleep(3 * timeout)
		m.Suspend(timeout)
		l = b.Lock(p, "a")
		require.NotEqual(t, id, holderOf(s), "The servers may have expired the session.")
		b.Unlock(l)
	})
}

// holderOf returns the session that holds a node.
func holderOf(s *zktest.Server) int64 {
	for _, session := range s.State().Sessions {
		if len(session.Ephemerals) > 0 {
			return session.ID
		}
	}
	return 0
}
