package lockpool_test

import (
	"context"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// lockKinds are the kinds of locks, and how each is acquired and released.
var lockKinds = []struct {
	name string
	take func(b *locktest.Bench, p *lockpool.Pool) (release func(context.Context) error, err error)
}{
	{"queue", func(b *locktest.Bench, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.TryLock(b.Ctx, "s")
		return l.Unlock, err
	}},
	{"plain", func(b *locktest.Bench, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.TryLock(b.Ctx, "s", lockpool.Plain())
		return l.Unlock, err
	}},
	{"semaphore", func(b *locktest.Bench, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.Semaphore("s", 2).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
		return l.Unlock, err
	}},
}

// The empty nodes of one kind do not keep out another, except a plain lock, and
// that only until the server removes them.
func TestFreeNameCanChangeItsKind(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t, zktest.ContainerInterval(50*time.Millisecond))
	b := locktest.NewOn(t, own)
	pools := []*lockpool.Pool{b.Pool(), b.Pool()}
	for i, k := range []int{0, 1, 2, 0, 2, 1, 0} {
		var release func(context.Context) error
		b.Until(func() (ok bool) {
			var err error
			if release, err = lockKinds[k].take(b, pools[i%2]); err != nil {
				require.ErrorIs(t, err, lockpool.ErrKindMismatch)
				require.Equal(t, 1, k, "an empty container is an obstacle for a plain lock only: %v", err)
			}
			return err == nil
		}, lockKinds[k].name)
		require.NoError(t, release(b.Ctx))
	}
	p := pools[0]
	_, err := b.Admin.Create(b.Chroot+"/keep", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = p.TryLock(b.Ctx, "keep", lockpool.Plain())
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	require.ErrorContains(t, err, "an empty node is at "+b.Chroot+"/keep")
	l, err := p.TryLock(b.Ctx, "keep/x", lockpool.Plain())
	require.NoError(t, err)
	b.Unlock(l)
}

// A plain lock's ephemeral node can have no children.
func TestPlainLockHasNoLocksBelowIt(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	l := b.Lock(p, "a", lockpool.Plain())
	for _, name := range []string{"a/b", "a/b/c"} {
		_, err := p.Lock(b.Ctx, name)
		require.ErrorIs(t, err, lockpool.ErrKindMismatch, name)
		require.ErrorContains(t, err, "a plain lock is held at "+b.Chroot+"/a")
		_, err = p.Lock(b.Ctx, name, lockpool.Plain())
		require.ErrorIs(t, err, lockpool.ErrKindMismatch, name)
	}
	require.ErrorIs(t, p.Semaphore("a", 0).SetLimit(b.Ctx, 1), lockpool.ErrKindMismatch)
	b.Unlock(l)
	below := b.Lock(p, "a/b")
	_, err := p.Lock(b.Ctx, "a", lockpool.Plain())
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	require.ErrorContains(t, err, "other nodes below it, such as b")
	b.Unlock(below)
}

// Of two callers that start at the same moment with different kinds, at most one
// is granted its lock, and the other gets an error.
func TestLockKindsDoNotMixInARace(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	pools := []*lockpool.Pool{b.Pool(), b.Pool()}
	for round := range 60 {
		type result struct {
			release func(context.Context) error
			err     error
		}
		results := make(chan result, 2)
		for i, k := range [][]int{{0, 1}, {0, 2}, {1, 2}}[round%3] {
			go func() {
				release, err := lockKinds[k].take(b, pools[i])
				results <- result{release, err}
			}()
		}
		one, two := <-results, <-results
		require.False(t, one.err == nil && two.err == nil, "both are held")
		for _, r := range []result{one, two} {
			if r.err == nil {
				require.NoError(t, r.release(b.Ctx))
			} else {
				require.ErrorIs(t, r.err, lockpool.ErrKindMismatch)
			}
		}
		b.Until(func() bool { return removeEmpty(b, "/s") }, "no node is left")
	}
}

// removeEmpty removes empty nodes, as ZooKeeper would in time. It reports whether
// all are gone.
func removeEmpty(b *locktest.Bench, path string) bool {
	children, _, err := b.Admin.Children(b.Chroot + path)
	if err == zk.ErrNoNode {
		return true
	}
	require.NoError(b, err)
	for _, child := range children {
		if strings.HasPrefix(child, "_c_") || !removeEmpty(b, path+"/"+child) {
			return false
		}
	}
	err = b.Admin.Delete(b.Chroot+path, -1)
	return err == nil || err == zk.ErrNoNode
}

// The first acquire of a semaphore looks before the lock's node exists, and the
// lock looks before the leases' directory exists.
func TestLockSeesASemaphoreWithoutLeases(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	p, others := b.Pool(), b.Pool()
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/s/leases", Ops: zktest.Creates},
		Do:    zktest.HoldApply(),
	})
	type result struct {
		permits *lockpool.Lock
		err     error
	}
	got := make(chan result, 1)
	go func() {
		permits, err := p.Semaphore("s", 1).Acquire(b.Ctx, 1)
		got <- result{permits, err}
	}()
	require.NoError(t, held.Wait(b.Ctx))
	l, lockErr := others.TryLock(b.Ctx, "s")
	held.Release()
	r := <-got
	if lockErr == nil && r.err == nil {
		require.NoError(t, l.Verify(b.Ctx))
		require.NoError(t, r.permits.Verify(b.Ctx))
	}
	if lockErr == nil {
		b.Unlock(l)
	}
	if r.err == nil {
		b.Unlock(r.permits)
	}
	require.False(t, lockErr == nil && r.err == nil, "a lock and a semaphore are held under one name")
}

// A lock whose node was created before the permits of a semaphore is not granted after
// they are released: its token would be smaller than theirs.
func TestLockSeesPermitsThatAreGone(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	p, others := b.Pool(), b.Pool()
	semaphore := p.Semaphore("s", 1)
	b.Unlock(b.Acquire(semaphore, 1)) // its directories exist
	create := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/s/leases", Ops: zktest.Creates},
		Do:    zktest.HoldApply(),
	})
	acquiring := b.StartAcquire(semaphore, 1)
	require.NoError(t, create.Wait(b.Ctx))
	look := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/s/locks", Ops: zktest.Lists},
		Do:    zktest.HoldApply(),
	})
	locking := b.StartLock(others, "s")
	require.NoError(t, look.Wait(b.Ctx)) // the lock's node exists

	create.Release()
	b.Unlock(acquiring.Granted())
	b.Until(func() bool { return len(b.Children("s/locks")) == 0 }, "the guard is gone")
	look.Release()
	<-locking.Done
	require.ErrorIs(t, locking.Err, lockpool.ErrKindMismatch)
	b.Unlock(b.Lock(others, "s"))
}

// A lock that is granted by its sequence number, without a listing, must still
// notice a semaphore in use.
func TestFastPathSeesASemaphore(t *testing.T) {
	t.Parallel()
	b := locktest.NewOn(t, zktest.Start(t))
	p, others := b.Pool(), b.Pool()
	b.Unlock(b.Acquire(others.Semaphore("s", 1), 1)) // leaves its directories behind for a while
	for range 30 {
		b.Unlock(b.Lock(p, "s"))
	}
	permits := b.Acquire(others.Semaphore("s", 1), 1)
	defer b.Unlock(permits)
	for range 5 {
		l, err := p.TryLock(b.Ctx, "s")
		if err == nil {
			verify := permits.Verify(b.Ctx)
			b.Unlock(l)
			require.NoError(t, verify)
		}
		require.ErrorIs(t, err, lockpool.ErrKindMismatch, "a lock and a semaphore are held under one name")
	}
}

// Names that contain a semaphore's parts are rejected, or are in no one's way.
func TestNamesOfSemaphorePartsAreRefusedOrHarmless(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		first []string
		then  func(b *locktest.Bench, p *lockpool.Pool) error
	}{
		{"lock", []string{"db/leases", "db/locks"}, func(b *locktest.Bench, p *lockpool.Pool) error {
			l, err := p.TryLock(b.Ctx, "db")
			if err == nil {
				err = l.Unlock(b.Ctx)
			}
			return err
		}},
		{"semaphore beside limit", []string{"db/limit"}, acquireDB},
		{"semaphore beside locks", []string{"db/locks"}, acquireDB},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewOn(t, zktest.Start(t))
			p, others := b.Pool(), b.Pool()
			for _, name := range c.first {
				l, err := p.Lock(b.Ctx, name)
				if err != nil {
					require.ErrorIs(t, err, lockpool.ErrInvalidName)
					return // rejected, so that nothing can go wrong
				}
				defer b.Unlock(l)
			}
			require.NoError(t, c.then(b, others), "an unrelated name blocks it")
		})
	}
}

func acquireDB(b *locktest.Bench, p *lockpool.Pool) error {
	permits, err := p.Semaphore("db", 2).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	if err == nil {
		err = permits.Unlock(b.Ctx)
	}
	return err
}

// ZooKeeper removes the guard's empty container while permits are held. The
// permits stay visible, and still exclude the other kinds.
func TestPermitsAreSeenWithoutTheGuardQueue(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	for range 20 { // enough for grants without a listing
		b.Unlock(b.Lock(others, "s"))
	}
	b.Until(func() bool { return removeEmpty(b, "/s") }, "the queue is gone")
	held := b.Acquire(p.Semaphore("s", 2), 2)
	b.Until(func() bool { err := b.Admin.Delete(b.Chroot+"/s/locks", -1); return err == nil || err == zk.ErrNoNode }, "the guard's container is gone")
	for range 3 {
		for _, k := range lockKinds[:2] {
			_, err := k.take(b, others)
			require.ErrorIs(t, err, lockpool.ErrKindMismatch, k.name)
			require.ErrorContains(t, err, "a semaphore", k.name)
		}
	}
	names, err := others.List(b.Ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"s"}, names)
	q, err := others.Queue(b.Ctx, "s")
	require.NoError(t, err)
	require.Len(t, q.Contenders, 1)
	require.Equal(t, []any{"semaphore", true, 2}, []any{q.Contenders[0].Kind, q.Contenders[0].Holds, q.Contenders[0].Permits})
	require.Empty(t, q.Foreign)
	require.NoError(t, others.Revoke(b.Ctx, "s"))
	select {
	case <-held.Revoked():
	case <-b.Ctx.Done():
		require.FailNow(t, "the holder was not asked")
	}
	require.NoError(t, others.Break(b.Ctx, "s", q.Contenders[0].Node))
	<-held.Lost()
	require.ErrorIs(t, held.Unlock(b.Ctx), lockpool.ErrLockLost)
}

// Two kinds start at the same moment, on a name that both have used and that has
// some of their containers left.
func TestLockKindsDoNotMixBesideLeftoverContainers(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	type result struct {
		release, verify func(context.Context) error
		err             error
	}
	race := func() (lock, semaphore result) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			permits, err := others.Semaphore("s", 2).Acquire(b.Ctx, 1)
			if semaphore.err = err; err == nil {
				semaphore.release, semaphore.verify = permits.Unlock, permits.Verify
			}
		}()
		l, err := p.Lock(b.Ctx, "s")
		if lock.err = err; err == nil {
			lock.release, lock.verify = l.Unlock, l.Verify
		}
		<-done
		return lock, semaphore
	}
	for round := range 80 {
		switch round % 4 {
		case 1:
			_ = b.Admin.Delete(b.Chroot+"/s/locks", -1)
		case 2:
			_ = b.Admin.Delete(b.Chroot+"/s/leases", -1)
		case 3:
			for range 20 {
				b.Unlock(b.Lock(p, "s"))
			}
		}
		lock, semaphore := race()
		if lock.err == nil && semaphore.err == nil {
			require.False(t, lock.verify(b.Ctx) == nil && semaphore.verify(b.Ctx) == nil, "both are held, in round %d", round)
		}
		for _, r := range []result{lock, semaphore} {
			if r.err == nil {
				require.NoError(t, r.release(b.Ctx))
			} else {
				require.ErrorIs(t, r.err, lockpool.ErrKindMismatch)
			}
		}
	}
	held := b.Acquire(others.Semaphore("s", 2), 1)
	for round := range 80 {
		b.Until(func() bool { err := b.Admin.Delete(b.Chroot+"/s/locks", -1); return err == nil || err == zk.ErrNoNode }, "the guard's container is gone")
		lock, semaphore := race()
		require.ErrorIs(t, lock.err, lockpool.ErrKindMismatch, "beside permits, in round %d", round)
		if semaphore.err == nil {
			require.NoError(t, semaphore.release(b.Ctx))
		} else {
			require.ErrorIs(t, semaphore.err, lockpool.ErrKindMismatch)
		}
	}
	b.Unlock(held)
}

// The names of a semaphore's parts are names of locks at the top level.
func TestListFindsLocksNamedLikeSemaphoreParts(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	for _, name := range []string{"locks", "leases", "limit"} {
		l := b.Lock(p, name)
		for _, prefix := range []string{"", name} {
			names, err := p.List(b.Ctx, prefix)
			require.NoError(t, err)
			require.Equal(t, []string{name}, names)
		}
		b.Unlock(l)
	}
}

// Lockpool and a contender of a recipe that it does not know, such as Curator's
// LeaderLatch, would not wait for each other.
func TestContenderOfAnUnknownRecipeIsAnError(t *testing.T) {
	t.Parallel()
	for _, k := range lockKinds {
		for _, stranger := range []string{"_c_0f0e0d0c-0000-4000-8000-000000000000-latch-", "n_", ""} {
			t.Run(k.name+" "+stranger, func(t *testing.T) {
				t.Parallel()
				b := locktest.New(t)
				p, others := b.Pool(), b.Pool()
				b.Unlock(b.Lock(others, "s")) // creates the queue
				for range 20 {
					b.Unlock(b.Lock(p, "s")) // until it is granted without a listing
				}
				path, err := b.Admin.Create(b.Chroot+"/s/"+stranger, []byte("leader"), zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
				require.NoError(t, err)
				for range 2 {
					_, err = k.take(b, p)
					require.ErrorIs(t, err, lockpool.ErrKindMismatch)
					require.ErrorContains(t, err, locktest.Sequence(path))
				}
				b.Until(func() bool { return len(b.Contenders("/s")) == 1 }, "no node of the pool is left")
				require.NoError(t, b.Admin.Delete(path, -1))
				if k.name != "plain" {
					release, err := k.take(b, p)
					require.NoError(t, err)
					require.NoError(t, release(b.Ctx))
				}
			})
		}
	}
	t.Run("beside permits", func(t *testing.T) {
		t.Parallel()
		b := locktest.New(t)
		p := b.Pool()
		b.Unlock(b.Acquire(p.Semaphore("s", 2), 1))
		for _, part := range []string{"locks", "leases"} {
			path, err := b.Admin.Create(b.Chroot+"/s/"+part+"/latch-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			require.NoError(t, err)
			_, err = p.Semaphore("s", 2).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
			require.ErrorIs(t, err, lockpool.ErrKindMismatch, part)
			_, err = p.TryLock(b.Ctx, "s")
			require.ErrorIs(t, err, lockpool.ErrKindMismatch, part)
			require.NoError(t, b.Admin.Delete(path, -1))
		}
	})
}

// Locks below another lock may have numbers in their names. The pool looks at
// each of them once.
func TestNumberedLockBelowAnotherIsNoContender(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
	p, others := b.Pool(lockpool.WithMaxSessions(1)), b.Pool()
	below := b.Lock(others, "jobs/run-0000000042")
	plain := b.Lock(others, "jobs/run-0000000043", lockpool.Plain())
	_, err := b.Admin.Create(b.Chroot+"/jobs/run-0000000044", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	var looks atomic.Int32
	own.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.Pass(), Match: zktest.Match{
		Ops: []zktest.Op{zktest.OpExists, zktest.OpGetData},
		Where: func(r zktest.Request) bool { // and not the nodes of the locks, which are watched if they are held for long
			if strings.HasPrefix(r.Paths[0], b.Chroot+"/jobs/run-") && path.Dir(r.Paths[0]) == b.Chroot+"/jobs" {
				looks.Add(1)
			}
			return true
		},
	}})
	b.Unlock(b.Lock(p, "jobs"))
	require.Positive(t, looks.Load())
	require.NoError(t, others.Revoke(b.Ctx, "jobs/run-0000000043"))
	b.Unlock(b.Lock(p, "jobs"))
	b.Unlock(plain)
	looks.Store(0)
	b.Unlock(b.Lock(p, "jobs"))
	require.Zero(t, looks.Load())
	b.Unlock(below)
}
