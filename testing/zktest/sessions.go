package zktest

import (
	"slices"
	"time"
)

// EndedSession is a session that was closed or has expired.
type EndedSession struct {
	ID    int64
	At    time.Time
	Nodes []int64 // the zxids that created the ephemerals that were deleted with it, in order
}

// SessionEnds is the history of the sessions that have ended. A test can check against
// it that a client has given up its locks before they could be granted to others.
type SessionEnds struct {
	server *Server
	ended  []EndedSession // guarded by Server.mu
}

// TrackSessions starts recording the ends of sessions.
func (s *Server) TrackSessions() *SessionEnds {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &SessionEnds{server: s}
	s.sessionEnds = append(s.sessionEnds, e)
	return e
}

// History returns all sessions that have ended so far, in order.
func (e *SessionEnds) History() []EndedSession {
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	return slices.Clone(e.ended)
}

// recordEnd records the end of a session, whose ephemerals still exist, when the first
// member applies the transaction. Server.mu is held.
func (s *Server) recordEnd(x *txn, ss *session) {
	if len(s.sessionEnds) == 0 {
		return
	}
	end := EndedSession{ID: ss.id}
	for path := range ss.ephemerals {
		end.Nodes = append(end.Nodes, s.tree[path].czxid)
	}
	slices.Sort(end.Nodes)
	record := func(*replica) {
		if !end.At.IsZero() {
			return
		}
		end.At = s.started.Add(s.now())
		for _, e := range s.sessionEnds {
			e.ended = append(e.ended, end)
		}
	}
	if x.effect(record); !s.isEnsemble() {
		record(nil)
	}
}
