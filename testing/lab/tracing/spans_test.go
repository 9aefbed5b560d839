package tracing

// This file tests the spans of acquisitions and waits.

import (
	"context"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestUncontendedLockIsOneChildSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	h, err := p.Handle(b.Ctx)
	require.NoError(t, err)
	for name, lock := range map[string]func(context.Context) (*lockpool.Lock, error){
		"Pool.Lock":      func(ctx context.Context) (*lockpool.Lock, error) { return p.Lock(ctx, "a") },
		"Pool.TryLock":   func(ctx context.Context) (*lockpool.Lock, error) { return p.TryLock(ctx, "a") },
		"Handle.Lock":    func(ctx context.Context) (*lockpool.Lock, error) { return h.Lock(ctx, "a") },
		"Handle.TryLock": func(ctx context.Context) (*lockpool.Lock, error) { return h.TryLock(ctx, "a") },
	} {
		var session string
		spans := b.trace(func(ctx context.Context) {
			l, err := lock(ctx)
			require.NoError(t, err)
			session = b.session("a", b.Children("a")[0])
			require.NoError(t, l.Unlock(ctx))
		})
		require.Equal(t, []span{acquireUncontended(session), release(nil)}, spans, name)
	}
	require.NoError(t, h.Close(b.Ctx))
}

func TestAcquisitionWithoutParentIsRootSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Unlock(b.lock(b.Ctx, b.pool(), "a"))
	var names []string
	for _, s := range b.since(0) {
		names = append(names, s.Name())
		require.False(t, s.Parent().IsValid())
	}
	require.Equal(t, []string{connectName, acquireName, releaseName}, names)
}

// The holder becomes the predecessor, and is not linked to again.
func TestWaitGoesOnInTheSameSpanWhenThePredecessorGivesUp(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.peer()
	holder, ahead := b.lockWithWaiters(others.Pool, 1)
	w, spans := b.traceWait(p, 3, func(ctx context.Context, w *waiter) {
		b.awaitBehind(w.predecessor(), 1)
		b.awaitLinks(1, 2)
		ahead[0].Cancel()
		err := ahead[0].failed()
		require.ErrorIs(t, err, context.Canceled)
		b.awaitBehind(w.queue[0], 1)
		b.Unlock(holder)
		b.unlockIn(ctx, w.Granted())
	})
	theirs := others.acquisitions()
	require.Equal(t, []span{
		acquireWaiting(w.session, waiting{
			position: 2, behind: w.queue[0], wakeups: int64(2), events: []string{goneEvent, goneEvent},
			links: []link{linkTo("predecessor", theirs[1]), linkTo("holder", theirs[0])},
		}),
		release(nil),
	}, spans)
}

func TestWakeupIsCountedEvenIfThePredecessorStays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(b.Ctx, b.silentPool(), "a")
	w, spans := b.traceWait(p, 2, func(ctx context.Context, w *waiter) {
		b.awaitBehind(w.predecessor(), 1)
		_, err := b.Admin.Set(b.Chroot+"/a/"+w.predecessor(), []byte("another"), -1)
		require.NoError(t, err)
		b.awaitWatch("a", w.predecessor(), w.session)
		b.Unlock(holder)
		b.unlockIn(ctx, w.Granted())
	})
	require.Equal(t, []span{
		acquireWaiting(w.session, waiting{
			position: 1, behind: w.predecessor(), owner: "another", wakeups: int64(2), events: []string{saw(1, 2), goneEvent},
		}),
		release(nil),
	}, spans)
}

func TestRequeuedWaiterIsOneAcquisition(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(b.Ctx, b.silentPool(), "a")
	w, spans := b.traceWait(p, 2, func(ctx context.Context, w *waiter) {
		b.awaitBehind(w.predecessor(), 1)
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+w.node(), -1))
		for _, node := range b.awaitRequeue(w.node()) {
			b.awaitWatch("a", node, w.session)
		}
		b.Unlock(holder)
		b.unlockIn(ctx, w.Granted())
	})
	require.Equal(t, []span{
		acquireWaiting(w.session, waiting{
			position: 1, behind: w.predecessor(), wakeups: int64(1), events: []string{goneEvent}, // the same position both times
			both:     attributes{"lockpool.lock.requeues": int64(1)},
			acquire:  attributes{"lockpool.lock.requeued_after": "node_removed"},
			enqueued: requeued,
		}),
		release(nil),
	}, spans)
}

func TestWaiterThatLosesItsSessionIsOneAcquisition(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, zktest.Start(t)) // a separate server, made slow
	p := b.pool()
	holder := b.lock(b.Ctx, b.silentPool(), "a")
	var second string
	w, spans := b.traceWait(p, 2, func(ctx context.Context, w *waiter) {
		b.awaitBehind(w.predecessor(), 1)
		slow := b.server().Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}, Where: func(r zktest.Request) bool { return r.Session == 0 }},
			Do:    zktest.DelayApply(50 * time.Millisecond),
		})
		b.expire(w.session)
		again := b.awaitRequeue(w.node())
		require.Equal(t, 1, slow.Fired())
		second = b.session("a", again[1])
		b.Until(func() bool { return len(b.named(handleName)) > 0 }, "it has another session")
		b.awaitWatch("a", w.predecessor(), second)
		b.Unlock(holder)
		b.unlockIn(ctx, w.Granted())
	})
	require.NotEqual(t, w.session, second)
	_, port, err := net.SplitHostPort(b.server().Addr())
	require.NoError(t, err)
	number, err := strconv.ParseInt(port, 10, 64)
	require.NoError(t, err)
	here := attributes{"server.port": number}
	require.Equal(t, []span{
		acquireWaiting(second, waiting{
			position: 1, behind: w.predecessor(), events: []string{goneEvent},
			wakeups:  spans[0].Attributes["lockpool.lock.wakeups"], // the end of the connection may or may not be one
			both:     attributes{"lockpool.lock.requeues": int64(1)},
			acquire:  here.with(attributes{"lockpool.lock.requeued_after": "session_lost"}),
			enqueued: requeued,
			children: []span{connect(second, here), handleWait()},
		}),
		release(nil),
	}, spans)
}

func TestBusyTryLockIsNeitherErrorNorWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(b.Ctx, p, "a")
	spans := b.trace(func(ctx context.Context) {
		_, err := p.TryLock(ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked)
	})
	require.Equal(t, []span{
		acquire(b.session("a", b.Children("a")[0]), attributes{ // the same session as the holder's
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.queue.length":   int64(2),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        int64(0),
			"lockpool.lock.outcome":        "busy",
		}, ok, enqueued),
	}, spans)
	b.Unlock(holder)
}

func TestReentriesAreCountedWithoutSpans(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	h, err := p.Handle(b.Ctx)
	require.NoError(t, err)
	outer, err := h.Lock(b.Ctx, "a")
	require.NoError(t, err)
	ended, cancel := context.WithCancel(b.Ctx)
	cancel()
	require.Empty(t, b.trace(func(ctx context.Context) {
		ctx = outer.Context(ctx)
		for _, lock := range []func() (*lockpool.Lock, error){
			func() (*lockpool.Lock, error) { return h.Lock(ctx, "a") },
			func() (*lockpool.Lock, error) { return h.TryLock(ctx, "a") },
			func() (*lockpool.Lock, error) { return p.Lock(ctx, "a") },
			func() (*lockpool.Lock, error) { return p.TryLock(ctx, "a") },
		} {
			l, err := lock()
			require.NoError(t, err)
			require.Equal(t, 2, l.Depth())
			require.NoError(t, l.Unlock(ctx))
			require.ErrorIs(t, l.Unlock(ctx), lockpool.ErrNotHeld)
		}
		require.NoError(t, p.Do(ctx, "a", func(context.Context) error { return nil }))
		_, err := h.Lock(ended, "a")
		require.ErrorIs(t, err, context.Canceled)
	}))
	require.Equal(t, []span{release(nil)}, b.trace(func(ctx context.Context) {
		require.NoError(t, outer.Unlock(ctx)) // the last entry
	}))
	require.Equal(t, idle(2).with(points{
		waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 0}, holdTime: {mutex: 1},
		"lockpool.lock.reentries": {mutex: 5}, handles: {"": 1},
	}), m.points())
	read := func(n int) {
		var all []*lockpool.Lock
		for range n {
			all = append(all, b.Lock(h, "b", lockpool.Shared()))
		}
		for _, l := range all {
			b.Unlock(l)
		}
	}
	read(1)
	require.Equal(t, map[string]int64{mutex: 5}, m.points()["lockpool.lock.reentries"], "the first entry is no reentry")
	read(3)
	require.Equal(t, map[string]int64{mutex: 5, "lockpool.lock.kind=read": 2}, m.points()["lockpool.lock.reentries"])
	require.NoError(t, h.Close(b.Ctx))
}

// A call that fails before any request takes no time, and the error says everything.
func TestRefusedCallHasNoSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, closedPool := b.pool(), b.pool()
	require.NoError(t, closedPool.Close())
	h, err := p.Handle(b.Ctx)
	require.NoError(t, err)
	closedHandle, err := p.Handle(b.Ctx)
	require.NoError(t, err)
	require.NoError(t, closedHandle.Close(b.Ctx))
	require.Empty(t, b.trace(func(ctx context.Context) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		late, cancel := context.WithDeadline(ctx, time.Now())
		defer cancel()
		for _, c := range []struct {
			of interface {
				Lock(context.Context, string, ...lockpool.LockOption) (*lockpool.Lock, error)
				TryLock(context.Context, string, ...lockpool.LockOption) (*lockpool.Lock, error)
			}
			ctx  context.Context
			name string
			want error
		}{
			{p, ctx, "", lockpool.ErrInvalidName},
			{h, ctx, "/a", lockpool.ErrInvalidName},
			{p, ended, "a", context.Canceled},
			{h, ended, "a", context.Canceled},
			{p, late, "a", context.DeadlineExceeded},
			{h, late, "a", context.DeadlineExceeded},
			{closedPool, ctx, "a", lockpool.ErrPoolClosed},
			{closedHandle, ctx, "a", lockpool.ErrHandleClosed},
		} {
			_, err := c.of.Lock(c.ctx, c.name)
			require.ErrorIs(t, err, c.want)
			_, err = c.of.TryLock(c.ctx, c.name)
			require.ErrorIs(t, err, c.want)
		}
		require.NoError(t, p.Ping(ctx))
	}))
	require.NoError(t, h.Close(b.Ctx))
}

func TestWorkUnderLockIsSiblingOfAcquisition(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	spans := b.trace(func(ctx context.Context) {
		caller := trace.SpanFromContext(ctx)
		require.NoError(t, p.Do(ctx, "a", func(ctx context.Context) error {
			require.Equal(t, caller, trace.SpanFromContext(ctx))
			_, work := b.provider.Tracer("worker").Start(ctx, "work")
			work.End()
			return nil
		}))
		l := b.lock(ctx, p, "a")
		require.Equal(t, caller, trace.SpanFromContext(l.Context(ctx)))
		b.unlockIn(ctx, l)
	})
	var names []string
	for _, s := range spans {
		names = append(names, s.Name)
	}
	require.Equal(t, []string{acquireName, "work", releaseName, acquireName, releaseName}, names)
}

func TestServerAddressIsAsInConnectString(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dsn := strings.Replace(locktest.Shared().Addr(), "127.0.0.1", "localhost", 1) + b.Chroot + "?session_timeout=8s"
	p, err := lockpool.Open("zookeeper", dsn, lockpool.WithTracerProvider(b.provider))
	require.NoError(t, err)
	b.Unlock(b.lock(b.Ctx, p, "a"))
	require.NoError(t, p.Close())
	for _, name := range []string{connectName, acquireName} {
		a := attributesOf(b.named(name)[0])
		require.Equal(t, "localhost", a["server.address"])
		require.NotContains(t, a, "network.peer.address", "it is unknown")
	}
}

func TestSpansContainNoSecrets(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Restrict("/forbidden")
	require.NoError(t, b.Admin.AddAuth("digest", []byte("user:s3cret")))
	p := b.openWith("&digest=user:s3cret", lockpool.WithTracerProvider(b.provider))
	l := b.lock(b.Ctx, p, "a")
	_, err := p.TryLock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 1)
	w.Cancel()
	err = w.failed()
	require.ErrorIs(t, err, context.Canceled)
	_, err = p.Lock(b.Ctx, "forbidden")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	w = b.start(b.Ctx, p, "a")
	b.AwaitWaiting(p, 1)
	require.NoError(t, p.Close())
	err = w.failed()
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrNotHeld)

	outcomes := map[any]int{}
	for _, s := range b.recorder.Ended() {
		if outcome, ok := attributesOf(s)["lockpool.lock.outcome"]; ok {
			outcomes[outcome]++
		}
	}
	require.Equal(t, map[any]int{"acquired": 1, "busy": 1, "canceled": 2, "no_permission": 1, "pool_closed": 2}, outcomes)
	text, err := json.Marshal(tracetest.SpanStubsFromReadOnlySpans(b.recorder.Ended()))
	require.NoError(t, err)
	require.Contains(t, string(text), "no permission", "the JSON contains all spans")
	require.Contains(t, string(text), "zookeeper")
	require.NotContains(t, string(text), "s3cret")
}
