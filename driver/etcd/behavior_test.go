package etcd_test

// This file runs the tests of behavior with the client that users of the module get. Package
// etcdtest has the laws, faults and clusters, with the newest client.

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/etcd"
	"github.com/lockpool/lockpool/testing/behavior"
	"github.com/lockpool/lockpool/testing/locktest"
)

func TestBehavior(t *testing.T) {
	endpoints := []string{locktest.StartEtcd(t)}
	connector, err := etcd.NewConnector(etcd.Config{Endpoints: endpoints, TTL: 5 * time.Second})
	require.NoError(t, err)
	admin, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
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
			_, err = admin.Revoke(context.Background(), clientv3.LeaseID(id))
			require.NoError(t, err)
		},
	})
}
