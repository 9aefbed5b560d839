package tracing

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool"
)

// What users give to a pool may be slow, or panic. Locks go on.

func TestThirdWaiterOfASemaphoreIsNotLinkedToAHolderWhoHasNone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, others := b.pool(), b.stranger()
	held, err := others.Semaphore("s", 1).Acquire(b.ctx, 1)
	require.NoError(t, err)
	ask := func(p *lockpool.Pool) chan error {
		done := make(chan error, 1)
		go func() { done <- p.Semaphore("s", 1).Do(b.ctx, 1, func(context.Context) error { return nil }) }()
		return done
	}
	first := ask(others.Pool)
	b.until(func() bool { return others.Stats().Waiting == 1 }, "a waiter")
	second := ask(others.Pool)
	b.until(func() bool { return others.Stats().Waiting == 2 }, "two waiters")
	third := ask(p)
	b.linked(1, 1)
	require.NoError(t, held.Release(b.ctx))
	for _, done := range []chan error{first, second, third} {
		require.NoError(t, <-done)
	}
	links := b.span(b.named(waitName)[0], nil).Links
	require.NotContains(t, links, linkTo("holder", others.asked()[1]), "it only waits itself")
}

func TestPanicOfAMetricNameKeepsNoLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.open("", lockpool.WithMeterProvider(b.newMeter()),
		lockpool.WithMetricName(func(name string) string { return strings.Split(name, "/")[1] })) // there is no such part
	b.unlock(b.lock(b.ctx, p, "a"))
	l, err := b.silentPool().TryLock(b.ctx, "a")
	require.NoError(t, err)
	b.unlock(l)
}

// blockingHandler takes its time with warnings of locks.
type blockingHandler struct{ in, out chan struct{} }

func newBlockingHandler() blockingHandler {
	return blockingHandler{make(chan struct{}, 10), make(chan struct{})}
}

func (blockingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h blockingHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "waited for long") || strings.Contains(r.Message, "was lost") {
		h.in <- struct{}{}
		<-h.out
	}
	return nil
}
func (h blockingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h blockingHandler) WithGroup(string) slog.Handler      { return h }

func TestCloseWaitsForAWarningThatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := newBlockingHandler()
	p := b.open("", lockpool.WithLongWait(time.Millisecond), lockpool.WithLogger(slog.New(h)))
	b.lock(b.ctx, p, "a")
	b.start(b.ctx, p, "a")
	<-h.in
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case <-closed:
		require.Fail(t, "it has left a goroutine behind")
	case <-time.After(300 * time.Millisecond): // of nothing happening
	}
	close(h.out)
	require.NoError(t, <-closed)
}

// A lock that its holder can not see any more is let go before anybody is told.
func TestSlowLoggerKeepsNoLostLockFromOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := newBlockingHandler()
	p := b.open("", lockpool.WithLogger(slog.New(h)))
	l := b.lock(b.ctx, p, "a")
	_, err := b.admin.SetACL(b.chroot+"/a/"+b.queue("a")[0], zk.WorldACL(zk.PermWrite|zk.PermDelete|zk.PermAdmin|zk.PermCreate), -1)
	require.NoError(t, err)
	verified := make(chan error, 1)
	go func() { verified <- l.Verify(b.ctx) }()
	<-h.in
	b.queued("a", 0)
	close(h.out)
	require.ErrorIs(t, <-verified, lockpool.ErrLockLost)
}

// Flags that are not W3C's first version are left out, or readers refuse all.
func TestTraceWithStrangeFlagsIsLinkedTo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, other := b.pool(), b.silentPool()
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: 3, Remote: true})
	l := b.lock(trace.ContextWithSpanContext(b.ctx, sc), other, "a")
	w := b.start(b.ctx, p, "a")
	b.linked(1, 1)
	b.unlock(l)
	b.unlock(b.granted(w))
}
