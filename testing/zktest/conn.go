package zktest

import (
	"net"
	"slices"
	"time"
)

// handshakeTimeout bounds the time until the first packet of a connection.
const handshakeTimeout = 10 * time.Second

// conn is a client's connection to a replica.
type conn struct {
	client  *clientConn
	replica *replica
	opened  time.Time

	// Guarded by Server.mu.
	server     *Server
	session    *session   // nil before the handshake, and when detached
	identities []identity // its address, and those it has authenticated as
	readOnly   bool       // its handshake has the read-only byte, so the reply must have it
	last       lastRequest
}

// admit numbers a connection and returns the function that serves it.
func (s *Server) admit(rep *replica, nc net.Conn) func() {
	number := int(s.accepted.Add(1))
	return func() { s.serve(rep, nc, number) }
}

func (s *Server) serve(rep *replica, nc net.Conn, number int) {
	c := &conn{
		client: newClientConn(&s.network, nc, s.conf.maxFrame, number, rep.number), replica: rep, server: s, opened: time.Now(),
		last: lastRequest{op: "null"}, // as ZooKeeper prints it
	}
	defer c.client.closeAndDrain()
	host, _, _ := net.SplitHostPort(nc.RemoteAddr().String())
	c.identities = []identity{{"ip", host}}

	s.mu.Lock()
	admitted := s.running && (s.conf.maxClientConns == 0 || s.connsFrom(host) < s.conf.maxClientConns)
	if admitted {
		s.conns[c] = true
		s.notifyChange()
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

	if !s.handshake(c) {
		return
	}
	for {
		packet, err := c.client.read()
		if err != nil || !s.handle(c, packet) {
			return
		}
	}
}

func (s *Server) connsFrom(host string) (n int) {
	for c := range s.conns {
		if c.identities[0].id == host {
			n++
		}
	}
	return n
}

// detach removes a connection and its watches. Its session stays alive.
func (s *Server) detach(c *conn) {
	if c.session != nil {
		c.session.conn = nil
		c.session = nil
	}
	c.replica.data.removeConn(c)
	c.replica.child.removeConn(c)
	delete(s.conns, c)
	s.notifyChange()
}

// HalfOpen makes the server forget the selected connections and their watches
// while the clients believe them open: what they send is discarded, and nothing
// comes back. Their sessions stay alive until they expire.
func (s *Server) HalfOpen(sel Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if sel.selects(c.client.origin()) {
			s.detach(c)
			c.client.blackhole(true, true)
		}
	}
}

// handshake handles a connection's first packet: a request for a session, or a
// four letter command. It reports whether requests follow.
func (s *Server) handshake(c *conn) bool {
	_ = c.client.conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	head, err := c.client.readHeader()
	if err != nil {
		return false
	}
	if answer, ok := s.fourLetterReply(string(head[:]), c.client.conn); ok {
		c.client.send(outgoing{bytes: []byte(answer)})
		c.client.closeAfterFlush()
		<-c.client.done
		return false
	}
	packet, err := c.client.readBody(head)
	if err != nil || !c.client.waitPass(Inbound) {
		return false
	}
	req, ok := parseConnect(packet)
	if !ok {
		return false
	}
	_ = c.client.conn.SetReadDeadline(time.Time{})
	c.readOnly = req.hasReadOnly
	c.client.session.Store(req.session)
	if !c.client.waitPass(Inbound) { // again, for a partition of this session
		return false
	}
	r := Request{Conn: c.client.number, Member: c.replica.number, Session: req.session, Op: OpConnect}
	return s.applyFaults(c, r, func() ([]byte, bool) { return s.connect(c, req) })
}

// connect attaches the connection to the session it asks for, or to a new one,
// and returns the reply. Without a session the connection ends.
func (s *Server) connect(c *conn, req connectRequest) (reply []byte, alive bool) {
	if req.lastZxid > s.zxidAt(c.replica) {
		return nil, false // the client has seen a later state: it has to try another server
	}
	timeout := s.negotiate(req.timeout)
	var ss *session
	if req.session == 0 {
		c.replica.catchUp() // opening a session is a write
		ss = s.newSession(c.replica.number, timeout)
		c.recordReply(Request{Op: OpConnect}, s.zxid, OK)
	} else {
		ss = s.sessions[req.session]
		if ss != nil && ss.conn != nil {
			// As on a real server, even if the password is wrong.
			old := ss.conn
			s.detach(old)
			old.client.cut(fin)
		}
		password := s.password(req.session)
		if ss == nil || !slices.Equal(password[:], req.password) {
			return connectReply{}.encode(c.readOnly), false
		}
		ss.timeout = timeout
		ss.lastZxid = req.lastZxid // not what we sent: replies may have been lost
		s.touch(ss)
	}
	c.session, ss.conn = ss, c
	c.client.session.Store(ss.id)
	s.notifyChange()
	return connectReply{
		timeout: int32(timeout.Milliseconds()), session: ss.id, password: s.password(ss.id),
	}.encode(c.readOnly), true
}

// handle handles one request and reports whether the connection goes on.
func (s *Server) handle(c *conn, packet []byte) bool {
	r, ok := parseRequest(packet)
	if !ok {
		return false
	}
	r.Conn, r.Member, r.Session = c.client.number, c.replica.number, c.client.session.Load()
	return s.applyFaults(c, r, func() ([]byte, bool) { return s.apply(c, r, packet) })
}

// applyFaults applies a request by calling do, with the fault of the rule that
// hits it, if any. do is called with s.mu held; it returns the reply, if any, and
// whether the connection goes on.
func (s *Server) applyFaults(c *conn, r Request, do func() ([]byte, bool)) (alive bool) {
	f, passes := s.match(r)
	s.mu.Lock()
	s.record(Record{Kind: Requested, Conn: r.Conn, Session: r.Session, Op: r.Op, Paths: r.Paths, Fault: f != nil})
	if c.session != nil {
		s.touch(c.session)
	}
	s.mu.Unlock()
	if f != nil && !s.faultBeforeApply(c, r, f) {
		return c.client.dropsOutbound() // then reading goes on, to discard
	}
	a := f.action()
	if a.kind == failWith {
		do = func() ([]byte, bool) { return s.replyError(c, r, a.code) }
	}

	out, alive, lost := s.applyAndReply(c, f, do)
	if lost {
		return c.client.dropsOutbound()
	}
	if out.cut != uncut {
		<-c.client.written // a cut counts when the client can see it
	}
	if f != nil && !a.beforeApply() {
		f.recordFired()
	}
	passes.recordFired()
	if !alive {
		<-c.client.done // the queue is written before the connection is closed
	}
	return alive
}

// applyAndReply applies a request and queues the reply, or what a rule makes of
// it. lost reports that the connection was lost while the request waited.
func (s *Server) applyAndReply(c *conn, f *Fault, do func() ([]byte, bool)) (out outgoing, alive, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.conns[c] {
		return outgoing{}, false, true
	}
	reply, alive := do()
	if f.action().kind == expireAfterApply {
		s.expireConn(c)
		reply, alive = nil, false
	}
	out = f.outgoing(reply)
	if out.bytes != nil || out.cut != uncut {
		c.client.send(out)
	}
	if alive = alive && out.cut == uncut; !alive {
		s.detach(c)
		c.client.closeAfterFlush()
	}
	s.notifyChange()
	return out, alive, false
}

// faultBeforeApply injects a fault that precedes the request, and reports
// whether the request is then applied.
func (s *Server) faultBeforeApply(c *conn, r Request, f *Fault) bool {
	a := f.action()
	if !a.beforeApply() {
		return true
	}
	alive := false
	switch a.kind {
	case dropBeforeApply, resetBeforeApply:
		s.mu.Lock()
		s.detach(c)
		s.mu.Unlock()
		c.client.cut(a.cutMode())
	case freeze:
		c.client.blackhole(true, true) // the watches stay until the session expires
	case expireBeforeApply:
		s.mu.Lock()
		s.expireConn(c)
		s.mu.Unlock()
	case delayApply, holdApply:
		return f.waitBeforeApply(c.client)
	case call:
		a.hook(r)
		alive = true
	}
	f.recordFired()
	return alive
}

// expireConn expires the session that a connection has or asks for, if it
// exists, and ends the connection.
func (s *Server) expireConn(c *conn) {
	if ss := s.sessions[c.client.session.Load()]; ss != nil {
		s.expire(ss)
	}
	s.detach(c)
	c.client.closeAfterFlush()
}

// replyError answers a request with a code instead of applying it.
func (s *Server) replyError(c *conn, r Request, code Code) ([]byte, bool) {
	if r.Op == OpConnect {
		return connectReply{}.encode(c.readOnly), false
	}
	if r.Op.writes() {
		c.replica.catchUp()
		s.zxid++
	}
	return s.reply(c, r, s.zxidAt(c.replica), code), true
}

// sendEvent sends a watch event, unless a rule swallows it.
func (c *conn) sendEvent(event EventType, path string) {
	o := c.client.origin()
	f, passes := c.server.match(Request{
		Conn: o.conn, Member: o.member, Session: o.session, Xid: xidEvent, Op: OpEvent, Paths: []string{path}, Event: event,
	})
	c.server.record(Record{
		Kind: Notified, Conn: o.conn, Session: o.session, Paths: []string{path}, Event: event, Zxid: c.server.zxid, Fault: f != nil,
	})
	defer passes.recordFired()
	if f != nil {
		f.recordFired()
		return
	}
	e := newPacket()
	e.int(xidEvent)
	e.long(-1)
	e.int(0)
	e.int(int32(event))
	e.int(3) // the state SyncConnected
	e.string(path)
	c.client.send(outgoing{bytes: e.packet()})
}
