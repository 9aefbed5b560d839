package etcdtest

// This file tests Join behind a known node.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool/driver"
)

// A session knowing the end of a queue is told only who has joined since; but the whole
// queue if another session knows the end, or if the end has left.
func TestJoinBehindKnown(t *testing.T) {
	c := Start(t, 1)
	connect := func() driver.Session {
		s, err := connector(t, c.Endpoints()).Connect(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		return s
	}
	s, other := connect(), connect()
	join := func(s driver.Session, known driver.Node) driver.Joined {
		joined, err := s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive, Known: known})
		require.NoError(t, err)
		return joined
	}
	first := join(s, driver.Node{})
	require.Equal(t, []driver.Node{first.Node}, first.Queue)
	second := join(s, first.Node)
	require.Nil(t, second.Queue)
	require.Equal(t, []driver.Node{first.Node}, second.Behind)
	foreign := join(other, second.Node)
	require.Len(t, foreign.Queue, 3, "the known node is not the session's")
	third := join(s, second.Node)
	require.Len(t, third.Queue, 4, "another session has joined in between")
	fourth := join(s, third.Node)
	require.Nil(t, fourth.Queue)
	require.NoError(t, s.Leave(t.Context(), "q", third.Node))
	require.Len(t, join(s, third.Node).Queue, 5, "the known node has left")

	admin, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close()) })
	for _, foreign := range []string{"q/plain", "q/" + driver.Guards + "/1", "q/" + driver.Leases + "/1"} {
		granted, err := admin.Grant(t.Context(), 60)
		require.NoError(t, err)
		_, err = admin.Put(t.Context(), "lockpool/"+foreign, "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
		_, err = s.Join(t.Context(), "q", driver.Request{Kind: driver.Exclusive, Known: fourth.Node})
		require.ErrorIs(t, err, driver.ErrKind, foreign)
		_, err = admin.Revoke(t.Context(), granted.ID)
		require.NoError(t, err)
	}
}
