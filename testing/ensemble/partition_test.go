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
	"github.com/lockpool/lockpool/testing/zktest"
)

// takeover is a lock about to be lost by the holder, and granted to the waiter.
type takeover struct {
	lost    chan time.Time // receives when the holder's context ended
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
	waiting := waiters.Stats().Waiting
	go func() { // ends with ctx
		lock, err := waiters.Lock(ctx, name)
		if err != nil {
			t.Error(err)
			return
		}
		o.granted <- time.Now()
		if !errors.Is(context.Cause(work), lockpool.ErrLockLost) {
			t.Errorf("the holder's context must end with ErrLockLost, not %v", context.Cause(work))
		}
		if err := lock.Unlock(ctx); err != nil {
			t.Error(err)
		}
		_ = held.Unlock(ctx)
	}()
	require.Eventually(t, func() bool { return waiters.Stats().Waiting > waiting }, patience, time.Millisecond)
	return o
}

// slack waits for the loss and the grant, and returns by how much the loss came
// first.
func (o takeover) slack(t *testing.T, e *zktest.RealEnsemble) time.Duration {
	var at [2]time.Time
	for i, c := range []chan time.Time{o.lost, o.granted} {
		select {
		case at[i] = <-c:
		case <-time.After(patience):
			for m := range e.Len() { // often the servers are the cause
				answer, err := e.Member(m).Command(within(t, time.Second), "srvr")
				t.Logf("member %d: %s%v", m, answer, err)
			}
			require.FailNowf(t, "no "+[]string{"loss", "grant"}[i], "within %s", patience)
		}
	}
	return at[1].Sub(at[0])
}

// The case that catches every other client: a follower cut off from the leader still
// answers the holder's pings and reads, while the leader expires the session and the waiter
// is granted the lock.
func TestHolderOnPartitionedFollowerLosesLockBeforeGrant(t *testing.T) {
	e := start(t)
	ctx := within(t, time.Duration(*cuts+2)*patience)
	least, cut := time.Hour, -1
	for n := range *cuts {
		leader := awaitSynced(t, ctx, e)
		cut = follower(e, leader, cut)
		waiters := open(t, 20*tick, leader.Addr())
		var takeovers []takeover
		for i := range 4 { // on a session each, at different phases of their leases
			holders := open(t, timeout, e.Member(cut).Addr())
			takeovers = append(takeovers, contend(t, ctx, fmt.Sprintf("cut-%d-%d", n, i), holders, waiters))
		}
		time.Sleep(time.Duration(n%8) * tick / 4) // part of the scenario: a lease renewed at any phase of the tick
		require.NoError(t, e.Isolate(cut))
		for _, o := range takeovers {
			slack := o.slack(t, e)
			least = min(least, slack)
			require.Positive(t, slack, "there were two holders for %s", -slack)
		}
		require.NoError(t, e.Heal())
	}
	t.Logf("%d partitions, %d holders: the smallest slack was %s with a session timeout of %s", *cuts, *cuts*4, least, timeout)
}

// A leader cut off still answers syncs, because a sync needs no follower, until noticing
// that the followers are gone. They may have elected another leader by then.
func TestHolderOnReplacedLeaderLosesLockBeforeGrant(t *testing.T) {
	const syncLimit = 24 // ticks until the old leader notices the loss of the followers
	e := start(t, zktest.Properties(map[string]string{"syncLimit": fmt.Sprint(syncLimit)}))
	ctx := within(t, 2*patience)
	old := awaitSynced(t, ctx, e)
	var others []*zktest.RealServer
	var addrs []string
	for i := range e.Len() {
		if s := e.Member(i); s != old {
			others = append(others, s)
			addrs = append(addrs, s.Addr())
		}
	}
	client := dial(t, ctx, old.Addr(), 20*tick)
	holders := open(t, timeout, old.Addr())
	waiters := open(t, 20*tick, addrs...)
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
	slack := o.slack(t, e)
	_, err := client.Sync("/")
	require.NoError(t, err, "the old leader noticed too early: the test proves nothing")
	require.Positive(t, slack, "there were two holders for %s", -slack)
	t.Logf("the holder lost the lock %s before the grant, and the old leader still answers syncs", slack)
	require.NoError(t, e.Heal())
}
