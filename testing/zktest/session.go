package zktest

// This file has sessions and their expiry.

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"
)

// session is a client's session, independent of connections.
type session struct {
	id         int64
	timeout    time.Duration
	expires    time.Duration // on the server's clock
	conn       *conn         // the latest; nil while the client is not connected
	at         *replica      // the member of the client's last connection
	ephemerals map[string]bool
}

// password returns the password of a session, computed from the id alone.
func (s *Server) password(id int64) (p [16]byte) {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("zktest"), uint64(id)))
	copy(p[:], sum[:])
	return p
}

// newSession opens a session at a member.
func (x *txn) newSession(rep *replica, timeout time.Duration) *session {
	s := x.s
	s.nextSession++
	id := s.nextSession
	if !s.conf.keeper {
		id = int64(rep.number)<<56 | id&(1<<56-1)
	}
	ss := &session{
		id:         id,
		timeout:    timeout,
		at:         rep,
		ephemerals: map[string]bool{},
	}
	s.sessions[ss.id] = ss
	s.touch(ss)
	x.effect(func(rep *replica) { rep.sessions[ss.id] = timeout })
	return ss
}

// negotiate returns the timeout granted to a client.
func (s *Server) negotiate(milliseconds int32) time.Duration {
	asked := time.Duration(milliseconds) * time.Millisecond
	return min(max(asked, s.conf.minTimeout), s.conf.maxTimeout)
}

// touchFrom records that a connection's client is active. A follower tells the leader in
// answer to the leader's next ping.
func (s *Server) touchFrom(c *conn) {
	switch rep := c.replica; {
	case c.session == nil || s.conf.keeper: // a transaction touches the session there
	case rep.role == following:
		rep.touched[c.session.id] = true
	case rep.leadership == s.lead && s.sessions[c.session.id] == c.session:
		s.touch(c.session)
	}
}

// touch postpones the session's expiry, rounded up to a tick. ZooKeeper checks once a
// tick: a session expires up to a tick late and never early.
func (s *Server) touch(ss *session) {
	ss.expires = ((s.now()+ss.timeout)/s.conf.tick + 1) * s.conf.tick
}

// expireDue expires the sessions whose timeout has passed.
func (s *Server) expireDue() {
	if s.frozen || s.lead.ended || s.lead.member.paused {
		return
	}
	now := s.now()
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		if ss := s.sessions[id]; ss != nil && ss.expires <= now {
			s.expire(ss)
		}
	}
}

// endSession deletes a session and the session's ephemerals, regardless of ACLs. closed
// says that the client closed the session.
func (x *txn) endSession(ss *session, closed bool) {
	x.s.recordEnd(x, ss, closed)
	x.identities = nil
	for _, path := range slices.Sorted(maps.Keys(ss.ephemerals)) {
		x.delete(path, -1)
	}
	delete(x.s.sessions, ss.id)
	x.ended = ss.id
	x.effect(func(rep *replica) { delete(rep.sessions, ss.id) })
}

// expire ends a session. Each member that applies the end closes the session's connection
// without a reply.
func (s *Server) expire(ss *session) {
	s.record(Record{Kind: Expired, Session: ss.id})
	x := s.begin(ss.id, nil)
	x.endSession(ss, false)
	s.propose(x, nil, nil)
}

// ExpireSession expires the session with the id now, as if the timeout had passed: the
// ephemerals are deleted in one transaction, and the connection is closed without a
// message. To hide the expiry from the client, call HalfOpen first.
func (s *Server) ExpireSession(id int64) error { return s.withSession(id, s.expire) }

// ExpireAll expires all sessions now, each in a separate transaction.
func (s *Server) ExpireAll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("zktest: ExpireAll: %w", errClosed)
	}
	if s.lead.ended {
		return fmt.Errorf("zktest: ExpireAll: %w", errNoLeader)
	}
	for _, id := range slices.Sorted(maps.Keys(s.sessions)) {
		s.expire(s.sessions[id])
	}
	return nil
}

// withSession calls do for a session, with s.mu held.
func (s *Server) withSession(id int64, do func(*session)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("zktest: session 0x%x: %w", id, errClosed)
	}
	ss := s.sessions[id]
	if ss == nil {
		return fmt.Errorf("zktest: there is no session 0x%x", id)
	}
	if s.lead.ended {
		return fmt.Errorf("zktest: session 0x%x: %w", id, errNoLeader)
	}
	do(ss)
	return nil
}
