package zktest

import "fmt"

// member is one address of the server: to clients, one server of an ensemble.
// All members have the same tree and sessions, each has its own watches.
type replica struct {
	number   int // from 1
	listener *listener
	data     watchTable
	child    watchTable
	lag      *lag // nil unless the member lags behind
}

// lag is what a member knows that lags behind: the state at some moment, and
// what it has not heard of since.
type lag struct {
	tree   tree
	zxid   int64
	missed []change
}

// tree is what reads through the member see.
func (s *Server) treeAt(rep *replica) tree {
	if rep.lag != nil {
		return rep.lag.tree
	}
	return s.tree
}

// zxidAt is the latest transaction that the member knows of.
func (s *Server) zxidAt(rep *replica) int64 {
	if rep.lag != nil {
		return rep.lag.zxid
	}
	return s.zxid
}

// catchUp ends a lag: the member's clients get the events they missed.
func (rep *replica) catchUp() {
	if rep.lag == nil {
		return
	}
	missed := rep.lag.missed
	rep.lag = nil
	for _, ch := range missed {
		rep.notifyWatchers(ch)
	}
}

// Lag lets a member (from 1) lag behind the others like a slow follower: reads
// through it show the present state for the time being, watches on it do not
// fire, and clients that have seen more are turned away. It catches up, and
// the missed events are sent in order, by [Server.CatchUp] or as soon as a
// client connected to it writes or sends a sync, because a follower answers
// those only when it knows of everything before them.
func (s *Server) Lag(number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep, err := s.replicaByNumber(number)
	if err == nil && rep.lag == nil {
		rep.lag = &lag{tree: s.tree.clone(), zxid: s.zxid}
	}
	return err
}

// CatchUp ends Lag.
func (s *Server) CatchUp(number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rep, err := s.replicaByNumber(number)
	if err == nil {
		rep.catchUp()
	}
	return err
}

func (s *Server) replicaByNumber(number int) (*replica, error) {
	if s.closed {
		return nil, fmt.Errorf("zktest: %w", errClosed)
	}
	if number < 1 || number > len(s.replicas) {
		return nil, fmt.Errorf("zktest: there is no member %d, they are numbered from 1 to %d", number, len(s.replicas))
	}
	return s.replicas[number-1], nil
}

// RefuseConnections closes the ports of the members (from 1; none given: of
// all): clients get ECONNREFUSED. Open connections stay.
func (s *Server) RefuseConnections(members ...int) error { return s.setAcceptMode(refusing, members) }

// RejectConnections closes new connections to the members (from 1; none given:
// to all) as soon as they are accepted.
func (s *Server) RejectConnections(members ...int) error { return s.setAcceptMode(rejecting, members) }

// HangConnections accepts new connections to the members (from 1; none given:
// to all) and never answers them.
func (s *Server) HangConnections(members ...int) error { return s.setAcceptMode(hanging, members) }

// AcceptConnections ends what RefuseConnections, RejectConnections or
// HangConnections began, for connections to come.
func (s *Server) AcceptConnections(members ...int) error { return s.setAcceptMode(accepting, members) }

func (s *Server) setAcceptMode(mode acceptMode, members []int) error {
	if len(members) == 0 {
		for _, rep := range s.replicas {
			members = append(members, rep.number)
		}
	}
	for _, number := range members {
		s.mu.Lock()
		rep, err := s.replicaByNumber(number)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if err := rep.listener.setMode(mode); err != nil {
			return fmt.Errorf("zktest: member %d: %w", number, err)
		}
	}
	return nil
}
