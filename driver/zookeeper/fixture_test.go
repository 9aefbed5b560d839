package zookeeper

// This file has what the tests of the inside of the driver share.

import (
	"context"
	"flag"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// open opens a session on the server, through cfg.Dial if that is set. The session is closed
// when the test ends.
func open(t *testing.T, server *zktest.Server, cfg Config) *session {
	t.Helper()
	cfg.Servers = server.Members()
	if cfg.Dial == nil {
		cfg.Dial = server.Dial
	}
	connector, err := NewConnector(cfg)
	require.NoError(t, err)
	s, err := connector.Connect(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close(context.Background()))
		require.NoError(t, connector.Close())
	})
	return s.(*session)
}

// join joins a queue with an exclusive node.
func join(t *testing.T, s *session, queue string) driver.Joined {
	t.Helper()
	joined, err := s.Join(t.Context(), queue, driver.Request{Kind: driver.Exclusive})
	require.NoError(t, err)
	return joined
}

// breakingConn is a connection that breaks when a number of bytes have passed in one direction.
type breakingConn struct {
	net.Conn
	calm *atomic.Bool // while true, all bytes pass, and none is counted

	mu      sync.Mutex
	in, out int // how many more bytes pass
}

func (c *breakingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if passed := c.pass(n, &c.in); passed < n {
		c.Conn.Close()
		return passed, io.ErrUnexpectedEOF
	}
	return n, err
}

func (c *breakingConn) Write(p []byte) (int, error) {
	passed := c.pass(len(p), &c.out)
	n, err := c.Conn.Write(p[:passed])
	if passed < len(p) {
		c.Conn.Close()
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// pass returns how many of n bytes pass.
func (c *breakingConn) pass(n int, left *int) int {
	if c.calm.Load() {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := max(0, min(n, *left))
	*left -= n
	return passed
}

// once is locktest.Once, which tests in this package cannot import.
func once(t *testing.T) {
	t.Helper()
	if flag.Lookup("server").Value.String() == "real" {
		t.Skip("the same test runs with -server embedded")
	}
}

// allocated returns how many bytes the program has allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
