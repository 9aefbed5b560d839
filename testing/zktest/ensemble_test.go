//go:build unix

package zktest

// This file has the tests of real ensembles.

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
)

func TestRealEnsembleElectsANewLeader(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	e := StartRealEnsemble(t, 3)
	t.Logf("started in %v", time.Since(begin))
	require.Equal(t, 3, e.Len())
	addrs := strings.Split(e.ConnectString(), ",")
	require.Equal(t, []string{e.Member(0).Addr(), e.Member(1).Addr(), e.Member(2).Addr()}, addrs)

	first, err := e.Leader(testContext(t))
	require.NoError(t, err)
	conn := connect(t, addrs...)
	_, err = conn.Create("/kept", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)

	begin = time.Now()
	require.NoError(t, first.Kill())
	second, err := e.Leader(testContext(t))
	require.NoError(t, err)
	t.Logf("next leader in %v", time.Since(begin))
	require.NotSame(t, first, second)
	require.True(t, exists(t, conn, "/kept"))

	begin = time.Now()
	require.NoError(t, first.Start(testContext(t)))
	t.Logf("killed member is back in %v", time.Since(begin))
	require.True(t, exists(t, connect(t, first.Addr()), "/kept"))

	begin = time.Now()
	require.NoError(t, second.Pause())
	third, err := e.Leader(testContext(t))
	require.NoError(t, err)
	t.Logf("leader after a pause in %v", time.Since(begin))
	require.NotSame(t, second, third)
	require.NoError(t, second.Resume())
	leader, err := e.Leader(testContext(t))
	require.NoError(t, err)
	require.NotNil(t, leader)

	require.DirExists(t, leader.dir)
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	for i := range e.Len() {
		require.NoDirExists(t, e.Member(i).dir)
		require.Zero(t, e.Member(i).PID())
		require.ErrorIs(t, e.Member(i).Start(testContext(t)), errClosed)
	}
}
