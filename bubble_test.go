package lockpool_test

// This file tests pools in bubbles of testing/synctest.

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// bubblePool returns a pool on the server, for a test in a bubble, where time passes
// when all goroutines wait.
func bubblePool(t *testing.T, server *zktest.Server, opts ...lockpool.Option) *lockpool.Pool {
	connector, err := zookeeper.NewConnector(zookeeper.Config{Servers: server.Members(), Dial: server.Dial})
	require.NoError(t, err)
	return locktest.Open(t, connector, opts...)
}

// Bubbles do not wait for each other, although their locks have the same paths.
func TestBubblesSideBySide(t *testing.T) {
	bubble.Parallel(t)
	var bubbles sync.WaitGroup
	for range 4 {
		bubbles.Go(func() {
			synctest.Test(t, func(t *testing.T) {
				server := zktest.StartBubble(t)
				var holders sync.WaitGroup
				for range 3 {
					pool := bubblePool(t, server)
					holders.Go(func() {
						work := func(context.Context) error {
							time.Sleep(time.Second)
							return nil
						}
						for range 50 {
							if err := pool.Do(t.Context(), "plain", work, lockpool.Plain()); err != nil {
								t.Error(err)
							}
							if err := pool.Do(t.Context(), "queue", work); err != nil {
								t.Error(err)
							}
						}
					})
				}
				holders.Wait()
			})
		})
	}
	bubbles.Wait()
}

// A leader that is cut off answers the syncs of its clients at once. The nodes that they
// wanted to create may still be created later, when it finds its followers again.
func TestCreateThatHangsAtTheLeaderLeavesNoNode(t *testing.T) {
	bubble.Parallel(t)
	for name, opts := range map[string][]lockpool.LockOption{"queue": nil, "plain": {lockpool.Plain()}} {
		t.Run(name, func(t *testing.T) {
			bubble.Parallel(t)
			synctest.Test(t, func(t *testing.T) {
				server := zktest.StartBubble(t, zktest.Members(3), zktest.TickTime(2*time.Second))
				leader := server.Leader()
				connector, err := zookeeper.NewConnector(zookeeper.Config{
					Servers: server.Members()[leader-1 : leader], Dial: server.Dial, SessionTimeout: 30 * time.Second,
				})
				require.NoError(t, err)
				pool := locktest.Open(t, connector)
				first, err := pool.Lock(t.Context(), "job", opts...)
				require.NoError(t, err)
				require.NoError(t, first.Unlock(t.Context()))

				require.NoError(t, server.Isolate(leader))
				locked := make(chan *lockpool.Lock)
				go func() { // ends when the lock is granted
					lock, err := pool.Lock(t.Context(), "job", opts...)
					if err != nil {
						t.Error(err)
					}
					locked <- lock
				}()
				time.Sleep(time.Second)
				server.Reset(zktest.Selector{})
				time.Sleep(4 * time.Second)
				server.HealMembers()
				lock := <-locked
				require.Equal(t, leader, server.Leader())
				queue, err := pool.Queue(t.Context(), "job")
				require.NoError(t, err)
				require.Len(t, queue.Contenders, 1)
				require.NoError(t, lock.Unlock(t.Context()))
				queue, err = pool.Queue(t.Context(), "job")
				require.NoError(t, err)
				require.Empty(t, queue.Contenders)
			})
		})
	}
}
