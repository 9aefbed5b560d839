package zookeeper

// This file tests that the proofs of a lease are answered beside thousands of waiters.

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A proof waits for the answers that are on the way, and for no request before it.
func TestProofsAreSentFirst(t *testing.T) {
	t.Parallel()
	r := requests{use: func() {}}
	for range 3 {
		r.start(&request{answer: minAnswer, packet: make([]byte, 16)})
	}
	proof := &request{packet: make([]byte, 16)}
	r.start(proof)
	require.Len(t, r.waiting, 4, "there is no connection")
	require.Same(t, proof, r.waiting[0])
}

var crowd = flag.Int("crowd", 2000, "number of waiters in TestProofsAreAnsweredBesideManyWaiters")

// It measures time, so it is not parallel.
func TestProofsAreAnsweredBesideManyWaiters(t *testing.T) {
	once(t)
	t.Run("embedded", func(t *testing.T) {
		s := zktest.Start(t)
		proofsBesideManyWaiters(t, s.Addr(), func() { s.Cut(zktest.Selector{}) })
	})
	t.Run("real", func(t *testing.T) {
		s := zktest.StartReal(t)
		proxy := zktest.StartProxy(t, s.Addr())
		proofsBesideManyWaiters(t, proxy.Addr(), func() { proxy.Cut(zktest.Selector{}) })
	})
}

func proofsBesideManyWaiters(t *testing.T, addr string, cut func()) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	connector, err := NewConnector(Config{
		Servers: []string{addr}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	require.NoError(t, err)
	connect := func() *session {
		s, err := connector.Connect(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		return s.(*session)
	}
	claim := recipe.Claim{Queue: "a", Kind: driver.Exclusive, Rule: recipe.Exclusive}
	holder := claim
	holder.Session = connect()
	node, err := holder.Acquire(ctx)
	require.NoError(t, err)

	var worst, worstIdle slowest
	var proving, waiting sync.WaitGroup
	stop := make(chan struct{})
	all := make([]*session, 4) // as many as a pool has by default
	views := make([]recipe.Views, len(all))
	for i := range all {
		all[i] = connect()
		proving.Go(func() { proveOften(all[i], &worst, stop) })
		// As many idle sessions show the delays of the machine and the server.
		idle := connect()
		proving.Go(func() { proveOften(idle, &worstIdle, stop) })
	}
	waitCtx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	for i := range *crowd {
		waiting.Go(func() {
			c := claim
			c.Session, c.Views = all[i%len(all)], &views[i%len(all)]
			_, err := c.Acquire(waitCtx)
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for _, phase := range []struct {
		name string
		run  func()
	}{
		{"queued", func() { awaitWatches(ctx, t, all, *crowd) }},
		{"queued again", func() {
			before := make([]*link, len(all))
			for i, s := range all {
				before[i] = s.connection.current()
			}
			cut()
			for i, s := range all { // one after the other: their watches may never be gone all at once
				for s.connection.current() == before[i] {
					require.NoError(t, s.Err())
					time.Sleep(time.Millisecond)
				}
			}
			awaitWatches(ctx, t, all, *crowd)
			runtime.GC()
			var memory runtime.MemStats
			runtime.ReadMemStats(&memory)
			require.Less(t, memory.HeapAlloc, uint64(100<<20), "waiters keep their listings in memory")
		}},
		{"gave up", func() {
			giveUp()
			waiting.Wait()
		}},
	} {
		began := time.Now()
		phase.run()
		took, tookIdle := worst.take(), worstIdle.take()
		t.Logf("%d %s in %v, proofs took up to %v, and up to %v on an idle session", *crowd, phase.name, time.Since(began), took, tookIdle)
		require.Less(t, took, DefaultSessionTimeout/8+tookIdle, "%s: a lease needs an answer every few eighths", phase.name)
	}
	close(stop)
	proving.Wait()
	require.NoError(t, holder.Session.Leave(ctx, "a", node))
}

// slowest is the longest of several durations.
type slowest struct{ d atomic.Int64 }

func (s *slowest) record(d time.Duration) {
	for last := s.d.Load(); int64(d) > last && !s.d.CompareAndSwap(last, int64(d)); last = s.d.Load() {
	}
}

// take returns the longest duration since the last take.
func (s *slowest) take() time.Duration { return time.Duration(s.d.Swap(0)) }

// proveOften sends proofs as renew does, but more often, and measures them.
func proveOften(s *session, worst *slowest, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
		began := time.Now()
		if s.prove(false) == nil {
			worst.record(time.Since(began))
		}
	}
}

// countWatches counts the watches of sessions that must not be over.
func countWatches(t *testing.T, all []*session) (n int) {
	for _, s := range all {
		require.NoError(t, s.Err())
		s.watches.mu.Lock()
		n += len(s.watches.byPath)
		s.watches.mu.Unlock()
	}
	return n
}

func awaitWatches(ctx context.Context, t *testing.T, all []*session, n int) {
	for countWatches(t, all) < n {
		require.NoError(t, ctx.Err())
		time.Sleep(time.Millisecond)
	}
}
