package drivertest

// This file has the laws of queues.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/plays"
)

func joinAsRequested(r *run) {
	s, other := r.connect(), r.connect()
	for _, kind := range []driver.Kind{driver.Exclusive, driver.Shared} {
		queue, given := r.name(), []byte(data)
		joined, err := s.Join(r.ctx, queue, driver.Request{Kind: kind, Data: given})
		require.NoError(r, err)
		if kind == driver.Shared || joined.Node.Kind != driver.Convertible { // Convertible is exclusive, too
			require.Equal(r, kind, joined.Node.Kind)
		}
		require.Equal(r, []driver.Node{joined.Node}, joined.Queue, "the queue was empty")
		require.Equal(r, []driver.Node{joined.Node}, r.list(other, queue), "a node is the same for every session")
		given[0] = 'X'
		stored, err := other.Data(r.ctx, queue, joined.Node)
		require.NoError(r, err)
		require.Equal(r, data, string(stored), "Join must not retain the data")
		r.leave(s, driver.Located{Queue: queue, Node: joined.Node})
	}
	queue := r.name() + "/" + driver.Guards
	guard := r.joinAs(s, queue, driver.Request{Kind: driver.Guard})
	require.Equal(r, driver.Exclusive, guard.Kind, "the node of a guard")
	waits := driver.Waits + "/" + r.name()
	require.Equal(r, []driver.Node{r.join(s, waits).Node}, r.list(other, waits))
}

func joinTogether(r *run) {
	const each = 5
	sessions, queue := r.connectAll(4), r.name()
	own := make([]driver.Node, 4*each)
	plays.Together(r, 4*each, func(i int) error {
		joined, err := sessions[i%4].Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
		own[i] = joined.Node
		return err
	})
	nodes := r.list(sessions[0], queue)
	require.Len(r, nodes, 4*each)
	names := map[string]bool{}
	for _, n := range nodes {
		names[n.Name] = true
		require.True(r, r.connector.IsContender(n.Name), n)
	}
	require.Len(r, names, 4*each, "names are unique")
	for i, node := range own {
		r.leave(sessions[i%4], driver.Located{Queue: queue, Node: node})
	}
	require.False(r, names[r.join(sessions[0], queue).Name], "a name is used again")
}

func joinLosesReplies(r *run) {
	r.need("LoseReply", r.LoseReply != nil)
	s, other, queue := r.connect(), r.connect(), ""
	for i := range 6 {
		queue = r.name()
		if i%2 == 1 { // the driver knows the queue, and the directories exist
			r.leave(s, r.join(s, queue))
		}
		r.LoseReply(s)
		joined, err := s.Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
		if err == nil {
			require.Equal(r, []driver.Node{joined.Node}, r.list(other, queue))
			r.leave(s, driver.Located{Queue: queue, Node: joined.Node})
		}
		require.NoError(r, s.Err())
		r.until("no node is left", func() bool { return len(r.list(other, queue)) == 0 })
	}
	r.LoseReply(s)
	joins := make([]error, 20)
	plays.Together(r, len(joins), func(i int) error {
		_, joins[i] = s.Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
		return nil
	})
	created := len(slices.DeleteFunc(joins, func(err error) bool { return err != nil }))
	r.until("as many nodes as calls that succeeded", func() bool { return len(r.list(other, queue)) == created })
}

func joinAbandoned(r *run) {
	r.need("Pause", r.Pause != nil)
	s, queue := r.connect(), r.name()
	r.leave(s, r.join(s, queue)) // the driver knows the queue
	resume := r.pause(s)
	plays.Together(r, 5, func(int) error {
		ctx, cancel := r.shortly()
		defer cancel()
		_, err := s.Join(ctx, queue, driver.Request{Kind: driver.Exclusive})
		return expect("Join while Options.Pause has stopped the session", err, context.DeadlineExceeded)
	})
	resume()
	other := r.connect()
	_ = s.Ping(r.ctx) // what was sent before is decided, or the session is over
	r.until("no node is left", func() bool { return len(r.list(other, queue)) == 0 })
}

func orderOfJoins(r *run) {
	sessions, queue := r.connectAll(3), r.name()
	var nodes []driver.Located
	for i := range 12 {
		nodes = append(nodes, r.join(sessions[i%3], queue))
		listed, err := sessions[i%3].List(r.ctx, queue)
		require.NoError(r, err)
		require.Equal(r, nodesOf(nodes), listed, "a session knows of its own node, and of earlier nodes")
		require.Equal(r, nodesOf(nodes), r.list(sessions[(i+1)%3], queue))
		if i > 0 {
			require.Greater(r, nodes[i].Seq, nodes[i-1].Seq)
		}
	}
	for _, i := range []int{0, 4, 11} {
		r.leave(sessions[i%3], nodes[i])
	}
	left := slices.Concat(nodes[1:4], nodes[5:11])
	last := r.join(sessions[0], queue)
	require.Equal(r, nodesOf(append(left, last)), r.list(sessions[1], queue))
}

// orderTogether has several sessions join and leave. Each listing must contain, in order,
// every node that had joined before the listing began and not begun to leave by its end.
func orderTogether(r *run) {
	sessions, queue := r.connectAll(3), r.name()
	var mu sync.Mutex
	there := map[driver.Node]bool{}
	present := func() (nodes []driver.Node) {
		mu.Lock()
		defer mu.Unlock()
		for n := range there {
			nodes = append(nodes, n)
		}
		return nodes
	}
	set := func(n driver.Node, is bool) {
		mu.Lock()
		defer mu.Unlock()
		if there[n] = is; !is {
			delete(there, n)
		}
	}
	check := func(listed, before []driver.Node, own driver.Node) error {
		if !slices.IsSortedFunc(listed, bySeq) {
			return fmt.Errorf("not in order: %v", listed)
		}
		after := present()
		for _, n := range before {
			if slices.Contains(after, n) && driver.Place(listed, n) < 0 {
				return fmt.Errorf("%v is missing in %v", n, listed)
			}
			if slices.Contains(after, n) && n.Seq >= own.Seq && n != own {
				return fmt.Errorf("%v joined after %v", own, n)
			}
		}
		return nil
	}
	plays.Together(r, 9, func(i int) error {
		s := sessions[i%3]
		for range 10 {
			before := present()
			joined, err := s.Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
			if err != nil {
				return err
			}
			own := joined.Node
			if joined.Queue != nil {
				err = check(joined.Queue, append(before, own), own)
			}
			set(own, true)
			if err != nil {
				return err
			}
			before = append(before, own)
			listed, err := s.List(r.ctx, queue)
			if err == nil {
				err = check(listed, before, own)
			}
			if err != nil {
				return err
			}
			set(own, false)
			if err := s.Leave(r.ctx, queue, own); err != nil {
				return err
			}
		}
		return nil
	})
	require.Empty(r, r.list(sessions[0], queue))
}

func bySeq(a, b driver.Node) int { return cmp.Compare(a.Seq, b.Seq) }

func orderSlices(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	var all []driver.Located
	for range 4 {
		all = append(all, r.join(s, queue))
	}
	joined, err := other.Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
	require.NoError(r, err)
	listed := r.list(s, queue)
	for _, slice := range [][]driver.Node{listed, joined.Queue} {
		require.Equal(r, len(slice), cap(slice), "a slice has spare capacity")
	}
	before, queued := slices.Clone(listed), slices.Clone(joined.Queue)
	r.leave(s, all[0])
	r.leave(s, all[2])
	r.join(other, queue)
	r.list(s, queue)
	require.Equal(r, before, listed, "a slice has changed")
	require.Equal(r, queued, joined.Queue, "a slice has changed")
}

func leaveGone(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	first, second, third := r.join(s, queue), r.join(s, queue), r.join(s, queue)
	for _, n := range []driver.Located{second, first, third} {
		r.leave(s, n)
		require.NotContains(r, r.list(s, queue), n.Node)
		require.NotContains(r, r.list(other, queue), n.Node)
		_, err := other.Data(r.ctx, queue, n.Node)
		require.ErrorIs(r, err, driver.ErrRemoved)
		require.ErrorIs(r, other.Verify(r.ctx, n), driver.ErrRemoved)
	}
	sessions := r.connectAll(3)
	plays.Together(r, 30, func(i int) error {
		joined, err := sessions[i%3].Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
		if err == nil {
			err = sessions[i%3].Leave(r.ctx, queue, joined.Node)
		}
		return err
	})
	require.Empty(r, r.list(other, queue))
}

func leaveEndedContext(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	node := r.join(s, queue)
	if err := s.Leave(ended, queue, node.Node); err != nil {
		require.ErrorIs(r, err, context.Canceled)
	}
	r.until("the node is gone", func() bool { return len(r.list(other, queue)) == 0 })
}

func leaveLosesReplies(r *run) {
	r.need("LoseReply", r.LoseReply != nil)
	s, other, queue := r.connect(), r.connect(), r.name()
	for range 5 {
		node := r.join(s, queue)
		r.LoseReply(s)
		require.NoError(r, s.Leave(r.ctx, queue, node.Node))
		require.Empty(r, r.list(other, queue))
	}
}

func leaveDuringOutage(r *run) {
	r.need("Pause", r.Pause != nil)
	s, queue := r.connect(), r.name()
	node := r.join(s, queue)
	resume := r.pause(s)
	ctx, cancel := r.shortly()
	defer cancel()
	require.ErrorIs(r, s.Leave(ctx, queue, node.Node), context.DeadlineExceeded)
	resume()
	other := r.connect()
	r.until("the node is gone", func() bool { return len(r.list(other, queue)) == 0 })
}

func leaveRemoved(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	node, stays := r.join(s, queue), r.join(s, queue)
	r.remove(other, node)
	require.ErrorIs(r, s.Leave(r.ctx, queue, node.Node), driver.ErrRemoved)
	require.Equal(r, []driver.Node{stays.Node}, r.list(s, queue))
}

// remove removes a node of a session by the means of others.
func (r *run) remove(other driver.Session, n driver.Located) {
	r.Helper()
	if r.Remove != nil {
		r.Remove(n.Queue, n.Node)
		return
	}
	b := offered[driver.Breaker](r, other)
	require.NoError(r, other.Ping(r.ctx))
	require.NoError(r, b.Break(r.ctx, n.Queue, n.Node))
}

func createdGrows(r *run) {
	s, other := r.connect(), r.connect()
	queues, newest := []string{r.name(), r.name(), r.name()}, int64(0)
	for i := range 12 {
		owner := []driver.Session{s, other}[i%2]
		node := r.join(owner, queues[i%3])
		created := r.watchOne(owner, node).Created
		require.Greater(r, created, newest, "a node that was created later has a larger one")
		require.Less(r, created, int64(1)<<53)
		require.Equal(r, created, r.watchOne(other, node).Created)
		newest = created
		if i%4 != 3 { // queues become empty, and begin again
			r.leave(owner, node)
		}
	}
	require.Positive(r, newest)
	s = r.connect()
	require.Greater(r, r.watchOne(s, r.join(s, r.name())).Created, newest, "of another session and in another queue")
}

func createdTogether(r *run) {
	sessions := r.connectAll(3)
	queues := []string{r.name(), r.name()}
	var mu sync.Mutex
	newest := int64(0) // of the existing nodes
	seen := func(created int64) int64 {
		mu.Lock()
		defer mu.Unlock()
		newest = max(newest, created)
		return newest
	}
	plays.Together(r, 9, func(i int) error {
		s, queue := sessions[i%3], queues[i%2]
		for range 5 {
			before := seen(0)
			joined, err := s.Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
			if err != nil {
				return err
			}
			watches, err := s.Watch(r.ctx, queue, joined.Node)
			if err != nil {
				return err
			}
			if created := watches[0].Created; created <= before {
				return fmt.Errorf("%d was created after %d", created, before)
			}
			seen(watches[0].Created)
			if err := s.Leave(r.ctx, queue, joined.Node); err != nil {
				return err
			}
		}
		return nil
	})
}

func verifyNodes(r *run) {
	s, other := r.connect(), r.connect()
	var all []driver.Located
	for i := range 100 {
		all = append(all, r.join([]driver.Session{s, other}[i%2], r.name()))
	}
	require.NoError(r, s.Verify(r.ctx))
	require.NoError(r, s.Verify(r.ctx, all[1]), "of another session")
	require.NoError(r, s.Verify(r.ctx, all...))
	r.leave(other, all[99])
	require.ErrorIs(r, s.Verify(r.ctx, all...), driver.ErrRemoved)
	require.ErrorIs(r, s.Verify(r.ctx, all[99]), driver.ErrRemoved)
	require.NoError(r, s.Verify(r.ctx, all[:99]...))
}

// version returns the version of a node, or 0 if the driver has no Inspector.
func (r *run) version(s driver.Session, n driver.Located) int64 {
	r.Helper()
	i, ok := s.(driver.Inspector)
	if !ok {
		return 0
	}
	found, _, err := i.Inspect(r.ctx, n.Queue, nil)
	require.NoError(r, err)
	at := slices.IndexFunc(found, func(c driver.Contender) bool { return c.Node == n.Node })
	require.Positive(r, found[at].Version)
	return found[at].Version
}

func leaveIfOthersExist(r *run) {
	s, other := r.connect(), r.connect()
	own, beside := r.join(s, r.name()), r.join(s, r.name())
	var all []driver.Located
	for i := range 100 {
		all = append(all, r.join([]driver.Session{s, other}[i%2], r.name()))
		all[i].Version = r.version(s, all[i])
	}
	r.leave(other, all[99])
	require.ErrorIs(r, s.LeaveIf(r.ctx, own, all...), driver.ErrRemoved)
	require.Equal(r, []driver.Node{own.Node}, r.list(other, own.Queue))
	w := r.watchOne(other, own)
	require.NoError(r, s.LeaveIf(r.ctx, own, all[:99]...))
	r.fires(w, "the node was removed", gone...)
	require.Empty(r, r.list(s, own.Queue))
	require.ErrorIs(r, s.LeaveIf(r.ctx, own), driver.ErrRemoved)
	err := s.Leave(r.ctx, own.Queue, own.Node)
	require.True(r, err == nil || errors.Is(err, driver.ErrRemoved), "%v", err)
	require.NoError(r, other.Rewrite(r.ctx, all[1].Queue, all[1].Node, []byte("other data")))
	if all[1].Version != 0 {
		require.ErrorIs(r, s.LeaveIf(r.ctx, beside, all[1]), driver.ErrRemoved, "it has changed")
		require.ErrorIs(r, s.Verify(r.ctx, all[1]), driver.ErrRemoved, "it has changed")
	}
	all[1].Version = 0
	require.NoError(r, s.LeaveIf(r.ctx, beside, all[1]))
}

func leaveIfTogether(r *run) {
	sessions := r.connectAll(3)
	for range 10 {
		var all []driver.Located
		for i := range 6 {
			all = append(all, r.join(sessions[i%3], r.name()))
		}
		for _, s := range sessions {
			require.NoError(r, s.Ping(r.ctx))
		}
		var left atomic.Int32
		plays.Together(r, len(all), func(i int) error {
			err := sessions[i%3].LeaveIf(r.ctx, all[i], slices.Delete(slices.Clone(all), i, i+1)...)
			if err == nil {
				left.Add(1)
			}
			if errors.Is(err, driver.ErrRemoved) {
				err = nil
			}
			return err
		})
		require.EqualValues(r, 1, left.Load(), "one has left, and so the others have not")
	}
}

func leaveIfLosesReplies(r *run) {
	r.need("LoseReply", r.LoseReply != nil)
	s, other := r.connect(), r.connect()
	for range 3 {
		own, beside := r.join(s, r.name()), r.join(other, r.name())
		require.NoError(r, s.Ping(r.ctx))
		r.LoseReply(s)
		require.NoError(r, s.LeaveIf(r.ctx, own, beside))
		require.Empty(r, r.list(other, own.Queue))
		own = r.join(s, own.Queue)
		r.leave(other, beside)
		r.LoseReply(s)
		require.ErrorIs(r, s.LeaveIf(r.ctx, own, beside), driver.ErrRemoved)
		r.leave(s, own)
	}
}

func rewriteData(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	node, next := r.join(s, queue), r.join(s, queue)
	version := r.version(other, node)
	if v, ok := other.(driver.Revoker); ok {
		require.NoError(r, v.Revoke(r.ctx, queue, node.Node, true))
	}
	w, beside, own := r.watchOne(other, node), r.watchOne(other, next), r.watchOne(s, node)
	stored := []byte("other data")
	require.NoError(r, s.Rewrite(r.ctx, queue, node.Node, stored))
	require.Equal(r, driver.Changed, own.Fired())
	r.fires(w, "the data was changed", driver.Changed)
	r.waits(beside, "it is the watch of another node")
	clear(stored)
	now := r.watchOne(other, node)
	require.Equal(r, "other data", string(now.Data))
	require.Equal(r, w.Created, now.Created)
	require.Equal(r, w.Revoked, now.Revoked)
	found, err := other.Data(r.ctx, queue, node.Node)
	require.NoError(r, err)
	require.Equal(r, "other data", string(found))
	require.Equal(r, []driver.Node{node.Node, next.Node}, r.list(other, queue))
	if version != 0 {
		require.NotEqual(r, version, r.version(other, node))
	}
	r.leave(s, node)
	require.ErrorIs(r, s.Rewrite(r.ctx, queue, node.Node, nil), driver.ErrRemoved)
}
