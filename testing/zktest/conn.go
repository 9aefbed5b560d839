package zktest

import (
	"net"
	"slices"
	"time"
)

// handshakeTimeout is how long a connection may be without a session.
const handshakeTimeout = 10 * time.Second

// conn is a client's connection to a member.
type conn struct {
	line   *line
	member *member
	opened time.Time

	// Guarded by Server.mu.
	server   *Server
	session  *session   // nil before the handshake, and when detached
	who      []identity // whom it has proved to be
	readOnly bool       // its handshake has that byte, so the reply must have it
	last     lastRequest
}

// admit numbers a connection and returns its life.
func (s *Server) admit(m *member, nc net.Conn) func() {
	number := int(s.accepted.Add(1))
	return func() { s.serve(m, nc, number) }
}

func (s *Server) serve(m *member, nc net.Conn, number int) {
	c := &conn{
		line: newLine(&s.network, nc, s.conf.maxFrame, number, m.number), member: m, server: s, opened: time.Now(),
		last: lastRequest{op: "null"}, // as ZooKeeper prints it
	}
	defer c.line.end()
	host, _, _ := net.SplitHostPort(nc.RemoteAddr().String())
	c.who = []identity{{"ip", host}}

	s.mu.Lock()
	admitted := s.running && (s.conf.maxClientConns == 0 || s.connsFrom(host) < s.conf.maxClientConns)
	if admitted {
		s.conns[c] = true
		s.changed()
	}
	s.mu.Unlock()
	if !admitted {
		return
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.detach(c)
	}()

	if !s.greet(c) {
		return
	}
	for {
		packet, err := c.line.read()
		if err != nil || !s.handle(c, packet) {
			return
		}
	}
}

func (s *Server) connsFrom(host string) (n int) {
	for c := range s.conns {
		if c.who[0].id == host {
			n++
		}
	}
	return n
}

// detach forgets a connection and its watches. Its session lives on.
func (s *Server) detach(c *conn) {
	if c.session != nil {
		c.session.conn = nil
		c.session = nil
	}
	c.member.data.forget(c)
	c.member.child.forget(c)
	delete(s.conns, c)
	s.changed()
}

// HalfOpen makes the server forget connections, with their watches, without a
// sign to the clients: what they send vanishes, and nothing comes back. Their
// sessions run on to their end.
func (s *Server) HalfOpen(sel Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if sel.selects(c.line.origin()) {
			s.detach(c)
			c.line.forget(true, true)
		}
	}
}

// greet deals with a connection's first packet: a request for a session, or a
// four letter word. It reports whether requests follow.
func (s *Server) greet(c *conn) bool {
	_ = c.line.conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	head, err := c.line.head()
	if err != nil {
		return false
	}
	if answer, ok := s.answer(string(head[:]), c.line.conn); ok {
		c.line.send(outgoing{bytes: []byte(answer)})
		c.line.finish()
		<-c.line.dead
		return false
	}
	packet, err := c.line.body(head)
	if err != nil || !c.line.await(Inbound) {
		return false
	}
	req, ok := parseConnect(packet)
	if !ok {
		return false
	}
	_ = c.line.conn.SetReadDeadline(time.Time{})
	c.readOnly = req.hasReadOnly
	c.line.session.Store(req.session)
	if !c.line.await(Inbound) { // a partition of this very session
		return false
	}
	r := Request{Conn: c.line.number, Member: c.member.number, Session: req.session, Op: OpConnect}
	return s.meddle(c, r, func() ([]byte, bool) { return s.connect(c, req) })
}

// connect gives the connection a session, the one asked for or a new one, and
// returns the reply. Without a session the connection ends.
func (s *Server) connect(c *conn, req connectRequest) (reply []byte, goOn bool) {
	if req.lastZxid > s.zxidAt(c.member) {
		return nil, false // the client has seen what we have not: let it try elsewhere
	}
	timeout := s.negotiate(req.timeout)
	var ss *session
	if req.session == 0 {
		c.member.catchUp() // opening a session is a write
		ss = s.newSession(c.member.number, timeout)
		c.answered(Request{Op: OpConnect}, s.zxid, OK)
	} else {
		ss = s.sessions[req.session]
		if ss != nil && ss.conn != nil {
			// Even if the password turns out wrong.
			old := ss.conn
			s.detach(old)
			old.line.cut(fin)
		}
		password := s.password(req.session)
		if ss == nil || !slices.Equal(password[:], req.password) {
			return connectReply{}.encode(c.readOnly), false
		}
		ss.timeout = timeout
		ss.lastZxid = req.lastZxid // replies that we sent may have been lost
		s.touch(ss)
	}
	c.session, ss.conn = ss, c
	c.line.session.Store(ss.id)
	s.changed()
	return connectReply{
		timeout: int32(timeout.Milliseconds()), session: ss.id, password: s.password(ss.id),
	}.encode(c.readOnly), true
}

// handle deals with one request and reports whether the connection goes on.
func (s *Server) handle(c *conn, packet []byte) bool {
	r, ok := parseRequest(packet)
	if !ok {
		return false
	}
	r.Conn, r.Member, r.Session = c.line.number, c.member.number, c.line.session.Load()
	return s.meddle(c, r, func() ([]byte, bool) { return s.apply(c, r, packet) })
}

// meddle has a request carried out by do, and does to it what a rule says. do
// is called with s.mu held; it returns the reply, if any, and whether the
// connection goes on.
func (s *Server) meddle(c *conn, r Request, do func() ([]byte, bool)) (goOn bool) {
	f, counting := s.hit(r)
	s.mu.Lock()
	s.note(Record{Kind: Requested, Conn: r.Conn, Session: r.Session, Op: r.Op, Paths: r.Paths, Fault: f != nil})
	if c.session != nil {
		s.touch(c.session)
	}
	s.mu.Unlock()
	if f != nil && !s.before(c, r, f) {
		return c.line.isMute() // then what comes is read on, and forgotten
	}
	a := f.action()
	if a.kind == failWith {
		do = func() ([]byte, bool) { return s.refuse(c, r, a.code) }
	}

	out, goOn, lost := s.carryOut(c, f, do)
	if lost {
		return c.line.isMute()
	}
	if out.cut != uncut {
		<-c.line.written // a cut has happened when the client can see it
	}
	if f != nil && !a.early() {
		f.happened()
	}
	counting.happened()
	if !goOn {
		<-c.line.dead // what is queued goes out before the connection is closed
	}
	return goOn
}

// carryOut has a request carried out and queues the reply, or what a rule makes
// of it. lost reports that the connection was lost while the request waited.
func (s *Server) carryOut(c *conn, f *Fault, do func() ([]byte, bool)) (out outgoing, goOn, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.conns[c] {
		return outgoing{}, false, true
	}
	reply, goOn := do()
	out.bytes = reply
	switch a := f.action(); a.kind {
	case dropAfterApply, resetAfterApply:
		out = outgoing{cut: a.cutting()}
	case truncateReply:
		out = outgoing{bytes: reply[:min(a.bytes, len(reply))], cut: fin}
	case resetAfterReply:
		out.cut = rst
	case grantTimeout:
		a.grant(reply)
	case delayReply:
		out.delay = a.duration
	case holdReply:
		out.gate = f.gate
	case expireAfterApply:
		s.expireFor(c)
		out, goOn = outgoing{}, false
	}
	if out.bytes != nil || out.cut != uncut {
		c.line.send(out)
	}
	if goOn = goOn && out.cut == uncut; !goOn {
		s.detach(c)
		c.line.finish()
	}
	s.changed()
	return out, goOn, false
}

// before does what a rule does to a request before it is carried out, and
// reports whether it is to be.
func (s *Server) before(c *conn, r Request, f *Fault) bool {
	a := f.action()
	if !a.early() {
		return true
	}
	goOn := false
	switch a.kind {
	case dropBeforeApply, resetBeforeApply:
		s.mu.Lock()
		s.detach(c)
		s.mu.Unlock()
		c.line.cut(a.cutting())
	case freeze:
		c.line.forget(true, true) // its session and its watches stay to the session's end
	case expireBeforeApply:
		s.mu.Lock()
		s.expireFor(c)
		s.mu.Unlock()
	case delayApply, holdApply:
		f.happened() // it has begun, and that is what one can wait for
		out := outgoing{delay: a.duration}
		if a.kind == holdApply {
			out.gate = f.gate
		}
		return c.line.pause(out)
	case call:
		a.hook(r)
		goOn = true
	}
	f.happened()
	return goOn
}

// expireFor lets the session expire that a connection has or asks for, if there
// is one, and ends the connection.
func (s *Server) expireFor(c *conn) {
	if ss := s.sessions[c.line.session.Load()]; ss != nil {
		s.expire(ss)
	}
	s.detach(c)
	c.line.finish()
}

// refuse answers a request with a code of somebody's choice.
func (s *Server) refuse(c *conn, r Request, code Code) ([]byte, bool) {
	if r.Op == OpConnect {
		return connectReply{}.encode(c.readOnly), false
	}
	if r.Op.writes() {
		c.member.catchUp()
		s.zxid++
	}
	return s.reply(c, r, s.zxidAt(c.member), code), true
}

// event sends a watch event, unless a rule swallows it.
func (c *conn) event(event EventType, path string) {
	o := c.line.origin()
	f, counting := c.server.hit(Request{
		Conn: o.conn, Member: o.member, Session: o.session, Xid: xidEvent, Op: OpEvent, Paths: []string{path}, Event: event,
	})
	c.server.note(Record{
		Kind: Notified, Conn: o.conn, Session: o.session, Paths: []string{path}, Event: event, Zxid: c.server.zxid, Fault: f != nil,
	})
	defer counting.happened()
	if f != nil {
		f.happened()
		return
	}
	e := newPacket()
	e.int(xidEvent)
	e.long(-1)
	e.int(0)
	e.int(int32(event))
	e.int(3) // connected
	e.string(path)
	c.line.send(outgoing{bytes: e.packet()})
}
