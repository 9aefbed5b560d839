package tracing

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
)

// asKind is a way to lock that gives the lock back with a function.
type asKind func(ctx context.Context, p *lockpool.Pool) (release func(context.Context) error, err error)

func twoPermits(ctx context.Context, p *lockpool.Pool) (func(context.Context) error, error) {
	permits, err := p.Semaphore("a", 2).Acquire(ctx, 2)
	if err != nil {
		return nil, err
	}
	return permits.Release, nil
}

func withOptions(opts ...lockpool.LockOption) asKind {
	return func(ctx context.Context, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.Lock(ctx, "a", opts...)
		if err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}
}

func TestEveryKindOfLockHasItsSpans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		take asKind
		own  attributes // of its kind
		// of one that waits
		queued        attributes
		events, woken []string
	}{
		{
			"read", withOptions(lockpool.Shared()), attributes{"lockpool.lock.kind": "read"},
			attributes{"lockpool.lock.queue.position": int64(1), "lockpool.lock.queue.length": int64(2)}, enqueued, []string{gone},
		},
		{
			"semaphore", twoPermits, attributes{"lockpool.lock.kind": "semaphore", "lockpool.lock.permits": int64(2)},
			attributes{"lockpool.lock.queue.position": int64(0), "lockpool.lock.queue.length": int64(1)}, enqueued, []string{gone},
		},
		{"plain", withOptions(lockpool.Plain()), attributes{"lockpool.lock.kind": "plain"}, attributes{}, nil, []string{gone}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p, m := b.metered()
			others := b.stranger()
			first := c.take
			if c.name == "read" { // they would share it
				first = withOptions()
			}
			release, err := first(b.ctx, others.Pool)
			require.NoError(t, err)
			q, err := others.Queue(b.ctx, "a")
			require.NoError(t, err)
			holder := q.Contenders[0].Node
			var session string
			spans := b.trace(func(ctx context.Context) {
				done := make(chan error)
				go func() {
					release, err := c.take(ctx, p)
					if err == nil {
						q, looked := others.Queue(ctx, "a")
						if err = looked; err == nil {
							session = q.Contenders[0].Session
							err = release(ctx)
						}
					}
					done <- err
				}()
				b.waitingBehind(holder, 1)
				b.linked(1, 1)
				require.NoError(t, release(b.ctx))
				require.NoError(t, <-done)
			})
			waiting := c.queued.with(c.own)
			delete(waiting, "lockpool.lock.queue.length")
			delete(waiting, "lockpool.lock.permits")
			end := attributes{"lockpool.lock.wakeups": int64(1), "lockpool.lock.outcome": "acquired"}
			require.Equal(t, []span{
				acquire(session, c.own.with(c.queued).with(end).with(attributes{"lockpool.lock.contended": true}), ok, c.events,
					wait(waiting.with(end).with(attributes{"lockpool.lock.waiting_for": holder}), ok, c.woken...).linkedTo(linkTo("holder", others.asked()[0]))),
				released(c.own.without("lockpool.lock.permits")),
			}, spans)
			kind := "lockpool.lock.kind=" + c.name
			want := idle(2).with(points{
				waitTime: {"lockpool.lock.contended=true," + kind + ",lockpool.lock.outcome=acquired": 1},
				holdTime: {kind: 1}, held: {kind: 0}, waiters: {kind: 0}, depth: {kind: 1},
			})
			if c.name == "plain" { // has no queue
				delete(want, depth)
			}
			require.Equal(t, want, m.points())
		})
	}
}

// What goes wrong is told apart by its type.
func TestErrorsOfKindsHaveTheirTypes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.silentPool()
	typeOf := func(fn func(ctx context.Context) error) (outcome any) {
		spans := b.trace(func(ctx context.Context) { require.Error(t, fn(ctx)) })
		require.Len(t, spans, 1)
		return spans[0].Attributes["error.type"]
	}
	held, err := others.Semaphore("s", 2).Acquire(b.ctx, 1)
	require.NoError(t, err)
	require.Equal(t, "limit", typeOf(func(ctx context.Context) error {
		_, err := p.Semaphore("s", 0).Acquire(ctx, 1)
		return err
	}))
	require.Equal(t, "kind_mismatch", typeOf(func(ctx context.Context) error {
		_, err := p.Lock(ctx, "s")
		return err
	}))
	require.NoError(t, held.Release(b.ctx))

	holder := b.lock(b.ctx, others, "a")
	require.Equal(t, "revoked", typeOf(func(ctx context.Context) error {
		done := make(chan error)
		go func() {
			_, err := p.Lock(ctx, "a", lockpool.Revocable())
			done <- err
		}()
		require.NoError(t, others.Revoke(b.ctx, "a", b.queued("a", 2)[1]))
		return <-done
	}))
	b.unlock(holder)
}

// Who looks at a queue sees the span that asked, to look for it.
func TestQueueShowsTheSpanThatAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	l := b.lock(b.ctx, p, "a")
	q, err := p.Queue(b.ctx, "a")
	require.NoError(t, err)
	sc := b.named(acquireName)[0].SpanContext()
	require.Equal(t, "00-"+sc.TraceID().String()+"-"+sc.SpanID().String()+"-01", q.Contenders[0].Trace)
	b.unlock(l)
	require.NotEqual(t, trace.TraceID{}, sc.TraceID())

	l = b.lock(b.ctx, b.silentPool(), "a")
	q, err = p.Queue(b.ctx, "a")
	require.NoError(t, err)
	require.Empty(t, q.Contenders[0].Trace)
	b.unlock(l)
}
