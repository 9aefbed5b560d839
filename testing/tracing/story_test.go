package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// What one way of locking leaves behind: all spans with their links, all points.

func TestUncontendedLockWithAHoldSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithHoldSpans())
	var session string
	spans := b.trace(func(ctx context.Context) {
		l := b.lock(ctx, p, "a")
		session = b.session("a", b.queue("a")[0])
		require.Equal(t, idle(2).with(points{
			waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 1}, handles: {"": 1},
		}), m.points(), "while it is held")
		b.unlockIn(ctx, l)
	})
	require.Equal(t, []span{acquire(session, alone(), ok, enqueued), hold(), released(nil)}, spans)
	require.Equal(t, idle(2).with(points{
		waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 0}, holdTime: {mutex: 1},
	}), m.points())
}

// hold is the span of a hold.
func hold() span {
	s := released(nil)
	s.Name, s.Kind = holdName, trace.SpanKindInternal
	return s
}

func TestTokenIsOnSpansOfAHoldOnceItIsKnown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithHoldSpans())
	l := b.lock(b.ctx, p, "a")
	token, err := l.Token(b.ctx)
	require.NoError(t, err)
	b.unlock(l)
	for _, name := range []string{holdName, releaseName} {
		require.Equal(t, token, attributesOf(b.named(name)[0])[tokenKey])
	}
}

func TestWaiterBehindThreeIsLinkedToTheOneInFrontAndToTheHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	others := b.stranger(lockpool.WithOwner("billing"))
	holder := b.lock(b.ctx, others.Pool, "a")
	var ahead []*waiter
	for i := range 2 {
		ahead = append(ahead, b.start(b.ctx, others.Pool, "a"))
		b.queued("a", i+2)
	}
	var queue []string
	var session string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		queue = b.queued("a", 4)
		session = b.session("a", queue[3])
		b.waitingBehind(queue[2], 1)
		b.linked(1, 2)
		require.Equal(t, idle(2).with(points{depth: {mutex: 1}, waiters: {mutex: 1}, handles: {"": 1}}), m.points())
		for _, next := range ahead {
			b.unlock(holder)
			holder = b.granted(next)
		}
		b.unlock(holder)
		b.unlockIn(ctx, b.granted(w))
	})
	asked := others.asked()
	require.Len(t, asked, 3)
	require.Equal(t, []span{
		acquire(session, attributes{
			"lockpool.lock.queue.position": int64(3),
			"lockpool.lock.queue.length":   int64(4),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        int64(1),
			"lockpool.lock.outcome":        "acquired",
		}, ok, enqueued, wait(attributes{
			"lockpool.lock.queue.position":    int64(3),
			"lockpool.lock.waiting_for":       queue[2],
			"lockpool.lock.waiting_for.owner": "billing, " + process,
			"lockpool.lock.wakeups":           int64(1),
			"lockpool.lock.outcome":           "acquired",
		}, ok, gone, saw(0, 1)).linkedTo(linkTo("predecessor", asked[2]), linkTo("holder", asked[0]))),
		released(nil),
	}, spans)
	require.Equal(t, idle(2).with(points{
		waitTime: {awaited: 1}, depth: {mutex: 1}, waiters: {mutex: 0}, held: {mutex: 0}, holdTime: {mutex: 1},
	}), m.points())
}

// The lock changes hands just when a waiter looks who holds it.
func TestWaiterLooksAgainForTheHolder(t *testing.T) {
	t.Parallel()
	b := newBenchAt(t, zktest.Start(t))
	p, others := b.pool(), b.stranger()
	holder := b.lock(b.ctx, others.Pool, "a")
	var ahead []*waiter
	for i := range 2 {
		ahead = append(ahead, b.start(b.ctx, others.Pool, "a"))
		b.queued("a", i+2)
	}
	queue := b.queue("a")
	head := b.chroot + "/a/" + queue[0]
	number, err := strconv.ParseUint(b.session("a", queue[0]), 0, 64)
	require.NoError(t, err)
	theirs := int64(number)
	var unlocked error
	looked := b.server.Inject(zktest.Rule{
		Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}, Prefix: head, Where: func(r zktest.Request) bool { return r.Session != theirs }},
		Do:    zktest.Call(func(zktest.Request) { unlocked = b.admin.Delete(head, -1) }),
	})
	w := b.start(b.ctx, p, "a")
	b.linked(1, 2)
	require.NoError(t, looked.Wait(b.ctx))
	require.NoError(t, unlocked)
	require.ErrorIs(t, holder.Unlock(b.ctx), lockpool.ErrLockLost)
	for _, next := range ahead {
		b.unlock(b.granted(next))
	}
	b.unlock(b.granted(w))
	asked := others.asked()
	require.Equal(t, []link{linkTo("predecessor", asked[2]), linkTo("holder", asked[1])}, b.span(b.named(waitName)[0], nil).Links)
}

// The links say who was in the way, one after the other.
func TestWaiterWhoseOneInFrontGivesUpIsLinkedToTheNextOne(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.stranger()
	holder := b.lock(b.ctx, others.Pool, "a")
	quitter := b.start(b.ctx, others.Pool, "a")
	b.queued("a", 2)
	w := b.start(b.ctx, p, "a")
	queue := b.queued("a", 3)
	b.waitingBehind(queue[1], 1)
	b.linked(1, 2)
	quitter.cancel()
	_, err := b.result(quitter)
	require.ErrorIs(t, err, context.Canceled)
	b.waitingBehind(queue[0], 1)
	b.unlock(holder)
	b.unlock(b.granted(w))
	asked := others.asked()
	require.Equal(t, []link{linkTo("predecessor", asked[1]), linkTo("holder", asked[0])},
		b.span(b.named(waitName)[0], nil).Links, "to the holder only once")
}

func TestWaitThatFailsIsLinkedAndCounted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		end     func(*waiter)
		outcome string
		text    string
		point   string
	}{
		{"timeout", func(*waiter) {}, "timeout", "context deadline exceeded", timedOut},
		{"cancel", func(w *waiter) { w.cancel() }, "canceled", "context canceled", canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p, m := b.metered()
			others := b.stranger()
			holder := b.lock(b.ctx, others.Pool, "a")
			var queue []string
			var session string
			spans := b.trace(func(ctx context.Context) {
				if c.outcome == "timeout" {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second) // enough to get into the queue
					defer cancel()
				}
				w := b.start(ctx, p, "a")
				queue = b.queued("a", 2)
				session = b.session("a", queue[1])
				b.linked(1, 1)
				c.end(w)
				_, err := b.result(w)
				require.ErrorContains(t, err, "waiting behind "+queue[0]+": "+c.text+" (it is that of "+me+")")
			})
			status := failed("waiting behind " + queue[0] + ": " + c.text + " (it is that of " + me + ")")
			end := attributes{"lockpool.lock.wakeups": int64(0), "lockpool.lock.outcome": c.outcome, "error.type": c.outcome}
			require.Equal(t, []span{
				acquire(session, end.with(attributes{
					"lockpool.lock.queue.position": int64(1),
					"lockpool.lock.queue.length":   int64(2),
					"lockpool.lock.contended":      true,
				}), status, enqueued, wait(end.with(attributes{
					"lockpool.lock.queue.position": int64(1),
					"lockpool.lock.waiting_for":    queue[0],
				}), status).linkedTo(linkTo("holder", others.asked()[0]))),
			}, spans)
			require.Equal(t, idle(2).with(points{waitTime: {c.point: 1}, depth: {mutex: 1}, waiters: {mutex: 0}}), m.points())
			b.unlock(holder)
		})
	}
}

func TestWaiterWhoseSessionDiesIsCountedOnceAndItsSessionAsLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	others := b.stranger()
	holder := b.lock(b.ctx, others.Pool, "a")
	w := b.start(b.ctx, p, "a")
	queue := b.queued("a", 2)
	b.linked(1, 1)
	b.expire(b.session("a", queue[1]))
	var again []string
	b.until(func() bool { again = b.queue("a"); return len(again) == 2 && again[1] != queue[1] }, "it queues again")
	b.watched("a", queue[0], b.session("a", again[1]))
	b.unlock(holder)
	b.unlock(b.granted(w))
	require.Equal(t, []link{linkTo("holder", others.asked()[0])}, b.span(b.named(waitName)[0], nil).Links)
	b.until(func() bool { return m.points()["lockpool.session.lost"] != nil }, "it is counted")
	require.Equal(t, idle(3).with(points{
		"lockpool.session.create_time": {"": 2}, "lockpool.session.lost": {"": 1},
		waitTime: {awaited: 1}, depth: {mutex: 2}, waiters: {mutex: 0}, held: {mutex: 0}, holdTime: {mutex: 1},
	}), m.points())
}

func TestLockThatIsLostIsCountedLoggedAndSaidByItsHoldSpan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason string
		lose   func(b *bench, node string)
		text   string
		after  points
	}{
		{"session_lost", func(b *bench, node string) { b.expire(b.session("a", node)) }, "lock lost: session lost: expired", points{
			"lockpool.session.lost": {"": 1}, sessions: {"": 0},
		}},
		{"node_removed", func(b *bench, node string) {
			require.NoError(b, b.admin.Delete(b.chroot+"/a/"+node, -1))
		}, "lock lost: own node was removed", nil},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			log := new(logged)
			p, m := b.metered(lockpool.WithHoldSpans(), log.option())
			var session string
			spans := b.trace(func(ctx context.Context) {
				l := b.lock(ctx, p, "a")
				_, err := l.Token(ctx)
				require.NoError(t, err)
				node := b.queue("a")[0]
				session = b.session("a", node)
				c.lose(b, node)
				select {
				case <-l.Lost():
				case <-ctx.Done():
					require.FailNow(t, "not lost")
				}
				b.until(func() bool { return len(b.named(holdName)) == 1 }, "its span has ended")
				require.ErrorIs(t, l.Unlock(ctx), lockpool.ErrLockLost)
			})
			lost := hold()
			lost.Status, lost.Events, lost.Attributes["error.type"] = failed(c.text), []string{"lockpool.lost"}, "lock_lost"
			require.Equal(t, []span{acquire(session, alone(), ok, enqueued), lost}, spans)
			b.until(func() bool { // the guard of the hold may learn of the loss before the pool counts its session
				after := m.points()
				for name, want := range c.after {
					if !maps.Equal(after[name], want) {
						return false
					}
				}
				return true
			}, "the end of the session is counted")
			require.Equal(t, idle(2).with(points{
				waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 0}, holdTime: {mutex: 1},
				"lockpool.lock.lost": {mutex + ",lockpool.lost.reason=" + c.reason: 1},
			}).with(c.after), m.points())
			require.Equal(t, []map[string]any{{
				"level": "WARN", "msg": "lockpool: a lock was lost", "lock": "a", "kind": "mutex", "cause": c.text,
			}}, log.lines(t, "held"))
		})
	}
}

func TestPoolThatIsClosedEndsItsHoldsAndLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithHoldSpans())
	l := b.lock(b.ctx, p, "a")
	require.NoError(t, p.Close())
	require.Equal(t, hold(), b.span(b.named(holdName)[0], nil), "to close is no loss")
	require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrNotHeld)
	require.Empty(t, b.named(releaseName), "the session took it along")
	require.Equal(t, points{
		"lockpool.session.wait_time": {"": 2}, "lockpool.session.create_time": {"": 1},
		waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 0}, holdTime: {mutex: 1},
	}, m.points(), "and no session is lost, nor asked for")
}

// meddling is a provider that does something before a span begins.
type meddling struct {
	trace.TracerProvider
	before func(span string)
}

func (m meddling) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return meddlingTracer{m.TracerProvider.Tracer(name, opts...), m.before}
}

type meddlingTracer struct {
	trace.Tracer
	before func(span string)
}

func (m meddlingTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	m.before(name)
	return m.Tracer.Start(ctx, name, opts...)
}

// The pool closes when the service has granted the lock, but nobody holds it yet.
func TestGrantThatComesTooLateIsNoHold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var p *lockpool.Pool
	closed := make(chan error, 1)
	m := b.newMeter()
	p = b.open("", lockpool.WithHoldSpans(), lockpool.WithMeterProvider(m), lockpool.WithTracerProvider(meddling{b.provider, func(span string) {
		if span != holdName {
			return
		}
		go func() { closed <- p.Close() }() // waits for the call that is under way
		b.until(func() bool { _, err := p.Handle(b.ctx); return err != nil }, "it is closing")
	}}))
	_, err := p.Lock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	require.NoError(t, <-closed)
	require.Len(t, b.named(holdName), 1, "its span has ended")
	require.Equal(t, map[string]int64{mutex: 0}, m.points()[held])
	require.NotContains(t, m.points(), holdTime)
	require.Len(t, b.recorder.Ended(), len(b.recorder.Started()))
	b.queued("a", 0)
}

func TestReentriesAreCountedAndAreNoSpans(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	s, err := p.Handle(b.ctx)
	require.NoError(t, err)
	var session string
	spans := b.trace(func(ctx context.Context) {
		outer, err := s.Lock(ctx, "a")
		require.NoError(t, err)
		session = b.session("a", b.queue("a")[0])
		for range 3 {
			l, err := s.Lock(ctx, "a")
			require.NoError(t, err)
			b.unlockIn(ctx, l)
		}
		b.unlockIn(ctx, outer)
	})
	require.Equal(t, []span{acquire(session, alone(), ok, enqueued), released(nil)}, spans)
	require.Equal(t, idle(2).with(points{
		waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 0}, holdTime: {mutex: 1},
		"lockpool.lock.reentries": {mutex: 3}, handles: {"": 1},
	}), m.points())
	read := func(n int) {
		var all []*lockpool.Lock
		for range n {
			l, err := s.RLock(b.ctx, "b")
			require.NoError(t, err)
			all = append(all, l)
		}
		for _, l := range all {
			b.unlock(l)
		}
	}
	read(1)
	require.Equal(t, map[string]int64{mutex: 3}, m.points()["lockpool.lock.reentries"], "the first is none")
	read(3)
	require.Equal(t, map[string]int64{mutex: 3, "lockpool.lock.kind=read": 2}, m.points()["lockpool.lock.reentries"])
	require.NoError(t, s.Close(b.ctx))
}

// Who waits at a semaphore's guard waits for who waits for permits.
func TestSecondWaiterOfASemaphoreIsLinkedToTheFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.stranger()
	held, err := others.Semaphore("s", 1).Acquire(b.ctx, 1)
	require.NoError(t, err)
	first := make(chan error, 1)
	go func() { first <- others.Semaphore("s", 1).Do(b.ctx, 1, func(context.Context) error { return nil }) }()
	b.until(func() bool { return others.Stats().Waiting == 1 }, "a waiter")
	second := make(chan error, 1)
	go func() { second <- p.Semaphore("s", 1).Do(b.ctx, 1, func(context.Context) error { return nil }) }()
	b.linked(1, 1)
	require.NoError(t, held.Release(b.ctx))
	require.NoError(t, <-first)
	require.NoError(t, <-second)
	links := b.span(b.named(waitName)[0], nil).Links
	require.Equal(t, linkTo("predecessor", others.asked()[1]), links[0])
}

// The request stands where the holder's record was.
func TestHolderThatWasAskedForItsLockKeepsItsName(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.stranger(lockpool.WithOwner("billing"))
	holder := b.lock(b.ctx, others.Pool, "a")
	var queue []string
	var session string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		queue = b.queued("a", 2)
		session = b.session("a", queue[1])
		b.linked(1, 1)
		require.NoError(t, others.Revoke(b.ctx, "a"))
		b.watched("a", queue[0], session)
		b.unlock(holder)
		b.unlockIn(ctx, b.granted(w))
	})
	end := attributes{"lockpool.lock.wakeups": int64(2), "lockpool.lock.outcome": "acquired"}
	require.Equal(t, []span{
		acquire(session, end.with(attributes{
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.queue.length":   int64(2),
			"lockpool.lock.contended":      true,
		}), ok, enqueued, wait(end.with(attributes{
			"lockpool.lock.queue.position":    int64(1),
			"lockpool.lock.waiting_for":       queue[0],
			"lockpool.lock.waiting_for.owner": "billing, " + process,
		}), ok, saw(1, 2), gone).linkedTo(linkTo("holder", others.asked()[0]))),
		released(nil),
	}, spans)
}

func TestWaiterThatIsRevokedSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered()
	others := b.stranger()
	holder := b.lock(b.ctx, others.Pool, "a")
	var queue []string
	var session string
	spans := b.trace(func(ctx context.Context) {
		done := make(chan error, 1)
		go func() { // ends with ctx at the latest
			_, err := p.Lock(ctx, "a", lockpool.Revocable())
			done <- err
		}()
		queue = b.queued("a", 2)
		session = b.session("a", queue[1])
		b.linked(1, 1)
		require.NoError(t, others.Revoke(b.ctx, "a", queue[1]))
		require.ErrorIs(t, <-done, lockpool.ErrRevoked)
	})
	status := failed("revoked")
	end := attributes{"lockpool.lock.outcome": "revoked", "error.type": "revoked", "lockpool.lock.wakeups": int64(0)}
	require.Equal(t, []span{
		acquire(session, end.with(attributes{
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.queue.length":   int64(2),
			"lockpool.lock.contended":      true,
		}), status, enqueued, wait(end.with(attributes{
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.waiting_for":    queue[0],
		}), status, saw(1, 2)).linkedTo(linkTo("holder", others.asked()[0]))),
	}, spans)
	require.Equal(t, idle(2).with(points{
		waitTime: {"error.type=revoked,lockpool.lock.contended=true,lockpool.lock.kind=mutex,lockpool.lock.outcome=revoked": 1},
		depth:    {mutex: 1}, waiters: {mutex: 0},
	}), m.points())
	b.unlock(holder)
}

func TestWithoutTraceLinksNothingIsStoredAndNothingLinked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithTraceLinks(false))
	traced, untraced := b.stranger(), b.stranger(lockpool.WithTraceLinks(false))
	for others, stored := range map[*stranger]bool{traced: true, untraced: false} {
		holder := b.lock(b.ctx, others.Pool, "a")
		q, err := others.Queue(b.ctx, "a")
		require.NoError(t, err)
		require.Equal(t, stored, q.Contenders[0].Trace != "")
		data, _, err := b.admin.Get(b.chroot + "/a/" + q.Contenders[0].Node)
		require.NoError(t, err)
		require.Equal(t, stored, bytes.Contains(data, []byte("traceparent")), "%s", data)
		w := b.start(b.ctx, p, "a")
		queue := b.queued("a", 2)
		b.until(func() bool { return p.Stats().Waiting == 1 }, "a waiter")
		data, _, err = b.admin.Get(b.chroot + "/a/" + queue[1])
		require.NoError(t, err)
		require.NotContains(t, string(data), "traceparent")
		b.unlock(holder)
		b.unlock(b.granted(w))
	}
	for _, s := range b.recorder.Ended() {
		require.Empty(t, s.Links())
	}
	require.Len(t, b.named(waitName), 2)
	require.Equal(t, me, attributesOf(b.named(waitName)[0])["lockpool.lock.waiting_for.owner"], "whose it is says no trace")
}

func TestWaitForAHandleIsASpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.short = true
	p, m := b.metered(lockpool.WithMaxHandles(1))
	holder := b.lock(b.ctx, p, "b")
	var session string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		b.until(func() bool { started := b.recorder.Started(); return started[len(started)-1].Name() == acquireName }, "it asks")
		time.Sleep(50 * time.Millisecond) // the wait
		b.unlockIn(ctx, holder)
		l := b.granted(w)
		session = b.session("a", b.queue("a")[0])
		b.unlockIn(ctx, l)
	})
	other := released(attributes{"lockpool.lock.name": "b"})
	require.Equal(t, []span{acquire(session, alone(), ok, enqueued, seat()), other, released(nil)}, spans)
	require.Equal(t, map[string]int64{"": 3}, m.points()["lockpool.session.wait_time"])
	require.Equal(t, map[string]int64{"": 1}, m.points()["lockpool.handle.max"])

	holder = b.lock(b.ctx, p, "b")
	spans = b.trace(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err := p.Lock(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	b.unlock(holder)
	text := "no free handle, all 1 are in use: context deadline exceeded"
	late := seat()
	late.Status, late.Attributes = failed(text), attributes{"error.type": "timeout"}
	refused := span{acquireName, trace.SpanKindClient, failed(text), attributes{
		"lockpool.driver.name": "zookeeper", "lockpool.lock.name": "a", "lockpool.lock.kind": "mutex",
		"lockpool.lock.contended": false, "lockpool.lock.wakeups": int64(0),
		"lockpool.lock.outcome": "timeout", "error.type": "timeout",
	}, nil, nil, []span{late}}
	require.Equal(t, []span{refused}, spans)
	require.Equal(t, int64(1), m.points()["lockpool.session.wait_time"]["error.type=timeout"])
}

// logged is a log that is kept.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) option() lockpool.Option {
	return lockpool.WithLogger(slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})))
}

// lines returns what was logged, without the time and the attributes that take
// another value every time, which must be there.
func (l *logged) lines(t testing.TB, without ...string) (lines []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.buf.Bytes()) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal(line, &fields))
		for _, key := range append(without, "time") {
			require.Contains(t, fields, key)
			delete(fields, key)
		}
		lines = append(lines, fields)
	}
	return lines
}

// The error is about the request that was not answered, not about who has gone.
func TestErrorNamesNobodyWhoHasGone(t *testing.T) {
	t.Parallel()
	b := newBenchAt(t, zktest.Start(t))
	p, others := b.pool(), b.silentPool()
	holder := b.lock(b.ctx, others, "a")
	quitter := b.start(b.ctx, others, "a")
	b.queued("a", 2)
	w := b.start(b.ctx, p, "a")
	queue := b.queued("a", 3)
	b.waitingBehind(queue[1], 1)
	session, err := strconv.ParseUint(b.session("a", queue[2]), 0, 64)
	require.NoError(t, err)
	unanswered := b.server.Inject(zktest.Rule{
		Match: zktest.Match{Selector: zktest.Selector{Session: int64(session)}, Ops: []zktest.Op{zktest.OpGetChildren, zktest.OpGetChildren2}},
		Do:    zktest.HoldReply(),
	})
	quitter.cancel()
	require.NoError(t, unanswered.Wait(b.ctx)) // it looks who is in front now
	w.cancel()
	_, err = b.result(w)
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "it is that of")
	unanswered.Release()
	b.unlock(holder)
}

// Others may have held the lock before.
func TestReleaseWhoseSessionHasJustEndedIsALoss(t *testing.T) {
	t.Parallel()
	b := newBenchAt(t, zktest.Start(t))
	p := b.pool()
	l := b.lock(b.ctx, p, "a")
	ended := b.server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}, Prefix: b.chroot + "/a/"}, Do: zktest.ExpireBeforeApply()})
	err := l.Unlock(b.ctx)
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	require.Equal(t, 1, ended.Fired())
	want := released(attributes{"error.type": "lock_lost"})
	want.Status = failed("lock lost: session lost: expired")
	require.Equal(t, want, b.span(b.named(releaseName)[0], nil))
}
