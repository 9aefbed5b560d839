package zookeeper_test

// This file tests Verify and Inspect: each node counts, and each request.

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/driver/zookeeper"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// sessionOf returns a session whose nodes are named in the layout. It is closed when the
// test ends.
func sessionOf(b *locktest.Bench, layout zookeeper.Layout) *zookeeper.Session {
	b.Helper()
	cfg := b.Config()
	cfg.Layout = layout
	connector, err := zookeeper.NewConnector(cfg)
	require.NoError(b, err)
	s, err := connector.Connect(b.Ctx)
	require.NoError(b, err)
	b.Cleanup(func() {
		require.NoError(b, s.Close(context.Background()))
		require.NoError(b, connector.Close())
	})
	return s.(*zookeeper.Session)
}

func join(b *locktest.Bench, s *zookeeper.Session, queue string, kind driver.Kind, permits int) driver.Located {
	b.Helper()
	joined, err := s.Join(b.Ctx, queue, driver.Request{Kind: kind, Permits: permits, Limit: 5 * permits, Data: []byte("data")})
	require.NoError(b, err)
	return driver.Located{Queue: queue, Node: joined.Node}
}

func createPlain(b *locktest.Bench, s *zookeeper.Session, name string) driver.Located {
	b.Helper()
	node, created, err := s.TryCreate(b.Ctx, name, []byte("data"))
	require.NoError(b, err)
	require.True(b, created)
	return driver.Located{Queue: name, Node: node}
}

func leave(b *locktest.Bench, s *zookeeper.Session, n driver.Located) {
	b.Helper()
	require.NoError(b, s.Leave(b.Ctx, n.Queue, n.Node))
}

// znodes returns the paths of the nodes of contenders that are alone in their queues.
func znodes(b *locktest.Bench, all []driver.Located) (paths []string) {
	b.Helper()
	for _, n := range all {
		path := b.Chroot + "/" + n.Queue
		if n.Kind == driver.Plain {
			paths = append(paths, path)
			continue
		}
		for _, child := range b.Children(n.Queue) {
			paths = append(paths, path+"/"+child)
		}
	}
	return paths
}

// Each contender that is asked for, of whatever kind and session, and each node that it
// consists of, must exist.
func TestVerifyNeedsEveryNode(t *testing.T) {
	for _, layout := range everyLayout {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			t.Parallel()
			b := locktest.New(t)
			asking, other := sessionOf(b, layout), sessionOf(b, layout)
			all := func() []driver.Located {
				return []driver.Located{
					join(b, asking, "orders/1", driver.Exclusive, 0), join(b, other, "orders/2", driver.Convertible, 0), join(b, other, "orders/3", driver.Shared, 0),
					join(b, other, "s/"+driver.Guards, driver.Exclusive, 0), join(b, other, "s/"+driver.Leases, driver.Permit, 3),
					createPlain(b, asking, "orders/4"), createPlain(b, other, "orders/5"), join(b, other, driver.Waits+"/orders/5", driver.Exclusive, 0),
				}
			}
			owners := []*zookeeper.Session{asking, other, other, other, other, asking, other, other}
			nodes := all()
			n := len(znodes(b, nodes))
			require.GreaterOrEqual(t, n, len(nodes)+2, "a contender with three permits has three nodes")
			for i := range n {
				require.NoError(t, asking.Verify(b.Ctx, nodes...))
				path := znodes(b, nodes)[i]
				require.NoError(t, b.Admin.Delete(path, -1))
				require.ErrorIs(t, asking.Verify(b.Ctx, nodes...), driver.ErrRemoved, path)
				for j, node := range nodes {
					if err := owners[j].Leave(b.Ctx, node.Queue, node.Node); err != nil {
						require.ErrorIs(t, err, driver.ErrRemoved)
					}
				}
				nodes = all()
			}
			for j, node := range nodes {
				leave(b, owners[j], node)
			}
		})
	}
}

// A request to release a plain lock replaces the name in its node. Only its own session
// still knows that name; the others know the node by the name that it has since.
func TestVerifyOfARevokedPlainNode(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	own, other := sessionOf(b, ""), sessionOf(b, "")
	held := createPlain(b, own, "a")
	require.NoError(t, other.Revoke(b.Ctx, "a", held.Node, false))
	require.NoError(t, own.Verify(b.Ctx, held))
	require.ErrorIs(t, other.Verify(b.Ctx, held), driver.ErrRemoved)
	found, _, err := other.Inspect(b.Ctx, "a", nil)
	require.NoError(t, err)
	require.Len(t, found, 1)
	revoked := driver.Located{Queue: "a", Node: found[0].Node}
	require.NotEqual(t, held, revoked)
	require.NoError(t, own.Verify(b.Ctx, revoked))
	require.NoError(t, other.Verify(b.Ctx, revoked))
	leave(b, own, held)
	next := createPlain(b, own, "a")
	require.NoError(t, other.Revoke(b.Ctx, "a", next.Node, false))
	for _, s := range []*zookeeper.Session{own, other} {
		require.ErrorIs(t, s.Verify(b.Ctx, held), driver.ErrRemoved)
		require.ErrorIs(t, s.Verify(b.Ctx, revoked), driver.ErrRemoved)
	}
	leave(b, own, next)
}

// All nodes are in one transaction, and afterward those of plain locks are read.
func TestRequestsOfVerify(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	b, own := locktest.NewEmbedded(t)
	asking, other := sessionOf(b, ""), sessionOf(b, "")
	nodes := []driver.Located{createPlain(b, other, "p")}
	for i := range 300 {
		nodes = append(nodes, join(b, other, fmt.Sprint("orders/", i), driver.Exclusive, 0))
	}
	nodes = append(nodes, createPlain(b, asking, "q"))
	paths := znodes(b, nodes)
	requests := locktest.Requests(own, func() { require.NoError(t, asking.Verify(b.Ctx, nodes...)) })
	require.Len(t, requests, 3)
	require.Equal(t, zktest.OpMulti, requests[0].Op)
	require.Equal(t, paths, requests[0].Paths)
	require.Equal(t, zktest.OpGetData, requests[1].Op)
	require.Equal(t, paths[:1], requests[1].Paths)
	require.Equal(t, zktest.OpGetData, requests[2].Op)
	require.Equal(t, paths[len(paths)-1:], requests[2].Paths)
	require.Empty(t, locktest.Requests(own, func() { require.NoError(t, asking.Verify(b.Ctx)) }))

	require.NoError(t, b.Admin.Delete(paths[299], -1))
	require.Len(t, locktest.Requests(own, func() { require.ErrorIs(t, asking.Verify(b.Ctx, nodes...), driver.ErrRemoved) }), 1)

	nodes = slices.Repeat(nodes, 10)
	require.Empty(t, locktest.Requests(own, func() {
		err := asking.Verify(b.Ctx, nodes...)
		require.ErrorIs(t, err, driver.ErrTooMany)
	}))
	require.NoError(t, asking.Verify(b.Ctx, nodes[0]), "the session is as before")
}

// Between the transaction and the reads, a plain lock's node goes, and another one comes.
func TestPlainNodeIsReplacedDuringVerify(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	b, own := locktest.NewEmbedded(t)
	asking, first, second := sessionOf(b, ""), sessionOf(b, ""), sessionOf(b, "")
	nodes := []driver.Located{join(b, asking, "b", driver.Exclusive, 0), createPlain(b, first, "a")}
	held := own.Inject(zktest.Rule{Match: zktest.Match{Prefix: b.Chroot + "/a", Ops: []zktest.Op{zktest.OpGetData}}, Do: zktest.HoldApply()})
	verified := make(chan error, 1)
	go func() { verified <- asking.Verify(b.Ctx, nodes...) }()
	require.NoError(t, held.Wait(b.Ctx))
	leave(b, first, nodes[1])
	next := createPlain(b, second, "a")
	held.Release()
	require.ErrorIs(t, <-verified, driver.ErrRemoved)
	leave(b, second, next)
	leave(b, asking, nodes[0])
}

// Nobody answers for the others: a server that has lost them says nothing about nodes.
func TestVerifyOnASeveredServer(t *testing.T) {
	locktest.InBubble(t, func(t *testing.T, b *locktest.Bench, own *zktest.Server) {
		s := sessionOf(b, "")
		nodes := []driver.Located{join(b, s, "a", driver.Exclusive, 0), createPlain(b, s, "p")}
		require.NoError(t, s.Verify(b.Ctx, nodes...))
		for _, c := range own.State().Conns {
			if fmt.Sprintf("0x%x", c.Session) == s.Info().ID {
				require.NoError(t, own.Isolate(c.Member))
			}
		}
		data, err := s.Data(b.Ctx, "a", nodes[0].Node)
		require.NoError(t, err, "it still answers reads")
		require.Equal(t, "data", string(data))
		ctx, cancel := context.WithTimeout(b.Ctx, time.Second)
		defer cancel()
		require.ErrorIs(t, s.Verify(ctx, nodes...), context.DeadlineExceeded)
		own.HealMembers()
		require.NoError(t, s.Verify(b.Ctx, nodes...))
	}, zktest.Members(3))
}

// The missing right is named, and so is the node.
func TestVerifyWithoutTheRight(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	s := sessionOf(b, "")
	nodes := []driver.Located{join(b, s, "a", driver.Exclusive, 0), join(b, s, "b", driver.Exclusive, 0)}
	hidden := znodes(b, nodes)[1]
	_, err := b.Admin.SetACL(hidden, zk.DigestACL(zk.PermAll, "admin", "x"), -1)
	require.NoError(t, err)
	err = s.Verify(b.Ctx, nodes...)
	require.ErrorIs(t, err, driver.ErrNoPermission)
	require.ErrorContains(t, err, " needs the right READ on "+hidden)
	for _, n := range nodes {
		leave(b, s, n)
	}
}

// A contender that is not wanted is not read. One that leaves before it is read is missing.
func TestInspectReadsWhatIsWanted(t *testing.T) {
	t.Parallel()
	locktest.Once(t)
	b, own := locktest.NewEmbedded(t)
	s := sessionOf(b, "")
	var nodes []driver.Located
	for range 4 {
		nodes = append(nodes, join(b, s, "a", driver.Exclusive, 0))
	}
	reads := 0
	for _, r := range locktest.Requests(own, func() {
		found, _, err := s.Inspect(b.Ctx, "a", func(n driver.Node) bool {
			if n == nodes[3].Node {
				leave(b, s, nodes[3])
			}
			return n == nodes[2].Node || n == nodes[3].Node
		})
		require.NoError(t, err)
		require.Len(t, found, 3)
	}) {
		if r.Op == zktest.OpGetData {
			reads++
		}
	}
	require.Equal(t, 2, reads)
	for _, n := range nodes[:3] {
		leave(b, s, n)
	}
}
