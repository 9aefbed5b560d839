package zookeeper

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
	"github.com/lockpool/lockpool/testing/zktest"
)

var crowd = flag.Int("crowd", 2000, "number of waiters in TestProofsAreAnsweredBesideManyWaiters")

// It measures time, so it is not parallel.
func TestProofsAreAnsweredBesideManyWaiters(t *testing.T) {
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
	const sessions = 4 // of a pool by default
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	connector, err := NewConnector(Config{
		Servers: []string{addr}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	require.NoError(t, err)
	connect := func() *Session {
		s, err := connector.Connect(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		return s.(*Session)
	}
	claim := recipe.Claim{Queue: "a", Kind: driver.Mutex, Rule: recipe.Exclusive}
	holder := claim
	holder.Session = connect()
	node, err := holder.Acquire(ctx)
	require.NoError(t, err)

	var all []*Session
	var proving, waiting sync.WaitGroup
	var worst, idle atomic.Int64
	stop := make(chan struct{})
	prove := func(s *Session, worst *atomic.Int64) { // as renew does, but more often
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			began := time.Now()
			if s.prove(false) == nil {
				took := int64(time.Since(began))
				for last := worst.Load(); took > last && !worst.CompareAndSwap(last, took); last = worst.Load() {
				}
			}
		}
	}
	for range sessions {
		s := connect()
		all = append(all, s)
		proving.Go(func() { prove(s, &worst) })
	}
	// The delays of the machine and the server show in a session that sends nothing else.
	control := connect()
	proving.Go(func() { prove(control, &idle) })
	waitCtx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	for i := range *crowd {
		waiting.Go(func() {
			c := claim
			c.Session = all[i%sessions]
			_, err := c.Acquire(waitCtx)
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for _, what := range []string{"queued", "queued again", "gave up"} {
		began := time.Now()
		waiters := func() (n int) {
			for _, s := range all {
				require.NoError(t, s.Err(), what)
				s.watches.mu.Lock()
				n += len(s.watches.byPath)
				s.watches.mu.Unlock()
			}
			return n
		}
		if what == "gave up" {
			giveUp()
			waiting.Wait()
		}
		for what != "gave up" && waiters() < *crowd {
			require.NoError(t, ctx.Err(), what)
			time.Sleep(time.Millisecond)
		}
		took, alone := time.Duration(worst.Swap(0)), time.Duration(idle.Swap(0))
		t.Logf("%d %s in %v, proofs took up to %v, and up to %v on an idle session", *crowd, what, time.Since(began), took, alone)
		require.Less(t, took, DefaultSessionTimeout/driftPart+alone, what)
		if what == "queued" {
			cut()
			for waiters() >= *crowd {
				time.Sleep(time.Millisecond)
			}
		}
	}
	close(stop)
	proving.Wait()
	require.NoError(t, holder.Session.Leave(ctx, "a", node))
}
