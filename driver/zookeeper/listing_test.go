package zookeeper

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// A listing that is on its way may miss what later callers have to see, so they
// share the next one.
func TestListingIsSharedByAllCallersBeforeItIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := zktest.StartBubble(t)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		connector, err := NewConnector(Config{Servers: s.Members(), Dial: s.Dial})
		require.NoError(t, err)
		session, err := connector.Connect(ctx)
		require.NoError(t, err)
		defer session.Close(ctx)
		joined, err := session.Join(ctx, "a", driver.Mutex, 0, 0, nil, driver.Node{})
		require.NoError(t, err)
		node := joined.Node
		require.Equal(t, []driver.Node{node}, joined.Queue)

		lists := zktest.Match{Ops: zktest.Lists}
		held := s.Inject(zktest.Rule{Match: lists, Do: zktest.HoldReply()})
		sent := s.Inject(zktest.Rule{Match: lists, Times: zktest.Always, Do: zktest.Pass()})
		var all sync.WaitGroup
		list := func(expected ...driver.Node) {
			all.Go(func() {
				queue, err := session.List(ctx, "a")
				if err != nil || !slices.Equal(queue, expected) {
					t.Errorf("%v, %v", queue, err)
				}
			})
		}
		list(node)
		require.NoError(t, held.Wait(ctx))
		require.NoError(t, s.Delete("/a/"+node.Name))
		for range 100 {
			list()
		}
		synctest.Wait() // until all of them wait
		held.Release()
		all.Wait()
		synctest.Wait() // until the server has counted the last listing
		require.Equal(t, 2, sent.Fired(), "the first listing, and one for all others")
	})
}
