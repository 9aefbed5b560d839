package zktest

// This file has the members of an ensemble, and the faults of members.

import (
	"fmt"
	"time"
)

// replica is one member of the ensemble, or the only server: an address, the watches set
// there, and the state applied so far.
type replica struct {
	number   int // from 1
	listener *listener
	data     watchTable
	child    watchTable

	role   role
	paused bool          // see PauseMember
	delay  time.Duration // of messages from and to the member: see SlowMember

	// What reads at the member see. Without an ensemble, the tree is Server.tree,
	// except while the member lags.
	tree     tree
	zxid     int64                   // latest transaction applied
	sessions map[int64]time.Duration // with their timeouts; unused without an ensemble

	epoch     int64       // of the newest leader followed
	log       []*proposal // accepted, but not applied, in order
	committed int64       // zxid up to which the log may be applied
	lagging   bool        // see Lag

	leadership *leadership    // led or followed; nil while looking or down
	peering    *peering       // to the leader of a follower
	heard      time.Duration  // when a follower last heard from the leader
	touched    map[int64]bool // sessions whose activity the leader has not been told of
	joins      time.Duration  // when the member will have joined a leader; 0 without a leader to join
}

// role is what a member does.
type role int

const (
	looking role = iota // for a leader, without serving clients
	leading             // as does the only server
	following
	down // the process does not run
)

func (r role) String() string { return [...]string{"looking", "leader", "follower", "down"}[r] }

// bit returns the member's bit in the acks of a proposal.
func (rep *replica) bit() uint64 { return 1 << rep.number }

// serves reports whether the member serves clients.
func (rep *replica) serves() bool { return rep.role == leading || rep.role == following }

// lastAccepted returns the zxid of the last transaction in the member's log.
func (rep *replica) lastAccepted() int64 {
	if n := len(rep.log); n > 0 {
		return rep.log[n-1].zxid
	}
	return rep.zxid
}

// advance applies all transactions known to be committed, unless the member lags.
func (s *Server) advance(rep *replica) {
	for !rep.lagging && len(rep.log) > 0 && rep.log[0].zxid <= rep.committed {
		p := rep.log[0]
		rep.log = rep.log[1:]
		s.applyAt(rep, p)
	}
}

// applyAt applies a proposal: events first, then the reply, in the order for the member's
// clients.
func (s *Server) applyAt(rep *replica, p *proposal) {
	for _, effect := range p.effects {
		effect(rep)
	}
	rep.zxid = p.zxid
	for _, ch := range p.changes {
		rep.notifyWatchers(ch)
	}
	if p.origin == rep {
		p.origin = nil // the member may join a lagging leader, and then applies this again
		p.applied()
	}
	if p.ended != 0 {
		s.closeConnOf(rep, p.ended)
	}
}

// closeConnOf closes the connection of a session at a member, without a reply.
func (s *Server) closeConnOf(rep *replica, session int64) {
	for c := range s.conns {
		if c.replica == rep && c.session != nil && c.session.id == session {
			s.detach(c)
			c.client.closeAfterFlush()
		}
	}
}

// closeConnsAt closes all connections of clients to a member.
func (s *Server) closeConnsAt(rep *replica) {
	for c := range s.conns {
		if c.replica == rep {
			s.detach(c)
			c.client.cut(fin)
		}
	}
}

// Lag makes a member, numbered from 1, lag behind the others like a slow follower: reads
// there keep returning the present state, watches do not fire, and clients that have seen a
// later zxid are refused. The lag ends, and the missed events are sent in order, with
// [Server.CatchUp] or as soon as a client of the member sends a write or a sync: a follower
// answers both only after applying everything before them.
func (s *Server) Lag(number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep, err := s.replicaByNumber(number)
	if err == nil && !rep.lagging {
		rep.lagging = true
		if !s.isEnsemble() {
			rep.tree = s.tree.clone()
		}
	}
	return err
}

// CatchUp ends Lag.
func (s *Server) CatchUp(number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep, err := s.replicaByNumber(number)
	if err == nil {
		s.catchUp(rep)
		s.notifyChange() // watches have fired
	}
	return err
}

// catchUp ends a lag, if any: the member's clients get the missed events.
func (s *Server) catchUp(rep *replica) {
	rep.lagging = false
	if !s.isEnsemble() {
		rep.tree = s.tree
	}
	s.advance(rep)
}

func (s *Server) replicaByNumber(number int) (*replica, error) {
	if s.closed {
		return nil, fmt.Errorf("zktest: %w", errClosed)
	}
	if number < 1 || number > len(s.replicas) {
		return nil, fmt.Errorf("zktest: there is no member %d: members are numbered from 1 to %d", number, len(s.replicas))
	}
	return s.replicas[number-1], nil
}

// StopMember ends the process of a member, numbered from 1: the member's connections and
// port are closed. Accepted writes are kept, as on a disk. Stopping a stopped member does
// nothing.
func (s *Server) StopMember(number int) error {
	s.mu.Lock()
	rep, err := s.replicaByNumber(number)
	if err == nil {
		s.leave(rep, down)
		rep.paused = false
		s.network.freezeMember(number, false)
		s.step()
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	err = s.RefuseConnections(number)
	rep.listener.closeHung()
	return err
}

// StartMember starts a member stopped by StopMember. The member serves clients as soon as
// there is a leader, or a majority to elect one. Starting a running member does nothing.
func (s *Server) StartMember(number int) error {
	s.mu.Lock()
	rep, err := s.replicaByNumber(number)
	stopped := err == nil && rep.role == down
	if stopped {
		rep.role = looking
		s.step()
	}
	running := s.running
	s.mu.Unlock()
	if !stopped || !running { // Start opens the ports of a stopped server
		return err
	}
	return s.AcceptConnections(number)
}

// PauseMember freezes the process of a member, as SIGSTOP does, until ResumeMember:
// connections stay open and new ones are accepted, but the member reads and answers
// nothing, and does not notice the passing of time.
func (s *Server) PauseMember(number int) error { return s.pauseMember(number, true) }

// ResumeMember continues a paused member. The member first handles everything received
// meanwhile. A replaced leader may serve clients for up to a tick before noticing.
func (s *Server) ResumeMember(number int) error { return s.pauseMember(number, false) }

// resumedPing is how long a paused leader needs, on resuming, for the ping due meanwhile.
// Requests are answered at once.
const resumedPing = 10 * time.Millisecond

func (s *Server) pauseMember(number int, paused bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep, err := s.replicaByNumber(number)
	if err != nil {
		return err
	}
	if rep.role == down {
		return fmt.Errorf("zktest: member %d does not run: start it first", number)
	}
	if rep.paused == paused {
		return nil
	}
	rep.paused = paused
	if l := rep.leadership; !paused && rep.role == leading {
		l.nextTick = max(l.nextTick, s.now()+resumedPing)
	}
	s.network.freezeMember(number, paused)
	s.step()
	return nil
}

// Isolate cuts a member off from all other members until HealMembers, like
// [RealEnsemble.Isolate]: messages between them are held up. Clients still reach every
// member.
func (s *Server) Isolate(number int) error {
	for other := range s.replicas {
		if other+1 == number {
			continue
		}
		if err := s.Separate(number, other+1); err != nil {
			return err
		}
	}
	return nil
}

// Separate cuts two members off from each other until HealMembers.
func (s *Server) Separate(a, b int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, err := s.replicaByNumber(a)
	if err != nil {
		return err
	}
	second, err := s.replicaByNumber(b)
	if err != nil {
		return err
	}
	s.separated[pairOf(first, second)] = true
	s.step()
	return nil
}

// HealMembers undoes every Isolate and Separate. Messages held up are delivered, unless
// their connection has been given up.
func (s *Server) HealMembers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.separated)
	s.step()
}

// SlowMember makes messages between a member and the others take the time d, in each
// direction. 0 ends the slowness.
func (s *Server) SlowMember(number int, d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep, err := s.replicaByNumber(number)
	if err == nil && d < 0 {
		err = fmt.Errorf("zktest: the delay of member %d is negative: %v", number, d)
	}
	if err == nil {
		rep.delay = d
	}
	return err
}

// Leader returns the number of the leading member, or 0. A leader cut off or paused counts
// until another one has been elected, or until the leader notices. An only member always
// leads while running.
func (s *Server) Leader() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running || s.lead.ended {
		return 0
	}
	return s.lead.member.number
}

func (s *Server) setAcceptMode(mode acceptMode, members []int) error {
	if len(members) == 0 {
		for _, rep := range s.replicas {
			members = append(members, rep.number)
		}
	}
	for _, number := range members {
		s.mu.Lock()
		rep, err := s.replicaByNumber(number)
		stopped := err == nil && (rep.role == down || !s.running)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if stopped && mode != refusing {
			continue
		}
		if err := rep.listener.setMode(mode); err != nil {
			return fmt.Errorf("zktest: member %d: %w", number, err)
		}
	}
	return nil
}

// pair is two members, the one with the smaller number first.
type pair [2]*replica

func pairOf(a, b *replica) pair {
	if a.number > b.number {
		a, b = b, a
	}
	return pair{a, b}
}

// linked reports whether two members reach each other.
func (s *Server) linked(a, b *replica) bool { return !s.separated[pairOf(a, b)] }

// countReplicas returns the number of members satisfying is.
func (s *Server) countReplicas(is func(*replica) bool) (n int) {
	for _, rep := range s.replicas {
		if is(rep) {
			n++
		}
	}
	return n
}

func (s *Server) isEnsemble() bool { return s.conf.members > 1 }

func (s *Server) majority() int { return s.conf.members/2 + 1 }
