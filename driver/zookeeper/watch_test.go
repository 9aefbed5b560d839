package zookeeper

// This file has tests of watches on contenders of several nodes.

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/zktest"
)

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
				watch := func(node driver.Node) *driver.Watch {
					watches, err := s.Watch(t.Context(), "a", node)
					require.NoError(t, err)
					return watches[0]
				}

				if when == "before" {
					remove(1 - seen)
				}
				waiter := watch(driver.Node{Kind: driver.Exclusive, Name: names[seen]})
				require.Zero(t, waiter.Fired())
				holder := watch(node)
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
