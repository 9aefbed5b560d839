package locktest

// This file has the bench of a test: pools and a client below one chroot of a server.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/internal/clock"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// Patience is how long tests wait for a required event. However busy the machine is, only a
// hang takes as long.
const Patience = 3 * time.Minute

// Context returns a context ending with the test's [Patience].
func Context(t testing.TB) context.Context { return Timeout(t, Patience) }

// Timeout returns a context that ends after d.
func Timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Bench is one test's part of a server: a chroot, pools below, and an administrator's
// client with access to everything.
type Bench struct {
	testing.TB
	Ctx    context.Context
	Addr   string // for the pools: the server's, or a proxy's
	Chroot string
	Admin  *zk.Conn
	Server Server

	dial    dialer // nil for TCP
	options []lockpool.Option
}

// dialer connects to an address.
type dialer = func(ctx context.Context, address string) (net.Conn, error)

var benches atomic.Int32

// New returns a bench on the shared server or, in a bubble, on a new one.
func New(t testing.TB) *Bench {
	if bubble.Inside() {
		b, _ := NewEmbedded(t)
		return b
	}
	return NewOn(t, shared)
}

// NewEmbedded returns a bench on a new embedded server, and the server.
func NewEmbedded(t testing.TB, opts ...zktest.Option) (*Bench, *zktest.Server) {
	start := zktest.Start
	if bubble.Inside() {
		start = zktest.StartBubble
	}
	s := start(t, opts...)
	return NewOn(t, s), s
}

// InBubble runs a test on a new embedded server in a [Bubble].
func InBubble(t *testing.T, test func(t *testing.T, b *Bench, s *zktest.Server), opts ...zktest.Option) {
	Bubble(t, func(t *testing.T) {
		b, s := NewEmbedded(t, opts...)
		test(t, b, s)
	})
}

// NewOn returns a bench on a server. The test fails if an ephemeral node is left below the
// chroot when the pools are closed.
func NewOn(t testing.TB, s Server) *Bench {
	b := &Bench{Server: s}
	if bubble.Inside() {
		b.dial = s.(*zktest.Server).Dial
	} else {
		require.False(t, bubble.Running(), "a bubble runs beside a test on the network: see bubble.Parallel")
	}
	b.TB = t
	b.Admin = b.Dial()
	return b.Beside(t)
}

// AtService makes all handles of pools opened from now on queue at the service, for tests
// of this queue.
func (b *Bench) AtService() *Bench {
	b.options = append(b.options, lockpool.WithLocalTurns(0))
	return b
}

// Beside returns a bench for another test on the same server, with the same
// administrator's client: opening one for each of thousands of tests takes long.
func (b *Bench) Beside(t testing.TB) *Bench {
	b = &Bench{
		TB: t, Ctx: Context(t), Addr: b.Server.Addr(), Chroot: fmt.Sprintf("/test-%d-%d", os.Getpid(), benches.Add(1)),
		Admin: b.Admin, Server: b.Server, dial: b.dial,
	}
	t.Cleanup(func() {
		if !t.Failed() {
			require.Empty(t, b.Contenders("/"), "nodes are left behind")
		}
	})
	return b
}

// NewBehindProxy is [New] with a proxy before the server: see [Bench.Proxy].
func NewBehindProxy(t testing.TB) (*Bench, *zktest.Proxy) {
	b := New(t)
	return b, b.Proxy()
}

// Proxy starts a proxy before the bench's server. Pools opened from now on reach the server
// through the proxy.
func (b *Bench) Proxy() *zktest.Proxy {
	if !bubble.Inside() {
		p := zktest.StartProxy(b, b.Server.Addr())
		b.Addr = p.Addr()
		return p
	}
	p, direct := zktest.StartBubbleProxy(b, b.Server.(*zktest.Server)), b.dial
	b.Addr = p.Addr()
	b.dial = func(ctx context.Context, address string) (net.Conn, error) {
		if address == p.Addr() {
			return p.Dial(ctx, address)
		}
		return direct(ctx, address)
	}
	return p
}

// Dial returns a plain client of the bench's server, with a session.
func (b *Bench) Dial() *zk.Conn {
	if b.dial == nil {
		return Dial(b, b.Server.Addr())
	}
	return dial(b, b.Server.Addr(), func(_, address string, _ time.Duration) (net.Conn, error) {
		return b.dial(context.Background(), address)
	})
}

// Dial returns a plain client with a session. While the client connects again, requests wait.
func Dial(t testing.TB, addr string) *zk.Conn { return dial(t, addr, net.DialTimeout) }

func dial(t testing.TB, addr string, dialer zk.Dialer) *zk.Conn {
	const timeout = 20 * time.Second
	ctx, giveUp := context.WithCancel(context.Background())
	conn, events, err := zk.Connect([]string{addr}, timeout,
		zk.WithHostProvider(&host{addr: addr, ctx: ctx}),
		zk.WithDialer(func(network, address string, wait time.Duration) (net.Conn, error) {
			conn, err := dialer(network, address, wait)
			return impatient{conn, timeout}, err
		}),
		zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	require.NoError(t, err)
	t.Cleanup(func() {
		giveUp()
		conn.Close()
		for range events { // closed when the client's goroutines have ended
		}
	})
	for conn.State() != zk.StateHasSession {
		<-events
	}
	return conn
}

// host is the only server of a client. With the client's own list, each attempt to connect
// but the first fails all waiting requests.
type host struct {
	addr  string
	tried bool
	ctx   context.Context // of the client
}

func (h *host) Init([]string) error { return nil }
func (h *host) Len() int            { return 1 }
func (h *host) Connected()          {}
func (h *host) Next() (addr string, failWaiting bool) {
	if h.tried {
		time.Sleep(100 * time.Millisecond)
	}
	h.tried = true
	return h.addr, h.ctx.Err() != nil
}

// An impatient connection waits for a second for the answer to a handshake, which the client
// would await for ten times as long as other answers: a real server that starts may accept a
// connection, and never answer.
type impatient struct {
	net.Conn
	timeout time.Duration // longer than the wait for other answers
}

func (c impatient) SetReadDeadline(t time.Time) error {
	if time.Until(t) > c.timeout {
		t = time.Now().Add(time.Second)
	}
	return c.Conn.SetReadDeadline(t)
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// Config returns the configuration of the bench's pools.
func (b *Bench) Config() zookeeper.Config {
	return zookeeper.Config{Servers: []string{b.Addr}, Chroot: b.Chroot, Dial: b.dial, SessionTimeout: 5 * time.Second}
}

// Pool returns a pool, closed when the test ends.
func (b *Bench) Pool(opts ...lockpool.Option) *lockpool.Pool { return b.PoolWith(b.Config(), opts...) }

// PoolWith returns a pool with a different configuration.
func (b *Bench) PoolWith(cfg zookeeper.Config, opts ...lockpool.Option) *lockpool.Pool {
	connector, err := zookeeper.NewConnector(cfg)
	require.NoError(b, err)
	return Open(b, connector, slices.Concat(b.options, opts)...)
}

// Open returns a pool, closed when the test ends.
func Open(t testing.TB, connector driver.Connector, opts ...lockpool.Option) *lockpool.Pool {
	p, err := lockpool.OpenConnector(connector, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// PoolWithTimeout returns a pool with a different session timeout.
func (b *Bench) PoolWithTimeout(d time.Duration, opts ...lockpool.Option) *lockpool.Pool {
	cfg := b.Config()
	cfg.SessionTimeout = d
	return b.PoolWith(cfg, opts...)
}

// Handle returns a handle of the pool, closed with the pool.
func (b *Bench) Handle(p *lockpool.Pool) *lockpool.Handle {
	h, err := p.Handle(b.Ctx)
	require.NoError(b, err)
	return h
}

// Machine returns a machine for the test to suspend, with a settable wall clock. Sessions
// opened with b.Ctx from now on run on the machine.
func (b *Bench) Machine() *clock.Machine {
	m := new(clock.Machine)
	b.Ctx = m.On(b.Ctx)
	return m
}

// Children lists the children of a lock's node, sorted by sequence number.
func (b *Bench) Children(name string) []string {
	children := b.children(b.Chroot + "/" + name)
	slices.SortFunc(children, func(x, y string) int { return strings.Compare(Sequence(x), Sequence(y)) })
	return children
}

// children lists the children of a node. A missing node has none. If the connection ends
// meanwhile, the request is repeated.
func (b *Bench) children(path string) []string {
	children, _, err := b.Admin.Children(path)
	for until := time.Now().Add(Patience); err == zk.ErrConnectionClosed && time.Now().Before(until); {
		time.Sleep(100 * time.Millisecond)
		children, _, err = b.Admin.Children(path)
	}
	if err == zk.ErrNoNode {
		return nil
	}
	require.NoError(b, err)
	return children
}

// Sequence returns the ten digits at the end of a sequential node's name.
func Sequence(node string) string { return node[max(0, len(node)-10):] }

// Contenders lists every ephemeral node below path.
func (b *Bench) Contenders(path string) (found []string) {
	for _, child := range b.children("/" + strings.Trim(b.Chroot+path, "/")) {
		at := strings.TrimSuffix(path, "/") + "/" + child
		if _, stat, err := b.Admin.Exists(b.Chroot + at); err == nil && stat.EphemeralOwner != 0 {
			found = append(found, at)
		}
		found = append(found, b.Contenders(at)...)
	}
	return found
}

// Restrict creates a node below the chroot. All clients but the bench's administrator have
// only the given rights there.
func (b *Bench) Restrict(path string, rights ...int32) {
	var perms int32
	for _, r := range rights {
		perms |= r
	}
	require.NoError(b, b.Admin.AddAuth("digest", []byte("admin:x")))
	acl := zk.DigestACL(zk.PermAll, "admin", "x")
	if perms != 0 {
		acl = append(acl, zk.WorldACL(perms)...)
	}
	_, err := b.Admin.Create(b.Chroot, nil, 0, zk.WorldACL(zk.PermAll))
	if err != zk.ErrNodeExists {
		require.NoError(b, err)
	}
	_, err = b.Admin.Create(b.Chroot+path, nil, 0, acl)
	require.NoError(b, err)
}

// CreateContenders creates n contenders of another client in a queue, and returns a
// function to remove them.
func (b *Bench) CreateContenders(name string, n int) (remove func()) {
	conn := b.Dial()
	node := func(i int) string { return fmt.Sprintf("%s/%s/_c_%036d-lock-%010d", b.Chroot, name, i, i) }
	send := func(op func(i int) any) {
		for i := 0; i < n; {
			var ops []any
			for ; i < n && len(ops) < 500; i++ {
				ops = append(ops, op(i))
			}
			_, err := conn.Multi(ops...)
			require.NoError(b, err)
		}
	}
	send(func(i int) any {
		return &zk.CreateRequest{Path: node(i), Flags: zk.FlagEphemeral, Acl: zk.WorldACL(zk.PermAll)}
	})
	return func() {
		send(func(i int) any { return &zk.DeleteRequest{Path: node(i), Version: -1} })
	}
}

// AwaitQueue waits until n contenders are in the queue of a lock.
func (b *Bench) AwaitQueue(name string, n int) {
	b.Until(func() bool { return len(b.Children(name)) == n }, "%d contenders in %s", n, name)
}

// AwaitWaiting waits until n calls of a pool wait for a lock.
func (b *Bench) AwaitWaiting(p *lockpool.Pool, n int) {
	b.Helper()
	b.Until(func() bool { return p.Stats().Waiting == n }, "%d calls wait", n)
}

// Until waits until a condition holds. In a bubble what happens without time happens first.
func (b *Bench) Until(condition func() bool, what string, args ...any) {
	b.Helper()
	if bubble.Inside() {
		synctest.Wait()
	}
	for deadline := time.Now().Add(Patience); !condition(); {
		if time.Now().After(deadline) {
			require.FailNowf(b, "the condition was never met", what, args...)
		}
		time.Sleep(pollInterval())
	}
}

// pollInterval is how long a polling test sleeps: longer in a bubble, where sleep takes no
// time.
func pollInterval() time.Duration {
	if bubble.Inside() {
		return 10 * time.Millisecond
	}
	return time.Millisecond
}

// Stat returns a figure of the server's mntr command.
func (b *Bench) Stat(s Server, key string) int {
	n, err := s.Stat(b.Ctx, key)
	require.NoError(b, err)
	return int(n)
}

// Watched returns how many contenders' nodes are watched at a server.
func (b *Bench) Watched(s Server) int {
	paths, err := s.Command(b.Ctx, "wchp")
	require.NoError(b, err)
	return strings.Count(paths, "/_c_")
}

// WatchedIn returns how many nodes of a lock are watched at the bench's server.
func (b *Bench) WatchedIn(name string) int {
	paths, err := b.Server.Command(b.Ctx, "wchp")
	require.NoError(b, err)
	return strings.Count(paths, b.Chroot+"/"+name+"/")
}

// Requests returns the requests that arrive at a server while do runs, without those that
// only open sessions and keep them alive.
func Requests(at zktest.FaultInjector, do func()) []zktest.Request {
	var mu sync.Mutex
	var all []zktest.Request
	counted := at.Inject(zktest.Rule{Times: zktest.Always, Do: zktest.Pass(), Match: zktest.Match{Where: func(r zktest.Request) bool {
		if slices.ContainsFunc(r.Paths, func(path string) bool { return path != "/" }) { // a proof of the lease is a transaction about the root
			mu.Lock()
			defer mu.Unlock()
			all = append(all, r)
		}
		return false
	}}})
	defer counted.Remove()
	do()
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(all)
}

// IsAny reports whether err is one of the targets.
func IsAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// Log collects what is logged, from any goroutine.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what has been logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// OnLog is a handler of logs that calls a function with each record.
type OnLog func(slog.Record)

// Enabled implements [slog.Handler], as do the other methods.
func (OnLog) Enabled(context.Context, slog.Level) bool { return true }

func (f OnLog) Handle(_ context.Context, r slog.Record) error { f(r); return nil }
func (f OnLog) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f OnLog) WithGroup(string) slog.Handler                 { return f }
