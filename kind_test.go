package lockpool_test

// This file tests names in use for different kinds of locks.

import (
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

// lockKinds are the kinds of locks, and how each is tried.
var lockKinds = []struct {
	name string
	try  func(b *locktest.Bench, p *lockpool.Pool) (*lockpool.Lock, error)
}{
	{"queue", func(b *locktest.Bench, p *lockpool.Pool) (*lockpool.Lock, error) { return p.TryLock(b.Ctx, "s") }},
	{"plain", func(b *locktest.Bench, p *lockpool.Pool) (*lockpool.Lock, error) {
		return p.TryLock(b.Ctx, "s", lockpool.Plain())
	}},
	{"semaphore", func(b *locktest.Bench, p *lockpool.Pool) (*lockpool.Lock, error) {
		return p.Semaphore("s", 2).Acquire(b.Ctx, 1, lockpool.WaitAtMost(0))
	}},
}

// The empty nodes of one kind do not keep out another, except a plain lock, and
// that only until the server removes them.
func TestFreeNameCanChangeItsKind(t *testing.T) {
	t.Parallel()
	own := locktest.StartServer(t, zktest.ContainerInterval(50*time.Millisecond))
	b := locktest.NewOn(t, own)
	_, err := b.Admin.Create(b.Chroot, nil, 0, zk.WorldACL(zk.PermAll)) // which stays
	require.NoError(t, err)
	pools := []*lockpool.Pool{b.Pool(), b.Pool()}
	for i, k := range []int{0, 1, 2, 0, 2, 1, 0} {
		var l *lockpool.Lock
		b.Until(func() (ok bool) {
			var err error
			if l, err = lockKinds[k].try(b, pools[i%2]); err != nil {
				require.ErrorIs(t, err, lockpool.ErrKindMismatch)
				require.Equal(t, 1, k, "an empty container is an obstacle for a plain lock only: %v", err)
			}
			return err == nil
		}, lockKinds[k].name)
		b.Unlock(l)
	}
	p := pools[0]
	_, err = b.Admin.Create(b.Chroot+"/keep", nil, 0, zk.WorldACL(zk.PermAll))
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
	b, own := locktest.NewEmbedded(t)
	p, others := b.Pool(), b.Pool()
	held := own.Inject(zktest.Rule{
		Match: zktest.Match{Prefix: b.Chroot + "/s/leases", Ops: zktest.Creates},
		Do:    zktest.HoldApply(),
	})
	acquiring := b.StartAcquire(p.Semaphore("s", 1), 1)
	require.NoError(t, held.Wait(b.Ctx))
	l, err := others.TryLock(b.Ctx, "s")
	held.Release()
	<-acquiring.Done
	require.False(t, err == nil && acquiring.Err == nil, "a lock and a semaphore are held under one name")
	if err == nil {
		b.Unlock(l)
	} else {
		b.Unlock(acquiring.Granted())
	}
}

// A lock whose node was created before the permits of a semaphore is not granted after
// they are released: its token would be smaller than theirs.
func TestLockSeesPermitsThatAreGone(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
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
			_, err := k.try(b, others)
			require.ErrorIs(t, err, lockpool.ErrKindMismatch, k.name)
			require.ErrorContains(t, err, "a semaphore", k.name)
		}
	}
	names, err := others.List(b.Ctx, "")
	require.NoError(t, err)
	require.Equal(t, []string{"s"}, names)
	_, err = b.Admin.Create(b.Chroot+"/s/note", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	q, err := others.Queue(b.Ctx, "s")
	require.NoError(t, err)
	require.Len(t, q.Contenders, 1)
	require.Equal(t, []any{"semaphore", true, 2}, []any{q.Contenders[0].Kind, q.Contenders[0].Holds, q.Contenders[0].Permits})
	require.Equal(t, []string{"note"}, q.Foreign)
	require.NoError(t, others.Revoke(b.Ctx, "s"))
	b.AwaitRevocation(held)
	require.NoError(t, others.Break(b.Ctx, "s", q.Contenders[0].Node))
	<-held.Lost()
	require.ErrorIs(t, held.Unlock(b.Ctx), lockpool.ErrLockLost)
}

// Of two callers that start at the same moment with different kinds, at most one holds a lock,
// and the other gets an error, whatever either kind has left of the name.
func TestLockKindsDoNotMixInARace(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p, others := b.Pool(), b.Pool()
	race := func(one, two int) (got [2]*lockpool.Lock) { // nil where it is refused
		done := make(chan error)
		go func() {
			var err error
			got[1], err = lockKinds[two].try(b, others)
			done <- err
		}()
		var errs [2]error
		got[0], errs[0] = lockKinds[one].try(b, p)
		errs[1] = <-done
		for i, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, lockpool.ErrKindMismatch)
				got[i] = nil
			}
		}
		return got
	}
	for round := range 140 {
		switch round % 7 {
		case 0, 1, 2: // nothing is left
			b.Until(func() bool { return removeEmpty(b, "/s") }, "no node is left")
		case 3:
			_ = b.Admin.Delete(b.Chroot+"/s/locks", -1)
		case 4:
			_ = b.Admin.Delete(b.Chroot+"/s/leases", -1)
		case 5: // until a lock is granted without a listing
			for range 20 {
				b.Unlock(b.Lock(p, "s"))
			}
		}
		kinds := [][2]int{{0, 1}, {1, 2}, {0, 2}}[min(round%7, 2)]
		got := race(kinds[0], kinds[1])
		require.False(t, got[0] != nil && got[1] != nil, "both are held, in round %d", round)
		for _, l := range got {
			if l != nil {
				b.Unlock(l)
			}
		}
	}
	permits := b.Acquire(others.Semaphore("s", 2), 1)
	for range 80 {
		b.Until(func() bool { err := b.Admin.Delete(b.Chroot+"/s/locks", -1); return err == nil || err == zk.ErrNoNode }, "the guard's container is gone")
		got := race(0, 2)
		require.Nil(t, got[0], "beside permits")
		if got[1] != nil {
			b.Unlock(got[1])
		}
	}
	b.Unlock(permits)
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
					_, err = k.try(b, p)
					require.ErrorIs(t, err, lockpool.ErrKindMismatch)
					require.ErrorContains(t, err, locktest.Sequence(path))
				}
				b.Until(func() bool { return len(b.Contenders("/s")) == 1 }, "no node of the pool is left")
				require.NoError(t, b.Admin.Delete(path, -1))
				if k.name != "plain" {
					l, err := k.try(b, p)
					require.NoError(t, err)
					b.Unlock(l)
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
	b, own := locktest.NewEmbedded(t)
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
