package recipe

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// verdict is what a rule returns for one contender, with the numbers of the
// obstacles.
type verdict struct {
	behind     []int32
	sufficient bool
}

func requireVerdicts(t *testing.T, rule Rule, queue []driver.Node, want ...verdict) {
	t.Helper()
	require.Len(t, want, len(queue))
	for self := range queue {
		obstacles, sufficient := rule(queue, self)
		var behind []int32
		for _, o := range obstacles {
			behind = append(behind, o.Seq)
		}
		require.Equal(t, want[self], verdict{behind, sufficient}, self)
	}
}

func TestExclusiveWaitsForItsPredecessor(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 3, Kind: driver.Read}, {Seq: 5, Kind: driver.Write}, {Seq: 6}, {Seq: 9}}
	requireVerdicts(t, Exclusive, queue, verdict{}, verdict{[]int32{3}, true}, verdict{[]int32{5}, false}, verdict{[]int32{6}, false})
}

func TestSharedWaitsForTheNearestWriter(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 1, Kind: driver.Read}, {Seq: 3, Kind: driver.Write}, {Seq: 4, Kind: driver.Read}, {Seq: 6}, {Seq: 7, Kind: driver.Read}}
	requireVerdicts(t, Shared, queue, verdict{}, verdict{}, verdict{[]int32{3}, true}, verdict{[]int32{3}, true}, verdict{[]int32{6}, false})
}

// Scenario 86.
func TestSharedDoesNotWaitForItsOwnNumber(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Name: "a", Seq: 1, Kind: driver.Write}, {Name: "b", Seq: 1, Kind: driver.Read}, {Seq: 2, Kind: driver.Read}}
	requireVerdicts(t, Shared, queue, verdict{}, verdict{}, verdict{[]int32{1}, true})
}

func TestWithinWaitsForAllHoldersThatMayMakeRoom(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 1, Permits: 1}, {Seq: 2, Permits: 2}, {Seq: 4, Permits: 1}, {Seq: 5, Permits: 3}}
	requireVerdicts(t, Within(3), queue, verdict{}, verdict{}, verdict{[]int32{1, 2}, true}, verdict{[]int32{1, 2, 4}, false})
	requireVerdicts(t, Within(4), queue, verdict{}, verdict{}, verdict{}, verdict{[]int32{1, 2, 4}, false})
	requireVerdicts(t, Within(7), queue, verdict{}, verdict{}, verdict{}, verdict{})
}

func TestWithinUsesTheSmallestLimitStatedByEarlierContenders(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 1, Permits: 1, Limit: 5}, {Seq: 2, Permits: 1, Limit: 3}, {Seq: 4, Permits: 1}, {Seq: 5, Permits: 1, Limit: 9}, {Seq: 6, Permits: 1, Limit: 1}}
	requireVerdicts(t, Within(4), queue, verdict{}, verdict{}, verdict{}, verdict{[]int32{1, 2, 4}, true}, verdict{[]int32{1, 2, 4, 5}, false})
	requireVerdicts(t, Within(2), queue[:3], verdict{}, verdict{}, verdict{[]int32{1, 2}, true})
}
