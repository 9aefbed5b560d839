package lockpool_test

// This file tests Once.

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// ran returns a function for Once that counts its calls.
func ran(n *int) func(context.Context) error {
	return func(context.Context) error { *n++; return nil }
}

// lockOfRun is the lock of a run for the key.
func lockOfRun(name, key string) string { return name + "/" + lockpool.Escape("run:"+key) }

// requireDone requires that err says that a run for the key has finished.
func requireDone(t testing.TB, err error, name, key string) *lockpool.DoneError {
	t.Helper()
	require.ErrorIs(t, err, lockpool.ErrDone)
	var done *lockpool.DoneError
	require.ErrorAs(t, err, &done)
	require.Equal(t, name, done.Name)
	require.Equal(t, key, done.Key)
	return done
}

// A key that is done costs one request, also while the lock is held.
func TestOnceLooksBeforeItQueues(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	n := 0
	require.NoError(t, p.Once(b.Ctx, "a", "1", ran(&n)))
	held := b.Lock(p, lockOfRun("a", "1"))
	b.Token(held) // so that it is watched already
	sent := locktest.Requests(proxy, func() { requireDone(t, p.Once(b.Ctx, "a", "1", ran(&n)), "a", "1") })
	require.Len(t, slices.DeleteFunc(sent, func(r zktest.Request) bool { return r.Paths[0] == "/" }), 1) // proofs of the lease
	b.Unlock(held)
}

func nope(t testing.TB) func(context.Context) error {
	return func(context.Context) error {
		t.Error("it ran")
		return nil
	}
}

// A run that is the last entry of a lock that is to rest is recorded before the rest begins.
func TestOnceUnderALockThatIsToRest(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithLocalTurns(0))
	h := b.Handle(p)
	l := b.Lock(h, lockOfRun("a", "1"), lockpool.HoldAtLeast(time.Hour))
	require.NoError(t, h.Once(b.Ctx, "a", "1", l.Unlock))
	require.Equal(t, 1, p.Stats().Resting)
	requireDone(t, p.Once(b.Ctx, "a", "1", nope(t)), "a", "1")
	require.ErrorContains(t, p.Close(), "before its time")
}

// A run whose hold ends while its function runs has not finished, although the node stays:
// another handle has the next turn.
func TestOnceUnderALockThatIsPassedOn(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, h *lockpool.Handle, l *lockpool.Lock) error{
		"closed": func(ctx context.Context, h *lockpool.Handle, _ *lockpool.Lock) error { return h.Close(ctx) },
		"unlocked": func(ctx context.Context, _ *lockpool.Handle, l *lockpool.Lock) error {
			own, _ := lockpool.LockFromContext(ctx)
			return errors.Join(l.Unlock(ctx), own.Unlock(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.Bubble(t, func(t *testing.T) {
				b := locktest.New(t)
				p := b.Pool()
				h := b.Handle(p)
				l := b.Lock(h, lockOfRun("a", "1"))
				w := b.StartLock(p, lockOfRun("a", "1"))
				synctest.Wait()
				err := h.Once(b.Ctx, "a", "1", func(ctx context.Context) error { return end(ctx, h, l) })
				require.ErrorIs(t, err, lockpool.ErrNotHeld)
				next := w.Granted()
				require.EqualValues(t, 1, p.Stats().LocalTurns)
				runs, err := p.Finished(b.Ctx, "a")
				require.NoError(t, err)
				require.Empty(t, runs)
				b.Unlock(next)
			})
		})
	}
}

// The hold of a run ends while the run is recorded. The next handle of the pool has its turn
// when the record exists, and not before.
func TestHandleIsClosedWhileARunIsRecorded(t *testing.T) {
	locktest.Once(t)
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		h := b.Handle(p)
		b.Lock(h, lockOfRun("a", "1"))
		w := b.StartLock(p, lockOfRun("a", "1"))
		synctest.Wait()
		recording := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpMulti}}, Do: zktest.HoldApply()})
		run := make(chan error, 1)
		go func() { run <- h.Once(b.Ctx, "a", "1", func(context.Context) error { return nil }) }() // ends when released
		require.NoError(t, recording.Wait(b.Ctx))
		require.NoError(t, h.Close(b.Ctx))
		synctest.Wait()
		require.Len(t, b.Contenders("/"), 1, "the node stays")
		require.Zero(t, p.Stats().LocalTurns, "nobody has a turn")
		recording.Release()
		require.NoError(t, <-run)
		next := w.Granted()
		runs, err := p.Finished(b.Ctx, "a")
		require.NoError(t, err)
		require.Len(t, runs, 1)
		b.Unlock(next)
	})
}

// Other clients lock the name of the jobs while there are records, and take part in the lock
// of a run.
func TestRecordsDoNotDisturbOtherClients(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	n := 0
	require.NoError(t, p.Once(b.Ctx, "a", "1", ran(&n)))
	require.NoError(t, b.Admin.Delete(b.Chroot+"/a/run:1", -1)) // as the server does a minute later
	other := zk.NewLock(b.Dial(), b.Chroot+"/a", zk.WorldACL(zk.PermAll))
	require.NoError(t, other.Lock())
	require.NoError(t, other.Unlock())
	other = zk.NewLock(b.Dial(), b.Chroot+"/a/run:2", zk.WorldACL(zk.PermAll))
	require.NoError(t, other.Lock())
	require.ErrorIs(t, p.Once(b.Ctx, "a", "2", ran(&n), lockpool.WaitAtMost(0)), lockpool.ErrLocked)
	done := make(chan error)
	go func() { done <- p.Once(b.Ctx, "a", "2", ran(&n)) }() // ends when the other client unlocks
	b.AwaitQueue("a/run:2", 2)
	require.NoError(t, other.Unlock())
	require.NoError(t, <-done)
	require.Equal(t, 2, n)
	q, err := p.Queue(b.Ctx, lockOfRun("a", "2"))
	require.NoError(t, err)
	require.Empty(t, q.Foreign)
}
