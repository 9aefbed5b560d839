package ensemble

// This file has the tests of locks during partitions.

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// takeover is a lock about to be lost by the holder, and granted to the waiter.
type takeover struct {
	lost    chan time.Time // receives when the holder's context ended, or the owner of a kept lock last held the lock
	granted chan time.Time // receives when the waiter was granted the lock
}

// contend locks name in one pool and queues a waiter of another pool behind.
func contend(t *testing.T, ctx context.Context, name string, holders, waiters *lockpool.Pool) takeover {
	o := takeover{make(chan time.Time, 1), make(chan time.Time, 1)}
	held, err := holders.Lock(ctx, name)
	require.NoError(t, err)
	work := held.Context(context.Background())
	go func() { // ends with the lock
		<-work.Done()
		o.lost <- time.Now()
	}()
	go func() { // ends with ctx
		lock, err := waiters.Lock(ctx, name)
		if err != nil {
			t.Error(err)
			return
		}
		granted := time.Now()
		select { // who was first is for requireOneHolder
		case <-work.Done():
		case <-ctx.Done():
		}
		if !errors.Is(context.Cause(work), lockpool.ErrLockLost) {
			t.Errorf("the holder's context must end with ErrLockLost, not %v", context.Cause(work))
		}
		if err := lock.Unlock(ctx); err != nil {
			t.Error(err)
		}
		_ = held.Unlock(ctx)
		o.granted <- granted // last: the test closes the pools when it has heard of all
	}()
	require.Eventually(t, func() bool { // a late machine may have lost the lock already
		queue, err := waiters.Queue(ctx, name)
		return err == nil && len(queue.Contenders) > 1 || len(o.granted) > 0
	}, patience, 5*time.Millisecond)
	return o
}

// keptLock is a lock that a pool keeps.
type keptLock struct {
	name   string
	owners *lockpool.Pool
	ctx    context.Context // of the owners' turns
	stop   context.CancelFunc
	last   chan time.Time // receives when the owners last held the lock
}

// keep makes a pool keep a lock that the pool then uses now and then, or does not use.
func keep(t *testing.T, ctx context.Context, name string, owners *lockpool.Pool, used bool) keptLock {
	k := keptLock{name: name, owners: owners, last: make(chan time.Time, 1)}
	k.ctx, k.stop = context.WithCancel(ctx)
	t.Cleanup(k.stop)
	var last time.Time
	for before := owners.Stats().Kept; owners.Stats().Kept == before; {
		if at, err := k.turn(ctx); err == nil {
			last = at
		}
		require.NoError(t, ctx.Err()) // a late machine may lose a session, whose node stays for a while
	}
	if !used {
		k.last <- last
		return k
	}
	go func() { // ends with k.ctx
		for {
			at, err := k.turn(k.ctx)
			if err != nil {
				break
			}
			last = at
			time.Sleep(tick / 25) // part of the scenario: the lock is mostly unused
		}
		k.last <- last
	}()
	return k
}

// turn locks and unlocks the lock, and returns a time at which the lock was held.
func (k keptLock) turn(ctx context.Context) (at time.Time, err error) {
	at = time.Now()
	l, err := k.owners.TryLock(ctx, k.name)
	if err != nil {
		return time.Time{}, err
	}
	if end := time.Now(); l.Unlock(ctx) == nil { // an error is a loss, after the grant
		at = end
	}
	return at, nil
}

// contend queues a waiter of another pool behind the owners, who do not learn of it.
func (k keptLock) contend(t *testing.T, ctx context.Context, waiters *lockpool.Pool) takeover {
	o := takeover{make(chan time.Time, 1), make(chan time.Time, 1)}
	go func() { // ends with ctx
		lock, err := waiters.Lock(ctx, k.name)
		if err != nil {
			t.Error(err)
			return
		}
		o.granted <- time.Now()
		soon, cancel := context.WithTimeout(k.ctx, tick/10)
		defer cancel()
		if _, err := k.turn(soon); err == nil {
			t.Errorf("the owner of %s has another turn after the grant to another pool", k.name)
		}
		k.stop()
		last := <-k.last
		if err := lock.Unlock(ctx); err != nil {
			t.Error(err)
		}
		o.lost <- last
	}()
	return o
}

// await waits for the loss and the grant, and returns how much later the grant came.
func (o takeover) await(t *testing.T, e *zktest.RealEnsemble) (lost time.Time, slack time.Duration) {
	var at [2]time.Time
	for i, c := range []chan time.Time{o.lost, o.granted} {
		select {
		case at[i] = <-c:
		case <-time.After(patience):
			for m := range e.Len() { // often the servers are the cause
				answer, err := e.Member(m).Command(locktest.Timeout(t, time.Second), "srvr")
				t.Logf("member %d: %s%v", m, answer, err)
			}
			require.FailNowf(t, "no "+[]string{"loss", "grant"}[i], "within %s", patience)
		}
	}
	return at[0], at[1].Sub(at[0])
}

// requireOneHolder requires a slack, measured while the clock ran: the loss came before the
// grant. A late machine ends the holder's context late.
func requireOneHolder(t *testing.T, slack time.Duration, clock *locktest.Clock) {
	late := clock.Late()
	require.Positive(t, slack+3*late, "there were two holders for %s (the machine itself was up to %v late)", -slack, late)
}

// The case that catches every other client: a follower cut off from the leader still
// answers the holder's pings and reads, while the leader expires the session and the waiter
// is granted the lock. Nor does the owner of a kept lock learn of the waiter.
func TestHolderOnPartitionedFollowerLosesLockBeforeGrant(t *testing.T) {
	e := start(t)
	ctx := locktest.Timeout(t, time.Duration(*cuts+2)*patience)
	least, cut, late := time.Hour, -1, 0
	for n := range *cuts {
		leader := awaitSynced(t, ctx, e)
		cut = follower(e, leader, cut)
		waiters := open(t, 20*tick, leader.Addr())
		var holders []*lockpool.Pool
		for range 4 { // on a session each, at different phases of their leases
			holders = append(holders, open(t, timeout, e.Member(cut).Addr()))
		}
		idle(t, ctx, holders[0], holders[2])
		clock := locktest.StartClock()
		var takeovers []takeover
		var kept []keptLock
		for i, h := range holders {
			takeovers = append(takeovers, contend(t, ctx, fmt.Sprintf("cut-%d-%d", n, i), h, waiters))
			for used, name := range map[bool]string{true: "used", false: "unused"} {
				kept = append(kept, keep(t, ctx, fmt.Sprintf("%s-%d-%d", name, n, i), h, used))
			}
		}
		time.Sleep(time.Duration(n%8) * tick / 4) // part of the scenario: a lease renewed at any phase of the tick
		require.NoError(t, e.Isolate(cut))
		isolated := time.Now()
		for _, k := range kept {
			takeovers = append(takeovers, k.contend(t, ctx, waiters))
		}
		shortest := time.Hour
		for i, o := range takeovers {
			lost, slack := o.await(t, e)
			shortest = min(shortest, slack)
			if i >= 4 && lost.After(isolated) {
				late++
			}
		}
		requireOneHolder(t, shortest, clock)
		least = min(least, shortest)
		require.NoError(t, e.Heal())
	}
	require.Positive(t, late, "no owner has used a kept lock after the cut: the test proves nothing")
	t.Logf("%d partitions, %d holders, %d kept locks, %d of which were used after the cut: the smallest slack was %s with a session timeout of %s",
		*cuts, *cuts*4, *cuts*8, late, least, timeout)
}

// idle returns when the sessions of the holders have been idle for some time.
func idle(t *testing.T, ctx context.Context, holders ...*lockpool.Pool) {
	for _, h := range holders {
		require.NoError(t, h.Ping(ctx))
	}
	time.Sleep(timeout * 3 / 2) // part of the scenario: the proofs that count were sent by the idle session
}

// A leader cut off still answers syncs, because a sync needs no follower, until noticing
// that the followers are gone. They may have elected another leader by then.
func TestHolderOnReplacedLeaderLosesLockBeforeGrant(t *testing.T) {
	const syncLimit = 240 // ticks until the old leader notices the loss of the followers: the restarts may take long
	e := start(t, zktest.Properties(map[string]string{"syncLimit": fmt.Sprint(syncLimit)}))
	ctx := locktest.Timeout(t, 2*patience)
	old := awaitSynced(t, ctx, e)
	var others []*zktest.RealServer
	var addrs []string
	for i := range e.Len() {
		if s := e.Member(i); s != old {
			others = append(others, s)
			addrs = append(addrs, s.Addr())
		}
	}
	client := locktest.Dial(t, old.Addr())
	holders := open(t, timeout, old.Addr())
	idle(t, ctx, holders)
	waiters := open(t, 20*tick, addrs...)
	clock := locktest.StartClock()
	o := contend(t, ctx, "a", holders, waiters)

	require.NoError(t, e.Isolate(index(e, old)))
	started := make(chan error)
	for _, s := range others { // a restart makes them elect at once
		require.NoError(t, s.Kill())
	}
	for _, s := range others {
		go func() { started <- s.Start(ctx) }()
	}
	for range others {
		require.NoError(t, <-started)
	}
	_, slack := o.await(t, e)
	requireOneHolder(t, slack, clock)
	_, err := client.Sync("/")
	require.NoError(t, err, "the old leader noticed too early: the test proves nothing")
	t.Logf("the holder lost the lock %s before the grant, and the old leader still answers syncs", slack)
	require.NoError(t, e.Heal())
}
