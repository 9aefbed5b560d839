package lockpool_test

// This file tests Unlock.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A release in another goroutine takes a round trip. It must not keep Do from its
// own release.
func TestUnlockBesideAnotherUnlockOfTheHandle(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	proxy.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.DelayReply(10 * time.Millisecond)})
	p := b.Pool()
	for range 5 {
		unlocked := make(chan error, 1)
		require.NoError(t, p.Do(b.Ctx, "a", func(ctx context.Context) error {
			inner, err := p.Lock(ctx, "b")
			require.NoError(t, err)
			started := make(chan struct{})
			go func() {
				close(started)
				unlocked <- inner.Unlock(b.Ctx)
			}()
			<-started
			return nil
		}))
		require.Empty(t, b.Children("a"))
		require.NoError(t, <-unlocked)
		require.Empty(t, b.Children("b"))
	}
	require.Zero(t, p.Stats().Held)
	require.Zero(t, p.Stats().InUse)
}

// Unlock returns nil only for a lock that was held until then.
func TestUnlockReportsAnExpiredSession(t *testing.T) {
	t.Parallel()
	b, own := locktest.NewEmbedded(t)
	p, others := b.Pool(), b.Pool()
	unlock := map[string]func() error{
		"Unlock": func() error { return b.Lock(p, "a").Unlock(b.Ctx) },
		"Do":     func() error { return p.Do(b.Ctx, "a", func(context.Context) error { return nil }) },
		"Close": func() error {
			h := b.Handle(p)
			b.Lock(h, "a")
			return h.Close(b.Ctx)
		},
	}
	for name, unlock := range unlock {
		fault := own.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.ExpireBeforeApply()})
		require.ErrorIs(t, unlock(), lockpool.ErrLockLost, name)
		require.NoError(t, fault.Wait(b.Ctx))
		b.Unlock(b.Lock(others, "a"))
	}
}

// Cancellations and deadlines of the caller still bound the wait.
func TestUnlockWithTheContextOfTheLockHonorsItsParentAndChildren(t *testing.T) {
	t.Parallel()
	b, proxy := locktest.NewBehindProxy(t)
	p := b.Pool()
	for name, derive := range map[string]func(l *lockpool.Lock) (context.Context, context.CancelFunc){
		"around": func(l *lockpool.Lock) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(b.Ctx)
			return l.Context(ctx), cancel
		},
		"within": func(l *lockpool.Lock) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(l.Context(b.Ctx))
			cancel()
			return ctx, cancel
		},
		"deadline": func(l *lockpool.Lock) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(l.Context(b.Ctx), 20*time.Millisecond)
			b.Cleanup(cancel)
			return ctx, func() {}
		},
	} {
		l := b.Lock(p, "a")
		held := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.HoldReply()})
		ctx, cancel := derive(l)
		done := make(chan error, 1)
		go func() { done <- l.Unlock(ctx) }()
		require.NoError(t, held.Wait(b.Ctx))
		cancel()
		err := <-done
		require.ErrorIs(t, err, map[bool]error{false: context.Canceled, true: context.DeadlineExceeded}[name == "deadline"], name)
		held.Release()
		held.Remove()
	}
	b.Until(func() bool { return len(b.Contenders("/")) == 0 }, "no contender is left")
}

// What is derived with context.WithoutCancel outlives the parent of a lock's context, also as the
// parent of another lock's context.
func TestUnlockWithoutTheCancellationOfTheLocksParent(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool()
		server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Times: zktest.Always, Do: zktest.DelayReply(40 * time.Millisecond)})
		parent, cancel := context.WithCancel(b.Ctx)
		outer, inner := b.Lock(p, "a"), b.Lock(p, "b")
		cleanup := context.WithoutCancel(outer.Context(parent))
		held := inner.Context(cleanup)
		cancel()
		require.NoError(t, inner.Unlock(held))
		require.NoError(t, outer.Unlock(cleanup))
	})
}
