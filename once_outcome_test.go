package lockpool_test

// This file tests runs whose recording is late, lost or refused.

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

// finishing calls Once for the key 1 with a pool of its own, and calls when before the
// server sees the transaction that records the run.
func finishing(b *locktest.Bench, ctx context.Context, when func(zktest.Request)) error {
	server := b.Server.(*zktest.Server)
	cfg := b.Config()
	cfg.Servers, cfg.SessionTimeout, cfg.Dial = server.Members(), 8*time.Second, server.DialFrom("10.0.0.1")
	p := b.PoolWith(cfg)
	return p.Once(ctx, "a", "1", func(ctx context.Context) error {
		require.NoError(b, server.AcceptConnections())
		require.NoError(b, p.Ping(ctx)) // so that the servers have just heard of the session
		server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Where: func(r zktest.Request) bool {
				return slices.ContainsFunc(r.Paths, func(path string) bool { return strings.HasSuffix(path, "/a~1") })
			}},
			Do: zktest.Call(when),
		})
		return nil
	})
}

// A transaction is still on its way to the leader when its session is over for the client.
// The outcome that Once returns stays true.
func TestOutcomeOfATransactionThatIsLate(t *testing.T) {
	locktest.Once(t)
	for name, reconnects := range map[string]bool{"the session moves to another server": true, "the session is over": false} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				others := b.Pool()
				require.NoError(t, others.Once(b.Ctx, "a", "0", func(context.Context) error { return nil }))
				slow := 2 // a follower, and not the server of the other pool
				if slow == server.Leader() {
					slow = 3
				}
				require.NoError(t, server.RefuseConnections(1, 5-slow)) // for a moment
				err := finishing(b, b.Ctx, func(r zktest.Request) {
					if r.Member != slow {
						t.Error("the transaction is not on its way to the leader")
					}
					_ = server.RefuseConnections(slow)
					_ = server.SlowMember(slow, 7900*time.Millisecond) // the lease has ended by then, but not the session
					if !reconnects {
						server.Inject(zktest.Rule{
							Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}, Where: func(c zktest.Request) bool { return c.Session == r.Session }},
							Times: zktest.Always, Do: zktest.DropBeforeApply(),
						})
					}
				})
				if reconnects {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, lockpool.ErrLockLost)
					require.ErrorContains(t, err, "the run was not recorded as finished")
				}
				time.Sleep(10 * time.Second) // the transaction has arrived
				runs, err := others.Finished(context.Background(), "a")
				require.NoError(t, err)
				require.Equal(t, reconnects, len(runs) == 2)
				require.NoError(t, server.SlowMember(slow, 0))
				require.NoError(t, server.AcceptConnections())
			}, zktest.Members(3), zktest.TickTime(2*time.Second))
		})
	}
}

// No server answers any more.
func TestOutcomeThatIsNotKnown(t *testing.T) {
	locktest.Once(t)
	for name, c := range map[string]struct {
		silent zktest.Direction
		ends   time.Duration // the call's context: before or after the session
	}{"carried out": {zktest.Outbound, 20 * time.Second}, "perhaps not": {zktest.Both, 20 * time.Second}, "on a session that lives": {zktest.Outbound, 0}} {
		t.Run(name, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				ctx, cancel := context.WithCancel(context.Background())
				began := time.Now()
				err := finishing(b, ctx, func(zktest.Request) {
					server.Partition(zktest.Selector{Host: "10.0.0.1"}, c.silent)
					time.AfterFunc(c.ends, cancel)
				})
				require.ErrorIs(t, err, lockpool.ErrLockLost)
				require.ErrorIs(t, err, driver.ErrUndecided)
				require.ErrorContains(t, err, "it is not known whether the run was recorded as finished")
				require.WithinDuration(t, began.Add(c.ends+5*time.Second), time.Now(), time.Second)
				server.Heal()
			})
		})
	}
}

// A run under another lock, whose loss ends the context of Once, waits 5 s longer than that.
func TestOutcomeThatIsNotKnownUnderALostLock(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		lost := make(chan time.Time, 1)
		var returned time.Time
		err := p.Do(context.Background(), "outer", func(ctx context.Context) error {
			context.AfterFunc(ctx, func() { lost <- time.Now() })
			err := p.Once(ctx, "a", "1", func(context.Context) error {
				server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}}, Do: zktest.Call(func(zktest.Request) {
					server.Partition(zktest.Selector{}, zktest.Outbound)
				})})
				return nil
			})
			returned = time.Now()
			return err
		})
		require.ErrorIs(t, err, lockpool.ErrLockLost)
		require.ErrorIs(t, err, driver.ErrUndecided)
		require.ErrorContains(t, err, "it is not known whether the run was recorded as finished")
		require.WithinDuration(t, (<-lost).Add(5*time.Second), returned, time.Second)
		server.Heal()
	})
}

// The connection is lost before the function returns, and the transaction is not sent. Then
// there is no doubt, and nobody waits for the service.
func TestOutcomeOfATransactionThatWasNotSent(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		began := time.Now()
		err := p.Once(context.Background(), "a", "1", func(context.Context) error {
			require.NoError(t, server.RefuseConnections())
			server.Cut(zktest.Selector{})
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		require.ErrorIs(t, err, lockpool.ErrLockLost)
		require.ErrorContains(t, err, "the run was not recorded as finished")
		require.Less(t, time.Since(began), 6*time.Second)
		require.NoError(t, server.AcceptConnections())
		n := 0
		require.NoError(t, p.Once(b.Ctx, "a", "1", plays.Count(&n)))
		require.Equal(t, 1, n)
	})
}

// The pool is closed while a run is recorded.
func TestOutcomeWhenThePoolIsClosed(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p, others := b.Pool(), b.Pool()
		closed := make(chan error, 1)
		err := p.Once(b.Ctx, "a", "1", func(context.Context) error {
			server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}}, Do: zktest.DelayReply(100 * time.Millisecond)})
			time.AfterFunc(50*time.Millisecond, func() { closed <- p.Close() })
			return nil
		})
		require.NoError(t, err, "the answer still comes")
		require.NoError(t, <-closed)
		plays.IsDone(t, others.Once(b.Ctx, "a", "1", plays.Never(t)), "a", "1")
	})
}

// A missing right is named, and the lock is given back.
func TestRunThatMayNotBeRecorded(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	b.Restrict("/.done")
	p := b.Pool()
	n := 0
	for range 2 {
		err := p.Once(b.Ctx, "a", "1", plays.Count(&n))
		require.ErrorIs(t, err, lockpool.ErrNoPermission)
		require.ErrorContains(t, err, "needs the right CREATE on "+b.Chroot+"/.done")
		require.False(t, errors.Is(err, lockpool.ErrLockLost))
		b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "the lock is free")
	}
	require.Equal(t, 2, n)
}

// The connection of a waiter breaks between its grant, which an event has told, and its look
// for a record, and the only server that it reaches is behind.
func TestRunIsSeenOnAServerThatIsBehind(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		cfg, waiter := b.Config(), zktest.Selector{}
		cfg.Servers, cfg.Dial = server.Members(), server.DialFrom("10.0.0.2")
		p, others := b.Pool(), b.PoolWith(cfg)
		inside, finish, ran, waited := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan error, 1)
		go func() { // ends with the run
			ran <- p.Once(b.Ctx, "a", "1", func(context.Context) error { close(inside); <-finish; return nil })
		}()
		<-inside
		go func() { waited <- others.Once(b.Ctx, "a", "1", plays.Never(t)) }() // ends when the other run has finished
		synctest.Wait()
		behind, used := 0, map[int]bool{server.Leader(): true}
		for _, c := range server.State().Conns {
			used[c.Member] = true
			if strings.HasPrefix(c.Addr, "10.0.0.2:") {
				waiter.Session = c.Session
			}
		}
		for member := 1; member <= 5; member++ {
			if behind != 0 || used[member] {
				require.NoError(t, server.RefuseConnections(member))
			} else {
				behind = member
				require.NoError(t, server.Lag(member))
			}
		}
		server.Inject(zktest.Rule{Match: zktest.Match{Selector: waiter, Ops: []zktest.Op{zktest.OpGetData}, Prefix: b.Chroot + "/.done"}, Do: zktest.ResetBeforeApply()})
		close(finish)
		require.NoError(t, <-ran)
		plays.IsDone(t, <-waited, "a", "1")
		require.NoError(t, server.AcceptConnections())
	}, zktest.Members(5))
}
