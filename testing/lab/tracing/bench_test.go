package tracing

// This file has the bench of a test: pools with providers, waiters, and contexts ended by
// the test.

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// bench is a bench whose pools record their spans.
type bench struct {
	*locktest.Bench
	provider      *sdktrace.TracerProvider
	recorder      *tracetest.SpanRecorder
	scarceHandles bool // calls wait for a free handle

	before func(span string) // called before a span of a pool begins; may be nil

	mu    sync.Mutex
	waits []*waitSpan // in the order of their beginning
}

func newBench(t testing.TB) *bench { return newBenchWith(locktest.New(t)) }

func newBenchOn(t testing.TB, server locktest.Server) *bench {
	return newBenchWith(locktest.NewOn(t, server))
}

func newBenchWith(on *locktest.Bench) *bench {
	b := &bench{Bench: on, recorder: tracetest.NewSpanRecorder()}
	b.provider = b.newProvider(sdktrace.WithSpanProcessor(b.recorder))
	return b
}

func (b *bench) server() *zktest.Server { return b.Server.(*zktest.Server) }

func (b *bench) newProvider(opts ...sdktrace.TracerProviderOption) *sdktrace.TracerProvider {
	p := sdktrace.NewTracerProvider(opts...)
	b.Cleanup(func() { _ = p.Shutdown(b.Ctx) }) // some exporters are made to fail
	return p
}

// open returns a pool, closed at the end of the test. The handles queue at the server, unless
// the options say otherwise.
func (b *bench) open(opts ...lockpool.Option) *lockpool.Pool {
	return b.PoolWithTimeout(8*time.Second, append([]lockpool.Option{lockpool.WithLocalTurns(0)}, opts...)...)
}

// openWith is open with params appended to the connect string.
func (b *bench) openWith(params string, opts ...lockpool.Option) *lockpool.Pool {
	opts = append([]lockpool.Option{lockpool.WithLocalTurns(0)}, opts...)
	p, err := lockpool.Open("zookeeper", b.server().Addr()+b.Chroot+"?session_timeout=8s"+params, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return p
}

// keeping are the options of a pool that keeps locks for longer than any test.
var keeping = []lockpool.Option{lockpool.WithLocalTurns(1000), lockpool.WithKeptLocks(0, time.Hour)}

// pool returns a pool with a session whose spans are recorded.
func (b *bench) pool(opts ...lockpool.Option) *lockpool.Pool {
	b.Helper()
	p := b.open(append([]lockpool.Option{lockpool.WithTracerProvider(observer{b.provider, b})}, opts...)...)
	require.NoError(b, p.Ping(b.Ctx))
	return p
}

// silentPool returns a pool without spans.
func (b *bench) silentPool() *lockpool.Pool {
	return b.open(lockpool.WithTracerProvider(noop.NewTracerProvider()))
}

// peer is another application: a pool whose spans are recorded apart.
type peer struct {
	*lockpool.Pool
	recorder *tracetest.SpanRecorder
}

func (b *bench) peer(opts ...lockpool.Option) *peer {
	recorder := tracetest.NewSpanRecorder()
	provider := b.newProvider(sdktrace.WithSpanProcessor(recorder))
	return &peer{b.open(append([]lockpool.Option{lockpool.WithTracerProvider(provider)}, opts...)...), recorder}
}

// acquisitions returns the spans of the peer's acquisitions, in their order.
func (p *peer) acquisitions() (found []trace.SpanContext) {
	for _, s := range p.recorder.Started() {
		if s.Name() == acquireName {
			found = append(found, s.SpanContext())
		}
	}
	return found
}

func (b *bench) lock(ctx context.Context, p *lockpool.Pool, name string) *lockpool.Lock {
	b.Helper()
	l, err := p.Lock(ctx, name)
	require.NoError(b, err)
	return l
}

// unlockIn unlocks in the trace of ctx.
func (b *bench) unlockIn(ctx context.Context, l *lockpool.Lock) {
	b.Helper()
	require.NoError(b, l.Unlock(ctx))
}

// awaitQueue waits until n nodes are in a lock's queue, and returns them.
func (b *bench) awaitQueue(name string, n int) (queue []string) {
	b.Helper()
	b.Until(func() bool { queue = b.Children(name); return len(queue) == n }, "%d contenders for %s", n, name)
	return queue
}

// awaitRequeue waits until the waiter behind the holder of "a" has a new node, and returns
// the queue.
func (b *bench) awaitRequeue(node string) (queue []string) {
	b.Helper()
	b.Until(func() bool { queue = b.Children("a"); return len(queue) == 2 && queue[1] != node }, "the waiter has queued again")
	return queue
}

// session returns the ID of the session of a node, in the format of ZooKeeper's own tools.
func (b *bench) session(name, node string) string {
	return fmt.Sprintf("%#x", uint64(b.sessionID(name, node)))
}

func (b *bench) sessionID(name, node string) int64 {
	_, stat, err := b.Admin.Exists(b.Chroot + "/" + name + "/" + node)
	require.NoError(b, err)
	return stat.EphemeralOwner
}

// expire ends a session at the server.
func (b *bench) expire(session string) {
	b.Helper()
	id, err := strconv.ParseUint(session, 0, 64)
	require.NoError(b, err)
	require.NoError(b, b.server().ExpireSession(int64(id)))
}

// awaitWatch waits until a session watches a node.
func (b *bench) awaitWatch(name, node, session string) {
	b.Helper()
	b.Until(func() bool {
		paths, err := b.server().Command(b.Ctx, "wchp")
		require.NoError(b, err)
		_, rest, _ := strings.Cut(paths, b.Chroot+"/"+name+"/"+node+"\n")
		for line := range strings.Lines(rest) {
			if !strings.HasPrefix(line, "\t") {
				break
			}
			if strings.TrimSpace(line) == session {
				return true
			}
		}
		return false
	}, "%s is watched by %s", node, session)
}

// waiter is a call of Lock in a separate goroutine.
type waiter struct {
	*locktest.Waiter

	// timeOut ends the wait with context.DeadlineExceeded, at any time. A real timeout
	// might end while a request is under way, if the machine is slow.
	timeOut func()

	// Set by enqueue:
	queue   []string // up to the waiter's own node
	session string
}

// start begins to lock a name, in the trace of ctx.
func (b *bench) start(ctx context.Context, p *lockpool.Pool, name string) *waiter {
	c, in := b.endable(ctx), *b.Bench
	in.Ctx = c
	return &waiter{Waiter: in.StartLock(p, name), timeOut: func() { c.end(context.DeadlineExceeded) }}
}

// failed waits for the end of the call, and returns the error.
func (w *waiter) failed() error {
	<-w.Done
	return w.Err
}

// endable returns a context ending with ctx, or at the end of the test.
func (b *bench) endable(ctx context.Context) *endableContext {
	c := &endableContext{Context: ctx, done: make(chan struct{})}
	context.AfterFunc(ctx, func() { c.end(ctx.Err()) })
	b.Cleanup(func() { c.end(context.Canceled) })
	return c
}

// endableContext is a context ended by the test, with any error.
type endableContext struct {
	context.Context
	done chan struct{}
	once sync.Once
	err  error
}

func (c *endableContext) end(err error) {
	c.once.Do(func() {
		c.err = err
		close(c.done)
	})
}

func (c *endableContext) Done() <-chan struct{} { return c.done }

func (c *endableContext) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// enqueue begins to lock "a", in the trace of ctx, and returns when the waiter is
// the nth contender.
func (b *bench) enqueue(ctx context.Context, p *lockpool.Pool, n int) *waiter {
	b.Helper()
	w := b.start(ctx, p, "a")
	w.queue = b.awaitQueue("a", n)
	w.session = b.session("a", w.queue[n-1])
	return w
}

// predecessor returns the node in front of the waiter's.
func (w *waiter) predecessor() string { return w.queue[len(w.queue)-2] }

// node returns the waiter's own node.
func (w *waiter) node() string { return w.queue[len(w.queue)-1] }

// lockWithWaiters locks "a" with n waiters behind it.
func (b *bench) lockWithWaiters(p *lockpool.Pool, n int) (holder *lockpool.Lock, waiters []*waiter) {
	b.Helper()
	holder = b.lock(b.Ctx, p, "a")
	for i := range n {
		waiters = append(waiters, b.enqueue(b.Ctx, p, i+2))
	}
	return holder, waiters
}
