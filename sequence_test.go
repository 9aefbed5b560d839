package lockpool_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Scenario 133. (Every other client grants twice there.)
func TestEndOfTheNumbersIsAnErrorAndNeverAGrant(t *testing.T) {
	t.Parallel()
	embedded := zktest.Start(t) // a real one would have to count to 2^31
	b := newBenchOn(t, embedded.Addr())
	p, others := b.pool(), b.pool()
	b.unlock(b.lock(p, "a"))
	require.NoError(t, embedded.SetSequence(b.chroot+"/a", 2147483645))
	holder := b.lock(p, "a")
	last := b.wait(others, "a", 2)
	for _, p := range []*lockpool.Pool{p, others, p} {
		_, err := p.Lock(b.ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)
		require.ErrorContains(t, err, `remove the node of the lock "a" while nobody holds or waits`)
		_, err = p.TryLock(b.ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)
	}
	require.Len(t, b.children("a"), 2)
	b.stillWaits(last)
	b.unlock(holder)
	b.unlock(b.granted(last)) // who has a number is served
	_, err := p.Lock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)

	require.NoError(t, b.admin.Delete(b.chroot+"/a", -1)) // the remedy
	b.unlock(b.lock(p, "a"))
}

// A tie does not tell who came first, so it is no grant either.
func TestTieIsAnErrorAndNeverAGrant(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"0", "z"} { // sorted before our node, and behind it
		b := newBench(t)
		p := b.pool()
		b.unlock(b.lock(p, "a"))
		// This child is the second; the one after it gets number 2.
		twin := fmt.Sprintf("%s/a/%s-lock-0000000002", b.chroot, prefix)
		_, err := b.admin.Create(twin, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
		_, err = p.Lock(b.ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrSequenceExhausted)
		require.Len(t, b.children("a"), 1)
		require.NoError(t, b.admin.Delete(twin, -1))
		b.unlock(b.lock(p, "a"))
	}
}

// Other clients sort negative numbers first, and so do we: who has one may hold
// the lock.
func TestContenderWithANegativeNumberIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	b.unlock(b.lock(p, "a"))
	strange := b.chroot + "/a/x-lock--2147483648"
	_, err := b.admin.Create(strange, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = p.TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.wait(p, "a", 2)
	b.stillWaits(w)
	require.NoError(t, b.admin.Delete(strange, -1))
	b.unlock(b.granted(w))
}

func TestEndOfTheNumbersIsAnnounced(t *testing.T) {
	t.Parallel()
	embedded := zktest.Start(t)
	b := newBenchOn(t, embedded.Addr())
	var mu sync.Mutex
	var log bytes.Buffer
	cfg := b.config()
	cfg.Logger = slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil))
	p := b.poolWith(cfg, lockpool.WithMaxSessions(1))
	logged := func() int {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Count(log.Bytes(), []byte(b.chroot+"/a"))
	}
	b.unlock(b.lock(p, "a"))
	require.NoError(t, embedded.SetSequence(b.chroot+"/a", 2_000_000_000))
	b.unlock(b.lock(p, "a"))
	require.Zero(t, logged())
	require.NoError(t, embedded.SetSequence(b.chroot+"/a", 2_100_000_000))
	for range 3 {
		b.unlock(b.lock(p, "a"))
	}
	require.Equal(t, 1, logged())
}
