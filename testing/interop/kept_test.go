package interop

// This file has the tests of kept locks (WithKeptLocks) beside other clients.

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// owner is a pool that keeps locks, on a connection through a proxy.
type owner struct {
	*pool
	opts  []lockpool.LockOption
	proxy *zktest.Proxy
	trip  atomic.Int64 // how much longer a round trip takes, in ns
}

func (c *contest) owner(layout string, opts ...lockpool.LockOption) *owner {
	o := &owner{opts: opts, proxy: c.Proxy()}
	cfg := c.Config()
	cfg.Layout, cfg.SessionTimeout = zookeeper.Layout(layout), 15*time.Second
	cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return distant{conn, &o.trip}, err
	}
	o.pool = &pool{c, c.PoolWith(cfg, lockpool.WithMaxSessions(1), lockpool.WithKeptLocks(0, time.Hour)), c.name}
	return o
}

// distant is a connection whose round trips take longer.
type distant struct {
	net.Conn
	trip *atomic.Int64
}

func (c distant) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(time.Duration(c.trip.Load()))
	return n, err
}

// keep uses the lock until the lock is kept, and then until keeping has been worthwhile.
func (o *owner) keep(ctx context.Context) {
	for used := 0; used < 9; {
		l, err := o.Lock(ctx, o.name, o.opts...)
		require.NoError(o, err)
		require.NoError(o, l.Unlock(ctx))
		used += o.Stats().Kept
	}
}

// isRemoval reports whether a request of an owner is the removal of the node, or of the
// node and its twin.
func isRemoval(r zktest.Request) bool { return r.Op == zktest.OpDelete || r.Op == zktest.OpMulti }

// Other clients get a kept lock within two round trips of the owner. That is counted, and
// measured on a connection so slow that the load of the machine matters less.
func TestKeptLocksComeFreeForOtherClients(t *testing.T) {
	curator := func(p contender) func(*contest) *contender {
		return func(c *contest) *contender { return c.peers(p, c.curator, 1)[0] }
	}
	for _, tt := range []struct {
		name, layout string
		opts         []lockpool.LockOption
		turns        int
		trips        int // of the owner
		peer         func(c *contest) *contender
	}{
		{"Curator", "", nil, 200, 1, curator(curatorMutex)},
		{"GoZookeeper", "", nil, 200, 1, (*contest).goZookeeper},
		{"Kazoo", "kazoo", nil, 200, 1, func(c *contest) *contender { return c.peers(kazooLock, c.kazoo, 1)[0] }},
		// A reader first looks who has joined.
		{"CuratorWriter", "curator-rw", []lockpool.LockOption{lockpool.Shared()}, 20, 2, curator(curatorWriter)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			newContest(t).takeKept(tt.peer, tt.layout, tt.opts, tt.turns, tt.trips)
		})
	}
}

var curatorWriter = contender{name: "Curator", modes: exclusiveOrRead("write")}

// takeKept lets a client take a kept lock again and again.
func (c *contest) takeKept(start func(c *contest) *contender, layout string, opts []lockpool.LockOption, turns, trips int) {
	const trip = 40 * time.Millisecond
	peer, o := start(c), c.owner(layout, opts...)
	c.contenders = []*contender{peer}
	if peer.process != nil {
		c.ready(peer)
	}
	take := func() time.Duration {
		began := time.Now()
		c.mustAcquire(peer, peer.modes[0])
		return time.Since(began)
	}
	var kept, free []time.Duration
	var sent []int // requests of the owner, up to the removal
	for range turns {
		o.keep(c.Ctx)
		o.trip.Store(int64(trip))
		requests := locktest.Requests(o.proxy, func() { kept = append(kept, take()) })
		o.trip.Store(0)
		sent = append(sent, 1+slices.IndexFunc(requests, isRemoval))
		c.mustRelease(peer, peer.modes[0])
		free = append(free, take())
		c.mustRelease(peer, peer.modes[0])
	}
	slices.Sort(sent)
	slices.Sort(kept)
	slices.Sort(free)
	half := turns / 2
	c.Logf("the owner sent %d requests, %d at most; %s waited %v, and %v for a free lock, %v at most",
		sent[half], sent[turns-1], peer.name, kept[half], free[half], kept[turns-1])
	require.EqualValues(c, turns, o.Stats().AskedBack)
	require.Positive(c, sent[0], "the owner removes the node")
	require.LessOrEqual(c, sent[half], trips)
	require.Less(c, kept[half], 3*free[half]+time.Duration(trips+1)*trip) // a busy machine is slow to take a free lock, too
	c.finish()
}

// Curator and kazoo are refused a kept lock if they do not wait, and have asked for the
// lock.
func TestTryOfOtherClientAsksForKeptLock(t *testing.T) {
	for layout, start := range map[string]func(*contest) []*contender{
		"curator": func(c *contest) []*contender { return c.peers(curatorMutex, c.curator, 1) },
		"kazoo":   func(c *contest) []*contender { return c.peers(kazooLock, c.kazoo, 1) },
	} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			c := newContest(t)
			o := c.owner(layout)
			c.contenders = start(c)
			peer := c.contenders[0]
			c.ready(peer)
			o.keep(c.Ctx)
			removal := o.proxy.Inject(zktest.Rule{Match: zktest.Match{Where: isRemoval}, Do: zktest.HoldApply()})
			ok, err := c.acquire(c.Ctx, peer, peer.modes[0], 0)
			require.NoError(t, err)
			require.False(t, ok)
			require.NoError(t, removal.Wait(c.Ctx))
			removal.Release()
			c.Until(func() bool { return len(c.queue()) == 0 }, "the lock is free")
			ok, err = c.acquire(c.Ctx, peer, peer.modes[0], 0)
			require.NoError(t, err)
			require.True(t, ok)
			c.mustRelease(peer, peer.modes[0])
			c.finish()
		})
	}
}

// Curator's reader shares a lock kept for readers, and asks for nothing.
func TestKeptReaderSharesWithCurator(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	o := c.owner("curator-rw", lockpool.Shared())
	c.contenders = c.peers(curatorWriter, c.curator, 1)
	peer := c.contenders[0]
	c.ready(peer)
	o.keep(c.Ctx)
	for range 3 {
		c.mustAcquire(peer, peer.modes[1])
		o.keep(c.Ctx)
		c.mustRelease(peer, peer.modes[1])
	}
	require.Zero(t, o.Stats().AskedBack)
	c.mustAcquire(peer, peer.modes[0])
	require.EqualValues(t, 1, o.Stats().AskedBack)
	c.mustRelease(peer, peer.modes[0])
	c.finish()
}
