package lockpool_test

// This file runs the tests of behavior on the embedded server.

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

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
		inBubbles(t, zookeeper.LayoutCurator)
		return
	}
	b, proxy := locktest.NewBehindProxy(t)
	behavior.Run(t, onBench(b, proxy, zookeeper.LayoutCurator))
}

// The promises hold among pools with different layouts.
func TestBehaviorAcrossLayouts(t *testing.T) {
	locktest.Once(t)
	inBubbles(t, zookeeper.LayoutCurator, zookeeper.LayoutCuratorRW, zookeeper.LayoutKazoo, zookeeper.LayoutKazooRW)
}

// inBubbles runs the tests of behavior with pools that have the layouts by turns.
func inBubbles(t *testing.T, layouts ...zookeeper.Layout) {
	behavior.RunInBubbles(t, nil, func(t *testing.T) behavior.Options {
		b := locktest.New(t)
		server := b.Server.(*zktest.Server)
		options := onBench(b, server, layouts...)
		options.Pause = func(t testing.TB) func() {
			server.Partition(zktest.Selector{}, zktest.Both)
			return server.Heal
		}
		return options
	})
}

func onBench(b *locktest.Bench, server zktest.FaultInjector, layouts ...zookeeper.Layout) behavior.Options {
	var opened atomic.Int32
	return behavior.Options{
		Open: func(t testing.TB, opts ...lockpool.Option) *lockpool.Pool {
			cfg := b.Config()
			if !locktest.Embedded() {
				cfg.SessionTimeout = 40 * time.Second // a busy machine must not lose sessions
			}
			cfg.Layout = layouts[int(opened.Add(1))%len(layouts)]
			connector, err := zookeeper.NewConnector(cfg)
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
