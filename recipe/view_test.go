package recipe

// This file tests views.

import (
	"context"
	"math"
	"slices"
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
	require.Equal(t, a, func() driver.Node { v.listed([]driver.Node{other, a}); return v.last(driver.Exclusive) }())
	require.Zero(t, v.last(driver.Permit))
	v.listed([]driver.Node{{Name: "r", Seq: 5, Kind: driver.Shared}})
	require.Zero(t, v.last(driver.Shared), "a reader would not wait")
	require.Equal(t, int64(5), v.last(driver.Exclusive).Seq)

	end := driver.Node{Name: "e", Seq: math.MaxInt32}
	v.listed([]driver.Node{end})
	require.Nil(t, v.join(driver.Joined{Node: driver.Node{Name: "f", Seq: math.MinInt32}, Behind: []driver.Node{end}}), "a number that orders nothing")
}

// joinedSession is a fakeSession where a contender joins directly behind one of the same
// session.
type joinedSession struct {
	fakeSession
	joined driver.Joined
}

func (s *joinedSession) Join(context.Context, string, driver.Request) (driver.Joined, error) {
	return s.joined, nil
}

func (s *joinedSession) Leave(context.Context, string, driver.Node) error { return nil }

// A waiter of the session may not have told the view yet of the end of the writer before
// it.
func TestTryFailsForNobodyWhoIsGone(t *testing.T) {
	t.Parallel()
	writer, reader := driver.Node{Name: "a", Seq: 1}, driver.Node{Name: "b", Seq: 2, Kind: driver.Shared}
	self := driver.Node{Name: "c", Seq: 3, Kind: driver.Shared}
	s := &joinedSession{fakeSession{queue: []driver.Node{reader, self}}, driver.Joined{Node: self, Behind: []driver.Node{reader}}}
	var views Views
	views.open("q").listed([]driver.Node{writer, reader})
	c := Claim{Session: s, Queue: "q", Kind: driver.Shared, Rule: Shared, Views: &views}
	node, err := c.Try(t.Context())
	require.NoError(t, err)
	require.Equal(t, self, node)

	s.queue = []driver.Node{writer, reader, self}
	views.open("q").listed(s.queue[:2])
	_, err = c.Try(t.Context())
	require.ErrorIs(t, err, ErrBusy)
}

func TestWhoJoinsWithoutAListingIsNotGrantedTheLockUnseen(t *testing.T) {
	t.Parallel()
	reader, self := driver.Node{Name: "b", Seq: 2, Kind: driver.Shared}, driver.Node{Name: "c", Seq: 3, Kind: driver.Shared}
	s := &joinedSession{fakeSession{queue: []driver.Node{reader}}, driver.Joined{Node: self, Behind: []driver.Node{reader}}}
	var views Views
	views.open("q").listed([]driver.Node{reader})
	_, err := (&Claim{Session: s, Queue: "q", Kind: driver.Shared, Rule: Shared, Views: &views}).Acquire(t.Context())
	require.ErrorIs(t, err, driver.ErrRemoved)
}

// lookingSession is a joinedSession where the nodes leave one after the other: the next one
// leaves when watched, or when the queue is listed.
type lookingSession struct {
	joinedSession
	leaving []driver.Node
	watches map[driver.Node]*driver.Watch
}

func (s *lookingSession) oneLeaves() {
	if len(s.leaving) == 0 {
		return
	}
	node := s.leaving[0]
	s.leaving = s.leaving[1:]
	s.queue = slices.DeleteFunc(slices.Clone(s.queue), func(n driver.Node) bool { return n == node })
	if w := s.watches[node]; w != nil {
		w.Fire(driver.Deleted)
	}
}

func (s *lookingSession) List(context.Context, string) ([]driver.Node, error) {
	s.calls = append(s.calls, "list")
	s.oneLeaves()
	return s.queue, nil
}

func (s *lookingSession) Watch(_ context.Context, _ string, nodes ...driver.Node) (watches []*driver.Watch, err error) {
	call := "watch"
	for _, n := range nodes {
		call += " " + n.Name
		if s.watches[n] == nil {
			s.watches[n] = driver.NewWatch()
		}
		watches = append(watches, s.watches[n])
	}
	s.calls = append(s.calls, call)
	s.oneLeaves()
	return watches, nil
}

// The nearest gives up while the queue is listed, and the holder is still there.
func TestWhoeverLeavesDuringAListingGrantsNothingAlone(t *testing.T) {
	t.Parallel()
	a, b, c, self := driver.Node{Name: "a", Seq: 1}, driver.Node{Name: "b", Seq: 2}, driver.Node{Name: "c", Seq: 3}, driver.Node{Name: "d", Seq: 4}
	queue := []driver.Node{a, b, c, self}
	s := &lookingSession{joinedSession{fakeSession{queue: queue}, driver.Joined{Node: self, Queue: queue}}, []driver.Node{b, c, a}, map[driver.Node]*driver.Watch{}}
	node, err := (&Claim{Session: s, Queue: "q", Rule: Exclusive}).Acquire(t.Context())
	require.NoError(t, err)
	require.Equal(t, self, node)
	require.Equal(t, []string{"watch c b d", "list", "watch a d"}, s.calls)
}

// Another waiter may tell the view of the end of the last obstacle, after the event of an
// earlier end of the own node. So the own node is looked at after the view.
func TestTheOwnNodeIsLookedAtAfterTheView(t *testing.T) {
	t.Parallel()
	a, self := driver.Node{Name: "a", Seq: 1}, driver.Node{Name: "b", Seq: 2}
	queue := []driver.Node{a, self}
	s := &lookingSession{joinedSession{fakeSession{queue: queue}, driver.Joined{Node: self, Queue: queue}}, []driver.Node{a, self}, map[driver.Node]*driver.Watch{}}
	rule := func(queue []driver.Node, i int) []driver.Node {
		if i == 0 {
			s.oneLeaves()
		}
		return queue[:i]
	}
	_, err := (&Claim{Session: s, Queue: "q", Rule: rule}).Acquire(t.Context())
	require.ErrorIs(t, err, driver.ErrRemoved)
}
