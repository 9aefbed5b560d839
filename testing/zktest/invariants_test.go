package zktest

// This file has the test of the invariants.

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each kind of damage, because a check unable to fail proves nothing.
func TestInvariantsFindDamage(t *testing.T) {
	t.Parallel()
	for want, damage := range map[string]func(*Server){
		"/a is not a child of its parent": func(s *Server) { s.tree["/"].children.remove("a") },
		"the child a of / does not exist": func(s *Server) { delete(s.tree, "/a") },
		"the ephemeral /a belongs to no":  func(s *Server) { s.tree["/a"].kind = ephemeral },
		"was changed by a future":         func(s *Server) { s.tree["/a"].mzxid = s.zxid + 1 },
		"does not own /a":                 func(s *Server) { s.sessions[1] = &session{ephemerals: map[string]bool{"/a": true}} },
		"has a connection that is closed": func(s *Server) { s.sessions[1] = &session{conn: &conn{}} },
		"that is closed watches /a":       func(s *Server) { s.replicas[0].data.add("/a", &conn{}, oneShotWatch) },
		"the zxid went back from 0x5":     recordZxidGoingBack,
		"member 2 has another tree":       func(s *Server) { s.replicas[1].tree["/a"].mtime++ },
	} {
		s, err := Run(t.Context(), Members(2))
		require.NoError(t, err)
		require.NoError(t, s.Create("/a", nil))
		require.NoError(t, s.Invariants())
		s.mu.Lock()
		damage(s)
		s.mu.Unlock()
		require.ErrorContains(t, s.Invariants(), want)
		require.NoError(t, s.Close())
	}
}

func recordZxidGoingBack(s *Server) {
	c := &conn{}
	s.checkZxid(c, Record{Kind: Replied, Session: 1, Zxid: 5})
	s.checkZxid(c, Record{Kind: Replied, Session: 1, Zxid: 4})
}
