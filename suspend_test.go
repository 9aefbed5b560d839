package lockpool_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	leaseclock "github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/testing/zktest"
)

// machine is one to be suspended, or whose wall clock is to be set: the pools of
// the bench have their sessions on it from then on.
func (b *bench) machine() *leaseclock.Machine {
	m := new(leaseclock.Machine)
	b.ctx = m.On(b.ctx)
	return m
}

// proofs are the requests that a session sends to keep its lease, and pings of a
// pool.
func proofs(ops ...zktest.Op) zktest.Match {
	return zktest.Match{Ops: ops, Where: func(r zktest.Request) bool { return len(r.Paths) == 1 && r.Paths[0] == "/" }}
}

func TestHolderIsToldOnWakingThatItsMachineWasSuspendedForTooLong(t *testing.T) { // measures time: not beside others
	b := newBench(t)
	m := b.machine()
	p := b.pool()
	names := []string{"a", "b", "c"} // the servers' clocks do not know of it, and expire the sessions later
	for _, name := range names {
		l := b.lock(p, name)
		clock := startClock()
		m.Suspend(b.config().SessionTimeout)
		err := b.lost(l)
		clock.took(t, 0, 100*time.Millisecond, "telling the holder")
		require.ErrorContains(t, err, "session lost: the machine was suspended for 5s")
	}
	for _, name := range names {
		b.queued(name, 0)
	}
}

func TestNothingIsGrantedOnTheSessionOfAMachineThatWasSuspendedForTooLong(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.machine()
	p := b.pool()
	for i := range 10 {
		lost := b.lock(p, fmt.Sprint("a/", i))
		m.Suspend(b.config().SessionTimeout)
		granted := b.lock(p, "b")
		require.NoError(t, granted.Verify(b.ctx), "it is on a session that stands")
		b.lost(lost)
		b.unlock(granted)
	}
	b.until(func() bool { return len(b.contenders("/a")) == 0 }, "that the sessions expire")
}

func TestHolderKeepsItsLockIfItsMachineWasSuspendedForAShortTime(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	m := b.machine()
	p := b.pool()
	l := b.lock(p, "a")
	for range 2 {
		m.Suspend(b.config().SessionTimeout / 8)
		proved := proxy.Inject(zktest.Rule{Match: proofs(zktest.OpSync, zktest.OpMulti), Times: zktest.Always, Do: zktest.Pass()})
		b.until(func() bool { return proved.Fired() >= 8 }, "the lease in full swing again")
		proved.Remove()
		require.Equal(t, 1, l.Depth())
	}
	require.NoError(t, l.Verify(b.ctx))
	b.unlock(l)
}

// doubtful returns a waiter that has got the lock b but for a doubt: the wall clock
// has jumped, and no write of its session is answered until the fault is removed.
// (That of syncs proves nothing, because a leader does it alone.)
func doubtful(b *bench, proxy *zktest.Proxy, jump time.Duration) (*lockpool.Pool, *waiter, *zktest.Fault) {
	others := newBenchOn(b, server.Addr())
	others.chroot = b.chroot
	rival := others.lock(others.pool(), "b")
	m := b.machine()
	cfg := b.config()
	cfg.SessionTimeout = 10 * time.Second
	p := b.poolWith(cfg)
	w := b.wait(p, "b", 2)
	b.until(func() bool { return b.watchedIn("b") >= 2 }, "the wait")
	unproven := proxy.Inject(zktest.Rule{Match: proofs(zktest.OpMulti), Times: zktest.Always, Do: zktest.FailWith(zktest.ErrThrottled)})
	m.SetWallClock(jump)
	b.until(func() bool { return unproven.Fired() > 0 }, "a proof at once")
	others.unlock(rival)
	return p, w, unproven
}

// It may mean that the machine was stopped from outside.
func TestNothingIsGrantedAfterAJumpOfTheWallClockUntilAProofIsAnswered(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"forward": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, proxy := benchBehindProxy(t)
			p, w, unproven := doubtful(b, proxy, jump)
			tries := unproven.Fired()
			b.until(func() bool { return unproven.Fired() >= tries+3 }, "more proofs")
			b.stillWaits(w)
			unproven.Remove()
			b.unlock(b.granted(w))
			require.Equal(t, 1, p.Stats().OpenSessions, "a doubt ends no session")
		})
	}
}

// Whoever waits for the doubt to be settled can give up, and leaves nothing behind.
func TestContextEndsTheWaitForAProofAfterAJumpOfTheWallClock(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	_, w, _ := doubtful(b, proxy, time.Hour)
	w.cancel()
	<-w.done
	require.ErrorIs(t, w.err, context.Canceled)
	b.queued("b", 0)
}

func TestHolderKeepsItsLockAfterAJumpOfTheWallClock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := b.machine()
	p := b.pool()
	l := b.lock(p, "a")
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 150 * time.Millisecond} {
		m.SetWallClock(jump)
		b.unlock(b.lock(p, "b"))
		require.Equal(t, 1, l.Depth())
		require.NoError(t, l.Verify(b.ctx))
	}
	b.unlock(l)
}
