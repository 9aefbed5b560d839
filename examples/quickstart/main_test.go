package main

// This file tests the quickstart.

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/examples/internal/exampletest"
	"github.com/lockpool/lockpool/examples/quickstart/shop/shoptest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func requireStory(t *testing.T, args ...string) {
	p := exampletest.New(t, args...)
	p.RequireSuccess(t)
	shoptest.RequireStory(t, p.Stdout.String())
}

// The story needs only the program.
func TestStoryOnEmbeddedServer(t *testing.T) {
	t.Parallel()
	requireStory(t)
}

// A story of one process needs no server.
func TestStoryInMemory(t *testing.T) {
	t.Parallel()
	requireStory(t, "-driver", "memory")
}

func TestStoryOnRunningServer(t *testing.T) {
	t.Parallel()
	server := zktest.StartReal(t)
	requireStory(t, "-servers", server.Addr())
	require.Eventually(t, func() bool {
		n, err := server.Stat(t.Context(), "zk_num_alive_connections")
		return err == nil && n == 1 // the connection of Stat
	}, time.Minute, 50*time.Millisecond, "connections are left")
}

func TestInterruptedOrKilledProgramLeavesNothing(t *testing.T) {
	t.Parallel()
	interrupted, killed := exampletest.New(t), exampletest.New(t)
	interrupted.StartUntil(t, "waits at most") // one service holds the lock, two wait
	interrupted.RequireInterrupted(t, `^quickstart: stopped: .+\n$`)
	killed.StartUntil(t, "waits at most")
	require.NoError(t, killed.Process.Kill())
	killed.RequireExit(t, -1)
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(killed.Temp)
		return err == nil && len(entries) == 0
	}, time.Minute, 50*time.Millisecond)
	require.Empty(t, killed.Stderr.String())
}

func TestMisuseIsAClearError(t *testing.T) {
	t.Parallel()
	exampletest.RequireErrors(t, "usage: quickstart [-driver zookeeper|etcd|memory] [-servers HOST:PORT]", []exampletest.Misuse{
		{Name: "an argument", Args: []string{"127.0.0.1:2181"}, Code: 2, Error: `unexpected argument "127.0.0.1:2181"`},
		{Name: "an unknown flag", Args: []string{"-zk", "127.0.0.1:2181"}, Code: 2, Error: "not defined: -zk"},
		{Name: "no address", Args: []string{"-servers", ""}, Code: 2, Error: "the name is empty"},
		{Name: "a bad port", Args: []string{"-servers", "127.0.0.1:zk"}, Code: 2, Error: "the port is not a number"},
		{Name: "a path", Args: []string{"-servers", "127.0.0.1:2181/locks"}, Code: 2, Error: "not of the form HOST:PORT"},
		{Name: "an unknown driver", Args: []string{"-driver", "consul"}, Code: 2, Error: "not one of zookeeper, etcd, memory"},
		{Name: "servers of memory", Args: []string{"-driver", "memory", "-servers", "127.0.0.1:2181"}, Code: 2, Error: "memory has no servers"},
		{Name: "no server", Args: []string{"-servers", "127.0.0.1:1"}, Code: 1, Error: "connection refused"},
	})
}
