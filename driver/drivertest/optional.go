package drivertest

// This file has the laws of the optional interfaces, plain locks and limits among them.

import (
	"errors"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/plays"
)

// tryCreate creates the node of a free plain lock.
func (r *run) tryCreate(s driver.Session, name string) driver.Located {
	r.Helper()
	node, created, err := offered[driver.PlainLocker](r, s).TryCreate(r.ctx, name, []byte(data))
	require.NoError(r, err)
	require.True(r, created, "another client has the lock")
	return driver.Located{Queue: name, Node: node}
}

func plainOneHolder(r *run) {
	sessions, name := r.connectAll(3), r.name()
	offered[driver.PlainLocker](r, sessions[0])
	last := int64(0)
	for range 10 {
		var created atomic.Int32
		holders, nodes := make([]bool, 9), make([]driver.Node, 9)
		plays.Together(r, 9, func(i int) (err error) {
			nodes[i], holders[i], err = sessions[i%3].(driver.PlainLocker).TryCreate(r.ctx, name, []byte(data))
			if holders[i] {
				created.Add(1)
			}
			return err
		})
		require.EqualValues(r, 1, created.Load(), "holders at a time")
		for i, s := range sessions {
			w := r.watchOne(s, driver.Located{Queue: name, Node: nodes[i]})
			r.waits(w, "the lock is held")
			require.Equal(r, data, string(w.Data))
			if i == 0 {
				require.Greater(r, w.Created, last)
				last = w.Created
			}
		}
		for i := range nodes {
			require.Equal(r, driver.Plain, nodes[i].Kind)
			require.Zero(r, nodes[i].Seq)
			if holders[i] {
				require.NoError(r, sessions[i%3].Leave(r.ctx, name, nodes[i]))
			}
		}
	}
}

// plainWhose has a session leave a node replaced by another one.
func plainWhose(r *run) {
	s, other, name := r.connect(), r.connect(), r.name()
	old := r.tryCreate(s, name)
	w := r.watchOne(s, old)
	require.NoError(r, other.Verify(r.ctx, old))
	r.remove(other, old)
	r.fires(w, "another has removed the node", notDeleted...)
	now := r.tryCreate(other, name)
	require.ErrorIs(r, s.Verify(r.ctx, old), driver.ErrRemoved)
	require.ErrorIs(r, s.Leave(r.ctx, name, old.Node), driver.ErrRemoved)
	require.NoError(r, other.Verify(r.ctx, now), "the next holder's node is removed")
	taken := r.watchOne(s, now)
	r.leave(other, now)
	r.fires(taken, "the holder has left", gone...)
}

func plainLosesReplies(r *run) {
	r.need("LoseReply", r.LoseReply != nil)
	s, other, name := r.connect(), r.connect(), r.name()
	for range 3 {
		r.LoseReply(s)
		node := r.tryCreate(s, name)
		r.LoseReply(s)
		r.leave(s, node)
		r.leave(other, r.tryCreate(other, name))
	}
}

func limits(r *run) {
	s, other, name := r.connect(), r.connect(), r.name()
	l, o := offered[driver.Limiter](r, s), offered[driver.Limiter](r, other)
	_, _, err := l.Limit(r.ctx, name, 0)
	require.ErrorIs(r, err, driver.ErrLimit, "none is set")
	limit, w, err := l.Limit(r.ctx, name, 3)
	require.NoError(r, err)
	require.Equal(r, 3, limit)
	require.Nil(r, w)
	for _, set := range []int{5, 2, 0} {
		require.NoError(r, o.SetLimit(r.ctx, name, set))
		require.NoError(r, s.Ping(r.ctx))
		for given, want := range map[int]int{0: set, 3: min(3, set), 100: set} {
			limit, w, err := l.Limit(r.ctx, name, given)
			require.NoError(r, err)
			require.Equal(r, want, limit, "%d is set, and %d given", set, given)
			require.NotNil(r, w, "the watch of a limit that is set")
			r.waits(w, "the limit has not changed")
		}
	}
}

func limitWatch(r *run) {
	s, other, name := r.connect(), r.connect(), r.name()
	l, o := offered[driver.Limiter](r, s), offered[driver.Limiter](r, other)
	node := driver.Located{Queue: name, Node: driver.Node{Name: driver.Limit}}
	r.fires(r.watchOne(s, node), "no limit is set", driver.Missing)
	require.NoError(r, o.SetLimit(r.ctx, name, 5))
	w := r.watchOne(s, node)
	_, same, err := l.Limit(r.ctx, name, 0)
	require.NoError(r, err)
	require.NotNil(r, same, "the watch of a limit that is set")
	r.waits(w, "the limit has not changed")
	require.NoError(r, o.SetLimit(r.ctx, name, 6))
	r.fires(w, "another limit was set", driver.Changed)
	r.fires(same, "another limit was set", driver.Changed)
}

func limitPermits(r *run) {
	s, other, name := r.connect(), r.connect(), r.name()
	offered[driver.Limiter](r, s)
	queue := name + "/" + driver.Leases
	var want []driver.Node
	for permits := 1; permits <= 3; permits++ {
		n := r.joinAs(s, queue, driver.Request{Kind: driver.Permit, Permits: permits, Limit: 10 * permits})
		require.Equal(r, driver.Permit, n.Kind)
		require.Equal(r, permits, n.Permits)
		require.Equal(r, 10*permits, n.Limit)
		want = append(want, n.Node)
	}
	require.Equal(r, want, r.list(other, queue))
}

func downgradeInPlace(r *run) {
	for _, revoked := range []bool{false, true} {
		s, other, queue := r.connect(), r.connect(), r.name()
		d := offered[driver.Downgrader](r, s)
		old, next := r.join(s, queue), r.join(other, queue)
		if revoked {
			require.NoError(r, offered[driver.Revoker](r, other).Revoke(r.ctx, queue, old.Node, true))
		}
		own, its, beside := r.watchOne(s, old), r.watchOne(other, old), r.watchOne(other, next)
		read, err := d.Downgrade(queue, old.Node, []byte("shared"))
		require.NoError(r, err)
		r.fires(own, "another node has taken its place", driver.Changed)
		r.fires(its, "another node has taken its place", driver.Changed)
		require.Equal(r, driver.Shared, read.Kind)
		require.Equal(r, old.Seq, read.Seq, "it keeps its place")
		require.NotEqual(r, old.Name, read.Name)
		require.ErrorIs(r, s.Rewrite(r.ctx, queue, old.Node, nil), driver.ErrRemoved)
		require.NoError(r, other.Ping(r.ctx))
		if b, ok := other.(driver.Breaker); ok {
			require.ErrorIs(r, b.Break(r.ctx, queue, old.Node), driver.ErrRemoved)
		}
		if v, ok := other.(driver.Revoker); ok {
			require.ErrorIs(r, v.Revoke(r.ctx, queue, old.Node, true), driver.ErrRemoved)
		}
		require.Equal(r, []driver.Node{read, next.Node}, r.list(other, queue))
		r.fires(r.watchOne(other, old), "the node was replaced before", driver.Missing)
		r.waits(beside, "it is the watch of another node")
		w := r.watchOne(other, driver.Located{Queue: queue, Node: read})
		require.True(r, w.Created == its.Created || w.Created > beside.Created, "the new node was created now, or with the old one")
		require.Equal(r, revoked, w.Revoked, "a revocation stays")
		require.Equal(r, "shared", string(w.Data))
		r.leave(s, driver.Located{Queue: queue, Node: read})
		r.fires(w, "the reader has left", gone...)
	}
}

func downgradeGone(r *run) {
	s, queue := r.connect(), r.name()
	d := offered[driver.Downgrader](r, s)
	node := r.join(s, queue)
	r.leave(s, node)
	_, err := d.Downgrade(queue, node.Node, nil)
	require.ErrorIs(r, err, driver.ErrRemoved)
	require.Empty(r, r.list(s, queue))
}

func downgradeLosesReply(r *run) {
	r.need("LoseReply", r.LoseReply != nil)
	s, other, queue := r.connect(), r.connect(), r.name()
	d := offered[driver.Downgrader](r, s)
	node := r.join(s, queue)
	r.LoseReply(s)
	read, err := d.Downgrade(queue, node.Node, nil)
	require.NoError(r, err)
	require.Equal(r, []driver.Node{read}, r.list(other, queue))
}

func inspectContenders(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	i := offered[driver.Inspector](r, s)
	nodes := []driver.Located{r.join(s, queue), r.join(other, queue), r.join(s, queue)}
	found, others, err := i.Inspect(r.ctx, queue, nil)
	require.NoError(r, err)
	require.Empty(r, others)
	require.Len(r, found, 3)
	for j, c := range found {
		require.Equal(r, nodes[j].Node, c.Node)
		require.Equal(r, []driver.Session{s, other, s}[j].Info().ID, c.Session)
		require.Equal(r, r.watchOne(s, nodes[j]).Created, c.Created)
		require.Equal(r, data, string(c.Data))
		require.False(r, c.Joined.IsZero())
	}
	found, _, err = i.Inspect(r.ctx, queue, func(n driver.Node) bool { return n == nodes[1].Node })
	require.NoError(r, err)
	require.Equal(r, nodesOf(nodes), []driver.Node{found[0].Node, found[1].Node, found[2].Node})
	require.Equal(r, driver.Contender{Node: nodes[0].Node}, found[0], "it was not wanted")
	require.Equal(r, data, string(found[1].Data))
	if _, ok := s.(driver.PlainLocker); ok {
		plain := r.tryCreate(other, r.name())
		found, _, err := i.Inspect(r.ctx, plain.Queue, nil)
		require.NoError(r, err)
		require.Len(r, found, 1)
		require.Equal(r, driver.Plain, found[0].Kind)
		require.Equal(r, other.Info().ID, found[0].Session)
	}
	if l, ok := s.(driver.Limiter); ok {
		name := r.name()
		require.NoError(r, l.SetLimit(r.ctx, name, 1))
		_, others, err := i.Inspect(r.ctx, name, nil)
		require.NoError(r, err)
		require.Equal(r, []string{driver.Limit}, parts(others))
		release, err := takePermit(r, other, name)
		require.NoError(r, err)
		_, others, err = i.Inspect(r.ctx, name, nil)
		require.NoError(r, err)
		require.Subset(r, parts(others), []string{driver.Leases, driver.Limit})
		require.NoError(r, release())
	}
}

// parts returns the names about a semaphore.
func parts(others []string) (found []string) {
	for _, name := range others {
		if name == driver.Guards || name == driver.Leases || name == driver.Limit {
			found = append(found, name)
		}
	}
	return found
}

func inspectQueues(r *run) {
	s, other := r.connect(), r.connect()
	i := offered[driver.Inspector](r, s)
	prefix := r.name()
	r.join(other, prefix)
	r.join(other, prefix+"/b")
	r.join(s, prefix+"/a/x")
	r.join(s, prefix+"x") // another name, not below the prefix
	r.join(s, driver.Waits+"/"+prefix)
	r.join(s, driver.Waits+"/"+driver.Guards) // of a lock named Guards
	want := []string{prefix, prefix + "/a/x", prefix + "/b"}
	if _, ok := s.(driver.PlainLocker); ok {
		r.tryCreate(s, prefix+"/p")
		want = append(want, prefix+"/p")
	}
	if _, ok := s.(driver.Limiter); ok {
		_, err := takePermit(r, s, prefix+"/s")
		require.NoError(r, err)
		want = append(want, prefix+"/s")
	}
	left := r.join(s, prefix+"/left")
	r.leave(s, left)
	found, err := i.Queues(r.ctx, prefix)
	require.NoError(r, err)
	require.Equal(r, want, found)
	all, err := i.Queues(r.ctx, "")
	require.NoError(r, err)
	require.Subset(r, all, append(want, prefix+"x"))
	require.NotContains(r, all, driver.Waits+"/"+prefix)
	require.NotContains(r, all, driver.Waits)
	require.IsIncreasing(r, all)
}

// follow follows n contenders of a queue. If complete is true, contenders joining behind
// them change nothing.
func (r *run) follow(s driver.Session, queue string, n int, complete bool) driver.Followed {
	r.Helper()
	require.NoError(r, s.Ping(r.ctx))
	f, err := offered[driver.Follower](r, s).Follow(r.ctx, queue, func(queue []driver.Node) (int, bool) {
		return min(n, len(queue)), complete && len(queue) >= n
	})
	require.NoError(r, err)
	return f
}

// firedOf waits until one of the watches has fired.
func (r *run) firedOf(f driver.Followed) {
	r.Helper()
	require.NoError(r, r.first(f.Watches))
}

// notFired requires none of the watches to have fired.
func (r *run) notFired(s driver.Session, f driver.Followed) {
	r.Helper()
	require.NoError(r, s.Ping(r.ctx))
	for _, w := range f.Watches {
		r.waits(w, "the head has not changed")
	}
}

func followHead(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	empty := r.follow(s, queue, 1, false)
	require.Empty(r, empty.Contenders)
	first := r.join(other, queue)
	r.firedOf(empty)
	one, all := r.follow(s, queue, 1, true), r.follow(s, queue, 1, false)
	require.Len(r, one.Contenders, 1)
	require.Equal(r, first.Node, one.Contenders[0].Node)
	require.Equal(r, data, string(one.Contenders[0].Data))
	require.Equal(r, other.Info().ID, one.Contenders[0].Session)
	second := r.join(other, queue)
	r.firedOf(all)
	r.notFired(s, one)
	two := r.follow(s, queue, 2, true)
	require.Equal(r, []driver.Node{first.Node, second.Node}, []driver.Node{two.Contenders[0].Node, two.Contenders[1].Node})
	r.leave(other, second)
	r.firedOf(two)
	r.notFired(s, one)
	r.leave(other, first)
	r.firedOf(one)
	if _, ok := s.(driver.PlainLocker); ok {
		name := r.name()
		free := r.follow(s, name, 1, false)
		plain := r.tryCreate(other, name)
		r.firedOf(free)
		held := r.follow(s, name, 1, false)
		require.Len(r, held.Contenders, 1)
		require.Equal(r, driver.Plain, held.Contenders[0].Kind)
		r.leave(other, plain)
		r.firedOf(held)
	}
}

func followJoins(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	node := r.join(s, queue)
	for _, joining := range []driver.Session{s, other} {
		require.NoError(r, s.Rewrite(r.ctx, queue, node.Node, []byte("other data")))
		alone := r.follow(s, queue, 0, false)
		require.Len(r, alone.Watches, 1)
		r.notFired(s, alone)
		with := r.follow(s, queue, 1, false)
		next := r.join(joining, queue)
		r.fires(alone.Watches[0], "another contender has joined", driver.Changed)
		r.fires(with.Watches[1], "another contender has joined", driver.Changed)
		r.waits(with.Watches[0], "the first contender has not changed")

		alone, with = r.follow(s, queue, 0, false), r.follow(s, queue, 1, false)
		r.leave(joining, next)
		r.fires(alone.Watches[0], "another contender has left", driver.Changed)
		r.fires(with.Watches[1], "another contender has left", driver.Changed)
		r.waits(with.Watches[0], "the first contender has not changed")
	}
}

func followSemaphore(r *run) {
	s, other, name := r.connect(), r.connect(), r.name()
	l := offered[driver.Limiter](r, other)
	f := r.follow(s, name, 0, false)
	require.Empty(r, parts(f.Others))
	require.NoError(r, l.SetLimit(r.ctx, name, 2))
	r.firedOf(f)
	f = r.follow(s, name, 0, false)
	require.Equal(r, []string{driver.Limit}, parts(f.Others))
	lease := r.joinAs(other, name+"/"+driver.Leases, driver.Request{Kind: driver.Permit, Permits: 1})
	r.firedOf(f)
	f = r.follow(s, name, 0, false)
	require.ElementsMatch(r, []string{driver.Limit, driver.Leases}, parts(f.Others))
	leases := r.follow(s, lease.Queue, 1, true)
	require.Len(r, leases.Contenders, 1)
	r.leave(other, lease)
	r.firedOf(leases)
}

func countNeighbors(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	c := offered[driver.Counter](r, s)
	first, second, third := r.join(s, queue), r.join(other, queue), r.joinAs(s, queue, driver.Request{Kind: driver.Shared})
	r.leave(other, second)
	fourth := r.join(other, queue)
	for _, pair := range [][2]driver.Located{{first, second}, {second, third}, {third, fourth}} {
		require.True(r, c.Adjoins(pair[0].Node, pair[1].Node))
	}
	for _, pair := range [][2]driver.Located{{first, third}, {first, first}, {second, first}, {second, fourth}} {
		require.False(r, c.Adjoins(pair[0].Node, pair[1].Node))
	}
}

func sizeOfQueue(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	z := offered[driver.Sizer](r, s)
	size := func() int {
		require.NoError(r, s.Ping(r.ctx))
		n, err := z.Size(r.ctx, queue)
		require.NoError(r, err)
		return n
	}
	require.Zero(r, size())
	first := r.join(s, queue)
	second := r.join(other, queue)
	require.GreaterOrEqual(r, size(), 2)
	r.leave(s, first)
	require.GreaterOrEqual(r, size(), 1)
	r.leave(other, second)
	require.Zero(r, size())
}

func breakNodes(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	b := offered[driver.Breaker](r, other)
	node, next := r.join(s, queue), r.join(s, queue)
	own, its := r.watchOne(s, node), r.watchOne(other, node)
	require.NoError(r, b.Break(r.ctx, queue, node.Node))
	r.fires(own, "another has removed the node", notDeleted...)
	r.fires(its, "the node was removed", gone...)
	require.Equal(r, []driver.Node{next.Node}, r.list(s, queue))
	require.ErrorIs(r, b.Break(r.ctx, queue, node.Node), driver.ErrRemoved)
	require.NoError(r, s.Err(), "its session lives")
	if _, ok := s.(driver.PlainLocker); ok {
		plain := r.tryCreate(s, r.name())
		require.NoError(r, other.Ping(r.ctx))
		require.NoError(r, b.Break(r.ctx, plain.Queue, plain.Node))
		r.leave(other, r.tryCreate(other, plain.Queue))
	}
}

func revokeAsks(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	v := offered[driver.Revoker](r, other)
	node, next := r.join(s, queue), r.join(s, queue)
	own, its, beside := r.watchOne(s, node), r.watchOne(other, node), r.watchOne(s, next)
	require.NoError(r, v.Revoke(r.ctx, queue, node.Node, true))
	r.fires(own, "the lock was asked for", driver.Changed)
	r.fires(its, "the lock was asked for", driver.Changed)
	require.NoError(r, v.Revoke(r.ctx, queue, node.Node, true), "again")
	r.revoked(node, s, other)
	require.Equal(r, own.Created, r.watchOne(s, node).Created)
	require.False(r, r.watchOne(s, next).Revoked)
	r.waits(beside, "it is the watch of another node")
	require.Equal(r, []driver.Node{node.Node, next.Node}, r.list(other, queue), "it is only asked")
	r.leave(s, node)
	require.ErrorIs(r, v.Revoke(r.ctx, queue, node.Node, true), driver.ErrRemoved)
	foreign := r.watchOne(s, next)
	require.NoError(r, v.Revoke(r.ctx, queue, next.Node, false), "as one of another client")
	r.fires(foreign, "the lock was asked for", driver.Changed)
	require.True(r, r.watchOne(s, next).Revoked, "Watch.Revoked")
	r.leave(s, next)
	if _, ok := s.(driver.PlainLocker); ok {
		plain := r.tryCreate(s, r.name())
		w := r.watchOne(s, plain)
		require.NoError(r, other.Ping(r.ctx))
		require.NoError(r, v.Revoke(r.ctx, plain.Queue, plain.Node, true))
		r.fires(w, "the lock was asked for", driver.Changed)
		r.revoked(plain, s, other)
		r.leave(s, plain)
	}
}

// revoked requires the node to be revoked, with the same data as before, for each session.
func (r *run) revoked(node driver.Located, sessions ...driver.Session) {
	r.Helper()
	for _, s := range sessions {
		require.NoError(r, s.Ping(r.ctx))
		w := r.watchOne(s, node)
		require.True(r, w.Revoked, "Watch.Revoked")
		require.Equal(r, data, string(w.Data))
		stored, err := s.Data(r.ctx, node.Queue, node.Node)
		require.NoError(r, err)
		require.Equal(r, data, string(stored))
		if i, ok := s.(driver.Inspector); ok {
			found, _, err := i.Inspect(r.ctx, node.Queue, nil)
			require.NoError(r, err)
			require.Equal(r, node.Node, found[0].Node)
			require.Equal(r, data, string(found[0].Data))
		}
	}
}

func refused(r *run) {
	r.need("Refuse", r.Refuse != nil)
	s, other, queue := r.connect(), r.connect(), r.name()
	f := offered[driver.Refuser](r, s)
	node := r.join(s, queue)
	require.False(r, plays.Closed(f.Unremovable()))
	allow := r.Refuse(s)
	err := s.Leave(r.ctx, queue, node.Node)
	require.True(r, errors.Is(err, driver.ErrNoPermission) && !errors.Is(err, driver.ErrRemoved), "%v", err)
	require.True(r, plays.Closed(f.Unremovable()))
	require.Equal(r, []driver.Node{node.Node}, r.list(other, queue))
	allow()
	require.NoError(r, s.Close(r.ctx))
	r.until("the node goes with the session", func() bool { return len(r.list(other, queue)) == 0 })
}
