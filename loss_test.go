package lockpool_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/zktest"
)

// benchBehindProxy is a bench whose pools reach the server through a proxy.
func benchBehindProxy(t testing.TB) (*bench, *zktest.Proxy) {
	b := newBench(t)
	p := zktest.StartProxy(t, b.addr)
	b.addr = p.Addr()
	return b, p
}

var (
	creates = zktest.Match{Ops: zktest.Creates}
	deletes = zktest.Match{Ops: []zktest.Op{zktest.OpDelete}}
	lists   = zktest.Match{Ops: zktest.Lists}
	pings   = zktest.Match{Ops: []zktest.Op{zktest.OpPing}}

	// cuts are when the connection is lost to which a request belongs.
	cuts = map[string]zktest.Action{"before": zktest.DropBeforeApply(), "after": zktest.DropAfterApply()}
)

// Scenario 31. (kazoo leaves a contender behind that later holds the lock.)
func TestTryThatLosesItsConnectionLeavesNoContender(t *testing.T) {
	t.Parallel()
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, proxy := benchBehindProxy(t)
			holder := b.lock(b.pool(), "a")
			p := b.pool()
			b.unlock(b.lock(p, "other")) // connected
			f := proxy.Inject(zktest.Rule{Match: deletes, Do: cut})
			_, err := p.TryLock(b.ctx, "a")
			require.ErrorIs(t, err, lockpool.ErrLocked)
			require.NoError(t, f.Wait(b.ctx))
			b.queued("a", 1)
			b.unlock(holder)
			l := b.lock(p, "a")
			require.Equal(t, 1, p.Stats().OpenSessions)
			b.unlock(l)
		})
	}
}

// A reply that is lost, or a request, at any step of a lock and unlock: there is
// one node, and then none.
func TestLostConnectionAtAnyStepIsSurvived(t *testing.T) {
	t.Parallel()
	for step, match := range map[string]zktest.Match{"create": creates, "list": lists, "delete": deletes} {
		for name, cut := range cuts {
			t.Run(step+" "+name, func(t *testing.T) {
				t.Parallel()
				b, proxy := benchBehindProxy(t)
				p := b.pool()
				b.unlock(b.lock(p, "a"))
				f := proxy.Inject(zktest.Rule{Match: match, Do: cut})
				l := b.lock(p, "a")
				require.Len(t, b.children("a"), 1)
				b.unlock(l)
				require.NoError(t, f.Wait(b.ctx))
				require.Empty(t, b.children("a"))
			})
		}
	}
}

func TestLostConnectionWhileWaitingIsSurvived(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	p := b.pool()
	holder := b.lock(p, "a")
	w := b.wait(p, "a", 2)
	for range 3 {
		proxy.Cut(zktest.Selector{})
		require.NoError(t, p.Ping(b.ctx))
	}
	b.stillWaits(w)
	require.Equal(t, 1, holder.Depth(), "the session survives")
	proxy.Cut(zktest.Selector{}) // and once more, so that the deletion goes unseen
	b.unlock(holder)
	b.unlock(b.granted(w))
}

// Scenario 33.
func TestCreateThatIsCancelledUnderWayLeavesNoNode(t *testing.T) { // measures time: not beside others
	b, proxy := benchBehindProxy(t)
	p := b.pool()
	b.unlock(b.lock(p, "a"))
	f := proxy.Inject(zktest.Rule{Match: creates, Do: zktest.HoldReply()})
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error)
	go func() {
		_, err := p.Lock(ctx, "a")
		done <- err
	}()
	require.NoError(t, f.Wait(b.ctx))
	clock := startClock()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	clock.took(t, 0, 200*time.Millisecond, "giving up")
	require.Len(t, b.children("a"), 1, "the server did create it")
	f.Release()
	b.queued("a", 0)
}

// An expired session is not replaced underneath who holds a lock.
func TestExpiredSessionLosesItsLocks(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	cfg := b.config()
	cfg.SessionTimeout = time.Second
	p := b.poolWith(cfg)
	s := b.session(p)
	held, err := s.Lock(b.ctx, "a")
	require.NoError(t, err)
	ctx := held.Context(b.ctx)
	require.NoError(t, own.Pause())
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrLockLost)
	<-held.Lost()
	require.Zero(t, held.Depth())
	_, err = s.Lock(b.ctx, "a")
	require.ErrorIs(t, err, lockpool.ErrLockLost, "no reentry into what is lost")
	require.NoError(t, own.Resume())
	require.ErrorIs(t, held.Unlock(b.ctx), lockpool.ErrLockLost)
	require.ErrorIs(t, held.Unlock(b.ctx), lockpool.ErrNotHeld)

	again, err := s.Lock(b.ctx, "a") // on another session; waits for the dead one's node
	require.NoError(t, err)
	b.unlock(again)
	require.NoError(t, s.Close(b.ctx))
}

func TestDoReportsALossTogetherWithItsFunctionsError(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	cfg := b.config()
	cfg.SessionTimeout = time.Second
	p := b.poolWith(cfg)
	err := p.Do(b.ctx, "a", func(ctx context.Context) error {
		require.NoError(t, own.Pause())
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, lockpool.ErrLockLost)
	require.NoError(t, own.Resume())
	b.until(func() bool { return len(b.contenders("/")) == 0 }, "the server expires the session")
}

// Scenario 40: what the server refuses is asked for once.
func TestRefusedRequestIsNotRepeated(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	cfg := b.config()
	cfg.SessionTimeout = 10 * time.Second
	p := b.poolWith(cfg)
	require.NoError(t, p.Ping(b.ctx))
	b.forbid("/closed")
	before := b.stat(own, "zk_packets_received")
	_, err := p.Lock(b.ctx, "closed")
	require.ErrorIs(t, err, lockpool.ErrNoPermission)
	require.LessOrEqual(t, b.stat(own, "zk_packets_received")-before, 4, "create, list and the question itself")
}

// Scenario 75.
func TestLocksSurviveARestartOfTheServer(t *testing.T) {
	t.Parallel()
	own := startServer(t)
	b := newBenchOn(t, own.Addr())
	cfg := b.config()
	cfg.SessionTimeout = 10 * time.Second
	p, other := b.poolWith(cfg), b.poolWith(cfg)
	held := b.lock(p, "a")
	waiters := []*waiter{b.wait(other, "a", 2), b.wait(p, "a", 3)}
	for range 2 {
		require.NoError(t, own.Kill())
		require.NoError(t, own.Start(b.ctx))
		require.NoError(t, p.Ping(b.ctx))
		require.NoError(t, other.Ping(b.ctx))
	}
	require.Equal(t, 1, held.Depth())
	for _, w := range waiters {
		b.stillWaits(w)
	}
	b.unlock(held)
	for _, w := range waiters {
		b.unlock(b.granted(w))
	}
}

// 1,000 waiters in one process.
func TestThousandWaitersAreGrantedInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.pool()
	holder := b.lock(p, "a")
	const waiters = 1000
	granted := make(chan int, waiters)
	for i := range waiters {
		go func() {
			err := p.Do(b.ctx, "a", func(context.Context) error {
				granted <- i
				return nil
			})
			if err != nil {
				t.Error(err)
				granted <- -1
			}
		}()
		if i%100 == 99 {
			b.queued("a", i+2)
		}
	}
	b.unlock(holder)
	for i := range waiters {
		require.Equal(t, i/100, <-granted/100, "in the order of their hundreds")
	}
	require.NoError(t, p.Shutdown(b.ctx))
}

// A waiter whose session dies queues again by itself.
func TestWaiterOutlivesItsSession(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	direct := b.config()
	direct.Servers = []string{server.Addr()}
	holder := b.poolWith(direct)
	held := b.lock(holder, "a")
	cfg := b.config()
	cfg.SessionTimeout = time.Second
	p := b.poolWith(cfg)
	w := b.wait(p, "a", 2)
	first := b.children("a")[1]
	require.NoError(t, proxy.RejectConnections())
	proxy.Cut(zktest.Selector{})
	b.queued("a", 1) // the server has expired the session
	b.stillWaits(w)
	require.NoError(t, proxy.AcceptConnections())
	b.until(func() bool { queue := b.children("a"); return len(queue) == 2 && queue[1] != first }, "it queues again")
	b.unlock(held)
	b.unlock(b.granted(w))
}

// The servers count from when they got a request, not from when we got the
// reply.
func TestLateRepliesDoNotMakeTwoHolders(t *testing.T) {
	t.Parallel()
	b, proxy := benchBehindProxy(t)
	direct := b.config()
	direct.Servers = []string{server.Addr()}
	rival := b.poolWith(direct)
	cfg := b.config()
	cfg.SessionTimeout = 4 * time.Second
	p := b.poolWith(cfg)
	held := b.lock(p, "a")
	ctx := held.Context(b.ctx)
	w := b.wait(rival, "a", 2)

	// Less than what a lease bears: a server that is silent for T/4 is left, and the
	// last reply before may be T/12 old.
	late := zktest.DelayReply(cfg.SessionTimeout / 8)
	lag := []*zktest.Fault{
		proxy.Inject(zktest.Rule{Times: zktest.Always, Do: late}),
		proxy.Inject(zktest.Rule{Match: pings, Times: zktest.Always, Do: late}),
	}
	require.NoError(t, p.Ping(b.ctx)) // what is answered now was sent long ago
	proxy.Partition(zktest.Selector{}, zktest.Inbound)
	<-ctx.Done()
	b.stillWaits(w)
	require.ErrorIs(t, context.Cause(ctx), lockpool.ErrLockLost)
	b.unlock(b.granted(w))
	for _, f := range lag {
		f.Remove()
	}
	proxy.Heal()
}
