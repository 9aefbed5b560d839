package lockpool_test

// This file tests the opening of pools.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestOpenNeverDials(t *testing.T) {
	t.Parallel()
	p, err := lockpool.Open("zookeeper", "host.invalid:1")
	require.NoError(t, err)
	require.NoError(t, p.Close())
}

func TestOpenErrorsNameTheCause(t *testing.T) {
	t.Parallel()
	_, err := lockpool.Open("zoo", "localhost")
	require.ErrorContains(t, err, `"zoo"`)
	require.ErrorContains(t, err, "import")
	_, err = lockpool.Open("zookeeper", "localhost?sesion_timeout=1s")
	require.ErrorContains(t, err, `"sesion_timeout"`)
	_, err = lockpool.Open("zookeeper", "localhost", lockpool.WithMaxSessions(0))
	require.ErrorContains(t, err, "WithMaxSessions(0)")
	_, err = lockpool.Open("zookeeper", "localhost", lockpool.WithMaxHandles(-1))
	require.ErrorContains(t, err, "WithMaxHandles(-1)")
	_, err = lockpool.Open("zookeeper", "localhost", nil)
	require.Error(t, err)
	_, err = lockpool.OpenConnector(nil)
	require.Error(t, err)
}

func TestDriversAreListed(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"memory", "zookeeper"}, driver.Drivers())
	_, err := lockpool.Open("zoo", "localhost")
	require.ErrorContains(t, err, "zookeeper", "the error lists the drivers")
}

func TestErrorNamesAnUnreachableServer(t *testing.T) {
	t.Parallel()
	refusing := zktest.StartProxy(t, locktest.Shared().Addr()) // keeps its port
	require.NoError(t, refusing.RefuseConnections())
	p, err := lockpool.Open("zookeeper", refusing.Addr())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(locktest.Context(t), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = p.Lock(ctx, "a")
	require.Less(t, time.Since(start), time.Second)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused")
	require.Error(t, p.Ping(ctx))
	require.NoError(t, p.Close())
}

func TestPoolConnectsToAServerThatStartsLater(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t)
	ctx := locktest.Context(t)
	require.NoError(t, own.Stop(ctx))
	p, err := lockpool.Open("zookeeper", own.Addr())
	require.NoError(t, err)
	defer p.Close()
	done := make(chan error)
	go func() { done <- p.Ping(ctx) }()
	require.NoError(t, own.Start(ctx))
	require.NoError(t, <-done)
}
