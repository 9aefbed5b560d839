package zktest

// This file has where ClickHouse Keeper differs from ZooKeeper.

import "slices"

const keeperBanner = "ClickHouse Keeper version: v25.8.1.1-zktest\n"

// keeperReject is the version of the protocol in Keeper's reply to a handshake without a leader.
const keeperReject = 42

// Keeper makes the server differ from ZooKeeper as ClickHouse Keeper does, in what clients of
// locks can see (read in the source of version 25.8):
//
//   - A session cannot be resumed: each connection gets a new session, and the session of a
//     broken connection lives on, unreachable, until its timeout.
//   - Writes, syncs and pings keep a session; reads are answered by one server alone.
//   - The connection is closed on requests for containers and TTL nodes, also in a multi.
//   - The reply to a handshake has an empty password and no read-only byte. Without a leader,
//     the reply says so.
//   - The end of a session is answered by the end of the connection.
func Keeper() Option {
	return option(func(c *config) error { c.keeper = true; return nil })
}

// connectKeeper opens a session for a connection.
func (s *Server) connectKeeper(c *conn, req connectRequest, answer answer) {
	rep := c.replica
	timeout := s.negotiate(req.timeout)
	if !rep.serves() {
		answer(connectReply{version: keeperReject, timeout: int32(timeout.Milliseconds()), session: -1}.encode(false), false)
		return
	}
	s.write(rep, func() {
		x := s.begin(0, nil)
		ss := x.newSession(rep, timeout)
		s.propose(x, rep, func() {
			s.attach(c, ss, connectRequest{})
			answer(connectReply{timeout: int32(timeout.Milliseconds()), session: ss.id}.encode(false), true)
		})
	})
}

// knows reports whether a server knows the requests of a packet.
func (s *Server) knows(op Op, d decoder) bool {
	parts := []part{{op: op}}
	if op == OpMulti {
		parts, _ = decodeMulti(&d)
	}
	return !s.conf.keeper || !slices.ContainsFunc(parts, func(p part) bool {
		return p.op == OpCreateContainer || p.op == OpCreateTTL
	})
}

// writeAlive has the members write that the session lives, as for each request but a read.
func (s *Server) writeAlive(c *conn, done func()) {
	ss := c.session
	s.write(c.replica, func() {
		x := s.begin(ss.id, nil)
		s.propose(x, c.replica, done)
	})
}
