package recipe

// This file tests the search for the holder.

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
)

// fakeSession has one queue. All watches have fired, and Data and List fail with err if
// set.
type fakeSession struct {
	driver.Session
	queue []driver.Node
	err   error
	leave int // how many heads leave, each just before the read of the data
	calls []string
}

func (s *fakeSession) Watch(_ context.Context, _ string, nodes ...driver.Node) (watches []*driver.Watch, err error) {
	for _, node := range nodes {
		w := driver.NewWatch()
		w.Data = []byte("data of " + node.Name)
		w.Fire(driver.Interrupted)
		watches = append(watches, w)
	}
	return watches, nil
}

func (s *fakeSession) Done() <-chan struct{} { return nil }

func (s *fakeSession) List(context.Context, string) ([]driver.Node, error) {
	s.calls = append(s.calls, "list")
	return s.queue, s.err
}

func (s *fakeSession) Data(_ context.Context, _ string, node driver.Node) ([]byte, error) {
	s.calls = append(s.calls, "data of "+node.Name)
	if s.leave > 0 {
		s.leave--
		s.queue = s.queue[1:]
	}
	if s.err == nil && !slices.Contains(s.queue, node) {
		return nil, driver.ErrRemoved
	}
	return []byte("data of " + node.Name), s.err
}

// fakeObserver records the wait and the holder.
type fakeObserver struct {
	Observer
	want   bool
	wait   Wait
	holder string
	data   string
}

func (o *fakeObserver) Waiting(w Wait) bool { o.wait = w; return o.want }
func (o *fakeObserver) Holder(node driver.Node, data []byte) {
	o.holder, o.data = node.Name, string(data)
}
func (o *fakeObserver) Woken(driver.Event, bool) {}

func TestWaitDeliversTheHolderIfWanted(t *testing.T) {
	t.Parallel()
	queue := []driver.Node{{Name: "a", Seq: 1}, {Name: "b", Seq: 2}, {Name: "c", Seq: 3}, {Name: "self", Seq: 4}}
	for name, c := range map[string]struct {
		unwanted bool
		kind     driver.Kind
		behind   int // index of the node waited for
		leave    int
		err      error
		holder   string
		calls    []string
	}{
		"head of the queue":    {behind: 2, holder: "a", calls: []string{"data of a"}},
		"next head":            {behind: 2, leave: 1, holder: "b", calls: []string{"data of a", "list", "data of b"}},
		"known already":        {behind: 0},
		"unwanted":             {behind: 2, unwanted: true},
		"of a semaphore":       {behind: 2, kind: driver.Guard},
		"service without data": {behind: 2, err: errors.New("no answer"), calls: []string{"data of a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, o := &fakeSession{queue: queue, leave: c.leave, err: c.err}, &fakeObserver{want: !c.unwanted}
			claim := Claim{Session: s, Queue: "q", Kind: c.kind, Observer: o}
			_, err := claim.wait(t.Context(), &state{claim: &claim, view: newView(), head: queue[0], self: queue[3], awaited: queue[c.behind : c.behind+1]})
			require.NoError(t, err)
			require.Equal(t, c.calls, s.calls)
			require.Equal(t, c.holder, o.holder)
			if c.holder != "" {
				require.Equal(t, "data of "+c.holder, o.data)
			}
			require.Equal(t, queue[c.behind], o.wait.Behind)
			require.Equal(t, "data of "+o.wait.Behind.Name, string(o.wait.Data))
			require.Equal(t, c.kind == driver.Guard, o.wait.Holder == driver.Node{})
		})
	}
}

func TestFindHolderGivesUpIfTheLockChangesHandsTooFast(t *testing.T) {
	t.Parallel()
	s := &fakeSession{queue: make([]driver.Node, 10), leave: 10}
	for i := range s.queue {
		s.queue[i] = driver.Node{Name: string(rune('a' + i)), Seq: int64(i)}
	}
	node, data := FindHolder(t.Context(), s, "q", driver.Node{})
	require.Zero(t, node)
	require.Empty(t, data)
	require.Less(t, len(s.calls), 20)
}

func TestFindHolderOfAnEmptyQueue(t *testing.T) {
	t.Parallel()
	s := new(fakeSession)
	node, _ := FindHolder(t.Context(), s, "q", driver.Node{})
	require.Zero(t, node)
	require.Equal(t, []string{"list"}, s.calls)
}
