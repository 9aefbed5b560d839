package zookeeper

// This file tests what a check of watched nodes costs in a long queue.

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

// What a check costs depends on the nodes that a session watches, and not on the length of
// the queue: with a session for each waiter, listings would be n² names in each round.
func TestRechecksOfALongQueueDoNotListIt(t *testing.T) {
	once(t)
	bubble.Parallel(t)
	for _, test := range []struct {
		before  int // contenders that joined before
		watched int // the nearest of them
		lists   bool
	}{
		{before: 10, watched: 2, lists: true},
		{before: 1000, watched: 2},
		{before: 1000, watched: 12},
		{before: 1000, watched: 100, lists: true},
	} {
		t.Run(fmt.Sprintf("%d of %d", test.watched, test.before), func(t *testing.T) {
			bubble.Parallel(t)
			synctest.Test(t, func(t *testing.T) {
				server := zktest.StartBubble(t)
				s := open(t, server, Config{})
				require.NoError(t, server.Create("/a", nil))
				const prefix = "/a/_c_6b9e5bfa-7d36-4c2e-8a3c-4b1f6f1f7d55-lock-"
				for i := range test.before {
					require.NoError(t, server.Create(fmt.Sprintf("%s%010d", prefix, i), nil))
				}
				joined := join(t, s, "a")
				nodes := joined.Queue[test.before-test.watched:]
				watches, err := s.Watch(t.Context(), "a", nodes...)
				require.NoError(t, err)

				count := func(ops ...zktest.Op) *zktest.Fault {
					return server.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/a", Ops: ops}, Times: zktest.Always, Do: zktest.Pass()})
				}
				lists, looks := count(zktest.Lists...), count(zktest.OpExists)
				time.Sleep(10 * recheckInterval)
				for _, w := range watches {
					require.Zero(t, w.Fired())
				}
				require.Equal(t, test.lists, lists.Fired() > 0)
				require.Equal(t, !test.lists, looks.Fired() > 0)
				require.Zero(t, looks.Fired()%len(nodes))

				server.Inject(zktest.Rule{Match: zktest.Match{Ops: []zktest.Op{zktest.OpEvent}}, Times: zktest.Always, Do: zktest.Swallow()})
				require.NoError(t, server.Delete("/a/"+nodes[0].Name))
				time.Sleep(4 * recheckInterval)
				require.Equal(t, driver.Unnoticed, watches[0].Fired())
				for _, w := range watches[1:] {
					require.Zero(t, w.Fired())
				}
				require.NoError(t, s.Leave(t.Context(), "a", joined.Node))
			})
		})
	}
}
