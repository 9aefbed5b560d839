package lockpool_test

// This file tests the warning ahead of a loss.

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

// lockAllKinds locks in each way there is.
func lockAllKinds(b *locktest.Bench, p *lockpool.Pool) map[string]*lockpool.Lock {
	b.Helper()
	all, err := p.LockAll(b.Ctx, []string{"all/1", "all/2"})
	require.NoError(b, err)
	return map[string]*lockpool.Lock{
		"mutex":     b.Lock(p, "a"),
		"read":      b.Lock(p, "b", lockpool.Shared()),
		"plain":     b.Lock(p, "c", lockpool.Plain()),
		"semaphore": b.Acquire(p.Semaphore("s", 2), 1),
		"all":       all["all/2"],
	}
}

// sessionOf returns the session of the node whose path has the prefix.
func sessionOf(s *zktest.Server, prefix string) int64 {
	for _, session := range s.State().Sessions {
		if slices.ContainsFunc(session.Ephemerals, func(path string) bool { return strings.HasPrefix(path, prefix) }) {
			return session.ID
		}
	}
	return 0
}

func TestExpiringTellsAheadOfTheLoss(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		time.Sleep(13 * time.Millisecond) // in a bubble, the lease would otherwise end just when it is read
		p := b.PoolWithTimeout(4*time.Second, lockpool.WithMaxSessions(1))
		held := lockAllKinds(b, p)
		mutex := held["mutex"]
		soon, late := mutex.Expiring(time.Second), mutex.Expiring(200*time.Millisecond)
		never := mutex.Expiring(-time.Second)
		began, exact := time.Now(), locktest.Embedded() // in a bubble
		require.NoError(t, own.Pause())
		<-soon
		told, clock := time.Now(), locktest.StartClock()
		for kind, l := range held {
			<-l.Expiring(time.Second)
			require.False(t, exact && plays.Closed(l.Expiring(500*time.Millisecond)), kind)
			require.False(t, exact && plays.Closed(l.Lost()), kind)
		}
		require.False(t, exact && plays.Closed(late))
		<-late
		require.False(t, exact && plays.Closed(mutex.Lost()))
		for _, l := range held {
			<-l.Expiring(200 * time.Millisecond)
			<-l.Lost()
			<-l.Expiring(time.Millisecond)
		}
		require.False(t, exact && time.Since(told) < time.Second)
		clock.Took(t, 0, 1050*time.Millisecond, "the rest of the lease")
		require.True(t, plays.Closed(never), "it is lost")
		require.Greater(t, told.Sub(began), 4*time.Second*4/10-time.Second, "the lease was long enough")
		require.NoError(t, own.Resume())
		b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "the server has expired the session")
	})
}

// A session that the servers answer never comes near the end of its lease, though it
// loses its connection now and then. The channel is closed for the lock's other ends.
func TestExpiringIsQuietWhileTheServiceAnswers(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		b.Ctx = context.Background() // its own ends sooner
		p := b.Pool()
		ahead := b.Config().SessionTimeout * 4 / 10
		held := lockAllKinds(b, p)
		h := b.Handle(p)
		inHandle, removed := b.Lock(h, "h"), b.Lock(p, "r")
		held["handle"], held["removed"] = inHandle, removed
		for _, l := range held {
			l.Expiring(ahead)
		}
		for minute := range 60 {
			time.Sleep(time.Minute + time.Duration(minute)*37*time.Millisecond)
			if minute%10 == 9 {
				s.Reset(zktest.Selector{Session: sessionOf(s, b.Chroot+"/a/")})
			}
			for kind, l := range held {
				require.False(t, plays.Closed(l.Expiring(ahead)), "%s after %d minutes", kind, minute)
			}
		}
		require.NoError(t, b.Admin.Delete(b.Chroot+"/r/"+b.Children("r")[0], -1))
		<-removed.Expiring(ahead)
		require.NoError(t, h.Close(b.Ctx))
		<-inHandle.Expiring(ahead)
		<-inHandle.Expiring(0)
		found := b.Lock(p, "f")
		late := found.Expiring(ahead)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/f/"+b.Children("f")[0], -1))
		require.ErrorIs(t, found.Unlock(b.Ctx), lockpool.ErrLockLost)
		<-late
		require.False(t, plays.Closed(held["mutex"].Expiring(ahead)))
		require.NoError(t, p.Close())
		for kind, l := range held {
			<-l.Expiring(ahead)
			require.True(t, plays.Closed(l.Lost()), kind)
		}
	})
}

// A suspension brings the end of the lease nearer, and no timer notices it.
func TestExpiringCountsSuspensions(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		m := b.Machine()
		timeout := b.Config().SessionTimeout
		if !locktest.Embedded() {
			timeout *= 2 // busy servers answer late
		}
		p := b.PoolWithTimeout(timeout)
		l := b.Lock(p, "a")
		ahead := timeout * 3 / 10
		time.Sleep(timeout / 2) // a new session has a longer lease
		expiring := l.Expiring(ahead)
		require.False(t, plays.Closed(expiring))
		require.NoError(t, own.Pause()) // else a proof may follow at once, and the lease is long again
		m.Suspend(timeout / 4)
		clock := locktest.StartClock()
		<-expiring
		clock.Took(t, 0, 100*time.Millisecond, "telling the holder")
		require.NoError(t, own.Resume())
		require.Equal(t, 1, l.Depth(), "the lock is still held")
		time.Sleep(timeout / 2)
		require.False(t, plays.Closed(l.Expiring(ahead*3/4)), "the lease is long again")
		m.Suspend(timeout / 8)
		time.Sleep(timeout / 2)
		require.Equal(t, 1, l.Depth(), "suspensions between which the lease was long do not add up")
		require.True(t, plays.Closed(expiring), "it stays closed")
		m.Suspend(timeout)
		b.AwaitLoss(l)
		<-l.Expiring(time.Millisecond)
		b.AwaitQueue("a", 0)
	})
}

// leases counts how often the leases of sessions are read.
type leases struct {
	driver.Connector
	read *atomic.Int64
}

func (c leases) Connect(ctx context.Context) (driver.Session, error) {
	s, err := c.Connector.Connect(ctx)
	return leaseSession{s, c.read}, err
}

type leaseSession struct {
	driver.Session
	read *atomic.Int64
}

func (s leaseSession) Lease() time.Duration {
	s.read.Add(1)
	return s.Session.Lease()
}

// Those who want to know cost their session 20 looks at the clock in a second, however many
// they are. After the last Unlock there is nothing left of them.
func TestExpiringCostsNothingAfterUnlock(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, s *zktest.Server) {
		b.Ctx = context.Background() // its own ends sooner
		connector, err := zookeeper.NewConnector(b.Config())
		require.NoError(t, err)
		var read atomic.Int64
		p := locktest.Open(t, leases{connector, &read}, lockpool.WithMaxSessions(1))
		reads := func() int64 {
			before := read.Load()
			time.Sleep(10 * time.Second)
			return read.Load() - before
		}
		one := b.Lock(p, "one")
		<-one.Expiring(math.MaxInt64)
		require.Zero(t, reads(), "nobody wants to know what the lease does not reach")
		expiring := one.Expiring(time.Second)
		for i := range 10 {
			require.Equal(t, expiring, one.Expiring(time.Second-time.Duration(i)*time.Microsecond), "there is one channel for each millisecond")
		}
		require.InDelta(t, 200, reads(), 1)
		many, err := p.LockAll(b.Ctx, []string{"a", "b", "c"})
		require.NoError(t, err)
		all := many["b"].Expiring(time.Second)
		many["a"].Expiring(2 * time.Second)
		many["a"].Expiring(0)
		require.InDelta(t, 200, reads(), 1)
		b.Unlock(one)
		require.InDelta(t, 200, reads(), 1)
		require.NoError(t, many.Unlock(b.Ctx))
		require.Zero(t, reads())
		again := one.Expiring(3 * time.Second)
		require.Zero(t, reads(), "nobody holds it")
		h := b.Handle(p)
		late := b.Lock(h, "late")
		late.Expiring(time.Second)
		with, err := h.LockAll(b.Ctx, []string{"late", "others"})
		require.NoError(t, err)
		left := with["others"].Expiring(time.Second)
		require.NoError(t, with.Unlock(b.Ctx))
		require.InDelta(t, 200, reads(), 1)
		s.Partition(zktest.Selector{}, zktest.Both)
		<-late.Lost()
		synctest.Wait()
		for _, unlocked := range []<-chan struct{}{expiring, all, again, left} {
			require.False(t, plays.Closed(unlocked), "unlocking does not close it, nor does what comes later")
		}
		require.Zero(t, reads())
		s.Heal()
		require.ErrorIs(t, late.Unlock(b.Ctx), lockpool.ErrLockLost)
		require.NoError(t, p.Close())
		b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "the server has expired the session")
	})
}
