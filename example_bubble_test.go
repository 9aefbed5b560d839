package lockpool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestBubbleSessionExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: server.Members(), Dial: server.Dial})
		require.NoError(t, err)
		pool, err := lockpool.OpenConnector(connector)
		require.NoError(t, err)
		defer pool.Close()
		began := time.Now()
		err = pool.Do(t.Context(), "job", func(ctx context.Context) error {
			server.Partition(zktest.Selector{}, zktest.Both)
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, lockpool.ErrLockLost)
		t.Log(time.Since(began))
		server.Heal()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		l, err := pool.Lock(t.Context(), "job")
		require.NoError(t, err)
		began = time.Now()
		_, err = pool.Lock(ctx, "job")
		require.True(t, errors.Is(err, context.DeadlineExceeded))
		t.Log(time.Since(began))
		require.NoError(t, l.Unlock(t.Context()))
	})
}
