package main

// This file measures what operations cost a server, in a bubble.

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/formula"
	"github.com/lockpool/lockpool/testing/zktest"
)

// counts are what the server counted, by the columns of the page.
type counts = formula.Counts

// The columns.
const (
	requests = "requests"
	writes   = "writes"  // the requests that require a majority
	watches  = "watches" // set, less gone
	wakeups  = "wake-ups"
	received = "bytes to the server"
	sent     = "bytes from it"
)

// stage is a server in a bubble, and pools with one session each.
type stage struct {
	*testing.T
	server               *zktest.Server
	requests             *zktest.Fault
	writes, events       *zktest.Fault
	toServer, fromServer atomic.Int64
	timeout              time.Duration // of sessions
}

// calm is a session timeout too long for sessions to send anything by themselves.
const calm = 24 * time.Hour

func newStage(t *testing.T, timeout time.Duration) *stage {
	s := &stage{T: t, timeout: timeout}
	s.server = zktest.StartBubble(t, zktest.MaxClientConns(0), zktest.SessionTimeouts(time.Second, calm))
	count := func(ops ...zktest.Op) *zktest.Fault {
		return s.server.Inject(zktest.Rule{Match: zktest.Match{Ops: ops}, Times: zktest.Always, Do: zktest.Pass()})
	}
	s.requests, s.events = count(), count(zktest.OpEvent)
	s.writes = count(append(zktest.Creates, zktest.OpDelete, zktest.OpSetData, zktest.OpMulti,
		zktest.OpConnect, zktest.OpCloseSession)...)
	return s
}

// measure returns what f costs, once nothing more happens by itself.
func (s *stage) measure(f func()) counts {
	before := s.counts()
	f()
	after := s.counts()
	for column, value := range before {
		after[column] -= value
	}
	return after
}

// measureLong returns what a long time costs. Only a part is measured: with more sessions,
// a count depends less on chance, because each session looks at its watches at random
// times.
func (s *stage) measureLong(d time.Duration, parts int) counts {
	found := s.measure(func() { time.Sleep(d / time.Duration(parts)) })
	for column := range found {
		found[column] *= float64(parts)
	}
	return found
}

func (s *stage) counts() counts {
	synctest.Wait()
	return counts{
		requests: float64(s.requests.Fired()),
		writes:   float64(s.writes.Fired()),
		watches:  float64(len(s.server.State().Watches)),
		wakeups:  float64(s.events.Fired()),
		received: float64(s.toServer.Load()),
		sent:     float64(s.fromServer.Load()),
	}
}

// pool opens a pool. The session is opened when first needed.
func (s *stage) pool(opts ...lockpool.Option) *lockpool.Pool {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: []string{"zk:2181"}, SessionTimeout: s.timeout, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := s.server.Dial(ctx, s.server.Addr())
			return countingConn{conn, &s.fromServer, &s.toServer}, err
		},
	})
	require.NoError(s, err)
	pool, err := lockpool.OpenConnector(connector, append(opts, lockpool.WithMaxSessions(1), lockpool.WithOwner("scale"), lockpool.WithTraceLinks(false))...)
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, pool.Close()) })
	return pool
}

// connected returns a pool with a session.
func (s *stage) connected(opts ...lockpool.Option) *lockpool.Pool {
	p := s.pool(opts...)
	s.unlock(s.lock(p, "another"))
	return p
}

func (s *stage) lock(p *lockpool.Pool, name string, opts ...lockpool.LockOption) *lockpool.Lock {
	l, err := p.Lock(s.Context(), name, opts...)
	require.NoError(s, err)
	return l
}

func (s *stage) unlock(l *lockpool.Lock) { require.NoError(s, l.Unlock(s.Context())) }

// wait starts a goroutine waiting for a lock. It returns one function to end the wait, and
// one to return the lock once granted.
func (s *stage) wait(p *lockpool.Pool, name string, opts ...lockpool.LockOption) (giveUp func(), granted func() *lockpool.Lock) {
	ctx, cancel := context.WithCancel(s.Context())
	locks := make(chan *lockpool.Lock, 1)
	go func() { // ends with the grant, or on giving up
		l, err := p.Lock(ctx, name, opts...)
		if err == nil {
			locks <- l
		}
		cancel()
	}()
	synctest.Wait()
	return cancel, func() *lockpool.Lock { return <-locks }
}

// operations are what operations cost, by their names on the page.
type operations = map[string]counts

// uncontended measures operations without other contenders.
func uncontended(t *testing.T, k int) operations {
	found := operations{}
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, calm)
		ctx := t.Context()
		p := s.pool()
		var l *lockpool.Lock
		found["open a session, and `Lock` a new name"] = s.measure(func() { l = s.lock(p, "first") })
		s.unlock(l)
		found["`Lock`, a new name"] = s.measure(func() { l = s.lock(p, "a") })
		found["`Unlock`, nobody waits"] = s.measure(func() { s.unlock(l) })
		l = s.lock(p, "a")
		found["hold it for more than 20 ms"] = s.measure(func() { time.Sleep(25 * time.Millisecond) })
		found["`Unlock` after that"] = s.measure(func() { s.unlock(l) })

		q := s.connected()
		found["`Lock`"] = s.measure(func() { l = s.lock(q, "a") })
		s.unlock(l)
		for range 20 {
			s.unlock(s.lock(q, "a"))
		}
		do := func() { require.NoError(t, q.Do(ctx, "a", func(context.Context) error { return nil })) }
		found["`Do`, of the only session that uses the name"] = s.measure(do)
		l = s.lock(q, "a")
		time.Sleep(25 * time.Millisecond)
		_, granted := s.wait(q, "a")
		found["a turn that is passed on in the process"] = s.measure(func() { s.unlock(l); l = granted() })
		s.unlock(l)

		var names []string
		for i := range k {
			names = append(names, fmt.Sprint("many/", i))
		}
		var m lockpool.MultiLock
		lockAll := func() {
			var err error
			m, err = p.LockAll(ctx, names)
			require.NoError(t, err)
		}
		lockAll()
		require.NoError(t, m.Unlock(ctx))
		found["`LockAll`, k names"] = s.measure(lockAll)
		found["`List`, k locks"] = s.measure(func() {
			names, err := q.List(ctx, "many")
			require.NoError(t, err)
			require.Len(t, names, k)
		})
		found["`Unlock`, k names"] = s.measure(func() { require.NoError(t, m.Unlock(ctx)) })

		var permits *lockpool.Lock
		acquire := func() {
			var err error
			permits, err = q.Semaphore("permits", 1000).Acquire(ctx, k)
			require.NoError(t, err)
		}
		acquire()
		require.NoError(t, permits.Unlock(ctx))
		found["`Acquire`, k permits"] = s.measure(acquire)
		found["`Unlock`, k permits"] = s.measure(func() { require.NoError(t, permits.Unlock(ctx)) })

		if k == 10 { // virtual time is not free
			lockAll()
			time.Sleep(time.Minute)
			found["k locks of one session, held for an hour"] = s.measureLong(time.Hour, 1)
			require.NoError(t, m.Unlock(ctx))
		}

		keeping := s.connected(lockpool.WithKeptLocks(0, calm))
		s.unlock(s.lock(keeping, "kept"))
		l = s.lock(keeping, "kept")
		found["`Unlock`, from which on the lock is [kept](guide.md#locks-that-stay-with-a-process)"] = s.measure(func() { s.unlock(l) })
		found["`Lock` and `Unlock` of a kept lock"] = s.measure(func() { s.unlock(s.lock(keeping, "kept")) })

		another := s.connected()
		found["`Close`"] = s.measure(func() { require.NoError(t, another.Close()) })
	})
	return found
}

// long is the least length of a queue not listed for the watches of a session with one
// waiter.
const long = 200

// contended measures operations on a lock with n contenders, each with a separate session:
// one holder, and waiters.
func contended(t *testing.T, n int) operations {
	found := operations{}
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, calm)
		ctx := t.Context()
		holder := s.lock(s.connected(), "a")
		for range n - 1 {
			s.wait(s.connected(), "a")
		}
		time.Sleep(time.Second)
		p := s.connected()
		found["`TryLock` that is refused"] = s.measure(func() {
			_, err := p.TryLock(ctx, "a")
			require.ErrorIs(t, err, lockpool.ErrLocked)
		})
		var giveUp func()
		waits := "`Lock`, until it waits behind up to 2"
		if n > 2 {
			waits = "`Lock`, until it waits behind more than 2"
		}
		found[waits] = s.measure(func() { giveUp, _ = s.wait(p, "a") })
		found["a wait that is given up"] = s.measure(giveUp)
		found["`Queue`"] = s.measure(func() {
			q, err := p.Queue(ctx, "a")
			require.NoError(t, err)
			require.Len(t, q.Contenders, n)
		})
		if n > 3 {
			found["`Revoke`, more than 3 contenders"] = s.measure(func() { require.NoError(t, p.Revoke(ctx, "a")) })
		}
		require.NoError(t, p.Close())
		if n <= 10 || n > long {
			time.Sleep(time.Minute)
			waiting := "up to 200 contenders that wait, for an hour"
			if n > long {
				waiting = "more contenders that wait, for an hour"
			}
			found[waiting] = s.measureLong(time.Hour, min(n, 60)) // each session looks every 30 s or so
		}
		found["all reconnect, as after an election"] = s.measure(func() {
			require.NoError(t, s.server.Restart(ctx, time.Second))
			time.Sleep(5 * time.Second)
		})
		found["`Unlock` that hands the lock over"] = s.measure(func() { s.unlock(holder) })

		plain := s.lock(s.connected(), "plain", lockpool.Plain())
		for range n - 1 {
			s.wait(s.connected(), "plain", lockpool.Plain())
		}
		time.Sleep(time.Second)
		found["`Unlock` of a plain lock, all others waiting"] = s.measure(func() { s.unlock(plain) })
	})
	return found
}

// idle measures n idle processes, with sessions of the default timeout.
func idle(t *testing.T, n int) operations {
	found := operations{}
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, zookeeper.DefaultSessionTimeout)
		pools := make([]*lockpool.Pool, n)
		for i := range pools {
			pools[i] = s.connected()
			s.unlock(s.lock(pools[i], fmt.Sprint(i)))
		}
		time.Sleep(time.Minute)
		found["sessions that do nothing, for 10 session timeouts"] = s.measureLong(10*s.timeout, min(n, 10))
		for sent := s.requests.Fired(); s.requests.Fired() == sent; {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // all have just sent their syncs
		found["all reconnect, as after an election, and nobody waits"] = s.measure(func() {
			require.NoError(t, s.server.Restart(t.Context(), time.Second))
			time.Sleep(2500 * time.Millisecond)
		})
		locks := make([]*lockpool.Lock, n)
		found["`Lock` after that, of each another name, which had been removed"] = s.measure(func() {
			var all sync.WaitGroup
			for i, p := range pools {
				all.Go(func() { locks[i] = s.lock(p, fmt.Sprint(i)) })
			}
			all.Wait()
		})
		for _, l := range locks {
			s.unlock(l)
		}
	})
	return found
}
