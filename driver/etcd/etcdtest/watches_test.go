package etcdtest

// This file tests watches that are used again.

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// A key watched by a session is watched for the next node as well, without a request; but
// not if the session does not ask for the next node, nor for long.
func TestWatchesAreUsedAgain(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	var requests atomic.Int32 // on streams of watches
	c.SetFault(func(m Message) Action {
		if m.Method == "Watch" && !m.Reply {
			requests.Add(1)
		}
		return Pass
	})
	const long = time.Minute // between two rounds of proofs are 7.5 s
	owner, waiter, hasty := connect(t, c, long), connect(t, c, long), connect(t, c, ttl)
	var node driver.Node
	join := func() {
		joined, err := owner.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive})
		require.NoError(t, err)
		node = joined.Node
	}
	watch := func(s driver.Session) *driver.Watch {
		watches, err := s.Watch(t.Context(), "q", node)
		require.NoError(t, err)
		return watches[0]
	}
	requireEvent := func(w *driver.Watch, want driver.Event) {
		ctx, cancel := w.Before(t.Context())
		defer cancel()
		<-ctx.Done()
		require.Equal(t, want, w.Fired())
	}
	requireRequests := func(want int32) {
		require.Eventually(t, func() bool { return requests.Load() >= want }, ttl, time.Millisecond)
		require.Equal(t, want, requests.Load())
	}
	for range 10 {
		join()
		w := watch(waiter)
		require.False(t, w.Revoked)
		require.NoError(t, waiter.(driver.Revoker).Revoke(t.Context(), "q", node, true))
		requireEvent(w, driver.Changed)
		w = watch(waiter)
		require.True(t, w.Revoked)
		require.NoError(t, owner.Leave(t.Context(), "q", node))
		requireEvent(w, driver.Deleted)
	}
	requireRequests(1)

	join() // watched by no session
	require.NoError(t, owner.Leave(t.Context(), "q", node))
	requireRequests(2)
	join()
	w := watch(waiter)
	requireRequests(3)
	require.NoError(t, owner.Leave(t.Context(), "q", node))
	requireEvent(w, driver.Deleted)

	join()
	w = watch(hasty)
	requireRequests(4)
	require.NoError(t, owner.Leave(t.Context(), "q", node)) // the other session's is not asked for
	requireEvent(w, driver.Deleted)
	requireRequests(6) // and the hasty one's ends, too
}

// The event of a changed limit comes later than the answers to later requests: these are not
// older than the change nevertheless.
func TestLimitsAreNotOlderThanAnswers(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s, other := connect(t, c, ttl), connect(t, c, ttl)
	l, o := s.(driver.Limiter), other.(driver.Limiter)
	require.NoError(t, o.SetLimit(t.Context(), "s", 100))
	_, _, err := l.Limit(t.Context(), "s", 0)
	require.NoError(t, err)
	c.SetFault(func(m Message) Action {
		if m.Method == "Watch" && m.Reply {
			return Late
		}
		return Pass
	})
	for set := range 5 {
		require.NoError(t, o.SetLimit(t.Context(), "s", set))
		require.NoError(t, s.Ping(t.Context()))
		limit, w, err := l.Limit(t.Context(), "s", 0)
		require.NoError(t, err)
		require.Equal(t, set, limit)
		require.NoError(t, o.SetLimit(t.Context(), "s", 100))
		joined, err := s.Join(t.Context(), "s/leases", driver.Request{Kind: driver.Permit, Permits: 1})
		require.NoError(t, err)
		require.Equal(t, driver.Changed, w.Fired(), "before Join returned")
		require.NoError(t, s.Leave(t.Context(), "s/leases", joined.Node))
		_, _, err = l.Limit(t.Context(), "s", 0)
		require.NoError(t, err)
	}
	c.SetFault(nil)
}

// A watch is about to begin when its node is removed, and then another one: the watch has fired
// if the removal of the other node has been told.
func TestBeginningWatchesMissNoRemoval(t *testing.T) {
	t.Parallel()
	c := Start(t, 1)
	s, other := connect(t, c, ttl), connect(t, c, ttl)
	join := func(s driver.Session) (driver.Node, string) {
		joined, err := s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive})
		require.NoError(t, err)
		key, _, _ := strings.Cut(joined.Node.Name, "@")
		return joined.Node, "lockpool/q/" + key
	}
	before, keyBefore := join(other)
	beside, _ := join(other) // read before an event is told
	own, ownKey := join(s)
	_, err := s.Watch(t.Context(), "q", own, beside)
	require.NoError(t, err)
	require.NoError(t, s.Rewrite(t.Context(), "q", own, []byte("other data"))) // the server goes on watching
	_, err = s.Watch(t.Context(), "q", before)
	require.NoError(t, err)
	call := 0
	c.SetFault(func(m Message) Action {
		switch {
		case m.Method == "Txn" && !m.Reply && call == 0 && strings.Contains(string(m.Data), ownKey):
			call = m.Call
		case m.Reply && m.Call == call:
			for _, key := range []string{ownKey, keyBefore} {
				_, err := c.admin.Delete(t.Context(), key)
				assert.NoError(t, err)
			}
			return Late
		}
		return Pass
	})
	watches, err := s.Watch(t.Context(), "q", before, own)
	require.NoError(t, err)
	ctx, cancel := watches[0].Before(t.Context())
	defer cancel()
	<-ctx.Done()
	require.Equal(t, driver.Missing, watches[1].Fired())
	require.Equal(t, driver.Deleted, watches[0].Fired())
	c.SetFault(nil)
}
