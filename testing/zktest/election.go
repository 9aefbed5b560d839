package zktest

// This file has elections, and how members notice that they are cut off.

import (
	"cmp"
	"math/bits"
	"slices"
	"time"
)

// electionTime is how long members take to elect a leader, or to join one, once they
// can. Real servers wait for 200 ms for better votes (FastLeaderElection), and then
// exchange their states.
const electionTime = 300 * time.Millisecond

// leave makes a member give up a role, and closes the member's connections to the leader or
// the followers, and to the clients.
func (s *Server) leave(rep *replica, role role) {
	if rep.serves() {
		s.closeConnsAt(rep)
	}
	switch l := rep.leadership; rep.role {
	case leading:
		l.ended = true
		for _, st := range l.peers {
			s.closeStream(st, toLeader)
		}
	case following:
		s.closeStream(rep.peering, toFollower)
	}
	rep.role, rep.leadership, rep.peering, rep.joins = role, nil, nil, 0
	s.notifyChange()
}

// step does what is due in an ensemble: messages, pings, timeouts and elections. It is
// called after a change, and when something is due.
func (s *Server) step() {
	if !s.running || s.frozen {
		return
	}
	if !s.isEnsemble() {
		if only := s.replicas[0]; only.isLooking() {
			s.install(only, nil)
		}
		return
	}
	now := s.now()
	s.pump()
	for _, l := range slices.Clone(s.leaderships) {
		if !l.ended && !l.member.paused && now >= l.nextTick {
			s.tickLeader(l)
		}
	}
	for _, rep := range s.replicas {
		if rep.role == following && !rep.paused && now-rep.heard >= s.patience() {
			s.leave(rep, looking)
		}
	}
	s.elect()
	s.pump()
	s.leaderships = slices.DeleteFunc(s.leaderships, func(l *leadership) bool {
		return l.ended && l != s.lead && !slices.ContainsFunc(l.peers, func(st *peering) bool { return !st.isOver() })
	})
}

// patience is how long members wait for each other before they give up.
func (s *Server) patience() time.Duration { return syncLimit * s.conf.tick }

// syncLimit is ZooKeeper's, in ticks.
const syncLimit = 5

// tickLeader pings the followers, and each full tick ends a leadership without a majority
// (Leader.lead). Followers answer with the sessions that were active (LearnerHandler,
// LearnerSessionTracker).
func (s *Server) tickLeader(l *leadership) {
	now := s.now()
	l.nextTick = now + s.conf.tick/2
	l.halves++
	for _, st := range l.peers {
		if now-st.heard >= s.patience() {
			s.closeStream(st, toLeader)
		}
	}
	l.peers = slices.DeleteFunc(l.peers, (*peering).isOver)
	if l.halves%2 == 0 && 1+l.followers() < s.majority() {
		s.leave(l.member, looking)
		return
	}
	for _, st := range l.peers {
		st.post(s, toFollower, func() {
			active := st.follower.touched
			st.follower.touched = map[int64]bool{}
			st.post(s, toLeader, func() {
				for id := range active {
					if ss := s.sessions[id]; ss != nil && l == s.lead {
						s.touch(ss)
					}
				}
			})
		})
	}
	s.pump()
}

// followers returns how many members follow, as far as the leader knows. A member joined
// again may have two peerings for a while.
func (l *leadership) followers() int {
	var set uint64
	for _, st := range l.peers {
		if !st.closed[toLeader] {
			set |= st.follower.bit()
		}
	}
	return bits.OnesCount64(set)
}

// elect lets members join the leader, or elect one, when they have been able to for
// long enough.
func (s *Server) elect() {
	now := s.now()
	for _, rep := range s.replicas {
		switch {
		case !s.canJoin(rep):
			rep.joins = 0
		case rep.joins == 0:
			rep.joins = now + electionTime
		case now >= rep.joins:
			s.join(s.lead, rep)
		}
	}
	switch winner, voters := s.winner(); {
	case winner == nil || winner != s.candidate:
		s.candidate, s.elected = winner, now+electionTime
	case now >= s.elected:
		s.candidate = nil
		s.install(winner, slices.DeleteFunc(voters, func(rep *replica) bool { return rep == winner }))
	}
}

// isOver reports whether both ends of the peering are closed.
func (st *peering) isOver() bool { return st.closed[toLeader] && st.closed[toFollower] }

// isLooking reports whether a member takes part in elections.
func (rep *replica) isLooking() bool { return rep.role == looking && !rep.paused }

// canJoin reports whether a member reaches a leader and a majority confirming the leader,
// the leader included. A member does not believe fewer (FastLeaderElection).
func (s *Server) canJoin(rep *replica) bool {
	l := s.lead
	if !rep.isLooking() || l.ended || l.member.paused || !s.linked(rep, l.member) {
		return false
	}
	return s.countReplicas(func(other *replica) bool {
		return other.leadership == l && !other.paused && s.linked(rep, other)
	}) >= s.majority()
}

// winner returns the winner of an election held now, if any: the member that followed the
// newest leader and accepted the most proposals, or the largest number of several such
// members.
func (s *Server) winner() (winner *replica, voters []*replica) {
	for _, rep := range s.replicas {
		if !rep.isLooking() {
			continue
		}
		reached := slices.DeleteFunc(slices.Clone(s.replicas), func(other *replica) bool {
			return !other.isLooking() || other != rep && !s.linked(rep, other)
		})
		if len(reached) < s.majority() {
			continue
		}
		best := slices.MaxFunc(reached, func(a, b *replica) int {
			return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.lastAccepted(), b.lastAccepted()), a.number-b.number)
		})
		if best == rep {
			return rep, reached
		}
	}
	return nil, nil
}

// untilStep returns the time until the next step is due.
func (s *Server) untilStep() time.Duration {
	const never = time.Hour
	if !s.running || s.frozen {
		return never
	}
	now, next := s.now(), s.now()+never
	for _, l := range s.leaderships {
		if !l.ended && !l.member.paused {
			next = min(next, l.nextTick)
		}
		for _, st := range l.peers {
			for d := range st.queue {
				if s.deliverable(st, direction(d)) {
					next = min(next, st.queue[d][0].due)
				}
			}
		}
	}
	for _, rep := range s.replicas {
		if rep.role == following && !rep.paused {
			next = min(next, rep.heard+s.patience())
		}
		if rep.joins != 0 {
			next = min(next, rep.joins)
		}
	}
	if s.candidate != nil {
		next = min(next, s.elected)
	}
	return max(next-now, 0)
}
