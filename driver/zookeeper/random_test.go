package zookeeper

// This file tests sessions under random faults: no node, watch or goroutine stays.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

var (
	randomRuns = flag.Int("random", 8, "`number` of runs of TestNothingStaysAfterRandomFaults")
	randomSeed = flag.Uint64("seed", 1, "of the first of them")
)

// Many calls share connections that break anywhere, while their contexts, the session or
// its place at the server end. Afterward nothing of them is left: no node, no request, no
// listing, and no watch that the server does not have.
func TestNothingStaysAfterRandomFaults(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	for seed := *randomSeed; seed < *randomSeed+uint64(*randomRuns); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newRandomRun(t, seed).run() })
		})
	}
}

type randomRun struct {
	*testing.T
	server  *zktest.Server
	session *session

	calm atomic.Bool // connections break no more

	mu   sync.Mutex
	rand *rand.Rand
}

func newRandomRun(t *testing.T, seed uint64) *randomRun {
	return &randomRun{T: t, server: zktest.StartBubble(t), rand: rand.New(rand.NewPCG(seed, 0))}
}

// draw returns a number below n.
func (r *randomRun) draw(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rand.IntN(n)
}

func (r *randomRun) oneIn(n int) bool { return r.draw(n) == 0 }

func (r *randomRun) run() {
	bytes := 500 + r.draw(60_000)
	connector, err := NewConnector(Config{
		Servers: r.server.Members(), SessionTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := r.server.Dial(ctx, address)
			return &randomConn{breakingConn{Conn: conn, calm: &r.calm, in: 300 + r.draw(bytes), out: 300 + r.draw(bytes)}, r}, err
		},
	})
	require.NoError(r, err)
	session, err := connector.Connect(r.Context())
	require.NoError(r, err)
	r.session = session.(*Session)
	require.NoError(r, r.server.Create("/q0", nil))
	require.NoError(r, r.server.Create("/q0/other", nil))
	var all sync.WaitGroup
	for range 1 + r.draw(150) {
		turns := 1 + r.draw(8)
		all.Go(func() {
			for range turns {
				r.use()
			}
		})
	}
	if r.oneIn(4) {
		all.Go(func() {
			time.Sleep(time.Duration(r.draw(1500)) * time.Millisecond)
			if r.oneIn(2) {
				_ = r.server.ExpireSession(r.session.ID())
			} else {
				_ = r.session.Close(r.Context())
			}
		})
	}
	done := make(chan struct{})
	go func() { // ends with the calls
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Hour):
		require.FailNow(r, "a call does not return")
	}
	r.calm.Store(true)
	time.Sleep(25 * time.Second) // until the calls that were given up have ended
	synctest.Wait()
	if r.session.Err() == nil {
		r.checkSession()
	} else {
		time.Sleep(3 * time.Minute) // until the server has expired it, too
	}
	for path := range r.server.State().Nodes {
		require.False(r, strings.Contains(path, "-lock-"), "%s is left", path)
	}
	require.NoError(r, r.session.Close(r.Context()))
	require.NoError(r, connector.Close())
}

// use takes a turn in a queue.
func (r *randomRun) use() {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if !r.oneIn(3) {
		longest := []time.Duration{60 * time.Millisecond, 3 * time.Second}[r.draw(2)]
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.draw(int(longest))))
		defer cancel()
	}
	s, queue := r.session, fmt.Sprint("q", r.draw(5))
	joined, err := s.Join(ctx, queue, driver.Request{Kind: driver.Exclusive})
	if err == nil {
		if r.oneIn(2) {
			_, _ = s.List(ctx, queue)
		}
		if n := len(joined.Queue); n > 0 && r.oneIn(2) {
			_, _ = s.Watch(ctx, queue, joined.Queue[r.draw(n)], joined.Node)
		}
		if r.oneIn(4) {
			_, _, _ = s.Inspect(ctx, queue, nil)
		}
		if r.oneIn(4) {
			_, _ = s.Queues(ctx, "")
		}
		if r.oneIn(3) {
			time.Sleep(time.Duration(r.draw(1000)) * time.Millisecond)
		}
		err = s.Leave(ctx, queue, joined.Node)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrSessionLost) {
		r.Error(err)
	}
}

func (r *randomRun) checkSession() {
	s := r.session
	require.LessOrEqual(r, s.requests.unanswered(), 1, "a proof may be under way")
	s.listings.mu.Lock()
	defer s.listings.mu.Unlock()
	require.Empty(r, s.listings.latest)
	state := r.server.State()
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	for path, w := range s.watches.byPath {
		require.True(r, w.isArmed(), path)
		require.Zero(r, w.Fired(), path)
		require.Equal(r, 1, state.WatchesOf(path), path)
	}
}

// randomConn is a connection that breaks. It reads in small pieces, and some of its writes take
// long.
type randomConn struct {
	breakingConn
	run *randomRun
}

func (c *randomConn) Read(p []byte) (int, error) {
	return c.breakingConn.Read(p[:1+c.run.draw(len(p))])
}

func (c *randomConn) Write(p []byte) (int, error) {
	if c.run.oneIn(10) {
		time.Sleep(time.Duration(c.run.draw(30)) * time.Millisecond)
	}
	return c.breakingConn.Write(p)
}
