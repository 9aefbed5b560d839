package lockpool_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The first semaphore of a name and a lock of that name: the semaphore looks
// before the lock's node is there, the lock looks before the leases' node is.
func TestLockSeesASemaphoreThatHasNoLeasesYet(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(), b.pool()
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/s/leases", Ops: zktest.Creates},
		Do:    zktest.HoldApply(),
	})
	type result struct {
		permits *lockpool.Permits
		err     error
	}
	got := make(chan result, 1)
	go func() {
		permits, err := p.Semaphore("s", 1).Acquire(b.ctx, 1)
		got <- result{permits, err}
	}()
	require.NoError(t, held.Wait(b.ctx))
	l, lockErr := others.TryLock(b.ctx, "s")
	held.Release()
	r := <-got
	if lockErr == nil && r.err == nil {
		require.NoError(t, l.Verify(b.ctx))
		require.NoError(t, r.permits.Verify(b.ctx))
	}
	if lockErr == nil {
		b.unlock(l)
	}
	if r.err == nil {
		b.release(r.permits)
	}
	require.False(t, lockErr == nil && r.err == nil, "a lock and a semaphore are held under one name")
}

// A lock that is granted by its number alone is not told of a semaphore that is
// in use all the time.
func TestLockGrantedByItsNumberSeesTheSemaphore(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, zktest.Start(t).Addr())
	p, others := b.pool(), b.pool()
	b.release(b.acquire(others.Semaphore("s", 1), 1)) // leaves its queues behind for a while
	for range 30 {
		b.unlock(b.lock(p, "s"))
	}
	permits := b.acquire(others.Semaphore("s", 1), 1)
	defer b.release(permits)
	for range 5 {
		l, err := p.TryLock(b.ctx, "s")
		if err == nil {
			verify := permits.Verify(b.ctx)
			b.unlock(l)
			require.NoError(t, verify)
		}
		require.ErrorIs(t, err, lockpool.ErrKindMismatch, "a lock and a semaphore are held under one name")
	}
}

// Names that are taken for a part of a semaphore, and are not refused.
func TestNamesThatLookLikeASemaphoreAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		first []string
		then  func(b *bench, p *lockpool.Pool) error
	}{
		{"lock", []string{"db/leases", "db/locks"}, func(b *bench, p *lockpool.Pool) error {
			l, err := p.TryLock(b.ctx, "db")
			if err == nil {
				err = l.Unlock(b.ctx)
			}
			return err
		}},
		{"semaphore beside limit", []string{"db/limit"}, acquireDB},
		{"semaphore beside locks", []string{"db/locks"}, acquireDB},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			b := newBenchOn(t, zktest.Start(t).Addr())
			p, others := b.pool(), b.pool()
			for _, name := range c.first {
				l, err := p.Lock(b.ctx, name)
				if err != nil {
					require.ErrorIs(t, err, lockpool.ErrInvalidName)
					return // refused: then nothing can go wrong
				}
				defer b.unlock(l)
			}
			require.NoError(t, c.then(b, others), "an unrelated name is in the way")
		})
	}
}

func acquireDB(b *bench, p *lockpool.Pool) error {
	permits, err := p.Semaphore("db", 2).TryAcquire(b.ctx, 1)
	if err == nil {
		err = permits.Release(b.ctx)
	}
	return err
}

// plainHolder takes a plain lock and waits until its node is watched.
func (b *bench) plainHolder(p *lockpool.Pool, name string) *lockpool.Lock {
	l, err := p.Lock(b.ctx, name, lockpool.Plain())
	require.NoError(b, err)
	b.token(l)
	return l
}

// A request to give a plain lock back that arrives when it has another holder.
func TestLateRevokeOfAPlainLockDoesNoHarmToTheNextHolder(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others, operator, third := b.pool(), b.pool(), b.pool(), b.pool()
	first := b.plainHolder(p, "a")
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/a", Ops: []zktest.Op{zktest.OpSetData}},
		Do:    zktest.HoldApply(),
	})
	revoked := make(chan error, 1)
	go func() { revoked <- operator.Revoke(b.ctx, "a") }()
	require.NoError(t, held.Wait(b.ctx))
	b.unlock(first)
	next := b.plainHolder(others, "a")
	held.Release()
	<-revoked
	err := next.Verify(b.ctx)
	unlock := next.Unlock(b.ctx)
	l, blocked := third.Lock(expiring(t, 2*time.Second), "a", lockpool.Plain())
	if blocked == nil {
		b.unlock(l)
	}
	require.NoError(t, blocked, "the node stays behind: nobody can lock until the holder's session ends")
	require.NoError(t, err, "the next holder has lost a lock that is its own")
	require.NoError(t, unlock)
}

// ZooKeeper's way to ask is to write __REVOKE__ into the lock's node, says Revoked.
func TestPlainLockIsRevokedByHand(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, zktest.Start(t).Addr())
	p, third := b.pool(), b.pool()
	holder := b.plainHolder(p, "a")
	_, err := b.admin.Set(b.chroot+"/a", []byte("__REVOKE__"), -1)
	require.NoError(t, err)
	var how string
	select {
	case <-holder.Revoked():
		how = "revoked"
	case <-holder.Lost():
		how = "lost"
	}
	unlock := holder.Unlock(b.ctx)
	l, blocked := third.Lock(expiring(t, 2*time.Second), "a", lockpool.Plain())
	if blocked == nil {
		b.unlock(l)
	}
	require.NoError(t, blocked, "the node stays behind until the holder's session ends (%s, unlock: %v)", how, unlock)
	require.Equal(t, "revoked", how)
}

// Break of a plain lock whose reply is lost: the delete is repeated without a look.
func TestBreakOfAPlainLockDoesNotHitTheNextHolder(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others, operator := b.pool(), b.pool(), b.pool()
	b.plainHolder(p, "a")
	q, err := operator.Queue(b.ctx, "a")
	require.NoError(t, err)
	w := make(chan *lockpool.Lock, 1)
	go func() {
		l, err := others.Lock(b.ctx, "a", lockpool.Plain())
		if err != nil {
			t.Error(err)
		}
		w <- l
	}()
	b.until(func() bool { return others.Stats().Waiting == 1 }, "it waits")
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/a", Ops: []zktest.Op{zktest.OpDelete}},
		Do:    zktest.DropAfterApply(),
	})
	require.NoError(t, operator.Break(b.ctx, "a", q.Contenders[0].Node))
	next := <-w
	err = next.Verify(b.ctx)
	_ = next.Unlock(b.ctx)
	require.NoError(t, err, "the next holder's node was removed")
}

// A holder that looks for its plain node finds one that it may not see. It is
// somebody else's, who took the lock when the holder's was broken.
func TestHiddenPlainNodeOfAnotherIsNotRemoved(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	require.NoError(t, b.admin.AddAuth("digest", []byte("lockpool:s3cret")))
	b.unlock(b.lock(b.pool(), "x/other"))
	cfg := b.config()
	cfg.Digest = zookeeper.Digest{User: "lockpool", Password: "s3cret"}
	p, others := b.pool(), b.poolWith(cfg)
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.chroot + "/x/a", Ops: []zktest.Op{zktest.OpGetData}},
		Do:    zktest.HoldApply(),
	})
	l, err := p.Lock(b.ctx, "x/a", lockpool.Plain())
	require.NoError(t, err)
	require.NoError(t, held.Wait(b.ctx)) // its first look, after 20 ms
	held.Remove()
	require.NoError(t, b.admin.Delete(b.chroot+"/x/a", -1))
	next := b.plainHolder(others, "x/a")
	held.Release()
	<-l.Lost()
	b.until(func() bool { // the removal goes on in the background
		deletes := 0
		for _, r := range own.Trace() {
			if strings.Contains(r.String(), "/x/a") && strings.Contains(r.String(), "delete") {
				deletes++
			}
		}
		return deletes >= 2
	}, "two deletes")
	err = next.Verify(b.ctx)
	_ = next.Unlock(b.ctx)
	require.NoError(t, err, "somebody else's node was removed")
}

// A plain lock that changes hands quickly is an error for who waits.
func TestPlainLockThatChangesHandsQuicklyIsNoError(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p := b.pool()
	b.unlock(b.lock(p, "x/other"))
	path := b.chroot + "/x/a"
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: path, Ops: zktest.Creates}, Times: 12,
		Do: zktest.Call(func(zktest.Request) { _ = own.Create(path, nil) }),
	})
	own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: path, Ops: []zktest.Op{zktest.OpGetData}}, Times: 12,
		Do: zktest.Call(func(zktest.Request) { _ = own.Delete(path) }),
	})
	l, err := p.Lock(b.ctx, "x/a", lockpool.Plain())
	require.NoError(t, err)
	b.unlock(l)
}
