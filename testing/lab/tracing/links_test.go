package tracing

// This file tests the links of waits to the requests in the way.

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// The span of a wait lasts as long as the wait, and leads to the spans in the way.
func TestSpanOfAWaitAndItsLinks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	others := b.peer(lockpool.WithOwner("billing"))
	holder, ahead := b.lockWithWaiters(others.Pool, 2)
	requested := time.Now()
	var waits, free, granted time.Time
	w, spans := b.traceWait(p, 4, func(ctx context.Context, w *waiter) {
		b.awaitBehind(w.predecessor(), 1)
		b.awaitLinks(1, 2)
		waits = time.Now()
		require.Equal(t, idle(2).with(points{depth: {mutex: 1}, waiters: {mutex: 1}, handles: {"": 1}}), m.points())
		for _, next := range ahead {
			b.Unlock(holder)
			holder = next.Granted()
		}
		b.awaitEvents(1, 1) // a look at the queue when the second nearest has left
		free = time.Now()
		b.Unlock(holder)
		l := w.Granted()
		granted = time.Now()
		b.unlockIn(ctx, l)
	})
	theirs := others.acquisitions()
	require.Len(t, theirs, 3)
	require.Equal(t, []span{
		acquireWaiting(w.session, waiting{
			position: 3, behind: w.predecessor(), owner: "billing, " + thisProcess, wakeups: int64(2),
			events: []string{saw(1, 2), goneEvent},
			links:  []link{linkTo("predecessor", theirs[2]), linkTo("holder", theirs[0])},
		}),
		release(nil),
	}, spans)
	require.Equal(t, idle(2).with(points{
		waitTime: {awaited: 1}, depth: {mutex: 1}, waiters: {mutex: 0}, held: {mutex: 0}, holdTime: {mutex: 1},
	}), m.points())

	s := b.named(waitName)[0]
	require.Equal(t, w.node(), attributesOf(b.named(acquireName)[0])[nodeKey], "the acquisition names its own node")
	requireOrder(t, requested, s.StartTime(), waits, free, s.Events()[1].Time, s.EndTime(), granted)
}

// A wait for a kept lock says so, until the answer that the lock is in use, and sends nothing more
// than a wait without a span: a create, a listing, and two watches, and after that answer a
// listing and a watch.
func TestSpanOfAWaitForAKeptLock(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, zktest.Start(t))
	owner, traced, keeper := b.open(keeping...), b.pool(), b.pool(keeping...)
	for i, c := range []struct {
		p        *lockpool.Pool
		used     bool
		requests int
	}{{b.silentPool(), false, 4}, {traced, false, 4}, {traced, true, 6}, {keeper, false, 4}, {keeper, true, 6}} {
		name, holder := fmt.Sprint(i), (*lockpool.Lock)(nil)
		for range 2 {
			b.Unlock(b.lock(b.Ctx, owner, name))
		}
		if c.used {
			holder = b.lock(b.Ctx, owner, name)
		}
		session := b.sessionID(name, b.Children(name)[0])
		answer := b.server().Inject(zktest.Rule{Do: zktest.HoldApply(), Match: zktest.Match{
			Ops: []zktest.Op{zktest.OpDelete, zktest.OpSetData}, Where: func(r zktest.Request) bool { return r.Session == session },
		}})
		sent := b.server().Inject(zktest.Rule{Do: zktest.Pass(), Times: zktest.Always, Match: zktest.Match{
			Prefix: b.Chroot, Where: func(r zktest.Request) bool { return r.Session != session },
		}})
		w := b.start(b.Ctx, c.p, name)
		b.AwaitWaiting(c.p, 1)
		if i > 0 {
			b.awaitKept(true, i)
		}
		require.NoError(t, answer.Wait(b.Ctx))
		answer.Release()
		if c.used {
			b.awaitKept(false, i)
			b.Unlock(holder)
		}
		l := w.Granted()
		require.Equal(t, c.requests, sent.Fired(), "%+v", c)
		sent.Remove()
		b.Unlock(l)
	}
}

func requireOrder(t *testing.T, times ...time.Time) {
	t.Helper()
	for i := range times[1:] {
		require.False(t, times[i+1].Before(times[i]), "times %d and %d", i, i+1)
	}
}

// The holder releases the lock just when the waiter reads the holder's node.
func TestWaiterIsLinkedToTheHolderThatFollowed(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, zktest.Start(t))
	p, others := b.pool(), b.peer()
	holder, ahead := b.lockWithWaiters(others.Pool, 2)
	node := b.Children("a")[0]
	head, theirs := b.Chroot+"/a/"+node, b.sessionID("a", node)
	var deleted error
	read := b.server().Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}, Prefix: head, Where: func(r zktest.Request) bool { return r.Session != theirs }},
		Do:    zktest.Call(func(zktest.Request) { deleted = b.Admin.Delete(head, -1) }),
	})
	w := b.start(b.Ctx, p, "a")
	b.awaitLinks(1, 2)
	require.NoError(t, read.Wait(b.Ctx))
	require.NoError(t, deleted)
	require.ErrorIs(t, holder.Unlock(b.Ctx), lockpool.ErrLockLost)
	for _, next := range ahead {
		b.Unlock(next.Granted())
	}
	b.Unlock(w.Granted())
	spans := others.acquisitions()
	require.Equal(t, []link{linkTo("predecessor", spans[2]), linkTo("holder", spans[1])}, b.waitLinks())
}

func TestFailedWaitIsLinkedAndCounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		end     func(*lockpool.Pool, *waiter)
		outcome string
		text    string // the awaited node, if known
	}{
		{"timeout", func(_ *lockpool.Pool, w *waiter) { w.timeOut() }, "timeout", "context deadline exceeded"},
		{"cancel", func(_ *lockpool.Pool, w *waiter) { w.Cancel() }, "canceled", "context canceled"},
		{"close", func(p *lockpool.Pool, _ *waiter) { require.NoError(t, p.Close()) }, "pool_closed", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p, m := b.metered()
			others := b.peer()
			holder := b.lock(b.Ctx, others.Pool, "a")
			text := func(w *waiter) string {
				if c.text == "" {
					return "pool closed"
				}
				return waitingBehind(w.predecessor(), c.text, me)
			}
			var w *waiter
			spans := b.trace(func(ctx context.Context) {
				w = b.enqueue(ctx, p, 2)
				b.awaitLinks(1, 1)
				c.end(p, w)
				err := w.failed()
				require.ErrorContains(t, err, text(w))
			})
			require.Equal(t, []span{
				acquireWaiting(w.session, waiting{
					position: 1, behind: w.predecessor(), wakeups: int64(0),
					outcome: c.outcome, status: failed(text(w)),
					links: []link{linkTo("holder", others.acquisitions()[0])},
				}),
			}, spans)
			point := "error.type=" + c.outcome + ",lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=" + c.outcome
			require.Equal(t, map[string]int64{point: 1}, m.points()[waitTime])
			require.Equal(t, map[string]int64{mutex: 0}, m.points()[waiters])
			b.Unlock(holder)
		})
	}
}

func TestWaiterThatLosesItsSessionIsLinkedAndCountedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	others := b.peer()
	holder := b.lock(b.Ctx, others.Pool, "a")
	w := b.enqueue(b.Ctx, p, 2)
	b.awaitLinks(1, 1)
	b.expire(w.session)
	again := b.awaitRequeue(w.node())
	b.awaitWatch("a", w.predecessor(), b.session("a", again[1]))
	b.Unlock(holder)
	b.Unlock(w.Granted())
	require.Equal(t, []link{linkTo("holder", others.acquisitions()[0])}, b.waitLinks())
	b.Until(func() bool { return m.points()["lockpool.session.lost"] != nil }, "the lost session is counted")
	require.Equal(t, idle(3).with(points{
		"lockpool.session.create_time": {"": 2}, "lockpool.session.lost": {"": 1},
		waitTime: {awaited: 1}, depth: {mutex: 2}, waiters: {mutex: 0}, held: {mutex: 0}, holdTime: {mutex: 1},
	}), m.points())
}

// acquirePermit acquires and releases the only permit of the semaphore "s", in a separate
// goroutine.
func (b *bench) acquirePermit(p *lockpool.Pool) <-chan error {
	done := make(chan error, 1)
	go func() { // ends with b.Ctx at the latest
		done <- p.Semaphore("s", 1).Do(b.Ctx, 1, func(context.Context) error { return nil })
	}()
	return done
}

// lastPermitWaiter returns the links of a wait for the permit of a semaphore, behind a
// holder and a number of waiters, and the spans of these.
func (b *bench) lastPermitWaiter(ahead int) (links []link, theirs []trace.SpanContext) {
	b.Helper()
	p, others := b.pool(), b.peer()
	held, err := others.Semaphore("s", 1).Acquire(b.Ctx, 1)
	require.NoError(b, err)
	var waiting []<-chan error
	for i := range ahead {
		waiting = append(waiting, b.acquirePermit(others.Pool))
		b.AwaitWaiting(others.Pool, i+1)
	}
	waiting = append(waiting, b.acquirePermit(p))
	b.awaitLinks(1, 1)
	require.NoError(b, held.Unlock(b.Ctx))
	for _, done := range waiting {
		require.NoError(b, <-done)
	}
	return b.waitLinks(), others.acquisitions()
}

// A waiter for a semaphore's guard waits for the guard's holder, itself a waiter for
// permits.
func TestSecondWaiterForPermitsIsLinkedToTheFirst(t *testing.T) {
	t.Parallel()
	links, theirs := newBench(t).lastPermitWaiter(1)
	require.Equal(t, linkTo("predecessor", theirs[1]), links[0])
}

// The guard's holder has no permits, but waits.
func TestThirdWaiterForPermitsIsNotLinkedToTheGuardsHolder(t *testing.T) {
	t.Parallel()
	links, theirs := newBench(t).lastPermitWaiter(2)
	require.NotContains(t, links, linkTo("holder", theirs[1]))
}

func TestRevokedWaiterRecordsItsOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	others := b.peer()
	holder := b.lock(b.Ctx, others.Pool, "a")
	var queue []string
	var session string
	spans := b.trace(func(ctx context.Context) {
		done := make(chan error, 1)
		go func() { // ends with ctx at the latest
			_, err := p.Lock(ctx, "a", lockpool.Revocable())
			done <- err
		}()
		queue = b.awaitQueue("a", 2)
		session = b.session("a", queue[1])
		b.awaitLinks(1, 1)
		require.NoError(t, others.Revoke(b.Ctx, "a", queue[1]))
		require.ErrorIs(t, <-done, lockpool.ErrRevoked)
	})
	require.Equal(t, []span{
		acquireWaiting(session, waiting{
			position: 1, behind: queue[0], wakeups: int64(0), events: []string{saw(1, 2)},
			outcome: "revoked", status: failed("revoked"),
			links: []link{linkTo("holder", others.acquisitions()[0])},
		}),
	}, spans)
	require.Equal(t, idle(2).with(points{
		waitTime: {"error.type=revoked,lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=revoked": 1},
		depth:    {mutex: 1}, waiters: {mutex: 0},
	}), m.points())
	b.Unlock(holder)
}

func TestWithoutTraceLinksNoTraceIsStoredOrLinked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithTraceLinks(false))
	traced, untraced := b.peer(), b.peer(lockpool.WithTraceLinks(false))
	for others, stored := range map[*peer]bool{traced: true, untraced: false} {
		holder := b.lock(b.Ctx, others.Pool, "a")
		q, err := others.Queue(b.Ctx, "a")
		require.NoError(t, err)
		require.Equal(t, stored, q.Contenders[0].Trace != "")
		data, _, err := b.Admin.Get(b.Chroot + "/a/" + q.Contenders[0].Node)
		require.NoError(t, err)
		require.Equal(t, stored, bytes.Contains(data, []byte("traceparent")), "%s", data)
		w := b.enqueue(b.Ctx, p, 2)
		b.AwaitWaiting(p, 1)
		data, _, err = b.Admin.Get(b.Chroot + "/a/" + w.node())
		require.NoError(t, err)
		require.NotContains(t, string(data), "traceparent")
		b.Unlock(holder)
		b.Unlock(w.Granted())
	}
	for _, s := range b.recorder.Ended() {
		require.Empty(t, s.Links())
	}
	require.Len(t, b.named(waitName), 2)
	require.Equal(t, me, attributesOf(b.named(waitName)[0])["lockpool.lock.waiting_for.owner"], "the owner is no trace")
}

// The stored trace must have flags of W3C's first version, or readers refuse it.
func TestTraceWithUnknownFlagsIsLinkedTo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, other := b.pool(), b.silentPool()
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: 3, Remote: true})
	l := b.lock(trace.ContextWithSpanContext(b.Ctx, sc), other, "a")
	w := b.start(b.Ctx, p, "a")
	b.awaitLinks(1, 1)
	b.Unlock(l)
	b.Unlock(w.Granted())
}

func TestQueueShowsTheSpanOfEachAcquisition(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	l := b.lock(b.Ctx, p, "a")
	q, err := p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	sc := b.named(acquireName)[0].SpanContext()
	require.Equal(t, "00-"+sc.TraceID().String()+"-"+sc.SpanID().String()+"-01", q.Contenders[0].Trace)
	b.Unlock(l)
	require.NotEqual(t, trace.TraceID{}, sc.TraceID())

	l = b.lock(b.Ctx, b.silentPool(), "a")
	q, err = p.Queue(b.Ctx, "a")
	require.NoError(t, err)
	require.Empty(t, q.Contenders[0].Trace)
	b.Unlock(l)
}

// The error is from the unanswered listing, and does not name the departed predecessor.
func TestErrorDoesNotNameADepartedPredecessor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	holder, ahead := b.lockWithWaiters(b.silentPool(), 1)
	w := b.enqueue(b.Ctx, b.pool(), 3)
	b.awaitBehind(w.predecessor(), 1)
	ahead[0].Cancel()
	b.awaitBehind(w.queue[0], 1)
	w.Cancel()
	err := w.failed()
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), w.predecessor())
	require.ErrorContains(t, err, w.queue[0])
	b.Unlock(holder)
}
