package etcdtest

// This file tests that nothing is granted on an idle session without a proof.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/testing/plays"
)

// Nothing is granted after idleness until a read has proved the lease. The read goes out
// together with the first request.
func TestFirstLockAfterIdlenessIsProved(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	p := open(t, c.connector(t), lockpool.WithMaxSessions(1))
	for round, answers := range map[string]struct {
		lost   func(m Message) bool
		during bool     // a keep-alive
		sent   []string // without any answer
	}{
		"without a read":                      {lost: func(m Message) bool { return m.IsProof() && m.Method == "Range" }},
		"without a read, during a keep-alive": {lost: func(m Message) bool { return m.IsProof() && m.Method == "Range" }, during: true},
		"without an answer":                   {lost: func(Message) bool { return false }, sent: []string{"Range", "Txn"}},
	} {
		c.awaitIdle(t, p)
		var mu sync.Mutex
		var sent []string
		now := make(chan struct{})
		begin := sync.OnceFunc(func() { close(now) })
		c.SetFault(func(m Message) Action {
			mu.Lock()
			defer mu.Unlock()
			if !m.Reply {
				sent = append(sent, m.Method)
			}
			switch {
			case answers.lost(m):
				return Lose
			case answers.during && m.Method == "LeaseKeepAlive":
				begin()
				return Late
			}
			return Pass
		})
		if answers.during {
			<-now
		}
		c.Clients(0).Hold(false, answers.sent != nil)
		ctx, giveUp := context.WithCancel(t.Context())
		locked := make(chan error, 1)
		go func() { // ends with ctx
			_, err := p.Lock(ctx, "a")
			locked <- err
		}()
		if answers.sent == nil {
			time.Sleep(ttl / 6) // the session does not take the server for silent
		} else {
			require.Eventually(t, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return assert.Subset(new(assert.CollectT), sent, answers.sent)
			}, ttl, time.Millisecond, "%s", round)
		}
		giveUp()
		require.ErrorIs(t, <-locked, context.Canceled, "%s", round)
		c.Clients(0).Heal()
		c.SetFault(nil)
		rival, err := lockpool.OpenConnector(c.connector(t))
		require.NoError(t, err)
		require.NoError(t, rival.Do(t.Context(), "a", func(context.Context) error { return nil }), "%s", round)
		require.NoError(t, rival.Close())
	}
}

// awaitIdle returns when the only session, a pool's, is idle, and long before the next keep-alive:
// two keep-alives have been answered, and no read was sent between them or has followed.
func (c *Cluster) awaitIdle(t *testing.T, p *lockpool.Pool) {
	var mu sync.Mutex
	var answered time.Time
	keepAlives := 0
	c.SetFault(func(m Message) Action {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case m.Method == "Range":
			keepAlives = 0
		case m.Method == "LeaseKeepAlive" && m.Reply:
			keepAlives++
			answered = time.Now()
		}
		return Pass
	})
	require.NoError(t, p.Ping(t.Context()))
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		since := time.Since(answered)
		return keepAlives >= 2 && since > ttl/20 && since < ttl/6
	}, patience, time.Millisecond)
}

// idler is a session that is idle unless used, on a machine of its own.
type idler struct {
	driver.Session
	machine clock.Machine
	used    atomic.Bool
}

func newIdler(t *testing.T, c *Cluster) *idler {
	i := new(idler)
	s, err := c.connector(t).Connect(i.machine.On(t.Context()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	s.(driver.Idler).IdleIf(func() bool { return !i.used.Load() })
	i.Session = s
	time.Sleep(ttl)
	require.NoError(t, s.Err())
	return i
}

// A stop of the machine that the system does not report makes the last keep-alive of an idle
// session older than its clock says.
func TestStopWhileIdleIsNoticed(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := newIdler(t, c)
	answered := atomic.Int32{}
	c.SetFault(func(m Message) Action {
		switch {
		case m.Method != "LeaseKeepAlive":
		case m.Reply:
			answered.Add(1)
		default:
			return Late // a call that does not wait for the answer returns before the answer
		}
		return Pass
	})
	require.Eventually(t, func() bool { return answered.Load() > 0 }, ttl, time.Millisecond)
	s.machine.Stop()
	time.Sleep(ttl / 6) // less than until the next keep-alive
	before := answered.Load()
	s.machine.Resume(false)
	s.used.Store(true)
	require.NoError(t, s.Alive(t.Context()))
	require.Greater(t, answered.Load(), before, "only a later keep-alive counts")
}

// A session that looks whether it may be idle, and may not, is never in doubt: what is held there
// would seem to be.
func TestSessionInUseIsNotInDoubt(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := connect(t, c, ttl)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	looked := make(chan error, 1)
	s.(driver.Idler).IdleIf(func() bool {
		select {
		case looked <- s.Alive(canceled): // while the session looks
		default:
		}
		return false
	})
	for range 2 {
		require.NoError(t, <-looked)
	}
}

// A stop during the proof after idleness is noticed as well.
func TestStopDuringTheProofIsNoticed(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := newIdler(t, c)
	var keptAt atomic.Int64
	began := time.Now()
	answered, resumed := make(chan struct{}), make(chan struct{})
	stop := sync.OnceFunc(func() { close(answered); <-resumed })
	c.SetFault(func(m Message) Action {
		switch {
		case m.Method == "LeaseKeepAlive" && !m.Reply:
			keptAt.Store(int64(time.Since(began)))
		case m.Method == "Range" && m.Reply:
			stop()
		}
		return Pass
	})
	require.Eventually(t, func() bool { return keptAt.Load() > 0 }, ttl, time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	s.used.Store(true)
	alive := make(chan error, 1)
	go func() { alive <- s.Alive(t.Context()) }() // ends with the proof
	<-answered
	s.machine.Stop()
	time.Sleep(ttl / 6)
	s.machine.Resume(false)
	close(resumed)
	require.NoError(t, <-alive)
	require.LessOrEqual(t, time.Since(began)+s.Lease(), time.Duration(keptAt.Load())+ttl)
}

// A suspension longer than the TTL is what an idle session tells, and not that the servers have
// ended the lease early.
func TestSuspensionWhileIdle(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := newIdler(t, c)
	s.machine.Suspend(2 * ttl)
	c.options(t).Expire(s) // as the servers have done meanwhile
	<-s.Done()
	require.NotErrorIs(t, s.Err(), driver.ErrExpired)
	require.ErrorContains(t, s.Err(), "suspended")
}

// A token that is not used ends; an idle session keeps its own.
func TestTokenOfAnIdleSession(t *testing.T) {
	t.Parallel()
	c := Start(t, 1, TokenTTL(3*time.Second), Installed)
	_ = c.protect(t)
	var dials atomic.Int32
	counting := func(cfg *etcd.Config) {
		cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	s, err := c.connector(t, user("locks", password), counting).Connect(t.Context())
	require.NoError(t, err)
	s.(driver.Idler).IdleIf(func() bool { return true })
	time.Sleep(2 * ttl)
	_, err = s.Join(t.Context(), "a", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
	require.EqualValues(t, 1, dials.Load())
}

// While a member is cut off from the others, idle sessions there are told that their leases
// live. No lock is granted to such a session and to another one at the same time.
func TestIdleAtAMemberThatIsCutOff(t *testing.T) {
	t.Parallel()
	onEach(t, idleIsCutOff)
}

func idleIsCutOff(t *testing.T, version Option) {
	c := Start(t, 3, version)
	t.Log("etcd", c.Version())
	rival := open(t, c.connector(t))
	granted := 0
	for i := range *cuts {
		leader, err := c.Leader(t.Context())
		require.NoError(t, err)
		member := (leader + i) % 3
		p, err := lockpool.OpenConnector(c.connector(t, toMember(member)))
		require.NoError(t, err)
		require.NoError(t, p.Ping(t.Context()))
		time.Sleep(ttl / 2)
		heal := c.Isolate(member)
		time.Sleep(rand.N(3 * ttl))
		var all sync.WaitGroup
		var mu sync.Mutex
		var holder *lockpool.Lock
		use := func(name string, p *lockpool.Pool) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
			defer cancel()
			l, err := p.Lock(ctx, fmt.Sprint("cut/", i))
			if err != nil {
				return
			}
			mu.Lock()
			if plays.Closed(l.Lost()) {
				mu.Unlock()
				return
			}
			assert.True(t, holder == nil || plays.Closed(holder.Lost()), "%s is granted the lock, too", name)
			holder = l
			granted++
			mu.Unlock()
			select {
			case <-l.Lost():
			case <-time.After(ttl / 4):
			}
			mu.Lock()
			if holder == l {
				holder = nil
			}
			mu.Unlock()
			_ = l.Unlock(t.Context())
		}
		all.Go(func() { use("the idle one", p) })
		all.Go(func() { use("the rival", rival) })
		time.Sleep(rand.N(ttl))
		heal()
		all.Wait()
		require.NoError(t, p.Close())
	}
	t.Logf("%d grants in %d cuts", granted, *cuts)
	require.Positive(t, granted)
}
