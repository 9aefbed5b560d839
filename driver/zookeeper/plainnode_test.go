package zookeeper

// This file tests answers and watches that come late to the node of a plain lock.

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
	"github.com/lockpool/lockpool/testing/zktest"
)

// createPlain creates the node of a plain lock.
func createPlain(t *testing.T, s *session, name string) driver.Node {
	node, created, err := s.TryCreate(t.Context(), name, nil)
	require.NoError(t, err)
	require.True(t, created)
	return node
}

// requireRemoved removes a node, and requires that it is gone then.
func requireRemoved(t *testing.T, s *session, name string, node driver.Node) {
	require.NoError(t, s.Leave(t.Context(), name, node))
	_, err := s.exists(t.Context(), s.path(name))
	require.ErrorIs(t, err, zk.ErrNoNode)
}

// A session creates a node that another client removes, and creates the next one. The
// answers arrive together, so the first may be seen last.
func TestLateAnswerDoesNotDisownAPlainNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, zktest.StartBubble(t), Config{})
		node := createPlain(t, s, "a")
		removed := plainNode{name: znode.GUIDPrefix + "removed"}
		s.plainNodes.add(s.path("a"), removed)
		s.plainNodes.forget(s.path("a"), driver.Node{Kind: driver.Plain, Name: removed.name})
		requireRemoved(t, s, "a", node)
	})
}

// A revocation request replaces the data of a node whose creation was not confirmed.
func TestRevokedBeforeItsCreationIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, zktest.StartBubble(t), Config{})
		path := s.path("a")
		node := driver.Node{Kind: driver.Plain, Name: znode.GUIDPrefix + "unconfirmed"}
		err := s.requests.Create(path, []byte(znode.RevokeRequest), zk.FlagEphemeral, s.cfg.ACL)
		require.NoError(t, err)
		require.NoError(t, s.findCreatedPlain(path, node))
		s.plainNodes.add(path, plainNode{name: node.Name}) // as createPlain does
		require.NoError(t, s.Verify(t.Context(), driver.Located{Queue: "a", Node: node}))
		requireRemoved(t, s, "a", node)
	})
}

// A watch that was answered before a holder's node was created says nothing about that
// node, even if the clock has not advanced since.
func TestAnOlderWatchDoesNotDisownAPlainNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, zktest.StartBubble(t), Config{})
		older := s.newWatch(s.path("a"))
		older.Fire(driver.Missing)
		older.unarmed(nil)
		node := createPlain(t, s, "a")
		s.watches.byPath[s.path("a")] = older // its goroutine has not removed it yet
		_, err := s.Watch(t.Context(), "a", node)
		require.NoError(t, err)
		requireRemoved(t, s, "a", node)
	})
}

// The delete of a plain lock's node is neither sent on a later connection without a look at the
// node, nor counts as sent: meanwhile the node was removed, and another holder has the name.
func TestDeleteDoesNotWaitForAnotherConnection(t *testing.T) {
	for name, send := range map[string]int{"without a connection": 0, "without room on the connection": maxAnswers / minAnswer} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := zktest.StartBubble(t)
				s := open(t, server, Config{})
				other := open(t, server, Config{})
				node := createPlain(t, s, "a")
				server.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/other"}, Times: zktest.Always, Do: zktest.HoldReply()})
				require.NoError(t, server.RejectConnections())
				for range send {
					s.requests.send(existsRequest("/other"))
				}
				disconnect := func() { server.Reset(zktest.Selector{Session: s.id()}); synctest.Wait() }
				if send == 0 {
					disconnect()
				}
				left := make(chan error, 1)
				go func() { left <- s.Leave(context.Background(), "a", node) }() // ends with the answer
				synctest.Wait()
				disconnect()
				require.NoError(t, server.Delete("/a"))
				next := createPlain(t, other, "a")
				time.Sleep(unwatched)
				require.NoError(t, server.AcceptConnections())
				require.ErrorIs(t, <-left, driver.ErrRemoved)
				require.NoError(t, other.Verify(t.Context(), driver.Located{Queue: "a", Node: next}))
				requireRemoved(t, other, "a", next)
			})
		})
	}
}

// The same for what another client does to the node, after a look.
func TestNextPlainHolderIsNotMeant(t *testing.T) {
	for name, do := range map[string]func(*session, driver.Node) error{
		"Break":  func(s *session, n driver.Node) error { return s.Break(context.Background(), "a", n) },
		"Revoke": func(s *session, n driver.Node) error { return s.Revoke(context.Background(), "a", n, true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := zktest.StartBubble(t)
				s, holder := open(t, server, Config{}), open(t, server, Config{})
				node := createPlain(t, holder, "a")
				server.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/other"}, Times: zktest.Always, Do: zktest.HoldReply()})
				server.Inject(zktest.Rule{Match: zktest.Match{Prefix: "/a"}, Do: zktest.Call(func(zktest.Request) {
					for range maxAnswers / minAnswer { // no room is left on the connection
						s.requests.send(existsRequest("/other"))
					}
				})})
				require.NoError(t, server.RejectConnections())
				done := make(chan error, 1)
				go func() { done <- do(s, node) }() // ends with the answer
				synctest.Wait()
				server.Reset(zktest.Selector{Session: s.id()})
				requireRemoved(t, holder, "a", node)
				next := createPlain(t, holder, "a")
				require.NoError(t, server.AcceptConnections())
				require.ErrorIs(t, <-done, driver.ErrRemoved)
				watches, err := holder.Watch(t.Context(), "a", next)
				require.NoError(t, err)
				require.Zero(t, watches[0].Fired())
				require.False(t, watches[0].Revoked)
				requireRemoved(t, holder, "a", next)
			})
		})
	}
}
