package lockpool_test

// This file tests the opening of pools.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
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
	require.Equal(t, []string{"memory", "zookeeper"}, driver.Drivers())
	require.ErrorContains(t, err, "zookeeper", "the error lists the drivers")
	_, err = lockpool.Open("zookeeper", "localhost?sesion_timeout=1s")
	require.ErrorContains(t, err, `"sesion_timeout"`)
	_, err = lockpool.Open("zookeeper", "localhost", lockpool.WithMaxSessions(0))
	require.ErrorContains(t, err, "WithMaxSessions(0)")
	_, err = lockpool.Open("zookeeper", "localhost", lockpool.WithMaxHandles(-1))
	require.ErrorContains(t, err, "WithMaxHandles(-1)")
	_, err = lockpool.Open("zookeeper", "localhost", lockpool.WithDeadlockCheck(-1))
	require.ErrorContains(t, err, "WithDeadlockCheck(-1ns): negative")
	_, err = lockpool.Open("zookeeper", "localhost", nil)
	require.Error(t, err)
	_, err = lockpool.OpenConnector(nil)
	require.Error(t, err)
}
