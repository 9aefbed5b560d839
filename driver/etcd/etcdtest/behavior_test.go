package etcdtest

// This file runs the tests of behavior on etcd.

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/testing/behavior"
)

// What lockpool promises holds on etcd.
func TestBehavior(t *testing.T) {
	endpoints := StartProcess(t, 1)
	connector, err := etcd.NewConnector(etcd.Config{Endpoints: endpoints, TTL: ttl})
	require.NoError(t, err)
	admin, err := clientv3.New(clientv3.Config{Endpoints: endpoints})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close()) })
	behavior.Run(t, behavior.Options{
		Open: func(t testing.TB, opts ...lockpool.Option) *lockpool.Pool {
			p, err := lockpool.OpenConnector(connector, opts...)
			require.NoError(t, err)
			return p
		},
		Expire: func(t testing.TB, session string) {
			id, err := strconv.ParseInt(session, 16, 64)
			require.NoError(t, err)
			_, err = admin.Revoke(t.Context(), clientv3.LeaseID(id))
			require.NoError(t, err)
		},
	})
}
