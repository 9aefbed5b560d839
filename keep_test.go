package lockpool_test

// This file tests kept locks where ZooKeeper matters. KeptLocks of testing/behavior tests the rest.

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A kept lock whose node was removed is not entered, though the pool has not looked again.
func TestRemovedKeptLockIsNotEntered(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(lockpool.WithKeptLocks(0, time.Hour))
		b.Unlock(b.Lock(p, "a", lockpool.Shared()))
		b.Unlock(b.Lock(p, "a", lockpool.Shared()))
		require.Equal(t, 1, p.Stats().Kept)
		time.Sleep(time.Second)
		old := b.Children("a")[0]
		look := server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpGetData}, Prefix: b.Chroot + "/a/" + old}, Do: zktest.HoldReply()})
		require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+old, -1))
		require.NoError(t, look.Wait(b.Ctx))
		synctest.Wait()
		w := b.StartLock(p, "a", lockpool.Shared())
		synctest.Wait()
		require.Zero(t, p.Stats().KeptTurns)
		look.Release()
		l := w.Granted()
		require.Len(t, b.Children("a"), 1)
		b.Unlock(l)
	})
}

// A call that finds a kept lock lost takes the lock anew, and is one acquisition.
func TestKeptLockLostMeanwhile(t *testing.T) {
	for what, lose := range map[string]func(b *locktest.Bench, node string){
		"node":    func(b *locktest.Bench, node string) { require.NoError(b, b.Admin.Delete(b.Chroot+node, -1)) },
		"session": expire,
	} {
		t.Run(what, func(t *testing.T) {
			locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, _ *zktest.Server) {
				meter := &interrupted{then: func() {}}
				p := b.Pool(lockpool.WithKeptLocks(0, time.Hour), lockpool.WithMeterProvider(interruptedMeters{meter: meter}))
				b.Unlock(b.Lock(p, "a"))
				b.Unlock(b.Lock(p, "a"))
				meter.then = sync.OnceFunc(func() {
					lose(b, "/a/"+b.Children("a")[0])
					time.Sleep(time.Second)
				})
				l := b.Lock(p, "a")
				require.EqualValues(t, 1, p.Stats().KeptTurns)
				require.EqualValues(t, 3, meter.acquired.Load())
				b.Unlock(l)
			})
		})
	}
}

// Shutdown gives many kept locks back together, not one after the other, and waits for none.
func TestManyKeptLocksComeFree(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		const locks, grace = 320, 10 * time.Millisecond // of each removal, for the answer
		p := b.Pool(lockpool.WithKeptLocks(0, time.Hour))
		name := func(i int) string { return fmt.Sprintf("kept/%d", i) }
		for i := range locks {
			b.Unlock(b.Lock(p, name(i)))
			b.Unlock(b.Lock(p, name(i)))
		}
		require.Equal(t, locks, p.Stats().Kept)
		held, h := b.Lock(p, "held"), b.Handle(p)
		service := server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Do: zktest.HoldApply()})
		began := time.Now()
		ctx, cancel := context.WithTimeout(b.Ctx, time.Second)
		defer cancel()
		down := make(chan error)
		go func() { down <- p.Shutdown(ctx) }()
		b.Until(func() bool { return p.Stats().Kept < locks }, "Shutdown has begun")
		_, err := h.Lock(b.Ctx, name(locks-1))
		require.ErrorIs(t, err, lockpool.ErrPoolClosed)
		require.NotZero(t, p.Stats().Kept)
		b.Until(func() bool { return p.Stats().Kept == 0 }, "the locks are given back")
		require.Less(t, time.Since(began), locks*grace/8)
		require.ErrorIs(t, <-down, context.DeadlineExceeded)
		require.Less(t, time.Since(began), 7*time.Second, "Close waits for 5 s")
		service.Release()
		require.ErrorIs(t, held.Unlock(b.Ctx), lockpool.ErrPoolClosed)
	})
}

// A holder that asks for a kept lock during Shutdown gets the lock when the pool has given it back.
func TestHolderAsksForAKeptLockDuringShutdown(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		const locks = 48
		p := b.Pool(lockpool.WithKeptLocks(0, time.Hour))
		name := func(i int) string { return fmt.Sprintf("kept/%d", i) }
		for i := range locks {
			b.Unlock(b.Lock(p, name(i)))
			b.Unlock(b.Lock(p, name(i)))
		}
		h := b.Handle(p)
		held := b.Lock(h, "held")
		server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}, Times: zktest.Always, Do: zktest.DelayReply(20 * time.Millisecond)})
		down := make(chan error)
		go func() { down <- p.Shutdown(b.Ctx) }()
		b.Until(func() bool { return p.Stats().Kept < locks }, "Shutdown has begun")
		require.NotZero(t, p.Stats().Kept)
		b.Unlock(b.Lock(h, name(locks-1)))
		require.Zero(t, p.Stats().KeptTurns)
		b.Unlock(held)
		require.NoError(t, <-down)
	})
}

// interrupted is a meter that calls then before a lock is counted as held, and counts acquisitions.
type interrupted struct {
	metricnoop.Meter
	then     func()
	acquired atomic.Int64
}

func (m *interrupted) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	if name != "lockpool.lock.wait.duration" {
		return metricnoop.Float64Histogram{}, nil
	}
	return countingHistogram{on: m}, nil
}

type countingHistogram struct {
	metricnoop.Float64Histogram
	on *interrupted
}

func (h countingHistogram) Enabled(context.Context) bool { h.on.acquired.Add(1); return false }

func (m *interrupted) Int64UpDownCounter(string, ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return interruptedCounter{on: m}, nil
}

type interruptedCounter struct {
	metricnoop.Int64UpDownCounter
	on *interrupted
}

func (c interruptedCounter) Enabled(context.Context) bool { c.on.then(); return false }

type interruptedMeters struct {
	metricnoop.MeterProvider
	meter *interrupted
}

func (m interruptedMeters) Meter(string, ...metric.MeterOption) metric.Meter { return m.meter }

// A lock whose node may not be changed costs a request only now and then.
func TestLockThatCannotBeKept(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		cfg := b.Config()
		cfg.ACL = zk.WorldACL(zk.PermAll &^ zk.PermWrite)
		p := b.PoolWith(cfg, lockpool.WithKeptLocks(0, time.Hour))
		changes := 0
		for _, r := range locktest.Requests(server, func() {
			for range 64 {
				b.Unlock(b.Lock(p, "a"))
			}
		}) {
			if r.Op == zktest.OpSetData {
				changes++
			}
		}
		require.Equal(t, 5, changes, "after 2, 5, 10, 19 and 36 uses")
		require.Zero(t, p.Stats().Kept)
	})
}

// A confirmed release is no error, though the pool learned nothing when it tried to keep the lock.
func TestUnlockAfterKeepingWasRefused(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p := b.Pool(lockpool.WithKeptLocks(0, time.Hour))
		b.Unlock(b.Lock(p, "a"))
		l := b.Lock(p, "a")
		reads := server.Inject(zktest.Rule{
			Match: zktest.Match{Ops: append([]zktest.Op{zktest.OpGetData}, zktest.Lists...), Prefix: b.Chroot + "/a"},
			Times: zktest.Always, Do: zktest.FailWith(zktest.ErrThrottled)})
		b.Unlock(l)
		require.Equal(t, 2, reads.Fired())
		reads.Remove()
		require.Empty(t, b.Contenders("/"))
	})
}

// A closed pool leaves no timer of kept locks, which would hold the pool in memory.
func TestClosedPoolIsForgotten(t *testing.T) {
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		pool := func() weak.Pointer[lockpool.Pool] {
			connector, err := zookeeper.NewConnector(b.Config())
			require.NoError(t, err)
			p, err := lockpool.OpenConnector(connector, lockpool.WithKeptLocks(0, time.Hour))
			require.NoError(t, err)
			b.Unlock(b.Lock(p, "a"))
			b.Unlock(b.Lock(p, "a"))
			require.Equal(t, 1, p.Stats().Kept)
			require.NoError(t, p.Close())
			require.Zero(t, p.Stats().Kept)
			return weak.Make(p)
		}()
		b.Until(func() bool { runtime.GC(); return pool.Value() == nil }, "the pool is forgotten")
	})
}

// A refused try costs one request more, however many wait, and is refused whatever becomes of
// the request.
func TestRefusedTryLooksOnce(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		try := func(ctx context.Context) {
			t.Helper()
			_, err := b.Pool(lockpool.WithKeptLocks(0, time.Hour)).TryLock(ctx, "a")
			require.ErrorIs(t, err, lockpool.ErrLocked)
		}
		l := b.Lock(b.Pool(), "a")
		node := b.Chroot + "/a/" + b.Children("a")[0]
		read := zktest.Match{Ops: []zktest.Op{zktest.OpGetData}, Prefix: b.Chroot + "/a/"}
		time.Sleep(time.Second) // the holder's own read is over
		silent := server.Inject(zktest.Rule{Match: read, Do: zktest.HoldReply()})
		try(locktest.Timeout(t, time.Second))
		silent.Release()
		refused := func() {
			t.Helper()
			reads := server.Inject(zktest.Rule{Match: read, Times: zktest.Always, Do: zktest.Pass()})
			try(b.Ctx)
			require.Equal(t, 1, reads.Fired())
			reads.Remove()
		}
		rights := zk.WorldACL(zk.PermAdmin | zk.PermDelete)
		_, err := b.Admin.SetACL(node, rights, -1)
		require.NoError(t, err)
		refused()
		_, err = b.Admin.SetACL(node, zk.WorldACL(zk.PermAll), -1)
		require.NoError(t, err)
		b.CreateContenders("a", 9)
		refused()
		b.Unlock(l)
	})
}

// A pool looks at the queue of a kept lock a few times for readers who come and go, and then
// gives the lock back.
func TestUnusedReadersOfManyPools(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p, other := b.Pool(lockpool.WithKeptLocks(0, time.Hour)), b.Pool()
		read := func(p *lockpool.Pool) {
			b.Unlock(b.Lock(p, "a", lockpool.Shared()))
			synctest.Wait()
		}
		read(p)
		read(p)
		for range 4 {
			read(other)
		}
		require.Equal(t, 1, p.Stats().Kept)
		read(p)
		for range 20 {
			read(other)
		}
		require.Empty(t, b.Children("a"))
		require.Equal(t, []int64{1, 0}, []int64{p.Stats().KeptTurns, p.Stats().AskedBack})
	})
}

// A reader that queues at the service while the pool looks who has joined leaves no second
// node of a kept lock.
func TestReaderBesideAKeptLock(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, server *zktest.Server) {
		p, other := b.Pool(lockpool.WithKeptLocks(0, time.Hour)), b.Pool()
		b.Unlock(b.Lock(p, "a", lockpool.Shared()))
		b.Unlock(b.Lock(p, "a", lockpool.Shared()))
		time.Sleep(time.Second)
		session := server.State().Nodes[b.Chroot+"/a/"+b.Children("a")[0]].Stat.EphemeralOwner
		slow := server.Inject(zktest.Rule{
			Match: zktest.Match{Prefix: b.Chroot, Where: func(r zktest.Request) bool { return r.Session == session }},
			Times: zktest.Always, Do: zktest.DelayReply(50 * time.Millisecond)})
		l := b.Lock(other, "a", lockpool.Shared())
		synctest.Wait()
		b.Unlock(b.Lock(p, "a", lockpool.Shared()))
		slow.Remove()
		time.Sleep(time.Second)
		require.Zero(t, p.Stats().Kept)
		require.Len(t, b.Children("a"), 1)
		b.Unlock(l)
	})
}
