package zookeeper_test

// This file tests leases with the answers of an ensemble, on embedded servers, which answer as
// the tests say.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// holderSession returns a session that holds a node.
func holderSession(t *testing.T, s *zktest.Server) zktest.Session {
	for _, session := range s.State().Sessions {
		if len(session.Ephemerals) > 0 {
			return session
		}
	}
	require.FailNow(t, "no session holds a node")
	return zktest.Session{}
}

// failProofs makes every proof of the session's lease fail, as on a follower that has
// lost its leader.
func failProofs(t *testing.T, s *zktest.Server) {
	s.Inject(zktest.Rule{
		Match: zktest.Match{Selector: zktest.Selector{Session: holderSession(t, s).ID}, Ops: []zktest.Op{zktest.OpSync, zktest.OpMulti}},
		Times: zktest.Always, Do: zktest.FailWith(zktest.ErrThrottled),
	})
}

// The timeout that the server grants counts, from the first moment on.
func TestLeaseOfANewSessionEndsBeforeTheSession(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		const granted = 2 * time.Second
		for _, asked := range []time.Duration{granted, 10 * granted} {
			b, s := locktest.NewEmbedded(t, zktest.TickTime(granted/2), zktest.SessionTimeouts(granted, granted))
			p := b.PoolWithTimeout(asked)
			clock := locktest.StartClock()
			l := b.Lock(p, "a")
			failProofs(t, s)
			b.AwaitLoss(l)
			clock.Took(t, granted*8/10, granted*97/100, "the lease of a new session")
			require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
			b.AwaitQueue("a", 0)
		}
	})
}

// With enableEagerACLCheck a server refuses a request by itself, which proves
// nothing about its leader.
func TestErrorOfOneServerProlongsNoLease(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		cfg := b.Config()
		cfg.SessionTimeout = 2 * time.Second
		p := b.PoolWith(cfg, lockpool.WithMaxSessions(1))
		b.Unlock(b.Lock(p, "forbidden"))
		l := b.Lock(p, "a")
		s.Inject(zktest.Rule{
			Match: zktest.Match{Ops: zktest.Creates, Prefix: b.Chroot + "/forbidden"},
			Times: zktest.Always, Do: zktest.FailWith(zktest.ErrNoAuth),
		})
		failProofs(t, s)
		begun := time.Now()
		b.Until(func() bool {
			_, err := p.TryLock(b.Ctx, "forbidden")
			require.ErrorIs(t, err, lockpool.ErrNoPermission)
			return l.Depth() == 0
		}, "the lease has ended")
		require.Less(t, time.Since(begun), 2*cfg.SessionTimeout)
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost)
		b.AwaitQueue("a", 0)
	})
}

// A session leaves a silent server early enough to reach another.
func TestSilentServerIsLeftForAnother(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		cfg := b.Config()
		cfg.Servers, cfg.SessionTimeout = s.Members(), 6*time.Second
		p := b.PoolWith(cfg)
		l := b.Lock(p, "a")
		for range 2 {
			session := holderSession(t, s)
			member := 0
			for _, c := range s.State().Conns {
				if c.Session == session.ID {
					member = c.Member
				}
			}
			s.Partition(zktest.Selector{Member: member}, zktest.Both)
			require.NoError(t, s.WaitFor(b.Ctx, func(state *zktest.State) bool {
				for _, c := range state.Conns {
					if c.Session == session.ID && c.Member != member {
						return true
					}
				}
				return l.Depth() == 0
			}))
			require.Equal(t, 1, l.Depth())
			require.NoError(t, l.Verify(b.Ctx))
			s.Heal()
			proofs := s.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpSync}}, Times: zktest.Always, Do: zktest.Pass()})
			b.Until(func() bool { return proofs.Fired() >= 5 }, "the lease is at its full length")
			proofs.Remove()
		}
		b.Unlock(l)
	}, zktest.Members(3))
}

// Holders who were told that the lease has ended have the twentieth of the session timeout
// that it ends before the session. Only then do others get the locks, though the servers
// answer again, and then at once.
func TestLostSessionIsClosedWhenServersMightHaveExpiredIt(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		const timeout, margin, soon = 10 * time.Second, 500 * time.Millisecond, 200 * time.Millisecond
		s := zktest.StartBubble(t)
		c := connector(t, zookeeper.Config{Servers: s.Members(), Dial: s.Dial, SessionTimeout: timeout})
		session, err := c.Connect(t.Context())
		require.NoError(t, err)
		joined, err := session.Join(t.Context(), "a", driver.Request{Kind: driver.Exclusive})
		require.NoError(t, err)
		exists := func() bool { _, ok := s.State().Nodes["/a/"+joined.Node.Name]; return ok }
		time.Sleep(2 * timeout)
		s.Partition(zktest.Selector{}, zktest.Both)
		<-session.Done()
		s.Heal()
		closed := make(chan error, 1)
		go func() { closed <- session.Close(t.Context()) }() // ends with the test
		time.Sleep(margin - time.Millisecond)
		require.True(t, exists())
		time.Sleep(soon)
		require.False(t, exists())
		require.NoError(t, <-closed)
	})
}
