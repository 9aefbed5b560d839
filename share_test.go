package lockpool_test

// This file tests readers and downgrades.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestDowngradeGoesOnWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	h := b.Handle(b.Pool())
	write := b.Lock(h, "a")
	read := b.Lock(h, "a", lockpool.Shared())
	f := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}, Prefix: b.Chroot + "/a/"}, Do: zktest.HoldReply()})
	ctx, cancel := context.WithCancel(b.Ctx)
	unlocked := make(chan error, 1)
	go func() { unlocked <- write.Unlock(ctx) }()
	require.NoError(t, f.Wait(b.Ctx))
	cancel()
	err := <-unlocked
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "not confirmed it yet")
	require.ErrorIs(t, read.Unlock(ctx), context.Canceled)
	f.Release()
	b.AwaitQueue("a", 0)
	b.Unlock(b.Lock(b.Pool(), "a"))
	require.NoError(t, h.Close(b.Ctx))
}

func TestDowngradeWithoutPermissionStaysExclusive(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	cfg := b.Config()
	cfg.ACL = zk.WorldACL(zk.PermRead | zk.PermCreate | zk.PermDelete)
	h := b.Handle(b.PoolWith(cfg))
	write := b.Lock(h, "a")
	read := b.Lock(h, "a", lockpool.Shared())
	err := write.Unlock(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.NotErrorIs(t, err, lockpool.ErrLockLost)
	require.ErrorContains(t, err, "WRITE on the node")
	require.Equal(t, 1, read.Depth())
	require.NoError(t, read.Verify(b.Ctx))
	_, err = b.Pool().TryLock(b.Ctx, "a", lockpool.Shared())
	require.ErrorIs(t, err, lockpool.ErrLocked)
	b.Unlock(read)
	require.NoError(t, h.Close(b.Ctx))
}

// A downgrade reads its node first, which takes a round trip.
func TestUnlockBesideADowngrade(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		for name, unlock := range map[string]func(b *locktest.Bench, h *lockpool.Handle, read *lockpool.Lock) error{
			"unlock": func(b *locktest.Bench, _ *lockpool.Handle, read *lockpool.Lock) error { return read.Unlock(b.Ctx) },
			"close":  func(b *locktest.Bench, h *lockpool.Handle, _ *lockpool.Lock) error { return h.Close(b.Ctx) },
		} {
			b, proxy := locktest.NewBehindProxy(t)
			h := b.Handle(b.Pool())
			look := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.HoldReply()})
			alone := b.Lock(h, "a")
			read := b.Lock(h, "a", lockpool.Shared())
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- alone.Unlock(b.Ctx) }()
			require.NoError(t, look.Wait(b.Ctx))
			go func() { second <- unlock(b, h, read) }()
			require.NoError(t, <-second, name)
			require.NoError(t, <-first, name)
			look.Release()
			require.Empty(t, b.Children("a"), name)
			require.NoError(t, h.Close(b.Ctx))
		}
	})
}

// One failed downgrade must not keep readers out for the rest of the hold.
func TestDowngradeIsRetriedWhenThrottled(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	h, others := b.Handle(b.Pool()), b.Pool()
	const throttled = -127
	proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.FailWith(throttled)})
	alone := b.Lock(h, "a")
	b.Lock(h, "a", lockpool.Shared())
	b.Unlock(alone)
	b.Unlock(b.Lock(others, "a", lockpool.Shared()))
	require.NoError(t, h.Close(b.Ctx))
}

// A downgrade whose answers are lost or unclear leaves no node that outlives the locks.
func TestDowngradeWithoutAClearAnswer(t *testing.T) {
	for unclear := range 5 {
		t.Run(fmt.Sprint(unclear), func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
				h := b.Handle(b.Pool())
				write, read := b.Lock(h, "a"), b.Lock(h, "a", lockpool.Shared())
				time.Sleep(time.Second)
				inject := func(op zktest.Op, times int, do zktest.Action) *zktest.Fault {
					return server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{op}, Prefix: b.Chroot + "/a"}, Times: times, Do: do})
				}
				lost := inject(zktest.OpMulti, 1, zktest.DropAfterApply())
				if unclear > 0 {
					inject(zktest.OpMulti, unclear, zktest.FailWith(zktest.ErrSystem))
					inject(zktest.OpExists, 1, zktest.FailWith(zktest.ErrThrottled))
					inject(zktest.OpExists, unclear, zktest.FailWith(zktest.ErrSystem))
				}
				_ = write.Unlock(b.Ctx)
				_ = read.Unlock(b.Ctx)
				require.NoError(t, h.Close(b.Ctx))
				require.Equal(t, 1, lost.Fired())
				b.Until(func() bool { return len(b.Children("a")) == 0 }, "the lock is free")
				b.Unlock(b.Lock(b.Pool(), "a"))
			})
		})
	}
}
