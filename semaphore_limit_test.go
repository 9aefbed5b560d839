package lockpool_test

// This file tests the limits of semaphores.

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The first SetLimit comes while permits are acquired under a stated limit. It
// counts as soon as it has returned.
func TestLimitSetBeforeTheLeaseIsCreatedCounts(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p := b.Pool()
	require.NoError(t, own.Create(b.Chroot, nil))
	require.NoError(t, own.Create(b.Chroot+"/s", nil))
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/s/leases", Ops: []zktest.Op{zktest.OpMulti}}, // creates the directory as well
		Do:    zktest.Call(func(zktest.Request) { _ = own.Create(b.Chroot+"/s/limit", []byte{0, 0, 0, 0}) }),
	})
	_, err := p.Semaphore("s", 2).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	require.ErrorIs(t, err, lockpool.ErrLocked)
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/limit", -1))
}

// Curator's leases state no limit. Neither do names that only resemble ours.
func TestForeignLeasesStateNoLimit(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	sem := b.Pool().Semaphore("s", 4)
	b.Unlock(b.Acquire(sem, 1))
	for _, name := range []string{"/_c_01234567-89ab-cdef-0123-456789abcdef-lease-", "/_c_01234567-89ab-cdef-0123-456789abcdef-of-1-lease-", "/of1-lease-"} {
		_, err := b.Admin.Create(b.Chroot+"/s/leases"+name, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		require.NoError(t, err)
	}
	held, err := sem.Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	require.NoError(t, err)
	_, err = sem.Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.Unlock(held)
	for _, name := range b.Children("s/leases") {
		require.NoError(t, b.Admin.Delete(b.Chroot+"/s/leases/"+name, -1))
	}
}

// The limit is lowered before the lease is created, and its event precedes the reply. The old
// limit must not grant the permit. (The old limit would: first has one of two permits.)
func TestLimitLoweredBeforeTheGrantCounts(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others := b.Pool(), b.Pool()
	for i := range 40 { // event and reply are seen at almost the same time
		name := fmt.Sprint("s", i)
		sem := others.Semaphore(name, 0)
		require.NoError(t, sem.SetLimit(b.Ctx, 2))
		first := b.Acquire(sem, 1)
		own.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot + "/" + name + "/leases/", Ops: zktest.Creates},
			Do: zktest.Call(func(zktest.Request) { // SetLimit of an operator returns before the lease is created
				_ = own.Set(b.Chroot+"/"+name+"/limit", []byte{0, 0, 0, 1})
			}),
		})
		_, err := p.Semaphore(name, 0).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
		require.ErrorIs(t, err, lockpool.ErrLocked)
		b.Unlock(first)
	}
}

func TestLimitHasTheFormatOfCurator(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	require.NoError(t, b.Pool().Semaphore("s", 0).SetLimit(b.Ctx, 1))
	data, stat, err := b.Admin.Get(b.Chroot + "/s/limit")
	require.NoError(t, err)
	require.Equal(t, binary.BigEndian.AppendUint32(nil, 1), data, "as Curator's SharedCount")
	require.Zero(t, stat.EphemeralOwner)
	require.NoError(t, b.Admin.Delete(b.Chroot+"/s/limit", -1))
}
