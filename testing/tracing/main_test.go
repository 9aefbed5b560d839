package tracing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool"
	_ "github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// server is shared by all tests.
var server *zktest.Server

func TestMain(m *testing.M) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) // exporters are made to fail
	os.Exit(func() (code int) {
		var err error
		if server, err = zktest.Run(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			err := errors.Join(server.Close(), goleak.Find())
			if err != nil && code == 0 {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
		return m.Run()
	}())
}

// patience is how long tests wait for what must happen.
const patience = 20 * time.Second

// bench is a test's corner of the server, with a provider that records what the
// pools report, and a plain client that sees the nodes.
type bench struct {
	testing.TB
	ctx      context.Context // without a span
	chroot   string
	admin    *zk.Conn
	provider *sdktrace.TracerProvider
	recorder *tracetest.SpanRecorder
}

var benches atomic.Int32

func newBench(t testing.TB) *bench {
	b := &bench{TB: t, chroot: fmt.Sprintf("/tracing-%d-%d", os.Getpid(), benches.Add(1))}
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	b.recorder = tracetest.NewSpanRecorder()
	b.provider = b.newProvider(sdktrace.WithSpanProcessor(b.recorder))

	admin, events, err := zk.Connect([]string{server.Addr()}, 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	require.NoError(t, err)
	t.Cleanup(func() {
		admin.Close()
		for range events { // closed when its goroutines have ended
		}
	})
	for admin.State() != zk.StateHasSession {
		<-events
	}
	b.admin = admin
	return b
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (b *bench) newProvider(opts ...sdktrace.TracerProviderOption) *sdktrace.TracerProvider {
	p := sdktrace.NewTracerProvider(opts...)
	b.Cleanup(func() { _ = p.Shutdown(b.ctx) }) // some fail, as they are meant to
	return p
}

// open returns a pool that is closed with the test. Extra is appended to the
// connect string.
func (b *bench) open(extra string, opts ...lockpool.Option) *lockpool.Pool {
	p, err := lockpool.Open("zookeeper", server.Addr()+b.chroot+"?session_timeout=8s"+extra, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return p
}

// pool returns a pool whose spans are recorded.
func (b *bench) pool() *lockpool.Pool { return b.open("", lockpool.WithTracerProvider(b.provider)) }

// silentPool returns a pool for those who are only in the way.
func (b *bench) silentPool() *lockpool.Pool {
	return b.open("", lockpool.WithTracerProvider(noop.NewTracerProvider()))
}

func (b *bench) lock(ctx context.Context, p *lockpool.Pool, name string) *lockpool.Lock {
	b.Helper()
	l, err := p.Lock(ctx, name)
	require.NoError(b, err)
	return l
}

func (b *bench) unlock(l *lockpool.Lock) {
	b.Helper()
	require.NoError(b, l.Unlock(b.ctx))
}

// queue lists the nodes in a lock's queue, in their order.
func (b *bench) queue(name string) []string {
	children, _, err := b.admin.Children(b.chroot + "/" + name)
	require.NoError(b, err)
	slices.SortFunc(children, func(x, y string) int { return strings.Compare(x[len(x)-10:], y[len(y)-10:]) })
	return children
}

// queued waits until n nodes are in the queue, and returns them.
func (b *bench) queued(name string, n int) (queue []string) {
	b.Helper()
	b.until(func() bool { queue = b.queue(name); return len(queue) == n }, "%d contenders in %s", n, name)
	return queue
}

// session returns the id of the session that has made a node, as ZooKeeper's
// own tools write it.
func (b *bench) session(name, node string) string {
	_, stat, err := b.admin.Exists(b.chroot + "/" + name + "/" + node)
	require.NoError(b, err)
	return fmt.Sprintf("%#x", uint64(stat.EphemeralOwner))
}

// until waits for a condition.
func (b *bench) until(condition func() bool, what string, args ...any) {
	b.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			require.FailNowf(b, "waited in vain", what, args...)
		}
		time.Sleep(time.Millisecond)
	}
}

// waiter is a Lock call in a goroutine of its own.
type waiter struct {
	lock   *lockpool.Lock
	err    error
	done   chan struct{}
	cancel context.CancelFunc
}

// start begins a Lock, in the trace of ctx.
func (b *bench) start(ctx context.Context, p *lockpool.Pool, name string) *waiter {
	ctx, cancel := context.WithCancel(ctx)
	b.Cleanup(cancel)
	w := &waiter{done: make(chan struct{}), cancel: cancel}
	go func() { // ends with ctx at the latest
		defer close(w.done)
		w.lock, w.err = p.Lock(ctx, name)
	}()
	return w
}

// result waits for the end of the call.
func (b *bench) result(w *waiter) (*lockpool.Lock, error) {
	b.Helper()
	select {
	case <-w.done:
	case <-b.ctx.Done():
		require.FailNow(b, "the call does not end")
	}
	return w.lock, w.err
}

func (b *bench) granted(w *waiter) *lockpool.Lock {
	b.Helper()
	l, err := b.result(w)
	require.NoError(b, err)
	return l
}

// waitingBehind waits until the nth wait span that was begun says that it
// waits for node.
func (b *bench) waitingBehind(node string, nth int) {
	b.Helper()
	b.until(func() bool {
		var waits []sdktrace.ReadOnlySpan
		for _, s := range b.recorder.Started() {
			if s.Name() == waitName {
				waits = append(waits, s)
			}
		}
		return len(waits) >= nth && attributesOf(waits[nth-1])["lockpool.lock.waiting_for"] == node
	}, "wait %d behind %s", nth, node)
}

const (
	acquireName = "lockpool.lock.acquire"
	waitName    = "lockpool.lock.wait"
)

// span is what a test expects of a recorded span.
type span struct {
	Name       string
	Kind       trace.SpanKind
	Status     sdktrace.Status
	Attributes attributes
	Events     []string
	Children   []span // in the order in which they began
}

type attributes map[attribute.Key]any

func (a attributes) with(more attributes) attributes {
	a = maps.Clone(a)
	maps.Copy(a, more)
	return a
}

// acquire is the span of an acquisition by a session of the server at its
// usual address. The attributes given are added to those that all have.
func acquire(session string, more attributes, status sdktrace.Status, events []string, children ...span) span {
	host, port, _ := net.SplitHostPort(server.Addr())
	number, _ := strconv.ParseInt(port, 10, 64)
	return span{acquireName, trace.SpanKindClient, status, attributes{
		"lockpool.driver.name": "zookeeper",
		"lockpool.lock.name":   "a",
		"lockpool.lock.kind":   "mutex",
		"lockpool.session.id":  session,
		"server.address":       host,
		"server.port":          number,
	}.with(more), events, children}
}

// wait is the span of a wait.
func wait(more attributes, status sdktrace.Status, events ...string) span {
	return span{waitName, trace.SpanKindInternal, status, attributes{
		"lockpool.lock.name": "a",
		"lockpool.lock.kind": "mutex",
	}.with(more), events, nil}
}

const nodeKey = attribute.Key("lockpool.lock.node")

var (
	enqueued = []string{"lockpool.enqueued"}
	requeued = []string{"lockpool.enqueued", "lockpool.requeued", "lockpool.enqueued"}
)

const gone = "lockpool.predecessor.gone"

func failed(description string) sdktrace.Status {
	return sdktrace.Status{Code: codes.Error, Description: description}
}

// trace calls fn with a context that has a span, the caller's, and returns the
// spans below that one. Nothing else may have been recorded meanwhile, and all
// must have ended.
func (b *bench) trace(fn func(ctx context.Context)) []span {
	b.Helper()
	started, ended := len(b.recorder.Started()), len(b.recorder.Ended())
	ctx, caller := b.provider.Tracer("caller").Start(b.ctx, "caller")
	fn(ctx)
	caller.End()
	all := b.recorder.Started()[started:]
	require.Len(b, b.recorder.Ended()[ended:], len(all), "spans that were not ended, or ended after their caller")
	require.Equal(b, caller.SpanContext(), all[0].SpanContext())
	spans, n := b.below(all[0], all)
	require.Equal(b, len(all), 1+n, "spans outside of the caller's trace")
	return spans
}

// below returns the spans below parent, and how many there are at all depths.
func (b *bench) below(parent sdktrace.ReadWriteSpan, all []sdktrace.ReadWriteSpan) (spans []span, n int) {
	b.Helper()
	for _, s := range all {
		if s.Parent().SpanID() != parent.SpanContext().SpanID() {
			continue
		}
		require.Equal(b, parent.SpanContext().TraceID(), s.SpanContext().TraceID())
		require.False(b, s.StartTime().Before(parent.StartTime()), "%s begins before its parent", s.Name())
		require.False(b, s.EndTime().After(parent.EndTime()), "%s ends after its parent", s.Name())
		children, below := b.below(s, all)
		spans = append(spans, b.span(s, children))
		n += 1 + below
	}
	return spans, n
}

func (b *bench) span(s sdktrace.ReadOnlySpan, children []span) span {
	if strings.HasPrefix(s.Name(), "lockpool.") {
		scope := s.InstrumentationScope()
		require.Equal(b, "github.com/lockpool/lockpool", scope.Name)
		require.Equal(b, "0.1.0", scope.Version)
		require.Equal(b, "https://opentelemetry.io/schemas/1.39.0", scope.SchemaURL)
	}
	require.Empty(b, s.Links())
	require.Zero(b, s.DroppedAttributes()+s.DroppedEvents()+s.DroppedLinks())
	var events []string
	for _, e := range s.Events() {
		require.Empty(b, e.Attributes)
		events = append(events, e.Name)
	}
	attrs := attributesOf(s)
	if node, ok := attrs[nodeKey]; ok { // another one every time: here only its form
		require.Regexp(b, `^_c_[0-9a-f-]{36}(-(lock|rlock|lease)-\d{10})?$`, node)
		delete(attrs, nodeKey)
	}
	return span{s.Name(), s.SpanKind(), s.Status(), attrs, events, children}
}

func attributesOf(s sdktrace.ReadOnlySpan) attributes {
	a := attributes{}
	for _, kv := range s.Attributes() {
		a[kv.Key] = kv.Value.AsInterface()
	}
	return a
}
