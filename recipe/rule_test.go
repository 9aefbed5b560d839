package recipe

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

func TestExclusiveWaitsForTheNearestOfWhoeverCameEarlier(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 3, Kind: driver.Read}, {Seq: 5, Kind: driver.Write}, {Seq: 6}, {Seq: 9}}
	for self, want := range []struct {
		obstacle int
		last     bool
	}{{-1, false}, {0, true}, {1, false}, {2, false}} {
		obstacle, last := Exclusive(queue, self)
		require.Equal(t, want.obstacle, obstacle)
		require.Equal(t, want.last, last)
	}
}

func TestSharedWaitsForTheNearestWhoAskedToBeAlone(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Seq: 1, Kind: driver.Read}, {Seq: 3, Kind: driver.Write}, {Seq: 4, Kind: driver.Read}, {Seq: 6}, {Seq: 7, Kind: driver.Read}}
	for self, want := range []struct {
		obstacle int
		last     bool
	}{{-1, false}, {-1, false}, {1, true}, {1, true}, {3, false}} {
		obstacle, last := Shared(queue, self)
		require.Equal(t, want.obstacle, obstacle, self)
		require.Equal(t, want.last, last, self)
	}
}
