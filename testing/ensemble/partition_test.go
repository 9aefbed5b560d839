package ensemble

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

// hand is a lock in the hands of a holder that is about to lose it, and a rival
// that waits for it.
type hand struct {
	ended   chan time.Time // when the holder's context ended
	granted chan time.Time // when the rival was granted
}

// contend lets a holder lock name and a rival queue behind it.
func contend(t *testing.T, ctx context.Context, name string, holders, rivals *lockpool.Pool) hand {
	h := hand{make(chan time.Time, 1), make(chan time.Time, 1)}
	held, err := holders.Lock(ctx, name)
	require.NoError(t, err)
	work := held.Context(context.Background())
	go func() { // ends with the lock
		<-work.Done()
		h.ended <- time.Now()
	}()
	waiting := rivals.Stats().Waiting
	go func() { // ends with ctx
		lock, err := rivals.Lock(ctx, name)
		if err != nil {
			t.Error(err)
			return
		}
		h.granted <- time.Now()
		if !errors.Is(context.Cause(work), lockpool.ErrLockLost) {
			t.Errorf("the holder's context: %v", context.Cause(work))
		}
		if err := lock.Unlock(ctx); err != nil {
			t.Error(err)
		}
		_ = held.Unlock(ctx)
	}()
	require.Eventually(t, func() bool { return rivals.Stats().Waiting > waiting }, patience, time.Millisecond)
	return h
}

// slack waits for both and returns by how much the holder's end came first.
func (h hand) slack(t *testing.T, e *zktest.RealEnsemble) time.Duration {
	var at [2]time.Time
	for i, c := range []chan time.Time{h.ended, h.granted} {
		select {
		case at[i] = <-c:
		case <-time.After(patience):
			for m := range e.Len() { // often it is they who are not in time
				answer, err := e.Member(m).Command(within(t, time.Second), "srvr")
				t.Logf("member %d: %s%v", m, answer, err)
			}
			require.FailNow(t, "not in time", "of holder's end and rival's grant: %d", i)
		}
	}
	return at[1].Sub(at[0])
}

// The case that catches every other client. A follower that is cut off from its
// leader goes on answering the holder's pings and reads, while the leader
// expires the session and gives the lock to a rival.
func TestHolderAtAFollowerThatIsCutOffStopsBeforeItsRivalIsGranted(t *testing.T) {
	e := start(t)
	ctx := within(t, time.Duration(*cuts+2)*patience)
	least, cut := time.Hour, -1
	for n := range *cuts {
		leader := whole(t, ctx, e)
		cut = follower(e, leader, cut)
		rivals := open(t, 20*tick, leader.Addr())
		var hands []hand
		for i := range 4 { // each on a session of its own, in another phase of its lease
			holders := open(t, timeout, e.Member(cut).Addr())
			hands = append(hands, contend(t, ctx, fmt.Sprintf("cut-%d-%d", n, i), holders, rivals))
		}
		time.Sleep(time.Duration(n%8) * tick / 4) // the scenario: a lease in full swing, at any phase of the tick
		require.NoError(t, e.Isolate(cut))
		for _, h := range hands {
			slack := h.slack(t, e)
			least = min(least, slack)
			require.Positive(t, slack, "two holders for %s", -slack)
		}
		require.NoError(t, e.Heal())
	}
	t.Logf("%d cuts, %d holders: the smallest slack was %s, with a session timeout of %s", *cuts, *cuts*4, least, timeout)
}

// A leader that is cut off goes on answering syncs, because it needs nobody for
// that, until it misses its followers. They may have elected another by then.
func TestHolderAtALeaderThatWasReplacedStopsBeforeItsRivalIsGranted(t *testing.T) {
	const syncLimit = 24 // ticks until the old leader misses its followers
	e := start(t, zktest.Properties(map[string]string{"syncLimit": fmt.Sprint(syncLimit)}))
	ctx := within(t, 2*patience)
	old := whole(t, ctx, e)
	var others []*zktest.RealServer
	var addrs []string
	for i := range e.Len() {
		if s := e.Member(i); s != old {
			others = append(others, s)
			addrs = append(addrs, s.Addr())
		}
	}
	plain := dial(t, ctx, old.Addr(), 20*tick)
	holders := open(t, timeout, old.Addr())
	rivals := open(t, 20*tick, addrs...)
	h := contend(t, ctx, "a", holders, rivals)

	require.NoError(t, e.Isolate(index(e, old)))
	started := make(chan error)
	for _, s := range others { // so that they do not wait to miss it
		require.NoError(t, s.Kill())
	}
	for _, s := range others {
		go func() { started <- s.Start(ctx) }()
	}
	for range others {
		require.NoError(t, <-started)
	}
	slack := h.slack(t, e)
	_, err := plain.Sync("/")
	require.NoError(t, err, "the old leader notices too early for the test to mean anything")
	require.Positive(t, slack, "two holders for %s", -slack)
	t.Logf("the holder stopped %s before its rival was granted, and the old leader still answers syncs", slack)
	require.NoError(t, e.Heal())
}
