package zktest

// This file has the history of ended sessions.

import (
	"slices"
	"sync"
	"time"
)

// EndedSession is a closed or expired session.
type EndedSession struct {
	ID     int64
	At     time.Time
	Closed bool    // by the client
	Nodes  []int64 // the creation zxids of the ephemerals deleted with the session, in order
}

// RemovedNode is an ephemeral deleted by others than its session.
type RemovedNode struct {
	At   time.Time
	Path string
	Zxid int64 // of the creation
}

// SessionEnds is the history of ended sessions: for tests that a client has given up all
// locks before they could be granted to others.
type SessionEnds struct {
	server  *Server
	ended   []EndedSession // guarded by Server.mu, as is removed
	removed []RemovedNode
}

// TrackSessions starts recording the ends of sessions.
func (s *Server) TrackSessions() *SessionEnds {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &SessionEnds{server: s}
	s.sessionEnds = append(s.sessionEnds, e)
	return e
}

// History returns all sessions ended so far, in order.
func (e *SessionEnds) History() []EndedSession {
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	return slices.Clone(e.ended)
}

// Removals returns all ephemerals deleted so far by others, in order.
func (e *SessionEnds) Removals() []RemovedNode {
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	return slices.Clone(e.removed)
}

// recordEnd records the end of a session, whose ephemerals still exist, when the first
// member applies the transaction. Server.mu is held.
func (s *Server) recordEnd(x *txn, ss *session, closed bool) {
	if len(s.sessionEnds) == 0 {
		return
	}
	end := EndedSession{ID: ss.id, Closed: closed}
	for path := range ss.ephemerals {
		end.Nodes = append(end.Nodes, s.tree[path].czxid)
	}
	slices.Sort(end.Nodes)
	x.onceApplied(func() {
		end.At = s.started.Add(s.now())
		for _, e := range s.sessionEnds {
			e.ended = append(e.ended, end)
		}
	})
}

// recordRemoval records the deletion of another session's ephemeral by a transaction, when
// the first member applies it. Server.mu is held.
func (s *Server) recordRemoval(x *txn, path string, n *node) {
	if len(s.sessionEnds) == 0 || n.kind != ephemeral || n.owner == x.session {
		return
	}
	x.onceApplied(func() {
		for _, e := range s.sessionEnds {
			e.removed = append(e.removed, RemovedNode{s.started.Add(s.now()), path, n.czxid})
		}
	})
}

// onceApplied calls do when the first member applies the transaction.
func (x *txn) onceApplied(do func()) {
	once := sync.OnceFunc(do)
	if x.effect(func(*replica) { once() }); !x.s.isEnsemble() {
		once()
	}
}
