package zktest

// This file has proposals, commits, and the messages between members.

import (
	"maps"
	"math/bits"
	"slices"
	"time"
)

// An ensemble decides as ZooKeeper does (Zab). One member leads, checks every write
// against the state after all earlier writes, and proposes the result. A proposal is
// committed when a majority has accepted the proposal. Each member applies committed
// proposals in order, to a tree of its own. A new leader begins with all proposals that
// the member had accepted. The election ensures that they include everything committed.
//
// The fields tree, sessions and zxid of Server belong to the newest leader, with the
// leader's proposals. A server without an ensemble is a leader and a majority in one, and
// the one member reads Server.tree.

// leadership is a member's time as leader.
type leadership struct {
	member   *replica
	since    time.Duration
	ended    bool       // the member has noticed the end
	peers    []*peering // from the followers
	proposed []*proposal
	began    int64         // the last zxid of the leaders before
	stuck    bool          // the leader was replaced, and cannot finish a write
	nextTick time.Duration // when the leader pings its followers next: each half tick
	halves   int           // half ticks so far
}

// proposal is a transaction proposed by a leader.
type proposal struct {
	zxid    int64
	effects []func(*replica) // empty without an ensemble
	changes []change
	ended   int64    // the session ended by the proposal, or 0
	origin  *replica // where the request came from and is to be answered; nil for requests of the server
	applied func()   // called when applied at the origin
	acks    uint64   // a bit for each member that has accepted the proposal
	synced  []func() // called when committed
}

// install makes a member the leader, with followers starting from the same state. All
// proposals accepted by the member are committed. Every session gets its full timeout
// again.
func (s *Server) install(rep *replica, followers []*replica) {
	rep.committed = rep.lastAccepted()
	s.catchUp(rep)
	l := &leadership{member: rep, began: rep.zxid, since: s.now(), nextTick: s.now() + s.conf.tick/2}
	s.lead, s.leaderships = l, append(s.leaderships, l)
	rep.role, rep.leadership, rep.peering, rep.joins = leading, l, nil, 0
	if s.isEnsemble() {
		s.zxid = (s.zxid>>32 + 1) << 32
		rep.zxid, rep.committed, rep.epoch = s.zxid, s.zxid, s.zxid>>32
		s.tree = rep.tree.clone()
		s.sessions = s.rebuildSessions(rep)
	}
	for _, ss := range s.sessions {
		s.touch(ss)
	}
	for _, f := range followers {
		s.join(l, f)
	}
	s.notifyChange()
}

// rebuildSessions returns the sessions known to a new leader.
func (s *Server) rebuildSessions(rep *replica) map[int64]*session {
	sessions := map[int64]*session{}
	for id, timeout := range rep.sessions {
		sessions[id] = &session{id: id, timeout: timeout, ephemerals: map[string]bool{}}
	}
	for path, n := range rep.tree {
		if n.kind == ephemeral {
			sessions[n.owner].ephemerals[path] = true
		}
	}
	return sessions
}

// join makes a member follow a leader, with the leader's state. The member drops proposals
// of other leaders, and accepts the leader's proposals.
func (s *Server) join(l *leadership, rep *replica) {
	rep.role, rep.leadership, rep.joins = following, l, 0
	rep.heard, rep.touched, rep.lagging = s.now(), map[int64]bool{}, false
	rep.tree, rep.zxid, rep.epoch = l.member.tree.clone(), l.member.zxid, l.member.epoch
	if rep.zxid == rep.epoch<<32 {
		rep.zxid = l.began // as on a real server: the new epoch begins with the first transaction
	}
	rep.sessions = maps.Clone(l.member.sessions)
	rep.log, rep.committed = slices.Clone(l.member.log), l.member.committed
	s.advance(rep)
	rep.peering = &peering{leadership: l, follower: rep, heard: s.now()}
	l.peers = append(l.peers, rep.peering)
	for _, p := range l.proposed {
		p.acks |= rep.bit()
	}
	s.commit(l)
	s.notifyChange()
}

// propose proposes a transaction of the newest leader. applied, if not nil, is called when
// the transaction was applied at origin.
func (s *Server) propose(x *txn, origin *replica, applied func()) {
	l := s.lead
	p := &proposal{
		zxid: x.zxid, effects: x.effects, changes: x.changes, ended: x.ended,
		origin: origin, applied: applied, acks: l.member.bit(),
	}
	l.member.log = append(l.member.log, p)
	l.proposed = append(l.proposed, p)
	for _, st := range l.peers {
		st.post(s, toFollower, func() {
			st.follower.log = append(st.follower.log, p)
			st.post(s, toLeader, func() {
				p.acks |= st.follower.bit()
				s.commit(l)
			})
		})
	}
	s.commit(l)
	s.pump()
}

// commit commits what a majority has accepted.
func (s *Server) commit(l *leadership) {
	for len(l.proposed) > 0 && bits.OnesCount64(l.proposed[0].acks) >= s.majority() {
		p := l.proposed[0]
		l.proposed = l.proposed[1:]
		l.member.committed = p.zxid
		s.advance(l.member)
		for _, st := range l.peers {
			st.post(s, toFollower, func() {
				st.follower.committed = p.zxid
				s.advance(st.follower)
			})
		}
		for _, synced := range p.synced {
			synced()
		}
		s.notifyChange()
	}
}

// atLeader calls do at the leader of a member: later if messages take time, never if the
// leader does not answer.
func (s *Server) atLeader(rep *replica, do func(*leadership)) {
	if rep.role == leading {
		do(rep.leadership)
		return
	}
	l := rep.leadership
	rep.peering.post(s, toLeader, func() { do(l) })
	s.pump()
}

// atMember calls do at a member when the leader's answer arrives.
func (s *Server) atMember(l *leadership, rep *replica, do func()) {
	if l.member == rep {
		do()
		return
	}
	for _, st := range l.peers {
		if st.follower == rep {
			st.post(s, toFollower, do)
		}
	}
	s.pump()
}

// write calls do at the newest leader. A replaced leader finds no majority.
func (s *Server) write(rep *replica, do func()) {
	s.catchUp(rep)
	s.atLeader(rep, func(l *leadership) {
		if l == s.lead {
			do()
		} else {
			l.stuck = true
		}
	})
}

// sync calls done at a member after the member has applied everything committed by the
// leader or, for a follower, proposed. The leader asks no follower, so a replaced leader
// answers, too, and the leader's own clients do not wait (CommitProcessor.matchSyncs).
func (s *Server) sync(rep *replica, done func()) {
	s.catchUp(rep)
	if rep.role == leading {
		done()
		return
	}
	s.atLeader(rep, func(l *leadership) {
		switch n := len(l.proposed); {
		case l.stuck:
		case n > 0:
			l.proposed[n-1].synced = append(l.proposed[n-1].synced, func() { s.atMember(l, rep, done) })
		default:
			s.atMember(l, rep, done)
		}
	})
}

// direction is the direction of a message between members.
type direction int

const (
	toFollower direction = iota
	toLeader
)

// peering is the connection of a follower to the leader. Messages arrive in order.
type peering struct {
	leadership *leadership
	follower   *replica
	heard      time.Duration // when the leader last heard from the follower
	queue      [2][]message  // by direction
	closed     [2]bool       // the receiver of the direction has closed the connection
}

type message struct {
	due time.Duration
	do  func()
}

// ends returns the sender and the receiver of a direction.
func (st *peering) ends(d direction) (from, to *replica) {
	if d == toFollower {
		return st.leadership.member, st.follower
	}
	return st.follower, st.leadership.member
}

// post queues a message for pump, unless the sender has closed the connection.
func (st *peering) post(s *Server, d direction, do func()) {
	if st.closed[1-d] {
		return
	}
	from, to := st.ends(d)
	due := s.now() + from.delay + to.delay
	if n := len(st.queue[d]); n > 0 {
		due = max(due, st.queue[d][n-1].due)
	}
	st.queue[d] = append(st.queue[d], message{due, do})
}

// deliverable reports whether a message can be delivered once due.
func (s *Server) deliverable(st *peering, d direction) bool {
	from, to := st.ends(d)
	return len(st.queue[d]) > 0 && !to.paused && s.linked(from, to)
}

// pump delivers the messages due, and the resulting messages.
func (s *Server) pump() {
	if s.pumping || !s.isEnsemble() {
		return // a caller of the caller goes on, or there are no messages
	}
	s.pumping = true
	for s.deliverNext() {
	}
	s.pumping = false
	select {
	case s.wake <- struct{}{}: // the next message may be due before the next tick
	default:
	}
}

func (s *Server) deliverNext() bool {
	for _, l := range s.leaderships {
		for _, st := range l.peers {
			for d := range st.queue {
				if !s.deliverable(st, direction(d)) || st.queue[d][0].due > s.now() {
					continue
				}
				m := st.queue[d][0]
				st.queue[d] = st.queue[d][1:]
				if !st.closed[d] {
					if now := s.now(); d == int(toLeader) {
						st.heard = now
					} else {
						st.follower.heard = now
					}
					m.do()
				}
				return true
			}
		}
	}
	return false
}

// closeStream closes the receiving end of a peering in a direction. The other end notices
// after receiving everything sent before.
func (s *Server) closeStream(st *peering, received direction) {
	if received == toFollower {
		st.post(s, toLeader, func() { s.closeStream(st, toLeader) })
	} else {
		st.post(s, toFollower, func() { s.leave(st.follower, looking) })
	}
	st.closed[received] = true
}
