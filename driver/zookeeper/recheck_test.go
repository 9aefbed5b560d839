package zookeeper_test

// This file has tests of waits whose events are lost.

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// hidden is an ACL without the right to read.
var hidden = zk.WorldACL(zk.PermAll &^ zk.PermRead)

// rescues is a meter provider that counts lockpool.lock.rescues.
type rescues struct {
	noop.MeterProvider
	n atomic.Int64
}

func (r *rescues) Meter(string, ...metric.MeterOption) metric.Meter { return rescueMeter{rescues: r} }

type rescueMeter struct {
	noop.Meter
	rescues *rescues
}

func (m rescueMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	if name != "lockpool.lock.rescues" {
		return noop.Int64Counter{}, nil
	}
	return rescueCounter{rescues: m.rescues}, nil
}

type rescueCounter struct {
	noop.Int64Counter
	rescues *rescues
}

func (rescueCounter) Enabled(context.Context) bool { return true }
func (c rescueCounter) Add(_ context.Context, n int64, _ ...metric.AddOption) {
	c.rescues.n.Add(n)
}

// openLogged opens a pool that logs to log, and closes it at the end of the test.
func openLogged(t *testing.T, addr string, log *locktest.Log, opts ...lockpool.Option) *lockpool.Pool {
	connector, err := zookeeper.NewConnector(zookeeper.Config{
		Servers: strings.Split(addr, ","), SessionTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)
	p, err := lockpool.OpenConnector(connector, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// hiding is a server with two pools, and a client that hides nodes from them.
type hiding struct {
	*testing.T
	ctx                          context.Context
	admin                        *zk.Conn
	holder, waiter               *lockpool.Pool
	holderRescues, waiterRescues rescues
	log                          locktest.Log
}

func newHiding(t *testing.T, addr string) *hiding {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	admin, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
	require.NoError(t, err)
	t.Cleanup(func() {
		admin.Close()
		for range events {
		}
	})
	h := &hiding{T: t, ctx: ctx, admin: admin}
	h.holder = openLogged(t, addr, &h.log, lockpool.WithMeterProvider(&h.holderRescues))
	h.waiter = openLogged(t, addr, &h.log, lockpool.WithMeterProvider(&h.waiterRescues))
	return h
}

// lockWatched takes a lock whose node its session watches.
func (h *hiding) lockWatched(name string, opts ...lockpool.LockOption) *lockpool.Lock {
	l, err := h.holder.Lock(h.ctx, name, opts...)
	require.NoError(h, err)
	_, err = l.Token(h.ctx)
	require.NoError(h, err)
	return l
}

// hold takes a lock with the one pool, and waits until the other one waits for it.
// The channel has the error of the other one's turn.
func (h *hiding) hold(name string, opts ...lockpool.LockOption) (*lockpool.Lock, <-chan error) {
	return h.lockWatched(name, opts...), h.wait(name, opts...)
}

// wait returns when the other pool waits for a lock. The channel has the error of its turn.
func (h *hiding) wait(name string, opts ...lockpool.LockOption) <-chan error {
	done := make(chan error, 1)
	go func() { done <- h.waiter.Do(h.ctx, name, func(context.Context) error { return nil }, opts...) }()
	h.until(func() bool { return h.waiter.Stats().Waiting == 1 })
	return done
}

func (h *hiding) until(condition func() bool) {
	require.Eventually(h, condition, 10*time.Second, time.Millisecond)
}

// node returns the path of the nth contender's node.
func (h *hiding) node(name string, nth int) (path string) {
	h.until(func() bool {
		q, err := h.holder.Queue(h.ctx, name)
		require.NoError(h, err)
		if len(q.Contenders) > nth {
			path = "/" + name + "/" + q.Contenders[nth].Node
		}
		return path != ""
	})
	return path
}

func (h *hiding) hide(paths ...string) {
	for _, path := range paths {
		_, err := h.admin.SetACL(path, hidden, -1)
		require.NoError(h, err)
	}
}

// The server sends no events of a node whose ACL hides it from the session.
func TestLostEventsAreNoticed(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	for name, addr := range map[string]string{"embedded": zktest.Start(t).Addr(), "real": zktest.StartReal(t).Addr()} {
		for what, play := range map[string]func(h *hiding){
			"predecessor's end": func(h *hiding) {
				l, done := h.hold("a")
				h.hide(h.node("a", 0))
				require.NoError(h, l.Unlock(h.ctx))
				require.NoError(h, <-done)
				require.Equal(h, int64(1), h.waiterRescues.n.Load())
				h.until(func() bool { return strings.Contains(h.log.String(), "went unnoticed") })
			},
			"holder's end": func(h *hiding) {
				l := h.lockWatched("b")
				path := h.node("b", 0)
				h.hide(path)
				require.NoError(h, h.admin.Delete(path, -1))
				<-l.Lost()
				require.ErrorIs(h, l.Unlock(h.ctx), lockpool.ErrLockLost)
				require.Equal(h, int64(1), h.holderRescues.n.Load())
			},
			"plain lock of another client": func(h *hiding) {
				_, err := h.admin.Create("/f", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
				require.NoError(h, err)
				done := h.wait("f", lockpool.Plain())
				h.hide("/f")
				require.ErrorIs(h, <-done, lockpool.ErrNoPermission, "the waiter would never be told of the holder's end")
			},
			"plain lock": func(h *hiding) {
				l := h.lockWatched("c", lockpool.Plain())
				h.hide("/c")
				<-l.Lost()
				require.ErrorIs(h, l.Unlock(h.ctx), lockpool.ErrLockLost)
			},
			"queue and all nodes in it": func(h *hiding) {
				l, done := h.hold("d")
				h.hide(h.node("d", 0), h.node("d", 1), "/d")
				require.ErrorIs(h, <-done, lockpool.ErrNoPermission)
				<-l.Lost()
				require.ErrorIs(h, l.Unlock(h.ctx), lockpool.ErrLockLost)
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				play(newHiding(t, addr))
			})
		}
	}
}

// way is one way to hold a lock, while work runs.
type way func(ctx context.Context, p *lockpool.Pool, work func(context.Context) error) error

func lockWay(name string, opts ...lockpool.LockOption) way {
	return func(ctx context.Context, p *lockpool.Pool, work func(context.Context) error) error {
		return p.Do(ctx, name, work, opts...)
	}
}

func permitWay(n int) way {
	return func(ctx context.Context, p *lockpool.Pool, work func(context.Context) error) error {
		return p.Semaphore("s", 2).Do(ctx, n, work)
	}
}

// holdAndWait holds a lock with one pool until several waiters wait for it with the
// other, and then waits until each has held it.
func holdAndWait(ctx context.Context, t *testing.T, holder, waiter *lockpool.Pool, hold, wait way) {
	done := make(chan error, 3)
	nothing := func(context.Context) error { return nil }
	require.NoError(t, hold(ctx, holder, func(context.Context) error {
		for range cap(done) {
			go func() { done <- wait(ctx, waiter, nothing) }()
		}
		for waiter.Stats().Waiting < cap(done) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return ctx.Err()
	}))
	for range cap(done) {
		require.NoError(t, <-done)
	}
}

// The server sends no events at all; locks of all kinds are still granted.
func TestNoWaitDependsOnAnEvent(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	proxied := zktest.StartProxy(t, zktest.StartReal(t).Addr())
	for name, server := range map[string]zktest.FaultInjector{"embedded": zktest.Start(t), "real": proxied} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var log locktest.Log
			p, other := openLogged(t, server.ConnectString(), &log), openLogged(t, server.ConnectString(), &log)
			server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpEvent}}, Times: zktest.Always, Do: zktest.Swallow()})
			for name, ways := range map[string][2]way{
				"mutex":   {lockWay("mutex"), lockWay("mutex")},
				"read":    {lockWay("read"), lockWay("read", lockpool.Shared())},
				"write":   {lockWay("write", lockpool.Shared()), lockWay("write")},
				"plain":   {lockWay("plain", lockpool.Plain()), lockWay("plain", lockpool.Plain())},
				"permits": {permitWay(1), permitWay(2)},
			} {
				t.Run(name, func(t *testing.T) { holdAndWait(ctx, t, other, p, ways[0], ways[1]) })
			}
			require.NoError(t, p.Semaphore("limit", 0).SetLimit(ctx, 1))
			acquired := make(chan error, 1)
			go func() {
				acquired <- p.Semaphore("limit", 0).Do(ctx, 2, func(context.Context) error { return nil })
			}()
			for p.Stats().Waiting == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			require.NoError(t, other.Semaphore("limit", 0).SetLimit(ctx, 2))
			require.NoError(t, <-acquired)
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "went unnoticed") }, 10*time.Second, time.Millisecond)
		})
	}
}
