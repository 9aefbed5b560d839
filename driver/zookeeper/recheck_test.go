package zookeeper_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
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

// logged is a buffer for the log of a pool.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The server sends no events of a node whose ACL hides it from the session.
func TestLostEventsAreNoticed(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"embedded": zktest.Start(t).Addr(), "real": zktest.StartReal(t).Addr()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			admin, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
			require.NoError(t, err)
			defer func() {
				admin.Close()
				for range events {
				}
			}()
			var log logged
			open := func(meters *rescues) *lockpool.Pool {
				connector, err := zookeeper.NewConnector(zookeeper.Config{
					Servers: []string{addr}, SessionTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				require.NoError(t, err)
				p, err := lockpool.OpenConnector(connector, lockpool.WithMeterProvider(meters))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, p.Close()) })
				return p
			}
			holders, waiters := new(rescues), new(rescues)
			p, others := open(holders), open(waiters)
			node := func(name string, nth int) string {
				q, err := p.Queue(ctx, name)
				require.NoError(t, err)
				if len(q.Contenders) <= nth {
					return ""
				}
				return "/" + name + "/" + q.Contenders[nth].Node
			}

			// A waiter whose predecessor is removed.
			l, err := p.Lock(ctx, "a")
			require.NoError(t, err)
			granted := make(chan error, 1)
			go func() {
				l, err := others.Lock(ctx, "a")
				if err == nil {
					err = l.Unlock(ctx)
				}
				granted <- err
			}()
			require.Eventually(t, func() bool { return others.Stats().Waiting == 1 && node("a", 1) != "" }, 10*time.Second, time.Millisecond)
			_, err = admin.SetACL(node("a", 0), hidden, -1)
			require.NoError(t, err)
			require.NoError(t, l.Unlock(ctx))
			require.NoError(t, <-granted)
			require.Equal(t, int64(1), waiters.n.Load())
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "went unnoticed") }, 10*time.Second, time.Millisecond)

			// A holder whose node is removed.
			l, err = p.Lock(ctx, "b")
			require.NoError(t, err)
			_, err = l.Token(ctx) // it is watched
			require.NoError(t, err)
			path := node("b", 0)
			_, err = admin.SetACL(path, hidden, -1)
			require.NoError(t, err)
			require.NoError(t, admin.Delete(path, -1))
			<-l.Lost()
			require.ErrorIs(t, l.Unlock(ctx), lockpool.ErrLockLost)
			require.Equal(t, int64(1), holders.n.Load())

			// A plain lock.
			l, err = p.Lock(ctx, "c", lockpool.Plain())
			require.NoError(t, err)
			go func() {
				l, err := others.Lock(ctx, "c", lockpool.Plain())
				if err == nil {
					err = l.Unlock(ctx)
				}
				granted <- err
			}()
			require.Eventually(t, func() bool { return others.Stats().Waiting == 1 }, 10*time.Second, time.Millisecond)
			_, err = admin.SetACL("/c", hidden, -1)
			require.NoError(t, err)
			require.ErrorIs(t, <-granted, lockpool.ErrNoPermission, "the waiter would never be told of the holder's end")
			err = l.Unlock(ctx)
			require.True(t, err == nil || errors.Is(err, lockpool.ErrLockLost), "%v", err)

			// The nodes of holder and waiter, and their queue.
			l, err = p.Lock(ctx, "d")
			require.NoError(t, err)
			go func() {
				_, err := others.Lock(ctx, "d")
				granted <- err
			}()
			require.Eventually(t, func() bool { return others.Stats().Waiting == 1 && node("d", 1) != "" }, 10*time.Second, time.Millisecond)
			for _, path := range []string{node("d", 0), node("d", 1), "/d"} {
				_, err = admin.SetACL(path, hidden, -1)
				require.NoError(t, err)
			}
			require.ErrorIs(t, <-granted, lockpool.ErrNoPermission)
			<-l.Lost()
			require.ErrorIs(t, l.Unlock(ctx), lockpool.ErrLockLost)
		})
	}
}

func TestRechecksFireNoWatchOnAnExistingNode(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	server := zktest.Start(t)
	counted := new(rescues)
	p, err := lockpool.Open("zookeeper", server.ConnectString(), lockpool.WithMeterProvider(counted))
	require.NoError(t, err)
	defer p.Close()
	l, err := p.Lock(ctx, "long")
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for ctx.Err() == nil && counted.n.Load() == 0 {
				if p.Do(ctx, "a", func(context.Context) error { time.Sleep(30 * time.Millisecond); return nil }) != nil {
					return
				}
			}
		})
	}
	time.Sleep(2 * time.Second) // several rounds of checks
	require.NoError(t, l.Unlock(ctx))
	cancel()
	all.Wait()
	require.Zero(t, counted.n.Load())
}

// The server sends no events at all; locks of all kinds are still granted.
func TestNoWaitDependsOnAnEvent(t *testing.T) {
	t.Parallel()
	proxied := zktest.StartProxy(t, zktest.StartReal(t).Addr())
	for name, server := range map[string]zktest.Faulty{"embedded": zktest.Start(t), "real": proxied} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var log logged
			open := func() *lockpool.Pool {
				connector, err := zookeeper.NewConnector(zookeeper.Config{
					Servers: strings.Split(server.ConnectString(), ","), SessionTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				require.NoError(t, err)
				p, err := lockpool.OpenConnector(connector)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, p.Close()) })
				return p
			}
			p, others := open(), open()
			server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpEvent}}, Times: zktest.Always, Do: zktest.Swallow()})
			type way func(p *lockpool.Pool, work func(context.Context) error) error
			locks := func(name string, opts ...lockpool.LockOption) way {
				return func(p *lockpool.Pool, work func(context.Context) error) error { return p.Do(ctx, name, work, opts...) }
			}
			for name, ways := range map[string][2]way{
				"mutex": {locks("mutex"), locks("mutex")},
				"read":  {locks("read"), locks("read", lockpool.Shared())},
				"write": {locks("write", lockpool.Shared()), locks("write")},
				"plain": {locks("plain", lockpool.Plain()), locks("plain", lockpool.Plain())},
				"permits": {
					func(p *lockpool.Pool, work func(context.Context) error) error {
						return p.Semaphore("s", 2).Do(ctx, 1, work)
					},
					func(p *lockpool.Pool, work func(context.Context) error) error {
						return p.Semaphore("s", 2).Do(ctx, 2, work)
					},
				},
			} {
				t.Run(name, func(t *testing.T) {
					waiting := make(chan error, 3)
					require.NoError(t, ways[0](others, func(context.Context) error {
						for range cap(waiting) {
							go func() { waiting <- ways[1](p, func(context.Context) error { return nil }) }()
						}
						for p.Stats().Waiting < cap(waiting) && ctx.Err() == nil {
							time.Sleep(time.Millisecond)
						}
						return ctx.Err()
					}))
					for range cap(waiting) {
						require.NoError(t, <-waiting)
					}
				})
			}
			require.NoError(t, p.Semaphore("limit", 0).SetLimit(ctx, 1))
			acquired := make(chan error, 1)
			go func() {
				acquired <- p.Semaphore("limit", 0).Do(ctx, 2, func(context.Context) error { return nil })
			}()
			for p.Stats().Waiting == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			require.NoError(t, others.Semaphore("limit", 0).SetLimit(ctx, 2))
			require.NoError(t, <-acquired)
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "went unnoticed") }, 10*time.Second, time.Millisecond)
		})
	}
}
