package zookeeper

// This file has what the tests of the inside of the driver share.

import (
	"context"
	"flag"
	"runtime"
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
