package recipe

// This file tests the rules.

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// requireObstacles checks the numbers blocking each contender of a queue.
func requireObstacles(t *testing.T, rule Rule, queue []driver.Node, want ...[]int64) {
	t.Helper()
	require.Len(t, want, len(queue))
	for self := range queue {
		var behind []int64
		for _, o := range rule(queue, self) {
			behind = append(behind, o.Seq)
		}
		require.Equal(t, want[self], behind, self)
	}
}

func TestExclusiveWaitsForAllBeforeIt(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 3, Kind: driver.Shared}, {Seq: 5, Kind: driver.Convertible}, {Seq: 6}, {Seq: 9}}
	requireObstacles(t, Exclusive, queue, nil, []int64{3}, []int64{3, 5}, []int64{3, 5, 6})
}

func TestSharedWaitsForWriters(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 1, Kind: driver.Shared}, {Seq: 3, Kind: driver.Convertible}, {Seq: 4, Kind: driver.Shared}, {Seq: 6}, {Seq: 7, Kind: driver.Shared}}
	requireObstacles(t, Shared, queue, nil, nil, []int64{3}, []int64{3}, []int64{3, 6})
}

func TestSharedDoesNotWaitForItsOwnNumber(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Name: "a", Seq: 1, Kind: driver.Convertible}, {Name: "b", Seq: 1, Kind: driver.Shared}, {Seq: 2, Kind: driver.Shared}}
	requireObstacles(t, Shared, queue, nil, nil, []int64{1})
}

func TestWaitersAreThoseWithObstacles(t *testing.T) {
	t.Parallel()
	r, w := driver.Shared, driver.Exclusive
	for _, c := range []struct {
		kinds   []driver.Kind
		holders int
	}{{nil, 0}, {[]driver.Kind{w}, 1}, {[]driver.Kind{w, w, r}, 1}, {[]driver.Kind{w, r}, 1}, {[]driver.Kind{r, r, w, r}, 2}} {
		var queue []driver.Node
		for i, k := range c.kinds {
			queue = append(queue, driver.Node{Seq: int64(i), Kind: k})
		}
		require.Equal(t, c.holders, FirstWaiter(queue), c.kinds)
	}
	downgraded := []driver.Node{{Seq: 1, Kind: driver.Convertible}, {Seq: 1, Kind: driver.Shared}, {Seq: 2}}
	require.Equal(t, 2, FirstWaiter(downgraded))
}

func TestWithinWaitsForAllHoldersThatMayMakeRoom(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 1, Permits: 1}, {Seq: 2, Permits: 2}, {Seq: 4, Permits: 1}, {Seq: 5, Permits: 3}}
	requireObstacles(t, Within(3), queue, nil, nil, []int64{1, 2}, []int64{1, 2, 4})
	requireObstacles(t, Within(4), queue, nil, nil, nil, []int64{1, 2, 4})
	requireObstacles(t, Within(7), queue, nil, nil, nil, nil)
}

func TestWithinUsesTheSmallestLimitStatedByEarlierContenders(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 1, Permits: 1, Limit: 5}, {Seq: 2, Permits: 1, Limit: 3}, {Seq: 4, Permits: 1}, {Seq: 5, Permits: 1, Limit: 9}, {Seq: 6, Permits: 1, Limit: 1}}
	requireObstacles(t, Within(4), queue, nil, nil, nil, []int64{1, 2, 4}, []int64{1, 2, 4, 5})
	requireObstacles(t, Within(2), queue[:3], nil, nil, []int64{1, 2})
}
