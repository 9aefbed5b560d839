package tracing

// This file tests the spans and counts of held locks.

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestUncontendedLockWithHoldSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithHoldSpans())
	var session string
	spans := b.trace(func(ctx context.Context) {
		l := b.lock(ctx, p, "a")
		session = b.session("a", b.Children("a")[0])
		require.Equal(t, idle(2).with(points{
			waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 1}, handles: {"": 1},
		}), m.points(), "while it is held")
		b.unlockIn(ctx, l)
	})
	require.Equal(t, []span{acquireUncontended(session), hold(), release(nil)}, spans)
	require.Equal(t, idle(2).with(points{
		waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 0}, holdTime: {mutex: 1},
	}), m.points())
}

func TestKnownTokenIsOnHoldAndReleaseSpans(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithHoldSpans())
	l := b.lock(b.Ctx, p, "a")
	token, err := l.Token(b.Ctx)
	require.NoError(t, err)
	b.Unlock(l)
	for _, name := range []string{holdName, releaseName} {
		require.Equal(t, token, attributesOf(b.named(name)[0])[tokenKey])
	}
}

func TestLossIsCountedLoggedAndOnTheHoldSpan(t *testing.T) {
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
			require.NoError(b, b.Admin.Delete(b.Chroot+"/a/"+node, -1))
		}, "lock lost: own node was removed", nil},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			log := new(logBuffer)
			p, m := b.metered(lockpool.WithHoldSpans(), log.option())
			var session string
			spans := b.trace(func(ctx context.Context) {
				l := b.lock(ctx, p, "a")
				_, err := l.Token(ctx)
				require.NoError(t, err)
				node := b.Children("a")[0]
				session = b.session("a", node)
				c.lose(b, node)
				select {
				case <-l.Lost():
				case <-ctx.Done():
					require.FailNow(t, "the lock was not lost")
				}
				b.Until(func() bool { return len(b.named(holdName)) == 1 }, "the hold span has ended")
				require.ErrorIs(t, l.Unlock(ctx), lockpool.ErrLockLost)
			})
			lost := hold()
			lost.Status, lost.Events, lost.Attributes["error.type"] = failed(c.text), []string{"lockpool.lost"}, "lock_lost"
			require.Equal(t, []span{acquireUncontended(session), lost}, spans)
			b.Until(func() bool { // the hold may learn of the loss before the pool counts the session
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
				"level": "WARN", "msg": lostMessage, "lock": "a", "kind": "mutex", "cause": c.text,
			}}, log.lines(t, "held"))
		})
	}
}

// Another client may have held the lock before the release.
func TestReleaseOnAnExpiredSessionIsALoss(t *testing.T) {
	t.Parallel()
	b := newBenchOn(t, zktest.Start(t))
	p := b.pool()
	l := b.lock(b.Ctx, p, "a")
	expired := b.server().Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}, Prefix: b.Chroot + "/a/"}, Do: zktest.ExpireBeforeApply()})
	err := l.Unlock(b.Ctx)
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	require.Equal(t, 1, expired.Fired())
	want := release(attributes{"error.type": "lock_lost"})
	want.Status = failed("lock lost: session lost: expired")
	require.Equal(t, want, b.span(b.named(releaseName)[0], nil))
}

func TestCloseEndsHoldsWithoutALoss(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, m := b.metered(lockpool.WithHoldSpans())
	l := b.lock(b.Ctx, p, "a")
	require.NoError(t, p.Close())
	require.Equal(t, hold(), b.span(b.named(holdName)[0], nil), "the hold span shows no loss")
	require.ErrorIs(t, l.Unlock(b.Ctx), lockpool.ErrNotHeld)
	require.Empty(t, b.named(releaseName), "the node went with the session")
	require.Equal(t, points{
		"lockpool.session.wait_time": {"": 2}, "lockpool.session.create_time": {"": 1},
		waitTime: {free: 1}, depth: {mutex: 1}, held: {mutex: 0}, holdTime: {mutex: 1},
	}, m.points(), "no session is lost, and the closed pool reports none")
}

// The pool is closed after the service has granted the lock and before the holder
// has it.
func TestGrantDuringCloseIsNoHold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var p *lockpool.Pool
	closed := make(chan error, 1)
	b.before = func(span string) {
		if span != holdName {
			return
		}
		go func() { closed <- p.Close() }() // waits for the call under way
		b.Until(func() bool { _, err := p.Handle(b.Ctx); return err != nil }, "the pool is closing")
	}
	p, m := b.metered(lockpool.WithHoldSpans())
	_, err := p.Lock(b.Ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	require.NoError(t, <-closed)
	require.Len(t, b.named(holdName), 1, "the hold span has ended")
	require.Equal(t, map[string]int64{mutex: 0}, m.points()[held])
	require.NotContains(t, m.points(), holdTime)
	require.Len(t, b.recorder.Ended(), len(b.recorder.Started()))
	b.awaitQueue("a", 0)
}

func TestWaitForAHandleIsASpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.scarceHandles = true
	p, m := b.metered(lockpool.WithMaxHandles(1))
	holder := b.lock(b.Ctx, p, "b")
	var session string
	spans := b.trace(func(ctx context.Context) {
		w := b.start(ctx, p, "a")
		b.Until(func() bool { started := b.recorder.Started(); return started[len(started)-1].Name() == acquireName }, "the acquisition has begun")
		time.Sleep(50 * time.Millisecond) // the wait
		b.unlockIn(ctx, holder)
		l := w.Granted()
		session = b.session("a", b.Children("a")[0])
		b.unlockIn(ctx, l)
	})
	releaseOther := release(attributes{"lockpool.lock.name": "b"})
	require.Equal(t, []span{acquire(session, uncontended(), ok, enqueued, handleWait()), releaseOther, release(nil)}, spans)
	require.Equal(t, map[string]int64{"": 3}, m.points()["lockpool.session.wait_time"])
	require.Equal(t, map[string]int64{"": 1}, m.points()["lockpool.handle.max"])
}

// The wait must begin before its context ends.
func TestFailedWaitForAHandleIsASpan(t *testing.T) {
	locktest.Bubble(t, failedWaitForAHandleIsASpan)
}

func failedWaitForAHandleIsASpan(t *testing.T) {
	b := newBench(t)
	b.scarceHandles = true
	p, m := b.metered(lockpool.WithMaxHandles(1))
	holder := b.lock(b.Ctx, p, "b")
	spans := b.trace(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err := p.Lock(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	b.Unlock(holder)
	text := "no free handle, all 1 are in use: context deadline exceeded"
	failedWait := handleWait()
	failedWait.Status, failedWait.Attributes = failed(text), attributes{"error.type": "timeout"}
	require.Equal(t, []span{{acquireName, trace.SpanKindClient, failed(text), attributes{
		"lockpool.driver.name": "zookeeper", "lockpool.lock.name": "a", "lockpool.lock.kind": "mutex",
		"lockpool.lock.contended": false, "lockpool.lock.wakeups": int64(0),
		"lockpool.lock.outcome": "timeout", "error.type": "timeout",
	}, nil, nil, []span{failedWait}}}, spans)
	require.Equal(t, int64(1), m.points()["lockpool.session.wait_time"]["error.type=timeout"])
}

func TestFailureOfALeaderIsOnTheHoldSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool(lockpool.WithHoldSpans(), new(logBuffer).option())
	fails := true
	require.NoError(t, p.Elect(b.Ctx, "a", func(context.Context) error {
		defer func() { fails = false }()
		if fails {
			return errors.New("the disk is full")
		}
		return nil
	}))
	terms := b.named(holdName)
	require.Len(t, terms, 2)
	require.Equal(t, failed("the disk is full"), terms[0].Status())
	require.Empty(t, terms[1].Status())
}
