package lockpool_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

// kind is which ZooKeeper the tests run on. They must pass on both.
var kind = flag.String("server", "embedded", "the ZooKeeper server of the tests: `embedded or real`")

// zooKeeper is a server of either kind.
type zooKeeper interface {
	Addr() string
	Stat(ctx context.Context, key string) (int64, error)
	Command(ctx context.Context, word string) (string, error)
	Pause() error
	Resume() error
	Kill() error
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
	Close() error
}

// startServer starts a server for one test.
func startServer(t testing.TB, opts ...zktest.CommonOption) zooKeeper {
	if *kind == "real" {
		var own []zktest.RealOption
		for _, opt := range opts {
			own = append(own, opt)
		}
		return zktest.StartReal(t, own...)
	}
	var own []zktest.Option
	for _, opt := range opts {
		own = append(own, opt)
	}
	return zktest.Start(t, own...)
}

// server is shared by all tests that can bear company.
var server zooKeeper

func TestMain(m *testing.M) {
	if role := os.Getenv("LOCKPOOL_TEST_ROLE"); role != "" {
		os.Exit(roles[role]())
	}
	flag.Parse()
	os.Exit(func() (code int) {
		var err error
		switch *kind {
		case "embedded":
			server, err = zktest.Run(context.Background())
		case "real":
			server, err = zktest.RunReal(context.Background())
		default:
			err = fmt.Errorf("-server is embedded or real, not %q", *kind)
		}
		if err != nil {
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

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// expiring returns a context that ends after d.
func expiring(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// bench is a test's corner of a server: a chroot of its own, pools on it, and
// a plain client that sees all of it.
type bench struct {
	testing.TB
	ctx    context.Context
	addr   string
	chroot string
	admin  *zk.Conn
}

var benches atomic.Int32

func newBench(t testing.TB) *bench { return newBenchOn(t, server.Addr()) }

func newBenchOn(t testing.TB, addr string) *bench {
	b := &bench{TB: t, ctx: testContext(t), addr: addr, chroot: fmt.Sprintf("/test-%d-%d", os.Getpid(), benches.Add(1))}
	b.admin = dial(t, addr)
	t.Cleanup(func() { // after the pools are closed
		if !t.Failed() {
			require.Empty(t, b.contenders("/"), "nodes are left behind")
		}
	})
	return b
}

func dial(t testing.TB, addr string) *zk.Conn {
	conn, events, err := zk.Connect([]string{addr}, 20*time.Second, zk.WithLogInfo(false), zk.WithLogger(quiet{}))
	require.NoError(t, err)
	t.Cleanup(func() {
		conn.Close()
		for range events { // closed when its goroutines have ended
		}
	})
	for conn.State() != zk.StateHasSession {
		<-events
	}
	return conn
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (b *bench) config() zookeeper.Config {
	return zookeeper.Config{Servers: []string{b.addr}, Chroot: b.chroot, SessionTimeout: 5 * time.Second}
}

// pool returns a pool that is closed with the test.
func (b *bench) pool(opts ...lockpool.Option) *lockpool.Pool { return b.poolWith(b.config(), opts...) }

func (b *bench) poolWith(cfg zookeeper.Config, opts ...lockpool.Option) *lockpool.Pool {
	connector, err := zookeeper.NewConnector(cfg)
	require.NoError(b, err)
	p, err := lockpool.OpenConnector(connector, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return p
}

func (b *bench) session(p *lockpool.Pool) *lockpool.Handle {
	s, err := p.Handle(b.ctx)
	require.NoError(b, err)
	return s
}

// children lists a lock's node, sorted by sequence number.
func (b *bench) children(name string) []string {
	children, _, err := b.admin.Children(b.chroot + "/" + name)
	if err == zk.ErrNoNode {
		return nil
	}
	require.NoError(b, err)
	slices.SortFunc(children, func(x, y string) int { return strings.Compare(last(x, 10), last(y, 10)) })
	return children
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// contenders lists every ephemeral node below path.
func (b *bench) contenders(path string) (found []string) {
	full := "/" + strings.Trim(b.chroot+path, "/")
	children, _, err := b.admin.Children(full)
	if err == zk.ErrNoNode {
		return nil
	}
	require.NoError(b, err)
	for _, child := range children {
		at := strings.TrimSuffix(path, "/") + "/" + child
		if _, stat, err := b.admin.Exists(b.chroot + at); err == nil && stat.EphemeralOwner != 0 {
			found = append(found, at)
		}
		found = append(found, b.contenders(at)...)
	}
	return found
}

// queued waits until n contenders are in the queue of a lock.
func (b *bench) queued(name string, n int) {
	b.until(func() bool { return len(b.children(name)) == n }, "%d contenders in %s", n, name)
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

// wait begins a Lock and returns when it stands in the queue as the nth.
func (b *bench) wait(p *lockpool.Pool, name string, nth int) *waiter {
	return b.waitFor(p.Lock, name, nth)
}

// lockFunc is a way to lock.
type lockFunc = func(context.Context, string, ...lockpool.LockOption) (*lockpool.Lock, error)

func (b *bench) waitFor(lock lockFunc, name string, nth int) *waiter {
	ctx, cancel := context.WithCancel(b.ctx)
	w := &waiter{done: make(chan struct{}), cancel: cancel}
	b.Cleanup(cancel)
	go func() {
		defer close(w.done)
		w.lock, w.err = lock(ctx, name)
	}()
	b.queued(name, nth)
	return w
}

// granted waits for the waiter's lock.
func (b *bench) granted(w *waiter) *lockpool.Lock {
	b.Helper()
	select {
	case <-w.done:
	case <-b.ctx.Done():
		require.FailNow(b, "not granted")
	}
	require.NoError(b, w.err)
	return w.lock
}

func (b *bench) stillWaits(w *waiter) {
	b.Helper()
	select {
	case <-w.done:
		require.FailNow(b, "it does not wait any more", "error: %v", w.err)
	default:
	}
}

func (b *bench) lock(p *lockpool.Pool, name string) *lockpool.Lock {
	b.Helper()
	l, err := p.Lock(b.ctx, name)
	require.NoError(b, err)
	return l
}

func (b *bench) unlock(l *lockpool.Lock) {
	b.Helper()
	require.NoError(b, l.Unlock(b.ctx))
}

func (b *bench) stat(s zooKeeper, key string) int {
	n, err := s.Stat(b.ctx, key)
	require.NoError(b, err)
	return int(n)
}

// watched returns how many contenders' nodes are watched at a server.
func (b *bench) watched(s zooKeeper) int {
	paths, err := s.Command(b.ctx, "wchp")
	require.NoError(b, err)
	return strings.Count(paths, "/_c_")
}

// watchedIn returns how many nodes of a lock are watched at the shared server.
func (b *bench) watchedIn(name string) int {
	paths, err := server.Command(b.ctx, "wchp")
	require.NoError(b, err)
	return strings.Count(paths, b.chroot+"/"+name+"/")
}

func errorsIsAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
