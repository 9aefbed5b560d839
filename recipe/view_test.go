package recipe

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

func TestViewForgetsContendersThatAreGone(t *testing.T) {
	t.Parallel()
	v := newView()
	a, b, c, later := driver.Node{Name: "a", Seq: 1}, driver.Node{Name: "b", Seq: 2}, driver.Node{Name: "c", Seq: 3}, driver.Node{Name: "d", Seq: 4}
	for _, n := range []driver.Node{a, b, c, later} {
		v.join(driver.Joined{Node: n, Queue: []driver.Node{n}})
	}
	for _, n := range []driver.Node{a, b, c} {
		v.join(driver.Joined{Node: n, Behind: []driver.Node{n}})
	}
	v.listed([]driver.Node{b, c})
	require.Equal(t, []bool{false, true, true, true}, []bool{v.isOwn(a), v.isOwn(b), v.isOwn(c), v.isOwn(later)})
	v.gone(b)
	require.False(t, v.isOwn(b))
}

func TestViewIsExtendedOnlyBehindItsLast(t *testing.T) {
	t.Parallel()
	other, a, b, c := driver.Node{Name: "o", Seq: 1}, driver.Node{Name: "a", Seq: 2}, driver.Node{Name: "b", Seq: 3}, driver.Node{Name: "c", Seq: 4}
	v := newView()
	require.Nil(t, v.join(driver.Joined{Node: b, Behind: []driver.Node{a}}), "nothing is known")
	require.Equal(t, []driver.Node{other, a}, v.join(driver.Joined{Node: a, Queue: []driver.Node{other, a}}))
	require.Nil(t, v.join(driver.Joined{Node: c, Behind: []driver.Node{b}}), "whether b is behind a is not known")
	require.Equal(t, []driver.Node{other, a, b, c}, v.join(driver.Joined{Node: c, Behind: []driver.Node{a, b}}))
	require.Equal(t, []driver.Node{other, a, b, c}, v.join(driver.Joined{Node: b, Behind: []driver.Node{a}}), "b comes late")
	require.Equal(t, a, func() driver.Node { v.listed([]driver.Node{other, a}); return v.last(driver.Mutex) }())
	require.Zero(t, v.last(driver.Permit))
	v.listed([]driver.Node{{Name: "r", Seq: 5, Kind: driver.Read}})
	require.Zero(t, v.last(driver.Read), "a reader would not wait")
	require.Equal(t, int32(5), v.last(driver.Mutex).Seq)

	end := driver.Node{Name: "e", Seq: math.MaxInt32}
	v.listed([]driver.Node{end})
	require.Nil(t, v.join(driver.Joined{Node: driver.Node{Name: "f", Seq: math.MinInt32}, Behind: []driver.Node{end}}), "a number that orders nothing")
}
