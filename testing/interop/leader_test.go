package interop

// This file has the tests of leader election beside other clients.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

// candidate leads from acquire to release, as Curator's LeaderSelector does in Peer.java.
// It cannot give up waiting for a turn.
type candidate struct {
	*pool
	leading, resign chan struct{}
	stood           chan error // what Elect has returned
}

func newCandidate(p *pool) *candidate {
	return &candidate{p, make(chan struct{}), make(chan struct{}), make(chan error, 1)}
}

func (c *candidate) acquire(ctx context.Context, _ string, _ time.Duration) (bool, error) {
	go func() { // ends when the candidate has resigned, or with ctx
		c.stood <- c.Elect(ctx, c.name, func(ctx context.Context) error {
			select {
			case c.leading <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case <-c.resign:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	select {
	case <-c.leading:
		return true, nil
	case err := <-c.stood:
		return false, err
	}
}

func (c *candidate) release(context.Context, string) error {
	select {
	case c.resign <- struct{}{}:
		return <-c.stood
	case err := <-c.stood:
		return fmt.Errorf("it does not lead any more: %w", err)
	}
}

// Curator's LeaderSelector and Elect lead one at a time on one path, beside mutexes.
func TestLeadersExcludeEachOther(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	c.contenders = c.peers(contender{name: "LeaderSelector", modes: exclusive("selector"), cannotGiveUp: true}, c.curator, 2)
	c.contenders = append(c.contenders, c.peers(curatorMutex, c.curator, 1)...)
	one, other := c.openPool("", lockpool.WithLocalTurns(0)), c.openPool("")
	for i, p := range []*pool{one, one, other, other} {
		c.contenders = append(c.contenders, &contender{
			name: fmt.Sprint("Elect ", i+1), client: newCandidate(p), modes: exclusive("leader"), cannotGiveUp: true, inMemory: i == 3,
		})
	}
	c.run(25)
}

// An observer sees the leaders of all clients, and who comes next.
func TestObserveFollowsCuratorsLeaders(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	selectors := c.peers(contender{name: "LeaderSelector", modes: exclusive("selector"), cannotGiveUp: true}, c.curator, 2)
	for _, s := range selectors {
		c.ready(s)
	}
	p := c.openPool("")
	o := plays.Observe(c.Ctx, t, p.Pool, c.name)
	sees := func(heads ...string) {
		t.Helper()
		v := o.Next()
		require.NoError(t, v.Err)
		var got []string
		for _, contender := range v.Contenders {
			got = append(got, "/"+c.name+"/"+contender.Node)
		}
		require.Equal(t, heads, got)
	}
	sees()
	c.mustAcquire(selectors[0], selectors[0].modes[0])
	first := c.queue()[0]
	sees(first)
	waits := c.enqueue(selectors[1], selectors[1].modes[0])
	second := c.queue()
	second = second[len(second)-2:]
	if second[0] == first {
		second = second[1:]
	}
	sees(first, second[0])
	c.mustRelease(selectors[0], selectors[0].modes[0])
	require.NoError(t, <-waits)
	sees(second[0])
	c.mustRelease(selectors[1], selectors[1].modes[0])
	sees()
	c.contenders = selectors
	c.finish()
}

// A LeaderLatch does not see lockpool's nodes, so lockpool does not lead beside one.
func TestElectRefusesToLeadBesideALeaderLatch(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	c.contenders = c.peers(contender{name: "LeaderLatch", modes: exclusive("latch"), cannotGiveUp: true}, c.curator, 1)
	c.ready(c.contenders[0])
	p := c.openPool("")
	lead := func(context.Context) error {
		t.Error("it leads")
		return nil
	}
	c.mustAcquire(c.contenders[0], c.contenders[0].modes[0])
	err := p.Elect(c.Ctx, c.name, lead)
	require.ErrorIs(t, err, lockpool.ErrKindMismatch)
	require.ErrorContains(t, err, "-latch-")
	c.Until(func() bool { return len(c.queue()) == 1 }, "the candidate leaves no node")
	q, err := p.Queue(c.Ctx, c.name)
	require.NoError(t, err)
	require.Len(t, q.Foreign, 1)
	c.mustRelease(c.contenders[0], c.contenders[0].modes[0])
	c.Until(func() bool { return len(c.queue()) == 0 }, "the latch has left: its node is deleted in the background")
	require.NoError(t, p.Elect(c.Ctx, c.name, func(context.Context) error { return nil }))
	c.finish()
}
