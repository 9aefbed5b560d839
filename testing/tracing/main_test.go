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
	"sync"
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
	if dsn := os.Getenv(roleKey); dsn != "" {
		os.Exit(holder(dsn))
	}
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
	server   *zktest.Server
	ctx      context.Context // without a span
	chroot   string
	admin    *zk.Conn
	provider *sdktrace.TracerProvider
	recorder *tracetest.SpanRecorder
	short    bool // of handles: who asks for one waits for it

	mu    sync.Mutex
	waits []*waitSpan // in the order in which they began
}

var benches atomic.Int32

func newBench(t testing.TB) *bench { return newBenchAt(t, server) }

func newBenchAt(t testing.TB, server *zktest.Server) *bench {
	b := &bench{TB: t, server: server, chroot: fmt.Sprintf("/tracing-%d-%d", os.Getpid(), benches.Add(1))}
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
	p, err := lockpool.Open("zookeeper", b.server.Addr()+b.chroot+"?session_timeout=8s"+extra, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return p
}

// pool returns a pool whose spans are recorded, with a session.
func (b *bench) pool(opts ...lockpool.Option) *lockpool.Pool {
	b.Helper()
	p := b.open("", append([]lockpool.Option{lockpool.WithTracerProvider(noticing{b.provider, b})}, opts...)...)
	require.NoError(b, p.Ping(b.ctx))
	return p
}

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

// unlockIn unlocks as a part of what ctx is about.
func (b *bench) unlockIn(ctx context.Context, l *lockpool.Lock) {
	b.Helper()
	require.NoError(b, l.Unlock(ctx))
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

// expire ends a session at the server.
func (b *bench) expire(session string) {
	b.Helper()
	id, err := strconv.ParseUint(session, 0, 64)
	require.NoError(b, err)
	require.NoError(b, b.server.ExpireSession(int64(id)))
}

// watched waits until a node is watched by a session.
func (b *bench) watched(name, node, session string) {
	b.Helper()
	b.until(func() bool {
		paths, err := b.server.Command(b.ctx, "wchp")
		require.NoError(b, err)
		_, by, _ := strings.Cut(paths, b.chroot+"/"+name+"/"+node+"\n")
		for line := range strings.Lines(by) {
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
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waits) >= nth && b.waits[nth-1].behind == node
	}, "wait %d behind %s", nth, node)
}

// linked waits until the nth wait span that was begun has so many links.
func (b *bench) linked(nth, links int) {
	b.Helper()
	b.until(func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waits) >= nth && b.waits[nth-1].links == links
	}, "%d links of wait %d", links, nth)
}

// noticing is the bench's provider for pools. It notices what wait spans are
// told before they end. (The attributes of the SDK's spans can not be read
// before.)
type noticing struct {
	trace.TracerProvider
	b *bench
}

func (n noticing) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return noticingTracer{n.TracerProvider.Tracer(name, opts...), n.b}
}

type noticingTracer struct {
	trace.Tracer
	b *bench
}

func (n noticingTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, s := n.Tracer.Start(ctx, name, opts...)
	if name == waitName {
		w := &waitSpan{Span: s, b: n.b}
		n.b.mu.Lock()
		n.b.waits = append(n.b.waits, w)
		n.b.mu.Unlock()
		s = w
	}
	return ctx, s
}

// waitSpan is a span of a wait. Its fields are guarded by the bench's mutex.
type waitSpan struct {
	trace.Span
	b      *bench
	behind string
	links  int
}

func (w *waitSpan) SetAttributes(attrs ...attribute.KeyValue) {
	w.Span.SetAttributes(attrs...)
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	for _, kv := range attrs {
		if kv.Key == "lockpool.lock.waiting_for" {
			w.behind = kv.Value.AsString()
		}
	}
}

func (w *waitSpan) AddLink(l trace.Link) {
	w.Span.AddLink(l)
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.links++
}

const (
	acquireName = "lockpool.lock.acquire"
	waitName    = "lockpool.lock.wait"
	releaseName = "lockpool.lock.release"
	holdName    = "lockpool.lock.hold"
	seatName    = "lockpool.session.acquire"
	connectName = "lockpool.session.connect"
)

// span is what a test expects of a recorded span.
type span struct {
	Name       string
	Kind       trace.SpanKind
	Status     sdktrace.Status
	Attributes attributes
	Events     []string
	Links      []link
	Children   []span // in the order in which they were made
}

// link is one to the span of a context, which is somebody else's by its role.
type link struct {
	Role    string
	TraceID trace.TraceID
	SpanID  trace.SpanID
}

func linkTo(role string, to trace.SpanContext) link { return link{role, to.TraceID(), to.SpanID()} }

type attributes map[attribute.Key]any

func (a attributes) with(more attributes) attributes {
	a = maps.Clone(a)
	maps.Copy(a, more)
	return a
}

// atServer are the attributes of a span that names its session.
func atServer(session string) attributes {
	host, port, _ := net.SplitHostPort(server.Addr())
	number, _ := strconv.ParseInt(port, 10, 64)
	return attributes{
		"lockpool.driver.name": "zookeeper",
		"lockpool.session.id":  session,
		"server.address":       host,
		"server.port":          number,
	}
}

// acquire is the span of an acquisition by a session of the server at its
// usual address. The attributes given are added to those that all have.
func acquire(session string, more attributes, status sdktrace.Status, events []string, children ...span) span {
	return span{acquireName, trace.SpanKindClient, status, atServer(session).with(attributes{
		"lockpool.lock.name": "a",
		"lockpool.lock.kind": "mutex",
	}).with(more), events, nil, children}
}

// alone are the attributes of an acquisition of a free lock.
func alone() attributes {
	return attributes{
		"lockpool.lock.queue.position": int64(0),
		"lockpool.lock.queue.length":   int64(1),
		"lockpool.lock.contended":      false,
		"lockpool.lock.wakeups":        int64(0),
		"lockpool.lock.outcome":        "acquired",
	}
}

// me is how this process is named in its nodes, if its pool is not.
var me = "tracing.test, " + process

var process = func() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
}()

// wait is the span of a wait, behind one of this process unless said otherwise.
func wait(more attributes, status sdktrace.Status, events ...string) span {
	return span{waitName, trace.SpanKindInternal, status, attributes{
		"lockpool.lock.name":              "a",
		"lockpool.lock.kind":              "mutex",
		"lockpool.lock.waiting_for.owner": me,
	}.with(more), events, nil, nil}
}

func (a attributes) without(keys ...attribute.Key) attributes {
	a = maps.Clone(a)
	for _, key := range keys {
		delete(a, key)
	}
	return a
}

// linkedTo adds links to a span.
func (s span) linkedTo(links ...link) span { s.Links = links; return s }

// released is the span of a release.
func released(more attributes) span {
	return span{releaseName, trace.SpanKindClient, ok, attributes{
		"lockpool.driver.name": "zookeeper",
		"lockpool.lock.name":   "a",
		"lockpool.lock.kind":   "mutex",
	}.with(more), nil, nil, nil}
}

// connect is the span of a new session.
func connect(session string, more attributes) span {
	return span{connectName, trace.SpanKindClient, ok, atServer(session).with(more), nil, nil, nil}
}

// seat is the span of the wait for a handle and a session.
func seat() span { return span{seatName, trace.SpanKindInternal, ok, attributes{}, nil, nil, nil} }

const (
	nodeKey  = attribute.Key("lockpool.lock.node")
	tokenKey = attribute.Key("lockpool.lock.token")
)

// atOnce is how long a wait for a handle and a session is no span.
const atOnce = time.Millisecond

var (
	enqueued = []string{"lockpool.enqueued"}
	requeued = []string{"lockpool.enqueued", "lockpool.requeued", "lockpool.enqueued"}
)

const (
	gone = "lockpool.predecessor.gone"
	seen = "lockpool.queue.seen"
)

// saw is the event of having looked again, and having seen so many of us in front.
func saw(place, length int) string { return fmt.Sprintf("%s %d of %d", seen, place, length) }

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
	all = b.stalls(all)
	spans, n := b.below(all[0], all)
	require.Equal(b, len(all), 1+n, "spans outside of the caller's trace")
	return spans
}

// stalls takes out of all the spans of waits for a handle that was free, on a
// session that stood. There is one only if the machine has stalled for so long
// just there, which no test can prevent: so that they exist only then is what is
// tested. Who does have to wait connects, or is short of handles.
func (b *bench) stalls(all []sdktrace.ReadWriteSpan) []sdktrace.ReadWriteSpan {
	b.Helper()
	waits := b.short || slices.ContainsFunc(all, func(s sdktrace.ReadWriteSpan) bool { return s.Name() == connectName })
	return slices.DeleteFunc(slices.Clone(all), func(s sdktrace.ReadWriteSpan) bool {
		if waits || s.Name() != seatName {
			return false
		}
		require.GreaterOrEqual(b, s.EndTime().Sub(s.StartTime()), atOnce)
		require.Equal(b, seat(), b.span(s, nil))
		return true
	})
}

// since returns the spans that have ended since n had.
func (b *bench) since(n int) (ended []sdktrace.ReadOnlySpan) {
	for _, s := range b.recorder.Ended()[n:] {
		if s.Name() != seatName {
			ended = append(ended, s)
		}
	}
	return ended
}

// named returns the spans of that name that have ended.
func (b *bench) named(name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range b.recorder.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
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
	var links []link
	for _, l := range s.Links() {
		require.Len(b, l.Attributes, 1)
		require.Equal(b, attribute.Key("lockpool.link"), l.Attributes[0].Key)
		require.True(b, l.SpanContext.IsRemote())
		links = append(links, linkTo(l.Attributes[0].Value.AsString(), l.SpanContext))
	}
	require.Zero(b, s.DroppedAttributes()+s.DroppedEvents()+s.DroppedLinks())
	var events []string
	for _, e := range s.Events() {
		if e.Name == seen {
			require.Len(b, e.Attributes, 2)
			events = append(events, fmt.Sprintf("%s %d of %d", seen, e.Attributes[0].Value.AsInt64(), e.Attributes[1].Value.AsInt64()))
			continue
		}
		require.Empty(b, e.Attributes)
		events = append(events, e.Name)
	}
	attrs := attributesOf(s)
	if node, ok := attrs[nodeKey]; ok { // another one every time: here only its form
		require.Regexp(b, `^_c_[0-9a-f-]{36}(-(lock|rlock|(of\d+-)?lease)-\d{10})?$`, node)
		delete(attrs, nodeKey)
	}
	if token, ok := attrs[tokenKey]; ok { // it is known if somebody has asked, or after a while
		require.Positive(b, token)
		delete(attrs, tokenKey)
	}
	return span{s.Name(), s.SpanKind(), s.Status(), attrs, events, links, children}
}

func attributesOf(s sdktrace.ReadOnlySpan) attributes {
	a := attributes{}
	for _, kv := range s.Attributes() {
		a[kv.Key] = kv.Value.AsInterface()
	}
	return a
}
