package lockpool_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// slowServer puts a proxy in front of the shared server that delays every reply.
func slowServer(b *locktest.Bench, d time.Duration) *zktest.Proxy {
	proxy := zktest.StartProxy(b, locktest.Shared().Addr())
	b.Addr = proxy.Addr()
	proxy.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.DelayReply(d)})
	return proxy
}

// A release in another goroutine takes a round trip. It must not keep Do from its
// own release.
func TestUnlockBesideAnotherUnlockOfTheHandle(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	slowServer(b, 10*time.Millisecond)
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
	own := zktest.Start(t)
	b := locktest.NewOn(t, own)
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

// The node of a short hold is not watched yet, so only the delete can notice.
func TestUnlockReportsARemovedNode(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	proxy := zktest.StartProxy(b, locktest.Shared().Addr())
	b.Addr = proxy.Addr()
	p := b.Pool()
	for _, ways := range []struct {
		name string
		lock func() (*lockpool.Lock, error)
	}{
		{"mutex", func() (*lockpool.Lock, error) { return p.Lock(b.Ctx, "a") }},
		{"read", func() (*lockpool.Lock, error) { return p.Lock(b.Ctx, "a", lockpool.Shared()) }},
	} {
		l, err := ways.lock()
		require.NoError(t, err)
		removal := proxy.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}},
			Do:    zktest.Call(func(r zktest.Request) { require.NoError(t, b.Admin.Delete(r.Paths[0], -1)) }),
		})
		require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrLockLost, ways.name)
		require.NoError(t, removal.Wait(b.Ctx))
		<-l.Lost()
	}
	// After a lost reply it is open whose delete removed the node.
	l := b.Lock(p, "a")
	lost := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.DropAfterApply()})
	b.Unlock(l)
	require.NoError(t, lost.Wait(b.Ctx))
}

// The natural call passes Unlock a context that Unlock itself ends.
func TestUnlockAcceptsTheContextOfTheLock(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	slowServer(b, 20*time.Millisecond)
	p := b.Pool()
	l := b.Lock(p, "a")
	require.NoError(t, l.Unlock(l.Context(b.Ctx)))
	require.Empty(t, b.Children("a"))

	l = b.Lock(p, "a")
	derived, cancel := context.WithTimeout(l.Context(l.Context(b.Ctx)), locktest.Patience)
	defer cancel()
	require.NoError(t, l.Unlock(derived))
	require.Empty(t, b.Children("a"))

	l = b.Lock(p, "a")
	inner, err := p.Lock(l.Context(b.Ctx), "b")
	require.NoError(t, err)
	ctx := inner.Context(l.Context(b.Ctx))
	b.Unlock(l)
	require.NoError(t, inner.Unlock(ctx), "the end of another lock does not end this call")
	require.Empty(t, b.Children("b"))

	all, err := p.LockAll(b.Ctx, []string{"a", "b", "c"})
	require.NoError(t, err)
	require.NoError(t, all.Unlock(all.Context(b.Ctx)))
	require.Empty(t, b.Contenders("/"))

	permits, err := p.Semaphore("s", 2).Acquire(b.Ctx, 1)
	require.NoError(t, err)
	require.NoError(t, permits.Unlock(permits.Context(b.Ctx)))
	require.Empty(t, b.Contenders("/"))

	h := b.Handle(p)
	l = b.Lock(h, "a")
	require.NoError(t, h.Close(l.Context(b.Ctx)))
	require.Empty(t, b.Contenders("/"))
}

// Cancellations and deadlines of the caller still bound the wait.
func TestUnlockWithTheContextOfTheLockHonorsItsParentAndChildren(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	proxy := zktest.StartProxy(b, locktest.Shared().Addr())
	b.Addr = proxy.Addr()
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
