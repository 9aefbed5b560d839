package recipe

// This file tests views.

import (
	"context"
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
		v.join(driver.Joined{Node: n})
	}
	v.listed([]driver.Node{b, c})
	require.Equal(t, []bool{false, true, true, true}, []bool{v.isOwn(a), v.isOwn(b), v.isOwn(c), v.isOwn(later)})
	v.gone(b)
	require.False(t, v.isOwn(b))
}

// lookingSession is a fakeSession with a prepared answer to Join. The nodes leave one after
// the other: the next one leaves when watched, or when the queue is listed.
type lookingSession struct {
	fakeSession
	joined  driver.Joined
	leaving []driver.Node
	watches map[driver.Node]*driver.Watch
}

func (s *lookingSession) Join(context.Context, string, driver.Request) (driver.Joined, error) {
	return s.joined, nil
}

func (s *lookingSession) Leave(context.Context, string, driver.Node) error { return nil }

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
	s := &lookingSession{fakeSession{queue: queue}, driver.Joined{Node: self, Queue: queue}, []driver.Node{b, c, a}, map[driver.Node]*driver.Watch{}}
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
	s := &lookingSession{fakeSession{queue: queue}, driver.Joined{Node: self, Queue: queue}, []driver.Node{a, self}, map[driver.Node]*driver.Watch{}}
	rule := func(queue []driver.Node, i int) []driver.Node {
		if i == 0 {
			s.oneLeaves()
		}
		return queue[:i]
	}
	_, err := (&Claim{Session: s, Queue: "q", Rule: rule}).Acquire(t.Context())
	require.ErrorIs(t, err, driver.ErrRemoved)
}
