package ensemble

// This file has the tests of locks during elections.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A held lock stays held while the servers elect another leader, and after the election
// locks are granted again. A restart of each member, one after the other, costs no lock
// either.
func TestHeldLocksSurviveElection(t *testing.T) {
	e := zktest.StartRealEnsemble(t, 3, zktest.TickTime(tick))
	ctx := locktest.Timeout(t, 3*patience)
	addrs := strings.Split(e.ConnectString(), ",")
	const session = 80 * tick // the longest timeout granted by the servers
	var held []*lockpool.Lock
	for i := range 12 { // on a session each, connected to any member
		l, err := open(t, session, addrs...).Lock(ctx, fmt.Sprint("held-", i))
		require.NoError(t, err)
		held = append(held, l)
	}
	pool := open(t, session, addrs...)
	var tokens []int64
	var outages []time.Duration
	for range 3 {
		leader := awaitSynced(t, ctx, e)
		lock, err := pool.Lock(ctx, "a")
		require.NoError(t, err)
		token, err := lock.Token(ctx)
		require.NoError(t, err)
		tokens = append(tokens, token)
		require.NoError(t, lock.Unlock(ctx))

		killed := time.Now()
		require.NoError(t, leader.Kill())
		lock, err = pool.Lock(ctx, "a")
		require.NoError(t, err)
		outages = append(outages, time.Since(killed))
		require.NoError(t, lock.Unlock(ctx))
		for i, l := range held {
			require.NoError(t, l.Verify(ctx))
			require.Equal(t, 1, l.Depth(), "lock %d", i)
		}
		require.NoError(t, leader.Start(ctx))
	}
	require.True(t, slices.IsSorted(tokens), "tokens must grow across elections: %v", tokens)
	require.Len(t, slices.Compact(tokens), 3)
	restartEach(t, ctx, e)
	for i, l := range held {
		require.NoError(t, l.Verify(ctx), "lock %d", i)
		require.NoError(t, l.Unlock(ctx))
	}
	t.Logf("from the leader's death to the next grant: %v", outages)
}

func restartEach(t *testing.T, ctx context.Context, e *zktest.RealEnsemble) {
	for i := range e.Len() {
		awaitSynced(t, ctx, e)
		require.NoError(t, e.Member(i).Stop(ctx))
		require.NoError(t, e.Member(i).Start(ctx))
	}
}
