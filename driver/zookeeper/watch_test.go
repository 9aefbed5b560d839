package zookeeper

// This file has tests of watches on several nodes.

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

// watchOne watches a contender in the queue "a".
func watchOne(t *testing.T, s *session, node driver.Node) *driver.Watch {
	watches, err := s.Watch(t.Context(), "a", node)
	require.NoError(t, err)
	return watches[0]
}

// One node of a holder is removed before or after a waiter of the same session watches the
// other node alone. The holder, whose watch comes later, is told, and so is the waiter when
// the other node is gone too.
func TestWatchOnOneNodeDoesNotStandForTwo(t *testing.T) {
	for _, seen := range []int{0, 1} { // the node that the waiter watches
		for _, when := range []string{"before", "after"} {
			synctest.Test(t, func(t *testing.T) {
				server := zktest.StartBubble(t)
				s := open(t, server, Config{Layout: LayoutKazoo})
				node := join(t, s, "a").Node
				names := nodeNames(node)
				remove := func(i int) {
					require.NoError(t, server.Delete("/a/"+names[i]))
					synctest.Wait()
				}
				if when == "before" {
					remove(1 - seen)
				}
				waiter := watchOne(t, s, driver.Node{Kind: driver.Exclusive, Name: names[seen]})
				require.Zero(t, waiter.Fired())
				holder := watchOne(t, s, node)
				if when == "after" {
					require.Zero(t, holder.Fired())
					remove(1 - seen)
				}
				require.Equal(t, driver.Missing, holder.Fired(), "%s: without node %d", when, 1-seen)
				remove(seen)
				require.NotZero(t, waiter.Fired(), "%s: without node %d", when, seen)
			})
		}
	}
}

// A watch that another one replaces in part stands for nothing any longer. A stranger's node
// with the GUID of a contender makes two contenders with one node in common.
func TestReplacedWatchIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		s := open(t, server, Config{Layout: LayoutKazoo})
		node := join(t, s, "a").Node
		first := watchOne(t, s, node)
		require.NoError(t, server.Create("/a/"+strings.Replace(nodeNames(node)[0], "lock-", "__READ__", 1), nil))
		seen, err := s.List(t.Context(), "a")
		require.NoError(t, err)
		for _, n := range seen {
			watchOne(t, s, n)
		}
		require.Equal(t, driver.Interrupted, first.Fired())
		again := watchOne(t, s, node)
		time.Sleep(time.Minute)
		require.Zero(t, again.Fired())
	})
}

// An event before the answers to a watch on an own node was meant for the replaced watch. The
// session has not removed the node, so the watch does not say so.
func TestEventForAReplacedWatchIsNoProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		s := open(t, server, Config{Layout: LayoutKazoo})
		node := join(t, s, "a").Node
		names := nodeNames(node)
		require.NoError(t, server.Delete("/a/"+names[0]))
		_, err := s.Watch(t.Context(), "a", driver.Node{Kind: driver.Exclusive, Name: names[1]})
		require.NoError(t, err)
		server.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/a/"}, Do: zktest.DelayApply(time.Second)})
		told := make(chan driver.Event)
		go func() {
			watches, err := s.Watch(t.Context(), "a", node)
			if err != nil {
				t.Error(err)
			}
			told <- watches[0].Fired()
		}()
		synctest.Wait()
		require.NoError(t, server.Delete("/a/"+names[1]))
		require.Equal(t, driver.Missing, <-told)
	})
}

// Where the watches of waiters often come too late, the queue is listed with them, and only there.
func TestLateWatchesBringTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := zktest.StartBubble(t)
		s, other := open(t, server, Config{}), open(t, server, Config{})
		wait := func(late bool) (queue []driver.Node, own driver.Node) {
			before := join(t, other, "a").Node
			own = join(t, s, "a").Node
			if late {
				require.NoError(t, other.Leave(t.Context(), "a", before))
			}
			watches, err := s.Watch(t.Context(), "a", before, own)
			require.NoError(t, err)
			require.Equal(t, late, watches[0].Fired() == driver.Missing)
			if !late {
				require.NoError(t, other.Leave(t.Context(), "a", before))
			}
			require.NoError(t, s.Leave(t.Context(), "a", own))
			return watches[0].Queue, own
		}
		for _, late := range []bool{true, true, false, false} {
			queue, _ := wait(late)
			require.Nil(t, queue)
		}
		for range 2 {
			wait(true)
		}
		for range 3 {
			queue, own := wait(true)
			require.Equal(t, []driver.Node{own}, queue)
		}
	})
}
