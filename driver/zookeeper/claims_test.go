package zookeeper

// This file tests the turns of creates and deletes of one path within a process.

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClaimsOfOnePathExcludeEachOther(t *testing.T) {
	t.Parallel()
	const path = "/claims/one"
	c := processClaims.on(path)
	require.True(t, c.delete())
	began := time.Now()
	other := processClaims.on("/claims/other")
	other.create()
	require.Less(t, time.Since(began), maxClaimWait, "a create of another path waits")
	other.created(false)
	began = time.Now()
	turn := processClaims.on(path).create()
	require.GreaterOrEqual(t, time.Since(began), maxClaimWait, "a create waits for the delete, but not forever")
	require.False(t, processClaims.on(path).delete(), "a delete gives up waiting for the create")
	c.created(true)
	require.Equal(t, turn, processClaims.on(path).turn())
	c.deleted()
	c.deleted()
	began = time.Now()
	c.create()
	c.created(false)
	require.Less(t, time.Since(began), maxClaimWait)
	runtime.KeepAlive(c)
}

func TestClaimsLiveAsLongAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	const held, released = "/claims/held", "/claims/released"
	c := processClaims.on(held)
	c.create()
	c.created(true)
	processClaims.on(released).create()
	require.Eventually(t, func() bool {
		runtime.GC()
		_, found := processClaims.byPath.Load(released)
		return !found
	}, time.Minute, time.Millisecond)
	require.Equal(t, int64(1), processClaims.on(held).turn())
	require.Zero(t, processClaims.on(released).turn())
	runtime.KeepAlive(c)
}
