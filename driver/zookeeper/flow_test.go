package zookeeper

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
	"github.com/lockpool/lockpool/testing/zktest"
)

var crowd = flag.Int("crowd", 2000, "how many wait in TestProofsAreAnsweredBesideManyWaiters")

// On both kinds of server.
func TestProofsAreAnsweredBesideManyWaiters(t *testing.T) { // measures time: not beside others
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
	const sessions = 4 // as many as a pool has
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
	prove := func(s *Session, worst *atomic.Int64) { // as renew does, and more often
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
	// What the machine and the server do to a session that asks for nothing else.
	control := connect()
	proving.Go(func() { prove(control, &idle) })
	giveUp, leave := context.WithCancel(ctx)
	defer leave()
	for i := range *crowd {
		waiting.Go(func() {
			c := claim
			c.Session = all[i%sessions]
			_, err := c.Acquire(giveUp)
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for _, what := range []string{"queued", "queued again", "gave up"} {
		began := time.Now()
		waits := func() (n int) {
			for _, s := range all {
				require.NoError(t, s.Err(), what)
				s.mu.Lock()
				n += len(s.watches)
				s.mu.Unlock()
			}
			return n
		}
		if what == "gave up" {
			leave()
			waiting.Wait()
		}
		for what != "gave up" && waits() < *crowd {
			require.NoError(t, ctx.Err(), what)
			time.Sleep(time.Millisecond)
		}
		took, alone := time.Duration(worst.Swap(0)), time.Duration(idle.Swap(0))
		t.Logf("%d %s in %v, proofs took up to %v, and up to %v on an idle session", *crowd, what, time.Since(began), took, alone)
		require.Less(t, took, DefaultSessionTimeout/driftPart+alone, what)
		if what == "queued" {
			cut()
			for waits() >= *crowd {
				time.Sleep(time.Millisecond)
			}
		}
	}
	close(stop)
	proving.Wait()
	require.NoError(t, holder.Session.Leave(ctx, "a", node))
}

// The first is on its way when the others ask, so it may not show what they have
// to see.
func TestListingIsSharedByAllWhoAskBeforeItIsSent(t *testing.T) {
	t.Parallel()
	s := zktest.Start(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	connector, err := NewConnector(Config{Servers: []string{s.Addr()}})
	require.NoError(t, err)
	session, err := connector.Connect(ctx)
	require.NoError(t, err)
	defer session.Close(ctx)
	node, queue, err := session.Join(ctx, "a", driver.Mutex, 0, 0, nil)
	require.NoError(t, err)
	require.Equal(t, []driver.Node{node}, queue)

	lists := zktest.Match{Ops: zktest.Lists}
	held := s.Inject(zktest.Rule{Match: lists, Do: zktest.HoldReply()})
	sent := s.Inject(zktest.Rule{Match: lists, Times: zktest.Always, Do: zktest.Pass()})
	var all sync.WaitGroup
	list := func(expected ...driver.Node) {
		all.Go(func() {
			queue, err := session.List(ctx, "a")
			if err != nil || !slices.Equal(queue, expected) {
				t.Errorf("%v, %v", queue, err)
			}
		})
	}
	list(node)
	require.NoError(t, held.Wait(ctx))
	require.NoError(t, s.Delete("/a/"+node.Name))
	for range 100 {
		list()
	}
	for len(session.(*Session).slots) < 101 {
		require.NoError(t, ctx.Err())
		time.Sleep(time.Millisecond)
	}
	held.Release()
	all.Wait()
	require.LessOrEqual(t, sent.Fired(), 5) // some may come late
}
