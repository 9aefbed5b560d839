package lockpool_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/behavior"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// What lockpool promises holds on ZooKeeper.
func TestBehavior(t *testing.T) {
	if locktest.Embedded() {
		behavior.RunInBubbles(t, nil, func(t *testing.T) behavior.Options {
			b := locktest.New(t)
			server := b.Server.(*zktest.Server)
			options := onBench(b, server)
			options.Pause = func(t testing.TB) func() {
				server.Partition(zktest.Selector{}, zktest.Both)
				return server.Heal
			}
			return options
		})
		return
	}
	b, proxy := locktest.NewBehindProxy(t)
	behavior.Run(t, onBench(b, proxy))
}

func onBench(b *locktest.Bench, server zktest.FaultInjector) behavior.Options {
	return behavior.Options{
		Open: func(t testing.TB, opts ...lockpool.Option) *lockpool.Pool {
			connector, err := zookeeper.NewConnector(b.Config())
			require.NoError(t, err)
			p, err := lockpool.OpenConnector(connector, opts...)
			require.NoError(t, err)
			return p
		},
		Expire: func(t testing.TB, session string) {
			id, err := strconv.ParseInt(session, 0, 64)
			require.NoError(t, err)
			require.NoError(t, server.ExpireSession(id))
		},
	}
}
