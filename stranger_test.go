package lockpool_test

import (
	"sync/atomic"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A contender of a recipe that lockpool does not know, such as Curator's
// LeaderLatch, would not wait for lockpool, nor lockpool for it.
func TestContenderOfAnUnknownKindIsAnError(t *testing.T) {
	t.Parallel()
	for _, k := range lockKinds {
		for _, stranger := range []string{"_c_0f0e0d0c-0000-4000-8000-000000000000-latch-", "n_", ""} {
			t.Run(k.name+" "+stranger, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				p, others := b.pool(), b.pool()
				b.unlock(b.lock(others, "s")) // makes it
				for range 20 {
					b.unlock(b.lock(p, "s")) // and is granted without a listing
				}
				path, err := b.admin.Create(b.chroot+"/s/"+stranger, []byte("leader"), zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
				require.NoError(t, err)
				for range 2 {
					_, err = k.take(b, p)
					require.ErrorIs(t, err, lockpool.ErrKindMismatch)
					require.ErrorContains(t, err, last(path, 10))
				}
				b.until(func() bool { return len(b.contenders("/s")) == 1 }, "nothing of ours is left")
				require.NoError(t, b.admin.Delete(path, -1))
				if k.name != "plain" {
					release, err := k.take(b, p)
					require.NoError(t, err)
					require.NoError(t, release(b.ctx))
				}
			})
		}
	}
	t.Run("permits beside", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		p := b.pool()
		b.release(b.acquire(p.Semaphore("s", 2), 1))
		for _, part := range []string{"locks", "leases"} {
			path, err := b.admin.Create(b.chroot+"/s/"+part+"/latch-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
			_, err = p.Semaphore("s", 2).TryAcquire(b.ctx, 1)
			require.ErrorIs(t, err, lockpool.ErrKindMismatch, part)
			_, err = p.TryLock(b.ctx, "s")
			require.ErrorIs(t, err, lockpool.ErrKindMismatch, part)
			require.NoError(t, b.admin.Delete(path, -1))
		}
	})
}

// Locks below another one may have numbers in their names. They are looked at
// once.
func TestLockBelowWithANumberIsNoStranger(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(lockpool.WithMaxSessions(1)), b.pool()
	below := b.lock(others, "jobs/run-0000000042")
	plain, err := others.Lock(b.ctx, "jobs/run-0000000043", lockpool.Plain())
	require.NoError(t, err)
	_, err = b.admin.Create(b.chroot+"/jobs/run-0000000044", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	var looks atomic.Int32
	own.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.Pass(), Match: zktest.Match{
		Ops:   []zktest.Op{zktest.OpExists, zktest.OpGetData},
		Where: func(r zktest.Request) bool { looks.Add(1); return true },
	}})
	b.unlock(b.lock(p, "jobs"))
	require.NoError(t, others.Revoke(b.ctx, "jobs/run-0000000043"))
	b.unlock(b.lock(p, "jobs"))
	b.unlock(plain)
	looks.Store(0)
	b.unlock(b.lock(p, "jobs"))
	require.Zero(t, looks.Load())
	b.unlock(below)
}
