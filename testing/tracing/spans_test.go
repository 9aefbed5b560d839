package tracing

import (
	"context"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// ok is the status of everything that did not fail.
var ok sdktrace.Status

func TestUncontendedLockIsOneSpanBelowItsCaller(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s, err := p.Handle(b.ctx)
	require.NoError(t, err)
	for name, lock := range map[string]func(context.Context) (*lockpool.Lock, error){
		"Pool.Lock":       func(ctx context.Context) (*lockpool.Lock, error) { return p.Lock(ctx, "a") },
		"Pool.TryLock":    func(ctx context.Context) (*lockpool.Lock, error) { return p.TryLock(ctx, "a") },
		"Session.Lock":    func(ctx context.Context) (*lockpool.Lock, error) { return s.Lock(ctx, "a") },
		"Session.TryLock": func(ctx context.Context) (*lockpool.Lock, error) { return s.TryLock(ctx, "a") },
	} {
		var session string
		spans := b.trace(func(ctx context.Context) {
			l, err := lock(ctx)
			require.NoError(t, err)
			session = b.session("a", b.queue("a")[0])
			require.NoError(t, l.Unlock(ctx))
		})
		require.Equal(t, []span{
			acquire(session, alone(), ok, enqueued),
			released(nil),
		}, spans, name)
	}
	require.NoError(t, s.Close(b.ctx))
}

func TestAcquisitionWithoutACallersSpanIsARoot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.unlock(b.lock(b.ctx, b.pool(), "a"))
	var names []string
	for _, s := range b.since(0) {
		names = append(names, s.Name())
		require.False(t, s.Parent().IsValid())
	}
	require.Equal(t, []string{connectName, acquireName, releaseName}, names)
}

func TestWaitIsASpanInsideTheAcquisitionAndAsLongAsTheWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.silentPool()
	holder := b.lock(b.ctx, others, "a")
	var ahead []*waiter
	for i := range 2 {
		ahead = append(ahead, b.start(b.ctx, others, "a"))
		b.queued("a", i+2)
	}
	var queue []string
	var session string
	var asked, waiting, free, granted time.Time
	spans := b.trace(func(ctx context.Context) {
		asked = time.Now()
		w := b.start(ctx, p, "a")
		queue = b.queued("a", 4)
		session = b.session("a", queue[3])
		b.waitingBehind(queue[2], 1)
		waiting = time.Now()
		for _, next := range ahead {
			b.unlock(holder)
			holder = b.granted(next)
		}
		free = time.Now()
		b.unlock(holder)
		l := b.granted(w)
		granted = time.Now()
		b.unlockIn(ctx, l)
	})
	require.Equal(t, []span{
		acquire(session, attributes{
			"lockpool.lock.queue.position": int64(3),
			"lockpool.lock.queue.length":   int64(4),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        int64(1),
			"lockpool.lock.outcome":        "acquired",
		}, ok, enqueued, wait(attributes{
			"lockpool.lock.queue.position": int64(3),
			"lockpool.lock.waiting_for":    queue[2],
			"lockpool.lock.wakeups":        int64(1),
			"lockpool.lock.outcome":        "acquired",
		}, ok, gone, saw(0, 1))),
		released(nil),
	}, spans)

	w := b.named(waitName)[0]
	require.Equal(t, queue[3], attributesOf(b.named(acquireName)[0])[nodeKey], "the acquisition names its own node")
	inOrder(t, asked, w.StartTime(), waiting, free, w.Events()[0].Time, w.EndTime(), granted)
}

func inOrder(t *testing.T, times ...time.Time) {
	t.Helper()
	for i := range times[1:] {
		require.False(t, times[i+1].Before(times[i]), "times %d and %d", i, i+1)
	}
}

func TestWaiterWhoseOneInFrontGivesUpWaitsOnInTheSameSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.silentPool()
	holder := b.lock(b.ctx, others, "a")
	quitter := b.start(b.ctx, others, "a")
	b.queued("a", 2)
	var queue []string
	var session string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		queue = b.queued("a", 3)
		session = b.session("a", queue[2])
		b.waitingBehind(queue[1], 1)
		quitter.cancel()
		_, err := b.result(quitter)
		require.ErrorIs(t, err, context.Canceled)
		b.waitingBehind(queue[0], 1)
		b.unlock(holder)
		b.unlockIn(ctx, b.granted(w))
	})
	require.Equal(t, []span{
		acquire(session, attributes{
			"lockpool.lock.queue.position": int64(2),
			"lockpool.lock.queue.length":   int64(3),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        int64(2),
			"lockpool.lock.outcome":        "acquired",
		}, ok, enqueued, wait(attributes{
			"lockpool.lock.queue.position": int64(2),
			"lockpool.lock.waiting_for":    queue[0],
			"lockpool.lock.wakeups":        int64(2),
			"lockpool.lock.outcome":        "acquired",
		}, ok, gone, saw(1, 2), gone)),
		released(nil),
	}, spans)
}

func TestWakeUpForAnotherReasonIsCountedButNobodyHasGone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(b.ctx, b.silentPool(), "a")
	var queue []string
	var session string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		queue = b.queued("a", 2)
		session = b.session("a", queue[1])
		b.waitingBehind(queue[0], 1)
		_, err := b.admin.Set(b.chroot+"/a/"+queue[0], []byte("another"), -1)
		require.NoError(t, err)
		b.watched("a", queue[0], session)
		b.unlock(holder)
		b.unlockIn(ctx, b.granted(w))
	})
	require.Equal(t, []span{
		acquire(session, attributes{
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.queue.length":   int64(2),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        int64(2),
			"lockpool.lock.outcome":        "acquired",
		}, ok, enqueued, wait(attributes{
			"lockpool.lock.queue.position":    int64(1),
			"lockpool.lock.waiting_for":       queue[0],
			"lockpool.lock.waiting_for.owner": "another",
			"lockpool.lock.wakeups":           int64(2),
			"lockpool.lock.outcome":           "acquired",
		}, ok, saw(1, 2), gone)),
		released(nil),
	}, spans)
}

func TestWaiterThatHasToQueueAgainIsStillOneAcquisition(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(b.ctx, b.silentPool(), "a")
	var queue []string
	var session string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		queue = b.queued("a", 2)
		session = b.session("a", queue[1])
		b.waitingBehind(queue[0], 1)
		require.NoError(t, b.admin.Delete(b.chroot+"/a/"+queue[1], -1))
		var again []string
		b.until(func() bool { again = b.queue("a"); return len(again) == 2 && again[1] != queue[1] }, "that it queues again")
		b.watched("a", again[0], session)
		b.watched("a", again[1], session)
		b.unlock(holder)
		b.unlockIn(ctx, b.granted(w))
	})
	require.Equal(t, []span{
		acquire(session, attributes{
			"lockpool.lock.queue.position": int64(1), // of the second time, too
			"lockpool.lock.queue.length":   int64(2),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        int64(1),
			"lockpool.lock.requeues":       int64(1),
			"lockpool.lock.requeued_after": "node_removed",
			"lockpool.lock.outcome":        "acquired",
		}, ok, requeued, wait(attributes{
			"lockpool.lock.queue.position": int64(1), // where it waited
			"lockpool.lock.waiting_for":    queue[0],
			"lockpool.lock.wakeups":        int64(1),
			"lockpool.lock.requeues":       int64(1),
			"lockpool.lock.outcome":        "acquired",
		}, ok, gone)),
		released(nil),
	}, spans)
}

func TestWaiterWhoseSessionDiesIsStillOneAcquisitionAndSaysSo(t *testing.T) {
	t.Parallel()
	b := newBenchAt(t, zktest.Start(t)) // which is made slow
	p := b.pool()
	holder := b.lock(b.ctx, b.silentPool(), "a")
	var first, second string
	var queue []string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		queue = b.queued("a", 2)
		first = b.session("a", queue[1])
		b.waitingBehind(queue[0], 1)
		slow := b.server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpConnect}, Where: func(r zktest.Request) bool { return r.Session == 0 }},
			Do:    zktest.DelayApply(50 * time.Millisecond),
		})
		b.expire(first)
		var again []string
		b.until(func() bool { again = b.queue("a"); return len(again) == 2 && again[1] != queue[1] }, "it queues again")
		require.Equal(t, 1, slow.Fired())
		second = b.session("a", again[1])
		b.until(func() bool { return len(b.named(seatName)) > 0 }, "it has another seat")
		b.watched("a", queue[0], second)
		b.unlock(holder)
		b.unlockIn(ctx, b.granted(w))
	})
	require.NotEqual(t, first, second)
	wakeups := spans[0].Attributes["lockpool.lock.wakeups"] // the end of the connection may or may not be one
	_, port, err := net.SplitHostPort(b.server.Addr())
	require.NoError(t, err)
	number, err := strconv.ParseInt(port, 10, 64)
	require.NoError(t, err)
	here := attributes{"server.port": number}
	require.Equal(t, []span{
		acquire(second, attributes{
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.queue.length":   int64(2),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        wakeups,
			"lockpool.lock.requeues":       int64(1),
			"lockpool.lock.requeued_after": "session_lost",
			"lockpool.lock.outcome":        "acquired",
		}.with(here), ok, requeued, wait(attributes{
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.waiting_for":    queue[0],
			"lockpool.lock.wakeups":        wakeups,
			"lockpool.lock.requeues":       int64(1),
			"lockpool.lock.outcome":        "acquired",
		}, ok, gone), connect(second, here), seat()),
		released(nil),
	}, spans)
}

// Each way for both spans, each with a type of its own.
func TestWaitThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		timeout time.Duration // enough to get into the queue
		end     func(*lockpool.Pool, *waiter) error
		want    error
		outcome string
		text    string // of the status; NODE stands for the one in the way
	}{
		{
			"timeout", time.Second, func(*lockpool.Pool, *waiter) error { return nil },
			context.DeadlineExceeded, "timeout", "waiting behind NODE: context deadline exceeded (it is that of " + me + ")",
		},
		{
			"cancel", patience, func(_ *lockpool.Pool, w *waiter) error { w.cancel(); return nil },
			context.Canceled, "canceled", "waiting behind NODE: context canceled (it is that of " + me + ")",
		},
		{
			"close", patience, func(p *lockpool.Pool, _ *waiter) error { return p.Close() },
			lockpool.ErrPoolClosed, "pool_closed", "pool closed",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.pool()
			holder := b.lock(b.ctx, b.silentPool(), "a")
			var queue []string
			var session string
			spans := b.trace(func(ctx context.Context) {
				ctx, cancel := context.WithTimeout(ctx, c.timeout)
				defer cancel()
				w := b.start(ctx, p, "a")
				queue = b.queued("a", 2)
				session = b.session("a", queue[1])
				b.waitingBehind(queue[0], 1)
				require.NoError(t, c.end(p, w))
				_, err := b.result(w)
				require.ErrorIs(t, err, c.want)
			})
			status := failed(strings.ReplaceAll(c.text, "NODE", queue[0]))
			require.Equal(t, []span{
				acquire(session, attributes{
					"lockpool.lock.queue.position": int64(1),
					"lockpool.lock.queue.length":   int64(2),
					"lockpool.lock.contended":      true,
					"lockpool.lock.wakeups":        int64(0),
					"lockpool.lock.outcome":        c.outcome,
					"error.type":                   c.outcome,
				}, status, enqueued, wait(attributes{
					"lockpool.lock.queue.position": int64(1),
					"lockpool.lock.waiting_for":    queue[0],
					"lockpool.lock.wakeups":        int64(0),
					"lockpool.lock.outcome":        c.outcome,
					"error.type":                   c.outcome,
				}, status)),
			}, spans)
			b.unlock(holder)
		})
	}
}

func TestBusyTryLockIsNoErrorAndNoWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(b.ctx, p, "a")
	spans := b.trace(func(ctx context.Context) {
		_, err := p.TryLock(ctx, "a")
		require.ErrorIs(t, err, lockpool.ErrLocked)
	})
	require.Equal(t, []span{
		acquire(b.session("a", b.queue("a")[0]), attributes{ // they share the session
			"lockpool.lock.queue.position": int64(1),
			"lockpool.lock.queue.length":   int64(2),
			"lockpool.lock.contended":      true,
			"lockpool.lock.wakeups":        int64(0),
			"lockpool.lock.outcome":        "busy",
		}, ok, enqueued),
	}, spans)
	b.unlock(holder)
}

func TestReentryIsNoSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	s, err := p.Handle(b.ctx)
	require.NoError(t, err)
	outer, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	ended, cancel := context.WithCancel(b.ctx)
	cancel()
	require.Empty(t, b.trace(func(ctx context.Context) {
		ctx = outer.Context(ctx)
		for _, lock := range []func() (*lockpool.Lock, error){
			func() (*lockpool.Lock, error) { return s.Lock(ctx, "a") },
			func() (*lockpool.Lock, error) { return s.TryLock(ctx, "a") },
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
		_, err := s.Lock(ended, "a")
		require.ErrorIs(t, err, context.Canceled)
	}))
	require.Equal(t, []span{released(nil)}, b.trace(func(ctx context.Context) {
		require.NoError(t, outer.Unlock(ctx)) // the last one
		require.NoError(t, s.Close(ctx))
	}))
}

// A request that is refused before anything is asked of the service takes no
// time, and the error says all there is to say.
func TestRequestThatIsNotMadeIsNoSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, closed := b.pool(), b.pool()
	require.NoError(t, closed.Close())
	s, err := p.Handle(b.ctx)
	require.NoError(t, err)
	over, err := p.Handle(b.ctx)
	require.NoError(t, err)
	require.NoError(t, over.Close(b.ctx))
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
			{s, ctx, "/a", lockpool.ErrInvalidName},
			{p, ended, "a", context.Canceled},
			{s, ended, "a", context.Canceled},
			{p, late, "a", context.DeadlineExceeded},
			{s, late, "a", context.DeadlineExceeded},
			{closed, ctx, "a", lockpool.ErrPoolClosed},
			{over, ctx, "a", lockpool.ErrHandleClosed},
		} {
			_, err := c.of.Lock(c.ctx, c.name)
			require.ErrorIs(t, err, c.want)
			_, err = c.of.TryLock(c.ctx, c.name)
			require.ErrorIs(t, err, c.want)
		}
		require.NoError(t, p.Ping(ctx))
	}))
	require.NoError(t, s.Close(b.ctx))
}

func TestWorkUnderALockIsTracedBesideTheAcquisition(t *testing.T) {
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

func TestTheServerIsNamedAsInTheConnectString(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dsn := strings.Replace(server.Addr(), "127.0.0.1", "localhost", 1) + b.chroot + "?session_timeout=8s"
	p, err := lockpool.Open("zookeeper", dsn, lockpool.WithTracerProvider(b.provider))
	require.NoError(t, err)
	b.unlock(b.lock(b.ctx, p, "a"))
	require.NoError(t, p.Close())
	for _, name := range []string{connectName, acquireName} {
		a := attributesOf(b.named(name)[0])
		require.Equal(t, "localhost", a["server.address"])
		require.NotContains(t, a, "network.peer.address", "it is not known")
	}
}

func TestNoSpanHoldsASecret(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.admin.Create(b.chroot, nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
	_, err = b.admin.Create(b.chroot+"/forbidden", nil, 0, zk.DigestACL(zk.PermAll, "other", "0th3r"))
	require.NoError(t, err)

	p := b.open("&digest=user:s3cret", lockpool.WithTracerProvider(b.provider))
	l := b.lock(b.ctx, p, "a")
	_, err = p.TryLock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLocked)
	w := b.start(b.ctx, p, "a")
	b.until(func() bool { return p.Stats().Waiting == 1 }, "a waiter")
	w.cancel()
	_, err = b.result(w)
	require.ErrorIs(t, err, context.Canceled)
	_, err = p.Lock(b.ctx, "forbidden")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	w = b.start(b.ctx, p, "a")
	b.until(func() bool { return p.Stats().Waiting == 1 }, "a waiter")
	require.NoError(t, p.Close())
	_, err = b.result(w)
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrNotHeld)

	outcomes := map[any]int{}
	for _, s := range b.recorder.Ended() {
		if outcome, ok := attributesOf(s)["lockpool.lock.outcome"]; ok {
			outcomes[outcome]++
		}
	}
	require.Equal(t, map[any]int{"acquired": 1, "busy": 1, "canceled": 2, "no_permission": 1, "pool_closed": 2}, outcomes)
	text, err := json.Marshal(tracetest.SpanStubsFromReadOnlySpans(b.recorder.Ended()))
	require.NoError(t, err)
	require.Contains(t, string(text), "no permission", "it is all in there")
	require.Contains(t, string(text), "zookeeper")
	require.NotContains(t, string(text), "s3cret")
}
