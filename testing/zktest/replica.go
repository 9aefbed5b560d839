package zktest

import "fmt"

// replica is one member of the simulated ensemble: an address of its own and
// the watches set there. All replicas share the tree and the sessions.
type replica struct {
	number   int // from 1
	listener *listener
	data     watchTable
	child    watchTable
	lag      *lag // nil unless the replica lags
}

// lag is the state of a replica that lags behind the others: a snapshot of the
// tree, and the changes since.
type lag struct {
	tree   tree
	zxid   int64
	missed []change
}

// treeAt returns the tree that reads at the replica see.
func (s *Server) treeAt(rep *replica) tree {
	if rep.lag != nil {
		return rep.lag.tree
	}
	return s.tree
}

// zxidAt returns the latest transaction that the replica has applied.
func (s *Server) zxidAt(rep *replica) int64 {
	if rep.lag != nil {
		return rep.lag.zxid
	}
	return s.zxid
}

// catchUp ends a lag: the replica's clients get the events they missed.
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

// Lag makes a member, numbered from 1, lag behind the others like a slow
// follower: reads at it keep returning the present state, its watches do not
// fire, and it refuses clients that have seen a later zxid. The lag ends, and
// the missed events are sent in order, with [Server.CatchUp] or as soon as a
// client of that member sends a write or a sync: a follower answers those only
// when it has applied everything before them.
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
		return nil, fmt.Errorf("zktest: there is no member %d: members are numbered from 1 to %d", number, len(s.replicas))
	}
	return s.replicas[number-1], nil
}

// RefuseConnections closes the ports of the given members, numbered from 1, or
// of all members if none are given: clients get ECONNREFUSED. Open connections
// stay open.
func (s *Server) RefuseConnections(members ...int) error { return s.setAcceptMode(refusing, members) }

// RejectConnections closes new connections as soon as they are accepted, for the
// same members as [Server.RefuseConnections].
func (s *Server) RejectConnections(members ...int) error { return s.setAcceptMode(rejecting, members) }

// HangConnections accepts new connections and never answers them, for the same
// members as [Server.RefuseConnections].
func (s *Server) HangConnections(members ...int) error { return s.setAcceptMode(hanging, members) }

// AcceptConnections ends the effect of RefuseConnections, RejectConnections and
// HangConnections on new connections.
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
