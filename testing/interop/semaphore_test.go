package interop

// This file has the test of semaphores beside Curator.

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Curator's contenders acquire one permit each: two contenders for several would deadlock,
// because Curator takes them one by one.
func TestSemaphoresExcludeEachOther(t *testing.T) {
	t.Parallel()
	c := newContest(t)
	c.permits = 3
	c.contenders = c.peers(contender{name: "Curator", modes: []mode{{"permit", 1}}}, c.curator, 2)
	one, other := c.openPool(""), c.openPool("")
	for i, p := range []*pool{one, one, other} {
		c.contenders = append(c.contenders, &contender{
			name: fmt.Sprint("lockpool ", i+1), client: p.semaphore(c.Ctx, c.permits), reenters: true,
			modes: []mode{{"1", 1}, {"2", 2}, {"3", 3}},
		})
	}
	c.run(50)
	require.Contains(t, c.shared, "Curator 2 and lockpool 3")
}
