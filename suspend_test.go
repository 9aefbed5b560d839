package lockpool_test

// This file tests locks on a machine that is suspended, or whose clock jumps.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestLongSuspensionIsALossOnWaking(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		b := locktest.New(t)
		m := b.Machine()
		p := b.Pool()
		names := []string{"a", "b", "c"} // the servers expire these sessions later, by their own clocks
		for _, name := range names {
			l := b.Lock(p, name)
			clock := locktest.StartClock()
			m.Suspend(b.Config().SessionTimeout)
			err := b.AwaitLoss(l)
			clock.Took(t, 0, 100*time.Millisecond, "telling the holder")
			require.ErrorContains(t, err, "session lost: the machine was suspended for 5s")
		}
		for _, name := range names {
			b.AwaitQueue(name, 0)
		}
	})
}

func TestNothingIsGrantedOnASessionAfterALongSuspension(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		m := b.Machine()
		p := b.Pool(lockpool.WithKeptLocks(0, time.Hour))
		for i := range 10 {
			for p.Stats().Kept == 0 {
				b.Unlock(b.Lock(p, "b"))
			}
			lost := b.Lock(p, fmt.Sprint("a/", i))
			m.Suspend(b.Config().SessionTimeout)
			granted := b.Lock(p, "b")
			require.NoError(t, granted.Verify(b.Ctx), "its session is alive")
			b.AwaitLoss(lost)
			b.Unlock(granted)
		}
		b.Until(func() bool { return len(b.Contenders("/a")) == 0 }, "the sessions have expired")
	})
}

// Neither the holder nor those who wait for it in memory have the lock of a session whose
// time is over.
func TestLongSuspensionEndsATenancy(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		m := b.Machine()
		p := b.Pool()
		lost := b.Lock(p, "a")
		token := b.Token(lost)
		w1, w2 := waitLocally(b, p), waitLocally(b, p)
		m.Suspend(b.Config().SessionTimeout)
		require.ErrorIs(t, lost.Unlock(b.Ctx), lockpool.ErrLockLost)
		for _, w := range []*locktest.Waiter{w1, w2} {
			granted := w.Granted()
			require.NoError(t, granted.Verify(b.Ctx), "its session is alive")
			require.Greater(t, b.Token(granted), token)
			b.Unlock(granted)
		}
	})
}

// waiterInDoubt returns a waiter that is first in the queue of b, but whose session is
// in doubt: the wall clock has jumped, and no write is answered until the fault is
// removed. (Answers to syncs prove nothing, because a leader gives them alone.)
func waiterInDoubt(b *locktest.Bench, proxy *zktest.Proxy, jump time.Duration) (*lockpool.Pool, *locktest.Waiter, *zktest.Fault) {
	others := locktest.NewOn(b, locktest.Shared())
	others.Chroot = b.Chroot
	rival := others.Lock(others.Pool(), "b")
	m := b.Machine()
	p := b.PoolWithTimeout(10 * time.Second)
	w := b.Enqueue(p, "b", 2)
	b.Until(func() bool { return b.WatchedIn("b") >= 2 }, "the waiter watches the queue")
	writes := zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Where: func(r zktest.Request) bool { return len(r.Paths) == 1 && r.Paths[0] == "/" }}
	unproven := proxy.Inject(zktest.Rule{Match: writes, Times: zktest.Always, Do: zktest.FailWith(zktest.ErrThrottled)})
	m.SetWallClock(jump)
	b.Until(func() bool { return unproven.Fired() > 0 }, "a proof is sent at once")
	others.Unlock(rival)
	return p, w, unproven
}

// A jump of the wall clock may mean that the machine was stopped from outside.
func TestClockJumpDelaysGrantsUntilAProofIsAnswered(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, proxy := locktest.NewBehindProxy(t)
			p, w, unproven := waiterInDoubt(b, proxy, jump)
			tries := unproven.Fired()
			b.Until(func() bool { return unproven.Fired() >= tries+3 }, "further proofs are sent")
			w.StillWaits()
			unproven.Remove()
			b.Unlock(w.Granted())
			require.Equal(t, 1, p.Stats().OpenSessions, "a doubt ends no session")
		})
	}
}

func TestContextEndsTheWaitForAProof(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	_, w, _ := waiterInDoubt(b, proxy, time.Hour)
	w.Cancel()
	<-w.Done
	require.ErrorIs(t, w.Err, context.Canceled)
	b.AwaitQueue("b", 0)
}

// keptOn returns a pool that keeps the lock a, and the token of the last turn.
func keptOn(b *locktest.Bench) (p *lockpool.Pool, token int64) {
	p = b.Pool(lockpool.WithKeptLocks(0, time.Hour))
	for range 2 {
		l := b.Lock(p, "a")
		token = b.Token(l)
		b.Unlock(l)
	}
	require.Equal(b, 1, p.Stats().Kept)
	return p, token
}

// A kept lock of a session whose time is over, or may be over, is not taken again.
func TestNoKeptLockIsTakenAfterAStop(t *testing.T) {
	locktest.Once(t)
	for _, reported := range []bool{true, false} {
		t.Run(fmt.Sprint("reported ", reported), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				m := b.Machine()
				p, token := keptOn(b)
				server.Partition(zktest.Selector{}, zktest.Both)
				if reported {
					m.Suspend(b.Config().SessionTimeout)
				} else {
					m.SetWallClock(b.Config().SessionTimeout)
				}
				_, err := p.Lock(locktest.Timeout(t, time.Second), "a")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				server.Heal()
				l := b.Lock(p, "a")
				require.Greater(t, b.Token(l), token)
				b.Unlock(l)
			})
		})
	}
}

// A kept lock is taken after the jump of a wall clock when the service has answered.
func TestClockJumpKeepsTheKeptLock(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, _ *zktest.Server) {
		m := b.Machine()
		p, _ := keptOn(b)
		for range 3 {
			m.SetWallClock(time.Hour)
			l := b.Lock(p, "a")
			require.Zero(t, p.Stats().Kept)
			b.Unlock(l)
			require.Equal(t, 1, p.Stats().Kept)
		}
	})
}

// Whatever releases a lock, and whether or not a server is asked, nil means that the lock was
// held until then. After a stop of the machine that nothing has shown to be shorter than the
// session, no release returns nil.
func TestNoReleaseIsNilAfterAStop(t *testing.T) {
	locktest.Once(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	do := func(opts ...lockpool.LockOption) func(*locktest.Bench, *lockpool.Pool, func()) error {
		return func(b *locktest.Bench, p *lockpool.Pool, stop func()) error {
			ctx, cancel := context.WithCancel(b.Ctx)
			defer cancel()
			return p.Do(ctx, "a", func(context.Context) error { stop(); cancel(); return nil }, opts...)
		}
	}
	unlock := func(ctx context.Context, waits bool) func(*locktest.Bench, *lockpool.Pool, func()) error {
		return func(b *locktest.Bench, p *lockpool.Pool, stop func()) error {
			l := b.Lock(p, "a")
			if waits {
				go func() { _ = p.Do(b.Ctx, "a", func(context.Context) error { return nil }) }() // ends with the pool
				b.AwaitWaiting(p, 1)
			}
			stop()
			return l.Unlock(ctx)
		}
	}
	for name, release := range map[string]func(b *locktest.Bench, p *lockpool.Pool, stop func()) error{
		"Unlock":                  unlock(context.Background(), false),
		"Unlock, ended":           unlock(ended, false),
		"Unlock passes on":        unlock(context.Background(), true),
		"Unlock passes on, ended": unlock(ended, true),
		"Do, ended":               do(),
		"Do rests, ended":         do(lockpool.HoldAtLeast(time.Hour)),
		"Do within Do": func(b *locktest.Bench, p *lockpool.Pool, stop func()) (inner error) {
			_ = p.Do(b.Ctx, "a", func(ctx context.Context) error {
				inner = p.Do(ctx, "a", func(context.Context) error { stop(); return nil })
				return nil
			})
			return inner
		},
		"Handle.Close": func(b *locktest.Bench, p *lockpool.Pool, stop func()) error {
			h := b.Handle(p)
			b.Lock(h, "a")
			stop()
			return h.Close(context.Background())
		},
		"MultiLock.Do": func(b *locktest.Bench, p *lockpool.Pool, stop func()) error {
			all, err := p.LockAll(b.Ctx, []string{"a", "b"})
			require.NoError(b, err)
			return all.Do(ended, func(context.Context) error { stop(); return nil })
		},
		"Release": func(b *locktest.Bench, p *lockpool.Pool, stop func()) error {
			permits := b.Acquire(p.Semaphore("s", 2), 1)
			stop()
			return permits.Unlock(ended)
		},
	} {
		for _, reported := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", reported ", reported), func(t *testing.T) {
				locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
					m := b.Machine()
					p := b.Pool()
					err := release(b, p, func() {
						time.Sleep(50 * time.Millisecond) // the node is watched
						server.Partition(zktest.Selector{}, zktest.Both)
						if reported {
							m.Suspend(b.Config().SessionTimeout)
						} else {
							m.SetWallClock(b.Config().SessionTimeout)
						}
					})
					require.ErrorIs(t, err, lockpool.ErrLockLost)
					require.Regexp(t, "the machine was suspended for 5s|the wall clock has jumped", err.Error())
					server.Heal()
					b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "the session has expired")
				})
			})
		}
	}
}
