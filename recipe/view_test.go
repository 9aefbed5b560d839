package recipe

import (
	"context"
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

// joinedSession is a fakeSession in which a contender joins directly behind one of its own.
type joinedSession struct {
	fakeSession
	joined driver.Joined
}

func (s *joinedSession) Join(context.Context, string, driver.Kind, int, int, []byte, driver.Node) (driver.Joined, error) {
	return s.joined, nil
}

func (s *joinedSession) Leave(context.Context, string, driver.Node) error { return nil }

// A waiter of the session may not have told the view yet that the writer before it is gone.
func TestTryFailsForNobodyWhoIsGone(t *testing.T) {
	t.Parallel()
	writer, reader := driver.Node{Name: "a", Seq: 1}, driver.Node{Name: "b", Seq: 2, Kind: driver.Read}
	self := driver.Node{Name: "c", Seq: 3, Kind: driver.Read}
	s := &joinedSession{fakeSession{queue: []driver.Node{reader, self}}, driver.Joined{Node: self, Behind: []driver.Node{reader}}}
	var views Views
	views.open("q").listed([]driver.Node{writer, reader})
	c := Claim{Session: s, Queue: "q", Kind: driver.Read, Rule: Shared, Views: &views}
	node, err := c.Try(t.Context())
	require.NoError(t, err)
	require.Equal(t, self, node)

	s.queue = []driver.Node{writer, reader, self}
	views.open("q").listed(s.queue[:2])
	_, err = c.Try(t.Context())
	require.ErrorIs(t, err, ErrBusy)
}
