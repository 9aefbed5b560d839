package lockpool_test

import (
	"context"
	"testing"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// ZooKeeper removes the empty container of the guards while permits are held.
// They stay visible, and in everybody's way.
func TestPermitsAreSeenWithoutTheGuards(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	for range 20 { // so many that a grant is not listed any more
		b.unlock(b.lock(others, "s"))
	}
	b.until(func() bool { return b.sweep("/s") }, "the queue is gone")
	held := b.acquire(p.Semaphore("s", 2), 2)
	b.until(func() bool { err := b.admin.Delete(b.chroot+"/s/locks", -1); return err == nil || err == zk.ErrNoNode }, "the guards are gone")
	for range 3 {
		for _, k := range lockKinds[:2] {
			_, err := k.take(b, others)
			require.ErrorIs(t, err, lockpool.ErrKindMismatch, k.name)
			require.ErrorContains(t, err, "a semaphore", k.name)
		}
	}
	names, err := others.List(b.ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"s"}, names)
	q, err := others.Queue(b.ctx, "s")
	require.NoError(t, err)
	require.Len(t, q.Contenders, 1)
	require.Equal(t, []any{"semaphore", true, 2}, []any{q.Contenders[0].Kind, q.Contenders[0].Holds, q.Contenders[0].Permits})
	require.Empty(t, q.Foreign)
	require.NoError(t, others.Revoke(b.ctx, "s"))
	select {
	case <-held.Revoked():
	case <-b.ctx.Done():
		require.FailNow(t, "not asked")
	}
	require.NoError(t, others.Break(b.ctx, "s", q.Contenders[0].Node))
	<-held.Lost()
	require.ErrorIs(t, held.Release(b.ctx), lockpool.ErrLockLost)
}

// Two kinds that begin at the same moment, on a name that has been used by both,
// of whose containers some are there and some are not.
func TestKindsDoNotMixWhateverIsLeftOfThem(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	type result struct {
		release, verify func(context.Context) error
		err             error
	}
	race := func() (lock, semaphore result) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			permits, err := others.Semaphore("s", 2).Acquire(b.ctx, 1)
			if semaphore.err = err; err == nil {
				semaphore.release, semaphore.verify = permits.Release, permits.Verify
			}
		}()
		l, err := p.Lock(b.ctx, "s")
		if lock.err = err; err == nil {
			lock.release, lock.verify = l.Unlock, l.Verify
		}
		<-done
		return lock, semaphore
	}
	for round := range 80 {
		switch round % 4 {
		case 1:
			_ = b.admin.Delete(b.chroot+"/s/locks", -1)
		case 2:
			_ = b.admin.Delete(b.chroot+"/s/leases", -1)
		case 3:
			for range 20 {
				b.unlock(b.lock(p, "s"))
			}
		}
		lock, semaphore := race()
		if lock.err == nil && semaphore.err == nil {
			require.False(t, lock.verify(b.ctx) == nil && semaphore.verify(b.ctx) == nil, "both are in, in round %d", round)
		}
		for _, r := range []result{lock, semaphore} {
			if r.err == nil {
				require.NoError(t, r.release(b.ctx))
			} else {
				require.ErrorIs(t, r.err, lockpool.ErrKindMismatch)
			}
		}
	}
	held := b.acquire(others.Semaphore("s", 2), 1)
	for round := range 80 {
		b.until(func() bool { err := b.admin.Delete(b.chroot+"/s/locks", -1); return err == nil || err == zk.ErrNoNode }, "the guards are gone")
		lock, semaphore := race()
		require.ErrorIs(t, lock.err, lockpool.ErrKindMismatch, "beside permits, in round %d", round)
		if semaphore.err == nil {
			require.NoError(t, semaphore.release(b.ctx))
		} else {
			require.ErrorIs(t, semaphore.err, lockpool.ErrKindMismatch)
		}
	}
	b.release(held)
}

// The names of a semaphore's parts are names of locks where nothing is above them.
func TestLocksNamesALockThatIsNamedLikeAPartOfASemaphore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	for _, name := range []string{"locks", "leases", "limit"} {
		l := b.lock(p, name)
		for _, prefix := range []string{"", name} {
			names, err := p.List(b.ctx, prefix)
			require.NoError(t, err)
			require.Equal(t, []string{name}, names)
		}
		b.unlock(l)
	}
}
