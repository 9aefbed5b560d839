package lockpool_test

// This file tests Once.

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/plays"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A run that is the last entry of a lock that is to rest is recorded before the rest begins.
func TestOnceUnderALockThatIsToRest(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool(lockpool.WithLocalTurns(0))
	h := b.Handle(p)
	l := b.Lock(h, plays.LockOfRun("a", "1"), lockpool.HoldAtLeast(time.Hour))
	require.NoError(t, h.Once(b.Ctx, "a", "1", l.Unlock))
	require.Equal(t, 1, p.Stats().Resting)
	plays.IsDone(t, p.Once(b.Ctx, "a", "1", plays.Never(t)), "a", "1")
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
				l := b.Lock(h, plays.LockOfRun("a", "1"))
				w := b.StartLock(p, plays.LockOfRun("a", "1"))
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
		b.Lock(h, plays.LockOfRun("a", "1"))
		w := b.StartLock(p, plays.LockOfRun("a", "1"))
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
	require.NoError(t, p.Once(b.Ctx, "a", "1", plays.Count(&n)))
	require.NoError(t, b.Admin.Delete(b.Chroot+"/a/run:1", -1)) // as the server does a minute later
	other := zk.NewLock(b.Dial(), b.Chroot+"/a", zk.WorldACL(zk.PermAll))
	require.NoError(t, other.Lock())
	require.NoError(t, other.Unlock())
	other = zk.NewLock(b.Dial(), b.Chroot+"/a/run:2", zk.WorldACL(zk.PermAll))
	require.NoError(t, other.Lock())
	require.ErrorIs(t, p.Once(b.Ctx, "a", "2", plays.Count(&n), lockpool.WaitAtMost(0)), lockpool.ErrLocked)
	done := make(chan error)
	go func() { done <- p.Once(b.Ctx, "a", "2", plays.Count(&n)) }() // ends when the other client unlocks
	b.AwaitQueue("a/run:2", 2)
	require.NoError(t, other.Unlock())
	require.NoError(t, <-done)
	require.Equal(t, 2, n)
	q, err := p.Queue(b.Ctx, plays.LockOfRun("a", "2"))
	require.NoError(t, err)
	require.Empty(t, q.Foreign)
}
