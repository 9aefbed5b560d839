package ensemble

// This file has what held on servers as people run them, and is to hold.

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// Each kind of lock works with what servers can be set to, from 40 goroutines at once.
func TestSettingsOfServers(t *testing.T) {
	for name, properties := range map[string]map[string]string{
		"local sessions that are upgraded": {"localSessionsEnabled": "true", "localSessionsUpgradingEnabled": "true"},
		"few connections":                  {"maxClientCnxns": "2"},
		"the other watch manager":          {"watchManagerName": "org.apache.zookeeper.server.watch.WatchManagerOptimized"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := zktest.StartRealEnsemble(t, 3, zktest.TickTime(tick), zktest.Properties(properties))
			ctx := locktest.Timeout(t, 3*patience)
			awaitSynced(t, ctx, e)
			connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: []string{e.Member(0).Addr()}, SessionTimeout: 20 * tick})
			require.NoError(t, err)
			pool, err := lockpool.OpenConnector(connector, lockpool.WithLocalTurns(0))
			require.NoError(t, err)
			defer pool.Close()
			var inside, turns int
			work := func(context.Context) error {
				inside++
				defer func() { inside-- }()
				turns++
				if inside != 1 {
					t.Error("two holders")
				}
				return nil
			}
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					if err := pool.Do(ctx, "queue", work); err != nil {
						t.Error(err)
					}
				})
				all.Go(func() {
					if err := pool.Semaphore("permits", 2).Do(ctx, 1, func(context.Context) error { return nil }); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			require.Equal(t, 20, turns)
			for range 3 {
				require.NoError(t, pool.Do(ctx, "plain", work, lockpool.Plain()))
			}
			require.NoError(t, pool.Once(ctx, "job", "key", work))
			require.ErrorIs(t, pool.Once(ctx, "job", "key", work), lockpool.ErrDone)
		})
	}
}
