package zktest_test

// This file has the benchmarks.

import (
	"log/slog"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// BenchmarkStart measures the start of a server. The goal is far below 10 ms, to
// keep test suites fast.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		s, err := zktest.Run(b.Context(), zktest.Logger(slog.New(slog.DiscardHandler)))
		require.NoError(b, err)
		require.NoError(b, s.Close())
	}
}

// BenchmarkWrite measures writes, one after the other. The goal is far above 5,000
// a second.
func BenchmarkWrite(b *testing.B) {
	s := zktest.Start(b)
	conn, events, err := zk.Connect([]string{s.Addr()}, 5*time.Second, zk.WithLogInfo(false))
	require.NoError(b, err)
	defer func() {
		conn.Close()
		for range events { // closed when the client has ended
		}
	}()
	_, err = conn.Create("/a", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(b, err)
	for b.Loop() {
		if _, err := conn.Set("/a", []byte("x"), -1); err != nil {
			b.Fatal(err)
		}
	}
}
