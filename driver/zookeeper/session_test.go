package zookeeper

// This file tests the life of a session: in a bubble, in an epoch without tokens, and in its
// last requests.

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// The time of a synctest bubble stands still while a session waits for the network.
// The session's background goroutines must tolerate that.
func TestSessionWorksInASynctestBubble(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	synctest.Test(t, func(t *testing.T) {
		connector, err := NewConnector(Config{Servers: []string{s.Addr()}})
		require.NoError(t, err)
		session, err := connector.Connect(context.Background())
		require.NoError(t, err)
		began := time.Now()
		joined := join(t, session.(*Session), "a")
		require.Equal(t, []driver.Node{joined.Node}, joined.Queue)
		require.NoError(t, session.Alive(context.Background()))
		require.NoError(t, session.Leave(context.Background(), "a", joined.Node))
		require.Zero(t, time.Since(began))
		require.NoError(t, session.Close(context.Background()))
	})
}

// A zxid that does not fit into a token is an error before a lock is granted.
func TestNoSessionIsAliveInAnEpochWithoutTokens(t *testing.T) {
	t.Parallel()
	session := open(t, zktest.Start(t), Config{})
	requests := session.requests
	see := func(zxid int64) {
		requests.mu.Lock()
		defer requests.mu.Unlock()
		requests.lastZxid = zxid
	}
	before := requests.lastSeen()
	see(1<<53 - 1)
	require.NoError(t, session.Alive(t.Context()))
	see(1 << 53)
	err := session.Alive(t.Context())
	require.ErrorContains(t, err, "there are no more fencing tokens")
	require.NotErrorIs(t, err, driver.ErrSessionLost)
	see(before)
}

// A session can be closed while its connection breaks and writes fail.
func TestSessionClosesAlthoughAWriteFails(t *testing.T) {
	bubble.Parallel(t)
	for range 20 { // the client chooses at random what it does first when it is closed
		synctest.Test(t, func(t *testing.T) {
			server := zktest.StartBubble(t)
			connector, err := NewConnector(Config{
				Servers: server.Members(), SessionTimeout: 30 * time.Second,
				Dial: func(ctx context.Context, address string) (net.Conn, error) {
					conn, err := server.Dial(ctx, address)
					return &failingConn{Conn: conn}, err
				},
			})
			require.NoError(t, err)
			session, err := connector.Connect(t.Context())
			require.NoError(t, err)
			server.Partition(zktest.Selector{}, zktest.Outbound) // so that the end of the session is not confirmed
			closed := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			go func() { closed <- session.Close(ctx) }() // ends when the session is closed
			select {
			case err := <-closed:
				require.ErrorIs(t, err, context.DeadlineExceeded)
			case <-time.After(time.Minute):
				require.FailNow(t, "the session is not closed")
			}
		})
	}
}

// failingConn fails to write a sync after the end of the session has been requested.
type failingConn struct {
	net.Conn
	closing bool
}

func (c *failingConn) Write(p []byte) (int, error) {
	const opClose = -11
	switch int32(binary.BigEndian.Uint32(p[8:])) {
	case opClose:
		c.closing = true
	case opSync:
		if c.closing {
			return 0, syscall.EPIPE
		}
	}
	return c.Conn.Write(p)
}

// The lease is measured from the moment at which a proof was sent.
func TestProofBeginsWhenItIsSent(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		const timeout, delay = 12 * time.Second, time.Second
		s := zktest.StartBubble(t)
		l := &open(t, s, Config{SessionTimeout: timeout}).expiry.lease
		s.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.DelayReply(delay)})
		time.Sleep(2 * timeout)
		l.mu.Lock()
		proofs := slices.Clone(l.proofs)
		l.mu.Unlock()
		require.NotEmpty(t, proofs)
		for _, p := range proofs {
			require.Equal(t, delay, p.end-p.begin)
		}
	})
}

// A connection takes up to 16 KiB that the server does not read. Callers must not wait for
// more room there, nor behind one that does, whatever they have to send.
func TestCallsDoNotWaitForWrites(t *testing.T) {
	bubble.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		var stuck *stuckConn
		session := open(t, server, Config{SessionTimeout: 20 * time.Second, Dial: func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := server.Dial(ctx, address)
			stuck = &stuckConn{Conn: conn, room: make(chan struct{}, 16<<10), closed: make(chan struct{})}
			return stuck, err
		}})
		stuck.stuck.Store(true)
		const timeout = 50 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		began := time.Now()
		var all sync.WaitGroup
		name := strings.Repeat("n", 512)
		for i := range 200 {
			all.Go(func() {
				var err error
				switch i % 4 {
				case 0:
					_, err = session.Data(ctx, name, driver.Node{Name: "a"})
				case 1:
					_, err = session.List(ctx, name)
				case 2:
					_, err = session.Watch(ctx, name, driver.Node{Name: "a"}, driver.Node{Name: "b"})
				case 3:
					_, err = session.Join(ctx, name, driver.Request{Kind: driver.Exclusive, Data: make([]byte, maxData)})
				}
				if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > timeout+grace {
					t.Errorf("%v after %v", err, took)
				}
			})
		}
		all.Wait()
		require.Zero(t, cap(stuck.room)-len(stuck.room), "the test is about a connection without room")
	})
}

// stuckConn is a connection whose writes wait when there is no room, once it is stuck.
type stuckConn struct {
	net.Conn
	stuck  atomic.Bool
	room   chan struct{} // an element for each byte that was written since
	once   sync.Once
	closed chan struct{}
}

func (c *stuckConn) Write(p []byte) (int, error) {
	if !c.stuck.Load() {
		return c.Conn.Write(p)
	}
	for range p {
		select {
		case c.room <- struct{}{}:
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return len(p), nil
}

func (c *stuckConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
