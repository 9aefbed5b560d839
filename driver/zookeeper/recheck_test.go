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
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// hidden is an ACL without the right to read, except for the bench's administrator.
var hidden = append(zk.DigestACL(zk.PermAll, "admin", "x"), zk.WorldACL(zk.PermAll&^zk.PermRead)...)

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

// openLogged opens a pool that logs to log.
func openLogged(b *locktest.Bench, log *locktest.Log, opts ...lockpool.Option) *lockpool.Pool {
	cfg := b.Config()
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	return b.PoolWith(cfg, opts...)
}

// hiding is a bench with two pools, from which its administrator hides nodes.
type hiding struct {
	*locktest.Bench
	holder, waiter               *lockpool.Pool
	holderRescues, waiterRescues rescues
	log                          locktest.Log
}

func newHiding(b *locktest.Bench) *hiding {
	require.NoError(b, b.Admin.AddAuth("digest", []byte("admin:x")))
	h := &hiding{Bench: b}
	h.holder = openLogged(b, &h.log, lockpool.WithMeterProvider(&h.holderRescues))
	h.waiter = openLogged(b, &h.log, lockpool.WithMeterProvider(&h.waiterRescues))
	return h
}

// lockWatched takes a lock whose node its session watches.
func (h *hiding) lockWatched(name string, opts ...lockpool.LockOption) *lockpool.Lock {
	l := h.Lock(h.holder, name, opts...)
	h.Token(l)
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
	go func() { done <- h.waiter.Do(h.Ctx, name, func(context.Context) error { return nil }, opts...) }()
	h.AwaitWaiting(h.waiter, 1)
	return done
}

// node returns the path of the nth contender's node.
func (h *hiding) node(name string, nth int) (path string) {
	h.Until(func() bool { return len(h.Children(name)) > nth }, "contender %d of %s", nth, name)
	return "/" + name + "/" + h.Children(name)[nth]
}

func (h *hiding) hide(paths ...string) {
	for _, path := range paths {
		_, err := h.Admin.SetACL(h.Chroot+path, hidden, -1)
		require.NoError(h, err)
	}
}

// The server sends no events of a node whose ACL hides it from the session.
func TestLostEventsAreNoticed(t *testing.T) {
	locktest.Once(t)
	t.Parallel()
	for name, server := range map[string]locktest.Server{"embedded": zktest.Start(t), "real": zktest.StartReal(t)} {
		for what, play := range map[string]func(h *hiding){
			"predecessor's end": func(h *hiding) {
				l, done := h.hold("a")
				h.hide(h.node("a", 0))
				require.NoError(h, l.Unlock(h.Ctx))
				require.NoError(h, <-done)
				require.Equal(h, int64(1), h.waiterRescues.n.Load())
				h.Until(func() bool { return strings.Contains(h.log.String(), "went unnoticed") }, "it is logged")
			},
			"holder's end": func(h *hiding) {
				l := h.lockWatched("b")
				path := h.node("b", 0)
				h.hide(path)
				require.NoError(h, h.Admin.Delete(h.Chroot+path, -1))
				<-l.Lost()
				require.ErrorIs(h, l.Unlock(h.Ctx), lockpool.ErrLockLost)
				require.Equal(h, int64(1), h.holderRescues.n.Load())
			},
			"plain lock of another client": func(h *hiding) {
				h.Unlock(h.Lock(h.holder, "g")) // creates the chroot
				_, err := h.Admin.Create(h.Chroot+"/f", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
				require.NoError(h, err)
				done := h.wait("f", lockpool.Plain())
				h.hide("/f")
				require.ErrorIs(h, <-done, lockpool.ErrNoPermission, "the waiter would never be told of the holder's end")
				require.NoError(h, h.Admin.Delete(h.Chroot+"/f", -1))
			},
			"plain lock": func(h *hiding) {
				l := h.lockWatched("c", lockpool.Plain())
				h.hide("/c")
				<-l.Lost()
				require.ErrorIs(h, l.Unlock(h.Ctx), lockpool.ErrLockLost)
			},
			"queue and all nodes in it": func(h *hiding) {
				l, done := h.hold("d")
				h.hide(h.node("d", 0), h.node("d", 1), "/d")
				require.ErrorIs(h, <-done, lockpool.ErrNoPermission)
				<-l.Lost()
				require.ErrorIs(h, l.Unlock(h.Ctx), lockpool.ErrLockLost)
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				play(newHiding(locktest.NewOn(t, server)))
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
	for name, server := range map[string]locktest.Server{"embedded": zktest.Start(t), "real": zktest.StartReal(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewOn(t, server)
			ctx := locktest.Timeout(t, 30*time.Second)
			proxy := b.Proxy()
			var log locktest.Log
			p, other := openLogged(b, &log), openLogged(b, &log)
			proxy.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpEvent}}, Times: zktest.Always, Do: zktest.Swallow()})
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
			b.AwaitWaiting(p, 1)
			require.NoError(t, other.Semaphore("limit", 0).SetLimit(ctx, 2))
			require.NoError(t, <-acquired)
			b.Until(func() bool { return strings.Contains(log.String(), "went unnoticed") }, "it is logged")
		})
	}
}
