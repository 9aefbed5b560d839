package zookeeper_test

// This file has tests of numbers that do not tell the order.

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// All other clients grant twice there.
func TestExhaustedSequenceIsAnErrorAndNeverAGrant(t *testing.T) {
	t.Parallel()
	embedded := zktest.Start(t) // a real server would have to count to 2^31
	b := locktest.NewOn(t, embedded).AtService()
	p, others := b.Pool(), b.Pool()
	b.Unlock(b.Lock(p, "a"))
	require.NoError(t, embedded.SetSequence(b.Chroot+"/a", 2147483645))
	holder := b.Lock(p, "a")
	last := b.Enqueue(others, "a", 2)
	for _, p := range []*lockpool.Pool{p, others, p} {
		_, err := p.Lock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)
		require.ErrorContains(t, err, `remove the node of the lock "a" while it has no holder and no waiter`)
		_, err = p.TryLock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)
	}
	require.Len(t, b.Children("a"), 2)
	last.StillWaits()
	b.Unlock(holder)
	b.Unlock(last.Granted()) // a contender with a number is served
	_, err := p.Lock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)

	require.NoError(t, b.Admin.Delete(b.Chroot+"/a", -1)) // the remedy
	b.Unlock(b.Lock(p, "a"))
}

// A tie does not show which contender came first.
func TestTieIsAnErrorAndNeverAGrant(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"0", "z"} { // sorted before and after our node
		b := locktest.New(t)
		p := b.Pool()
		b.Unlock(b.Lock(p, "a"))
		// This is the second child, so the next one gets number 2.
		twin := fmt.Sprintf("%s/a/%s-lock-0000000002", b.Chroot, prefix)
		_, err := b.Admin.Create(twin, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		_, err = p.Lock(b.Ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)
		require.Len(t, b.Children("a"), 1)
		require.NoError(t, b.Admin.Delete(twin, -1))
		b.Unlock(b.Lock(p, "a"))
	}
}

func TestNearlyExhaustedSequenceIsLoggedOnce(t *testing.T) {
	t.Parallel()
	b, embedded := locktest.NewEmbedded(t)
	var log locktest.Log
	cfg := b.Config()
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	p := b.PoolWith(cfg, lockpool.WithMaxSessions(1))
	logged := func() int { return strings.Count(log.String(), b.Chroot+"/a") }
	b.Unlock(b.Lock(p, "a"))
	require.NoError(t, embedded.SetSequence(b.Chroot+"/a", 2_000_000_000))
	b.Unlock(b.Lock(p, "a"))
	require.Zero(t, logged())
	require.NoError(t, embedded.SetSequence(b.Chroot+"/a", 2_100_000_000))
	for range 3 {
		b.Unlock(b.Lock(p, "a"))
	}
	require.NoError(t, p.Close()) // the log is written by a goroutine of its own
	require.Equal(t, 1, logged())
}
