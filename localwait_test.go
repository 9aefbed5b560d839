package lockpool

// This file tests which contender is taken for a waiter in memory whose node is being created.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/internal/waitgraph"
)

// The waiter is shown once: with the node, if it was read already, and not instead of a holder
// that has left since the read, nor of another call on the session. The other waiters in memory
// stand behind the node.
func TestWaiterWhoseNodeIsBeingCreatedIsShownOnce(t *testing.T) {
	contender := func(name, session string, local bool) *waitgraph.Contender {
		return &waitgraph.Contender{
			Contender: driver.Contender{Node: driver.Node{Name: name}, Session: session},
			Record:    nodedata.Record{Local: local},
		}
	}
	holder, other, own := contender("holder", "1", true), contender("other", "2", true), contender("own", "1", true)
	try := contender("try", "1", false)
	in := new(Pool).localWaiters("a", map[string]newestTurn{"holder": {}})
	in.waiters, in.joining, in.behind = []Contender{{Node: "local-1", Local: true}, {Node: "local-2", Local: true}}, "1", "holder"
	for _, c := range []struct {
		found []*waitgraph.Contender
		shown []string
	}{
		{[]*waitgraph.Contender{holder}, []string{"holder", "local-1", "local-2"}},
		{[]*waitgraph.Contender{holder, own}, []string{"holder", "own", "local-2"}},
		{[]*waitgraph.Contender{other, try}, []string{"other", "try", "local-1", "local-2"}},
	} {
		var shown []string
		for _, told := range describe(c.found, in, nil) {
			shown = append(shown, told.Node)
		}
		require.Equal(t, c.shown, shown)
	}
}
