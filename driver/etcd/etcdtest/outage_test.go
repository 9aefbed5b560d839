package etcdtest

// This file tests the end of an outage.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// A process whose session was lost to an outage does not wait for the servers to end the
// lease, prolonged by another TTL by an election in the meantime.
func TestOwnLockIsFreeSoonAfterAnOutage(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	c := Start(t, 3)
	p := open(t, c.connector(t, withTTL(ttl)), lockpool.WithMaxSessions(1))
	l, err := p.Lock(t.Context(), "a")
	require.NoError(t, err)
	c.SetFault(func(Message) Action { return Freeze })
	time.Sleep(ttl * 3 / 4)
	elect(t, c)
	<-l.Lost()
	require.ErrorIs(t, l.Unlock(t.Context()), lockpool.ErrLockLost)
	c.SetFault(nil)
	require.NoError(t, p.Ping(t.Context()))
	began := time.Now()
	l, err = p.Lock(t.Context(), "a")
	require.NoError(t, err)
	took := time.Since(began)
	t.Logf("the lock of the session that was lost: %v after the first answer", took)
	require.Less(t, took, ttl/3, "the leader ends the lease later")
	require.NoError(t, l.Unlock(t.Context()))
}
