package lockpool_test

import (
	"context"
	"errors"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// slow is a server whose every answer takes a while, in front of the shared one.
func (b *bench) slow(d time.Duration) *zktest.Proxy {
	proxy := zktest.StartProxy(b, server.Addr())
	b.addr = proxy.Addr()
	proxy.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.DelayReply(d)})
	return proxy
}

// A release in another goroutine is under way for a round trip, and must not keep
// Do from its own.
func TestUnlockBesideUnlockOfTheSameHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.slow(10 * time.Millisecond)
	p := b.pool()
	for range 5 {
		unlocked := make(chan error, 1)
		require.NoError(t, p.Do(b.ctx, "a", func(ctx context.Context) error {
			inner, err := p.Lock(ctx, "b")
			require.NoError(t, err)
			started := make(chan struct{})
			go func() {
				close(started)
				unlocked <- inner.Unlock(b.ctx)
			}()
			<-started
			return nil
		}))
		require.Empty(t, b.children("a"))
		require.NoError(t, <-unlocked)
		require.Empty(t, b.children("b"))
	}
	require.Zero(t, p.Stats().Held)
	require.Zero(t, p.Stats().InUse)
}

// A timer that unlocks while the holder waits for another lock.
func TestUnlockBesideAWaitOfTheSameHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	held := b.lock(others, "b")
	s := b.session(p)
	l, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	w := b.waitFor(s.Lock, "b", 2)
	b.unlock(l)
	require.Empty(t, b.children("a"))
	b.stillWaits(w)
	b.unlock(held)
	b.unlock(b.granted(w))
	require.NoError(t, s.Close(b.ctx))
}

// The holder in a context may let go of everything while it waits for more.
func TestHandleOfAContextLivesAsLongAsItWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	held := b.lock(others, "b")
	l := b.lock(p, "a")
	ctx := context.WithoutCancel(l.Context(b.ctx))
	var second *lockpool.Lock
	go func() {
		b.queued("b", 2)
		if err := errors.Join(l.Unlock(b.ctx), held.Unlock(b.ctx)); err != nil {
			t.Error(err)
		}
	}()
	second, err := p.Lock(ctx, "b")
	require.NoError(t, err)
	require.Equal(t, 1, p.Stats().InUse)
	b.unlock(second)
	require.Zero(t, p.Stats().InUse)
}

func TestCloseEndsTheWaitOfItsHandle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	held := b.lock(others, "b")
	s := b.session(p)
	_, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	w := b.waitFor(s.Lock, "b", 2)
	require.NoError(t, s.Close(b.ctx))
	<-w.done
	require.ErrorIs(t, w.err, lockpool.ErrHandleClosed)
	require.Empty(t, b.children("a"))
	b.queued("b", 1)
	require.Zero(t, p.Stats().InUse)
	b.unlock(held)
}

func TestDoTellsThatPoolCloseTookItsLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 20 {
		p := b.pool()
		err := p.Do(b.ctx, "a", func(ctx context.Context) error {
			closed := make(chan error, 1)
			go func() { closed <- p.Close() }()
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), lockpool.ErrPoolClosed)
			b.Cleanup(func() { require.NoError(t, <-closed) })
			return nil
		})
		require.ErrorIs(t, err, lockpool.ErrNotHeld)
		require.ErrorIs(t, err, lockpool.ErrPoolClosed)
	}
}

// nil is for releases that were ours to make.
func TestUnlockTellsOfASessionThatTheServerHasEnded(t *testing.T) {
	t.Parallel()
	own := zktest.Start(t)
	b := newBenchOn(t, own.Addr())
	p, others := b.pool(), b.pool()
	unlock := map[string]func() error{
		"Unlock": func() error { return b.lock(p, "a").Unlock(b.ctx) },
		"Do":     func() error { return p.Do(b.ctx, "a", func(context.Context) error { return nil }) },
		"Close": func() error {
			s := b.session(p)
			_, err := s.Lock(b.ctx, "a")
			require.NoError(t, err)
			return s.Close(b.ctx)
		},
	}
	for name, unlock := range unlock {
		fault := own.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.ExpireBeforeApply()})
		require.ErrorIs(t, unlock(), lockpool.ErrLockLost, name)
		require.NoError(t, fault.Wait(b.ctx))
		b.unlock(b.lock(others, "a"))
	}
}

// The node of a short hold is not watched yet.
func TestUnlockTellsThatTheNodeWasRemoved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy := zktest.StartProxy(b, server.Addr())
	b.addr = proxy.Addr()
	p := b.pool()
	for _, ways := range []struct {
		name string
		lock func() (*lockpool.Lock, error)
	}{
		{"mutex", func() (*lockpool.Lock, error) { return p.Lock(b.ctx, "a") }},
		{"read", func() (*lockpool.Lock, error) { return p.RLock(b.ctx, "a") }},
	} {
		l, err := ways.lock()
		require.NoError(t, err)
		// Before it is watched: the delete gets there first.
		removal := proxy.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}},
			Do:    zktest.Call(func(r zktest.Request) { require.NoError(t, b.admin.Delete(r.Paths[0], -1)) }),
		})
		require.ErrorIs(t, l.Unlock(b.ctx), lockpool.ErrLockLost, ways.name)
		require.NoError(t, removal.Wait(b.ctx))
		<-l.Lost()
	}
	// A reply that is lost leaves a doubt whose delete it was.
	l := b.lock(p, "a")
	lost := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.DropAfterApply()})
	b.unlock(l)
	require.NoError(t, lost.Wait(b.ctx))
}

// The natural way to write it ends the context that Unlock is given.
func TestUnlockWithTheContextOfTheLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.slow(20 * time.Millisecond)
	p := b.pool()
	l := b.lock(p, "a")
	require.NoError(t, l.Unlock(l.Context(b.ctx)))
	require.Empty(t, b.children("a"))

	l = b.lock(p, "a")
	derived, cancel := context.WithTimeout(l.Context(l.Context(b.ctx)), patience)
	defer cancel()
	require.NoError(t, l.Unlock(derived))
	require.Empty(t, b.children("a"))

	l = b.lock(p, "a")
	inner, err := p.Lock(l.Context(b.ctx), "b")
	require.NoError(t, err)
	ctx := inner.Context(l.Context(b.ctx))
	b.unlock(l)
	require.NoError(t, inner.Unlock(ctx), "another lock's end is none of this one's either")
	require.Empty(t, b.children("b"))

	all, err := p.LockAll(b.ctx, []string{"a", "b", "c"})
	require.NoError(t, err)
	require.NoError(t, all.Unlock(all.Context(b.ctx)))
	require.Empty(t, b.contenders("/"))

	permits, err := p.Semaphore("s", 2).Acquire(b.ctx, 1)
	require.NoError(t, err)
	require.NoError(t, permits.Release(permits.Context(b.ctx)))
	require.Empty(t, b.contenders("/"))

	s := b.session(p)
	l, err = s.Lock(b.ctx, "a")
	require.NoError(t, err)
	require.NoError(t, s.Close(l.Context(b.ctx)))
	require.Empty(t, b.contenders("/"))
}

// What the user does to the context still bounds the wait.
func TestUnlockWithTheContextOfTheLockEndsWithWhatIsAroundIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy := zktest.StartProxy(b, server.Addr())
	b.addr = proxy.Addr()
	p := b.pool()
	for name, derive := range map[string]func(l *lockpool.Lock) (context.Context, context.CancelFunc){
		"around": func(l *lockpool.Lock) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(b.ctx)
			return l.Context(ctx), cancel
		},
		"within": func(l *lockpool.Lock) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(l.Context(b.ctx))
			cancel()
			return ctx, cancel
		},
		"deadline": func(l *lockpool.Lock) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(l.Context(b.ctx), 20*time.Millisecond)
			b.Cleanup(cancel)
			return ctx, func() {}
		},
	} {
		l := b.lock(p, "a")
		held := proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.HoldReply()})
		ctx, cancel := derive(l)
		done := make(chan error, 1)
		go func() { done <- l.Unlock(ctx) }()
		require.NoError(t, held.Wait(b.ctx))
		cancel()
		err := <-done
		require.ErrorIs(t, err, map[bool]error{false: context.Canceled, true: context.DeadlineExceeded}[name == "deadline"], name)
		held.Release()
		held.Remove()
	}
	b.until(func() bool { return len(b.contenders("/")) == 0 }, "that nothing is held")
}

func TestRevokedDoSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.pool()
	err := p.Do(b.ctx, "a", func(ctx context.Context) error {
		require.NoError(t, others.Revoke(b.ctx, "a"))
		<-ctx.Done()
		return ctx.Err()
	}, lockpool.Revocable())
	require.ErrorIs(t, err, lockpool.ErrRevoked)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, p.Do(b.ctx, "a", func(ctx context.Context) error {
		require.NoError(t, others.Revoke(b.ctx, "a"))
		<-ctx.Done()
		return nil // it was done all the same
	}, lockpool.Revocable()))
}

// panickingTracer is a tracer provider whose nth call on the test's goroutine
// panics. (On one of the pool's own, a panic ends the process, as it should.)
type panickingTracer struct {
	noop.TracerProvider
	goroutine int64
	at, calls int
}

func (p *panickingTracer) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return panickingSpans{provider: p}
}

func (p *panickingTracer) step() {
	if goid.Get() != p.goroutine {
		return
	}
	if p.calls++; p.calls == p.at {
		panic("users' code")
	}
}

type panickingSpans struct {
	noop.Tracer
	provider *panickingTracer
}

func (t panickingSpans) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.provider.step()
	span := panickingSpan{provider: t.provider}
	return trace.ContextWithSpan(ctx, span), span
}

type panickingSpan struct {
	noop.Span
	provider *panickingTracer
}

func (panickingSpan) IsRecording() bool                       { return true }
func (s panickingSpan) SetAttributes(...attribute.KeyValue)   { s.provider.step() }
func (s panickingSpan) AddEvent(string, ...trace.EventOption) { s.provider.step() }
func (s panickingSpan) AddLink(trace.Link)                    { s.provider.step() }
func (s panickingSpan) SetStatus(codes.Code, string)          { s.provider.step() }
func (s panickingSpan) End(...trace.SpanEndOption)            { s.provider.step() }

// A sampler or a span processor that panics keeps no lock, and no pool open.
func TestPanicOfUsersCodeKeepsNoLock(t *testing.T) {
	b := newBench(t) // not parallel: profiles are the process's
	others := b.pool(lockpool.WithProfiles())
	calls := map[string]func(p *lockpool.Pool){
		"free": func(p *lockpool.Pool) { _ = p.Do(b.ctx, "a", func(context.Context) error { return nil }) },
		"try":  func(p *lockpool.Pool) { _, _ = p.TryLock(b.ctx, "held") },
		"wait": func(p *lockpool.Pool) {
			_ = p.Do(b.ctx, "held", func(context.Context) error { return nil }, lockpool.WaitAtMost(10*time.Millisecond))
		},
		"permits": func(p *lockpool.Pool) {
			_ = p.Semaphore("s", 1).Do(b.ctx, 1, func(context.Context) error { return nil })
		},
		"permits wait": func(p *lockpool.Pool) {
			ctx, cancel := context.WithTimeout(b.ctx, 20*time.Millisecond)
			defer cancel()
			_ = p.Semaphore("full", 1).Do(ctx, 1, func(context.Context) error { return nil })
		},
		"plain": func(p *lockpool.Pool) {
			_ = p.Do(b.ctx, "plain", func(context.Context) error { return nil }, lockpool.Plain())
		},
		"several": func(p *lockpool.Pool) {
			if l, err := p.LockAll(b.ctx, []string{"a", "b"}); err == nil {
				defer l.Unlock(b.ctx)
			}
		},
		"handle": func(p *lockpool.Pool) {
			s, err := p.Handle(b.ctx)
			if err == nil {
				defer s.Close(b.ctx)
				for _, name := range []string{"a", "b"} {
					_, _ = s.Lock(b.ctx, name)
				}
			}
		},
	}
	held := b.lock(others, "held")
	full, err := others.Semaphore("full", 1).Acquire(b.ctx, 1)
	require.NoError(t, err)
	profiled := pprof.Lookup("lockpool.held").Count()
	for name, call := range calls {
		panics := 0
		for at := 1; ; at++ {
			tracer := &panickingTracer{goroutine: goid.Get(), at: at}
			p := b.pool(lockpool.WithTracerProvider(tracer), lockpool.WithHoldSpans(), lockpool.WithProfiles())
			func() {
				defer func() {
					if r := recover(); r != nil {
						require.Equal(t, "users' code", r)
						panics++
					}
				}()
				call(p)
			}()
			if tracer.calls < at { // it has come to its end
				break
			}
			b.until(func() bool { return len(b.contenders("/")) == 2 }, "that only the holders are left after %s, step %d", name, at)
			require.Zero(t, p.Stats().Held, "%s, step %d", name, at)
			require.Zero(t, p.Stats().Waiting, "%s, step %d", name, at)
			require.Zero(t, p.Stats().InUse, "%s, step %d", name, at)
			require.NoError(t, p.Close())
			require.Equal(t, profiled, pprof.Lookup("lockpool.held").Count(), "%s, step %d", name, at)
		}
		require.Positive(t, panics, name)
	}
	b.unlock(held)
	require.NoError(t, full.Release(b.ctx))
	var nobody context.Context
	p := b.pool()
	require.Panics(t, func() { _, _ = p.Lock(nobody, "a") })
	s := b.session(p)
	require.Panics(t, func() { _, _ = s.Lock(nobody, "a") })
	l, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	require.Panics(t, func() { _ = l.Context(nobody) })
	require.Panics(t, func() { _ = l.Unlock(nobody) })
	require.Panics(t, func() { _ = s.Close(nobody) })
	require.Equal(t, 1, l.Depth(), "nothing has changed")
	b.unlock(l)
	require.Empty(t, b.children("a"))
	require.NoError(t, s.Close(b.ctx))
}

// A service locks with its lifetime's context.
func TestContextOfALockIsForgottenWithIt(t *testing.T) {
	b := newBench(t)
	s := b.session(b.pool())
	lifetime, cancel := context.WithCancel(context.Background())
	defer cancel()
	use := func(n int) {
		for range n {
			l, err := s.Lock(b.ctx, "a")
			require.NoError(t, err)
			for range 100 {
				_ = l.Context(lifetime)
			}
			b.unlock(l)
		}
	}
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	use(10)
	before := heap()
	const more = 100
	use(more)
	require.Less(t, (heap()-before)/(100*more), 100, "bytes for each context")
	require.NoError(t, s.Close(b.ctx))
}
