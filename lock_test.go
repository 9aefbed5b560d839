package lockpool_test

// This file tests locks below chroots, beside foreign nodes, and without their directories.

import (
	"context"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
)

func TestChrootIsInvisibleInNamesAndErrors(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "orders/42")
	require.Equal(t, "orders/42", l.Name())
	exists, _, err := b.Admin.Exists(b.Chroot + "/orders/42")
	require.NoError(t, err)
	require.True(t, exists)
	_, err = p.TryLock(b.Ctx, "orders/42")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NotContains(t, err.Error(), b.Chroot)
	b.Unlock(l)
}

func TestLockWithoutAChroot(t *testing.T) {
	t.Parallel()
	b := locktest.NewOn(t, locktest.StartServer(t))
	b.Chroot = ""
	p := b.Pool()
	for range 2 {
		l := b.Lock(p, "a")
		require.Len(t, b.Children("a"), 1)
		b.Unlock(l)
		require.NoError(t, b.Admin.Delete("/a", -1))
	}
	b.Unlock(b.Lock(p, "b/c"))
}

func TestMissingParentsAreCreatedAndExistingOnesKept(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	world := zk.WorldACL(zk.PermAll)
	_, err := b.Admin.Create(b.Chroot, nil, 0, world)
	require.NoError(t, err)
	_, err = b.Admin.Create(b.Chroot+"/one", []byte("keep me"), 0, world)
	require.NoError(t, err)
	b.Unlock(b.Lock(b.Pool(), "one/two/three"))
	data, _, err := b.Admin.Get(b.Chroot + "/one")
	require.NoError(t, err)
	require.Equal(t, "keep me", string(data))
}

func TestForeignChildrenAreIgnoredAndForeignContendersAwaited(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	b.Unlock(b.Lock(p, "a"))
	world := zk.WorldACL(zk.PermAll)
	for _, name := range []string{"0", "-x", "config", "lease_holder", "_c_!", "lock-", "x-lock-12"} {
		_, err := b.Admin.Create(b.Chroot+"/a/"+name, nil, 0, world)
		require.NoError(t, err)
	}
	b.Unlock(b.Lock(p, "a/0")) // a lock below a lock
	b.Unlock(b.Lock(p, "a"))
	for _, name := range []string{"note__lock__0000000000", "zz-lock-0000000000"} {
		_, err := b.Admin.Create(b.Chroot+"/a/"+name, nil, 0, world)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(b.Ctx)
		done := startLock(ctx, p)
		b.Until(func() bool {
			watched, err := locktest.Shared().Command(b.Ctx, "wchp")
			require.NoError(t, err)
			return strings.Contains(watched, b.Chroot+"/a/"+name+"\n")
		}, "a waiter behind %s", name)
		cancel()
		err = <-done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, name, "the error names the blocking node")
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+name, -1))
	}
	b.Unlock(b.Lock(p, "a"))
}
