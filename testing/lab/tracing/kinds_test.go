package tracing

// This file tests the spans of each kind of lock.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// acquireFunc acquires a lock of some kind, and returns a function to release the lock.
type acquireFunc func(ctx context.Context, p *lockpool.Pool) (release func(context.Context) error, err error)

func twoPermits(ctx context.Context, p *lockpool.Pool) (func(context.Context) error, error) {
	permits, err := p.Semaphore("a", 2).Acquire(ctx, 2)
	if err != nil {
		return nil, err
	}
	return permits.Unlock, nil
}

func withOptions(opts ...lockpool.LockOption) acquireFunc {
	return func(ctx context.Context, p *lockpool.Pool) (func(context.Context) error, error) {
		l, err := p.Lock(ctx, "a", opts...)
		if err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}
}

func TestEachKindOfLockHasItsSpans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		acquire       acquireFunc
		kind          attributes // of the kind
		queued        attributes // of a waiting acquisition
		events, woken []string   // of the acquisition and of the wait
	}{
		{
			"read", withOptions(lockpool.Shared()), attributes{"lockpool.lock.kind": "read"},
			attributes{"lockpool.lock.queue.position": int64(1), "lockpool.lock.queue.length": int64(2)}, enqueued, []string{goneEvent},
		},
		{
			"semaphore", twoPermits, attributes{"lockpool.lock.kind": "semaphore", "lockpool.lock.permits": int64(2)},
			attributes{"lockpool.lock.queue.position": int64(0), "lockpool.lock.queue.length": int64(1)}, enqueued, []string{goneEvent},
		},
		{"plain", withOptions(lockpool.Plain()), attributes{"lockpool.lock.kind": "plain"}, attributes{}, nil, []string{goneEvent}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p, m := b.metered()
			others := b.peer()
			first := c.acquire
			if c.name == "read" { // readers would share the lock
				first = withOptions()
			}
			unlock, err := first(b.Ctx, others.Pool)
			require.NoError(t, err)
			holder := b.holder(others.Pool).Node
			var session string
			spans := b.trace(func(ctx context.Context) {
				done := make(chan error)
				go func() { // ends with ctx at the latest
					unlock, err := c.acquire(ctx, p)
					if err == nil {
						session = b.holder(others.Pool).Session
						err = unlock(ctx)
					}
					done <- err
				}()
				b.awaitBehind(holder, 1)
				b.awaitLinks(1, 1)
				require.NoError(t, unlock(b.Ctx))
				require.NoError(t, <-done)
			})
			end := attributes{"lockpool.lock.wakeups": int64(1), "lockpool.lock.outcome": "acquired"}
			waiting := c.queued.with(c.kind).with(end).without("lockpool.lock.queue.length", "lockpool.lock.permits").
				with(attributes{"lockpool.lock.waiting_for": holder})
			require.Equal(t, []span{
				acquire(session, c.kind.with(c.queued).with(end).with(attributes{"lockpool.lock.contended": true}), ok, c.events,
					wait(waiting, ok, c.woken...).linkedTo(linkTo("holder", others.acquisitions()[0]))),
				release(c.kind.without("lockpool.lock.permits")),
			}, spans)
			kind := "lockpool.lock.kind=" + c.name
			want := idle(2).with(points{
				waitTime: {"lockpool.lock.contended=true," + kind + ",lockpool.lock.outcome=acquired": 1},
				holdTime: {kind: 1}, held: {kind: 0}, waiters: {kind: 0}, depth: {kind: 1},
			})
			if c.name == "plain" { // without a queue
				delete(want, depth)
			}
			require.Equal(t, want, m.points())
		})
	}
}

// holder returns the first contender for "a". Any goroutine may call holder.
func (b *bench) holder(p *lockpool.Pool) (first lockpool.Contender) {
	b.Helper()
	q, err := p.Queue(b.Ctx, "a")
	if assert.NoError(b, err) && assert.NotEmpty(b, q.Contenders) {
		first = q.Contenders[0]
	}
	return first
}

func TestErrorsOfKindsHaveTypes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.silentPool()
	typeOf := func(fn func(ctx context.Context) error) (outcome any) {
		spans := b.trace(func(ctx context.Context) { require.Error(t, fn(ctx)) })
		require.Len(t, spans, 1)
		return spans[0].Attributes["error.type"]
	}
	held, err := others.Semaphore("s", 2).Acquire(b.Ctx, 1)
	require.NoError(t, err)
	require.Equal(t, "limit", typeOf(func(ctx context.Context) error {
		_, err := p.Semaphore("s", 0).Acquire(ctx, 1)
		return err
	}))
	require.Equal(t, "kind_mismatch", typeOf(func(ctx context.Context) error {
		_, err := p.Lock(ctx, "s")
		return err
	}))
	require.NoError(t, held.Unlock(b.Ctx))
}
