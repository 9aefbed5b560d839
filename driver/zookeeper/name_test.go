package zookeeper_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
)

func TestInvalidNamesAreRejectedBeforeAnyRequest(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t)
	b := locktest.NewOn(t, own)
	p := b.PoolWithTimeout(10 * time.Second)
	h := b.Handle(p)
	before := b.Stat(own, "zk_packets_received")
	for _, name := range []string{
		"", "/", "/a", "a/", "a//b", "//", ".", "..", "a/./b", "a/../b",
		"a\x00b", "a\nb", "a\x7fb", "a\u009fb", "a\ue000b", "a\ufff0b", "a\xffb", "a\U0001F512b",
		strings.Repeat("a", 513),
		"a/_c_00000000-0000-0000-0000-000000000000-lock-0000000001", "_c_x", "x-lock-0000000001",
		"a/b__READ__0000000001", "a/b__WRIT__0000000001", "b__lock__0000000001/c", "b__rlock__0000000001",
		"a/lock--2147483648",
	} {
		for _, err := range []error{
			errorOf(h.Lock(b.Ctx, name)), errorOf(h.TryLock(b.Ctx, name)),
			errorOf(p.Lock(b.Ctx, name)), errorOf(p.TryLock(b.Ctx, name)),
			p.Do(b.Ctx, name, func(context.Context) error { panic("called") }),
		} {
			require.ErrorIs(t, err, lockpool.ErrInvalidName, "%q", name)
		}
	}
	require.Less(t, b.Stat(own, "zk_packets_received")-before, 20)
	for _, name := range []string{
		"a", "orders/42", "a b", "ä/日本", "lock-1", "lock-", "a.b", "...", "_c", "x-12", "locks", "zookeeper", strings.Repeat("a", 512),
	} {
		l, err := h.Lock(b.Ctx, name)
		require.NoError(t, err, "%q", name)
		b.Unlock(l)
	}
	require.NoError(t, h.Close(b.Ctx))
}

// Some names have another meaning: the server's own tree, and what the driver keeps.
func TestNamesWithAnotherMeaningAreRefused(t *testing.T) {
	t.Parallel()
	c, err := zookeeper.NewConnector(zookeeper.Config{Servers: []string{"localhost"}})
	require.NoError(t, err)
	require.Error(t, c.CheckName("zookeeper/quota"))
	for _, name := range []string{".waits", ".waits/a", ".waits/a/b"} {
		require.EqualError(t, c.CheckName(name), ".waits is where calls that wait for plain locks have nodes; use another name")
	}
	for _, name := range []string{"waits", ".waitsfor", "a/.waits", "a/.waits/b", lockpool.Escape(".waits") + "/a"} {
		require.NoError(t, c.CheckName(name))
	}
}

func errorOf(_ *lockpool.Lock, err error) error { return err }
