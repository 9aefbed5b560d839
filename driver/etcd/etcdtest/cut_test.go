package etcdtest

// This file tests sessions at members that are cut off.

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var cuts = flag.Int("cuts", 2, "how many times TestHolderAtAMemberThatIsCutOff cuts one off")

// A member cut off from the others still passes keep-alives on to the leader, and a leader
// cut off answers them itself for a while. The holder's lock ends all the same, before
// another holder is granted the lock.
func TestHolderAtAMemberThatIsCutOff(t *testing.T) {
	t.Parallel()
	onEach(t, holderIsCutOff)
}

func holderIsCutOff(t *testing.T, version Option) {
	const ttl = 15 * time.Second // a rival survives the elections of an old etcd, and a holder learns of the loss within 0.05 TTL
	c := Start(t, 3, version)
	t.Log("etcd", c.Version())
	margins := make([]time.Duration, 0, *cuts)
	rival := open(t, c.connector(t, withTTL(ttl)))
	for i := range *cuts {
		leader, err := c.Leader(t.Context())
		require.NoError(t, err)
		member, role := leader, "leader"
		if i%2 == 0 {
			member, role = (leader+1)%3, "follower"
		}
		holder, err := lockpool.OpenConnector(c.connector(t, toMember(member), withTTL(ttl)))
		require.NoError(t, err)
		name := fmt.Sprint("cut/", i)
		l, err := holder.Lock(t.Context(), name)
		require.NoError(t, err)
		var at time.Time
		var after bool // the holder had been told of the loss
		next := make(chan *lockpool.Lock, 1)
		go func() { // ends with the grant
			g, err := rival.Lock(context.Background(), name)
			at, after = time.Now(), plays.Closed(l.Lost())
			if err != nil {
				g = nil
			}
			next <- g
		}()
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		heal := c.Isolate(member)
		<-l.Lost()
		lost := time.Now()
		g := <-next
		require.True(t, after, "%s: lost after %v, granted after %v", role, lost.Sub(began), at.Sub(began))
		margins = append(margins, at.Sub(lost))
		t.Logf("%s: lost after %v, granted to the rival after %v", role, lost.Sub(began), at.Sub(began))
		heal()
		require.NotNil(t, g)
		require.NoError(t, g.Unlock(t.Context()))
		require.ErrorIs(t, l.Unlock(t.Context()), lockpool.ErrLockLost)
		require.NoError(t, holder.Close())
	}
	slices.Sort(margins)
	t.Logf("from the loss to the rival's grant: at least %v, median %v", margins[0], margins[len(margins)/2])
}

// A session moves to another member, and keeps all locks.
func TestSessionMovesToAnotherMember(t *testing.T) {
	t.Parallel()
	onEach(t, sessionMoves)
}

func sessionMoves(t *testing.T, version Option) {
	c := Start(t, 3, version)
	const long = 10 * time.Second // several elections
	p := open(t, c.connector(t, withTTL(long)))
	l, err := p.Lock(t.Context(), "a")
	require.NoError(t, err)
	for member := range 3 {
		_, err := c.Leader(t.Context()) // or an old etcd would have no leader for longer than one election
		require.NoError(t, err)
		heal := c.Isolate(member)
		time.Sleep(long / 2)
		heal()
		c.Clients(member).Break()
		require.NoError(t, l.Verify(t.Context()), "member %d", member)
	}
	require.NoError(t, l.Unlock(t.Context()))
}
