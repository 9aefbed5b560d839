package etcdtest

// This file tests the end of sessions, and requests that are carried out without an answer.

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/etcd"
)

// connect opens a session, closed when the test ends.
func connect(t *testing.T, c *Cluster, ttl time.Duration) driver.Session {
	s, err := c.connector(t, withTTL(ttl)).Connect(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

// The servers have ended the lease, and their answer is lost.
func TestCloseEndsIfItsAnswerIsLost(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := connect(t, c, ttl)
	_, err := s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	lost := false
	c.SetFault(func(m Message) Action {
		if m.Method != "LeaseRevoke" || !m.Reply || lost {
			return Pass
		}
		lost = true
		return Break
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.Close(ctx))
	left, err := c.admin.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, left.Leases)
}

// Close also ends while a keep-alive is not answered; a session waits longer for a
// keep-alive.
func TestCloseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	silent := make(chan struct{})
	once := sync.OnceFunc(func() { close(silent) })
	c.SetFault(func(m Message) Action {
		if m.Method != "LeaseKeepAlive" || !m.Reply {
			return Pass
		}
		once()
		return Freeze
	})
	s := connect(t, c, 5*time.Minute)
	<-silent
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	require.ErrorIs(t, s.Close(ctx), context.DeadlineExceeded)
	require.Less(t, time.Since(began), 5*time.Second)
}

// The request filling the database is refused, but has been carried out.
func TestNothingIsLeftByARequestThatFillsTheDatabase(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := connect(t, c, ttl)
	var full atomic.Bool
	fills := func(m Message) Action {
		writes := m.Method == "Txn" && strings.Contains(string(m.Data), "/.sessions/")
		if m.Method == "Txn" && m.Reply && !full.Swap(true) || writes && !m.Reply && full.Load() {
			return Full
		}
		return Pass
	}
	c.SetFault(fills)
	ctx := t.Context()
	_, err := s.Join(ctx, "q", driver.Request{Kind: driver.Exclusive})
	require.ErrorContains(t, err, "database is full")
	c.SetFault(nil)
	joined, err := s.Join(ctx, "d", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	full.Store(false) // until the next request has been carried out
	c.SetFault(fills)
	_, err = s.(driver.Downgrader).Downgrade("d", joined.Node, nil)
	require.NoError(t, err, "the request was carried out")
	full.Store(false)
	_, _, err = s.(driver.PlainLocker).TryCreate(ctx, "p", nil)
	require.ErrorContains(t, err, "database is full")
	c.SetFault(nil)
	for _, queue := range []string{"q", "p"} {
		nodes, err := s.List(ctx, queue)
		require.NoError(t, err)
		require.Empty(t, nodes)
	}
}

// A lease for records whose grant was not answered in time does not stay.
func TestLeaseOfAnAbandonedRecordIsRevoked(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := connect(t, c, ttl)
	joined, err := s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	granted := make(chan struct{}, 1)
	c.SetFault(func(m Message) Action {
		if m.Method != "LeaseGrant" || !m.Reply {
			return Pass
		}
		granted <- struct{}{}
		return Lose
	})
	ctx, cancel := context.WithCancel(t.Context())
	finished := make(chan error, 1)
	go func() { // ends with ctx
		finished <- s.(driver.Recorder).Finish(ctx, "q", joined.Node, driver.Record{Name: "n", Key: "k", Data: []byte("d"), Keep: time.Hour})
	}()
	<-granted
	cancel()
	require.ErrorIs(t, <-finished, context.Canceled)
	require.Eventually(t, func() bool {
		left, err := c.admin.Leases(t.Context())
		return err == nil && len(left.Leases) == 1 // the session's
	}, ttl, time.Millisecond)
	c.SetFault(nil)
}

// The servers have carried out the first attempt and refuse it, and their events are late: the
// watch on the session's own node fires before Rewrite returns.
func TestRewriteFiresWatchesIfItsFirstAttemptWasRefused(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := connect(t, c, ttl)
	joined, err := s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	watches, err := s.Watch(t.Context(), "q", joined.Node)
	require.NoError(t, err)
	full := false
	c.SetFault(func(m Message) Action {
		switch {
		case m.Method == "Watch" && m.Reply:
			return Lose
		case m.Method == "Txn" && m.Reply && !full:
			full = true
			return Full
		}
		return Pass
	})
	require.NoError(t, s.Rewrite(t.Context(), "q", joined.Node, []byte("other data")))
	require.Equal(t, driver.Changed, watches[0].Fired())
	c.SetFault(nil)
}

// Servers refuse values of more than 1.5 MiB, and gRPC refuses to send more than 2 MiB.
func TestLargeValuesAreRefused(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := connect(t, c, ttl)
	for _, size := range []int{1800 << 10, 3 << 20} {
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		_, err := s.Join(ctx, "q", driver.Request{Kind: driver.Exclusive, Data: make([]byte, size)})
		cancel()
		require.ErrorContains(t, err, "large")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		nodes, err := s.List(t.Context(), "q")
		require.NoError(t, err)
		require.Empty(t, nodes)
	}
}

// An abandoned change may reach the servers late, and must not be carried out then: the fence
// is raised in the background or, if a later change comes sooner, before this one.
func TestAbandonedChangesAreNotCarriedOutLate(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	for name, change := range map[string]func(context.Context, driver.Session) error{
		"Forget":   func(ctx context.Context, s driver.Session) error { return s.(driver.Recorder).Forget(ctx, "n", "k") },
		"SetLimit": func(ctx context.Context, s driver.Session) error { return s.(driver.Limiter).SetLimit(ctx, "s", 1) },
	} {
		for _, lost := range []int64{1, 2} { // the change, and the write that raises the fence
			s := connect(t, c, time.Minute)
			fence := func() int64 {
				got, err := c.admin.Get(t.Context(), "lockpool/.sessions/"+s.Info().ID)
				require.NoError(t, err)
				require.Len(t, got.Kvs, 1)
				return got.Kvs[0].Version
			}
			before, writes := fence(), atomic.Int64{}
			ctx, abandon := context.WithCancel(t.Context())
			c.SetFault(func(m Message) Action {
				if m.Method != "Txn" || m.Reply || !strings.Contains(string(m.Data), "/.sessions/") {
					return Pass
				}
				if writes.Add(1) <= lost {
					abandon()
					return Lose
				}
				return Pass
			})
			require.ErrorIs(t, change(ctx, s), context.Canceled)
			if lost == 1 {
				require.Eventually(t, func() bool { return fence() > before }, ttl, time.Millisecond, name)
				continue
			}
			require.Eventually(t, func() bool { return writes.Load() == lost }, ttl, time.Millisecond)
			require.Equal(t, before, fence())
			again, cancel := context.WithTimeout(t.Context(), ttl)
			require.NoError(t, change(again, s))
			cancel()
			require.Greater(t, fence(), before, name)
		}
	}
	c.SetFault(nil)
}

// The second Leave comes late, and the key of the node is another node's by now.
func TestLeaveOfANodeThatHasLeft(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s := connect(t, c, ttl)
	join := func() driver.Node {
		joined, err := s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive})
		require.NoError(t, err)
		return joined.Node
	}
	first := join()
	require.NoError(t, s.Leave(t.Context(), "q", first))
	require.ErrorIs(t, s.Leave(t.Context(), "q", first), driver.ErrRemoved)
	second := join()
	require.ErrorIs(t, s.Leave(t.Context(), "q", first), driver.ErrRemoved)
	third := join() // with another key
	nodes, err := s.List(t.Context(), "q")
	require.NoError(t, err)
	require.Equal(t, []driver.Node{second, third}, nodes)
	key, _, _ := strings.Cut(second.Name, "@") // another program overwrites the value
	_, err = c.admin.Put(t.Context(), "lockpool/q/"+key, "x", clientv3.WithIgnoreLease())
	require.NoError(t, err)
	require.ErrorIs(t, s.Rewrite(t.Context(), "q", second, nil), driver.ErrRemoved)
}

// A member that answers no grant costs a session a quarter of the TTL.
func TestOpenTriesASilentMemberOnce(t *testing.T) {
	t.Parallel()
	c := Start(t, 3)
	var silent, asked atomic.Int64
	for i, m := range c.members {
		m.relay.SetFault(func(m Message) Action {
			if m.Method != "LeaseGrant" || m.Reply {
				return Pass
			}
			if silent.CompareAndSwap(0, int64(i+1)); silent.Load() != int64(i+1) {
				return Pass
			}
			asked.Add(1)
			return Lose
		})
	}
	connect(t, c, 8*time.Second)
	require.EqualValues(t, 1, asked.Load())
	c.SetFault(nil)
}

// A grant that is answered late begins no session: the lease may have begun with the first one.
func TestOpenEndsInTime(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	c := Start(t, 3)
	connector := c.connector(t, withTTL(ttl))
	for range 4 {
		began := time.Now()
		c.SetFault(func(m Message) Action {
			if m.Method == "LeaseGrant" && !m.Reply && time.Since(began) < ttl*8/10 {
				return Lose
			}
			return Pass
		})
		_, err := connector.Connect(t.Context())
		require.ErrorIs(t, err, driver.ErrUnavailable)
	}
}

// A connection is accepted, and nothing is ever answered, while the servers are well.
func TestSwallowedConnectionCostsNoSession(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	c := Start(t, 1)
	const (
		passes = iota
		refused
		swallowed
	)
	var state atomic.Int64
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		switch {
		case state.Load() == refused:
			return nil, syscall.ECONNREFUSED
		case state.CompareAndSwap(swallowed, passes):
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }() // ends with near
			return near, nil
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	s, err := c.connector(t, withTTL(ttl), func(c *etcd.Config) { c.Dial = dial }).Connect(t.Context())
	require.NoError(t, err)
	state.Store(refused)
	c.Clients(0).Break()
	time.Sleep(ttl / 2)
	state.Store(swallowed)
	require.NoError(t, s.Ping(t.Context()))
	require.NoError(t, s.Close(t.Context()))
}
