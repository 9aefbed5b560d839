package zktest

import (
	"slices"
	"time"
)

// readOnlyDelay is how long a member looks for a leader before it serves read-only
// clients.
func (s *Server) readOnlyDelay() time.Duration { return max(2*time.Second, s.conf.tick) }

// endReadOnly ends the service for read-only clients.
func (s *Server) endReadOnly(rep *replica) {
	if rep.readOnly {
		s.closeConnsAt(rep)
		rep.readOnly, rep.local = false, nil
	}
}

// connectReadOnly attaches a connection to a session that only the member knows.
func (s *Server) connectReadOnly(c *conn, req connectRequest, answer answer) {
	rep := c.replica
	if _, global := rep.sessions[req.session]; global || req.lastZxid > rep.zxid {
		answer(nil, false)
		return
	}
	ss := rep.local[req.session]
	if req.session == 0 {
		s.nextSession++
		ss = &session{id: int64(rep.number)<<56 | s.nextSession&(1<<56-1), timeout: s.negotiate(req.timeout), at: rep}
		if rep.local == nil {
			rep.local = map[int64]*session{}
		}
		rep.local[ss.id] = ss
	} else if password := s.password(req.session); ss == nil || !slices.Equal(password[:], req.password) {
		answer(connectReply{readOnly: true}.encode(c.readOnly), false)
		return
	}
	s.attach(c, ss, req)
	answer(connectReply{
		timeout: int32(ss.timeout.Milliseconds()), session: ss.id, password: s.password(ss.id), readOnly: true,
	}.encode(c.readOnly), true)
}

// applyReadOnly applies a request to a member that serves read-only clients.
func (s *Server) applyReadOnly(c *conn, r Request, d *decoder, answer answer) {
	rep := c.replica
	switch {
	case r.Op == OpPing:
		r.Xid = xidPing
		answer(s.reply(c, r, rep.zxid, OK), true)
	case r.Op == OpCloseSession:
		delete(rep.local, c.session.id)
		answer(s.reply(c, r, rep.zxid, OK), false)
	case r.Op == OpSync, r.Op.writes():
		answer(s.reply(c, r, rep.zxid, ErrNotReadOnly), true)
	default:
		answer(s.applyRead(c, r, d))
	}
}
