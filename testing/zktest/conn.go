package zktest

// This file has the way of a packet to its reply, with the faults on the way.

import (
	"net"
	"slices"
	"time"
)

// maxFrame is the maximum length of a packet from a client: ZooKeeper's jute.maxbuffer.
const maxFrame = 0xfffff

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
	identities []identity // the address, and identities authenticated on the connection
	readOnly   bool       // the handshake has the read-only byte, so the reply must have one
	seen       int64      // the latest zxid in a reply
	waiting    bool       // a request is being answered, by another goroutine
	backlog    [][]byte   // requests received meanwhile
}

// admit numbers a connection and returns the function to serve the connection.
func (s *Server) admit(rep *replica, nc net.Conn) func() {
	number := int(s.accepted.Add(1))
	return func() { s.serve(rep, nc, number) }
}

func (s *Server) serve(rep *replica, nc net.Conn, number int) {
	c := &conn{
		client: newClientConn(&s.network, nc, maxFrame, number, rep.number), replica: rep, server: s, opened: time.Now(),
	}
	defer c.client.closeAndDrain()
	c.identities = []identity{{"ip", c.client.host}}

	s.mu.Lock()
	admitted := s.running && rep.role != down && (s.conf.maxClientConns == 0 || s.connsFrom(c.client.host) < s.conf.maxClientConns)
	if admitted {
		s.conns[c] = true
		s.notifyChange()
	}
	s.mu.Unlock()
	if !admitted {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			panic(p) // at once: s.mu may be held, and the rest would wait forever
		}
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
		if c.client.host == host {
			n++
		}
	}
	return n
}

// detach removes a connection with its watches. The session stays alive.
func (s *Server) detach(c *conn) {
	if c.session != nil {
		if c.session.conn == c { // and not a later one, at another member
			c.session.conn = nil
		}
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
	word := string(head[:])
	if fourLetterCommands[word] != nil && !c.client.waitPass(Inbound) {
		return false
	}
	if answer, ok := s.fourLetterReply(c.replica, word); ok {
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
	return s.applyFaults(c, r, func(answer answer) { s.connect(c, req, answer) }) != ends
}

// connect attaches the connection to the requested session, or to a new one. Without a
// session the connection ends.
func (s *Server) connect(c *conn, req connectRequest, answer answer) {
	rep := c.replica
	if s.conf.keeper {
		s.connectKeeper(c, req, answer)
		return
	}
	if !rep.serves() || req.lastZxid > rep.zxid {
		answer(nil, false) // the client has seen a later state, and has to try another server
		return
	}
	timeout := s.negotiate(req.timeout)
	attach := func(ss *session) {
		s.attach(c, ss, req)
		answer(connectReply{
			timeout: int32(timeout.Milliseconds()), session: ss.id, password: s.password(ss.id),
		}.encode(c.readOnly), true)
	}
	if req.session == 0 {
		s.write(rep, func() {
			x := s.begin(0, nil)
			ss := x.newSession(rep, timeout)
			s.propose(x, rep, func() { attach(ss) })
		})
		return
	}
	for old := range s.conns {
		if old.replica == rep && old.session != nil && old.session.id == req.session {
			s.detach(old) // as on a real server, even if the password is wrong
			old.client.cut(fin)
		}
	}
	password := s.password(req.session)
	if !slices.Equal(password[:], req.password) {
		answer(connectReply{}.encode(c.readOnly), false)
		return
	}
	s.atLeader(rep, func(l *leadership) {
		ss := s.revalidate(l, req.session, timeout, rep)
		s.atMember(l, rep, func() {
			if ss == nil {
				answer(connectReply{}.encode(c.readOnly), false)
				return
			}
			attach(ss)
		})
	})
}

// attach attaches a connection to the session, unless the session has moved on to another
// member during a slow answer of the leader.
func (s *Server) attach(c *conn, ss *session, req connectRequest) {
	if s.conns[c] && ss.at == c.replica {
		ss.conn = c
	}
	c.session, c.seen = ss, req.lastZxid // not what we sent: replies may have been lost
	c.client.session.Store(ss.id)
	s.notifyChange()
}

// revalidate returns the session of a client connected again, to a member, if the leader
// knows the session. From then on the leader takes the session's writes only from this
// member.
func (s *Server) revalidate(l *leadership, id int64, timeout time.Duration, at *replica) *session {
	if l != s.lead { // replaced, and knows only what was applied
		if _, ok := l.member.sessions[id]; !ok {
			return nil
		}
		return &session{id: id, timeout: timeout, at: at, ephemerals: map[string]bool{}}
	}
	ss := s.sessions[id]
	if ss != nil {
		ss.timeout, ss.at, ss.conn = timeout, at, nil
		s.touch(ss)
	}
	return ss
}

// handle handles one packet and reports whether the connection goes on. A server without an
// ensemble answers every request before reading the next.
func (s *Server) handle(c *conn, packet []byte) bool {
	if s.isEnsemble() && s.queue(c, packet) {
		return true
	}
	return s.handleRequest(c, packet) != ends
}

// queue keeps a packet for later if an earlier request of the connection is still being
// answered. The session is active nevertheless.
func (s *Server) queue(c *conn, packet []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.waiting {
		s.touchFrom(c)
		c.backlog = append(c.backlog, packet)
	}
	return c.waiting
}

// handleBacklog handles what has arrived during a request. Meanwhile more may arrive.
func (s *Server) handleBacklog(c *conn) {
	for {
		s.mu.Lock()
		if len(c.backlog) == 0 {
			c.waiting = false
			s.mu.Unlock()
			return
		}
		packet := c.backlog[0]
		c.backlog = c.backlog[1:]
		s.mu.Unlock()
		if s.handleRequest(c, packet) != goesOn {
			return
		}
	}
}

// outcome is what a request means for its connection.
type outcome int

const (
	ends   outcome = iota
	goesOn         // the next request can be handled
	waits          // the request will be answered by another goroutine
)

func (s *Server) handleRequest(c *conn, packet []byte) outcome {
	r, ok := parseRequest(packet)
	if !ok {
		return ends
	}
	r.Conn, r.Member, r.Session = c.client.number, c.replica.number, c.client.session.Load()
	return s.applyFaults(c, r, func(answer answer) { s.apply(c, r, packet, answer) })
}

// answer ends a request: with the reply, if any, and whether the connection goes on.
// Server.mu is held.
type answer func(reply []byte, alive bool)

// exchange is a request being answered.
type exchange struct {
	fault    *Fault
	passes   []*Fault
	answered bool
	async    bool // the answer comes later
	out      outgoing
	alive    bool
}

// applyFaults applies a request by calling do, with the fault of the rule hitting the
// request, if any. do is called with s.mu held.
func (s *Server) applyFaults(c *conn, r Request, do func(answer)) outcome {
	f, passes := s.match(r)
	s.mu.Lock()
	s.record(Record{Kind: Requested, Conn: r.Conn, Session: r.Session, Op: r.Op, Paths: r.Paths, Fault: f != nil})
	s.touchFrom(c)
	s.mu.Unlock()
	if f != nil && !s.faultBeforeApply(c, r, f) {
		return c.lost()
	}
	if a := f.action(); a.kind == failWith {
		do = func(answer answer) { s.replyError(c, r, a.code, answer) }
	}
	x := &exchange{fault: f, passes: passes}
	s.mu.Lock()
	if !s.conns[c] {
		s.mu.Unlock()
		return c.lost()
	}
	do(func(reply []byte, alive bool) {
		s.queueReply(c, x, reply, alive)
		if x.async {
			c.replica.listener.wg.Go(func() { // ends when the backlog is empty, or a request waits
				if x.finish(c) == goesOn {
					s.handleBacklog(c)
				}
			})
		}
	})
	x.async = !x.answered
	if x.async {
		c.waiting = true
	}
	s.mu.Unlock()
	if x.async {
		return waits
	}
	return x.finish(c)
}

// lost returns what becomes of a connection lost during a request. If the client cannot
// know of the loss, reading goes on, and the requests are discarded.
func (c *conn) lost() outcome {
	if c.client.dropsOutbound() {
		return goesOn
	}
	return ends
}

// queueReply queues the reply to a request, perhaps altered by a rule.
func (s *Server) queueReply(c *conn, x *exchange, reply []byte, alive bool) {
	x.answered = true
	if !s.conns[c] { // the connection was lost meanwhile
		countAnswered(x.fault, x.passes)
		return
	}
	if x.fault.action().kind == expireAfterApply {
		s.expireConn(c)
		reply, alive = nil, false
	}
	x.out = x.fault.outgoing(reply)
	if x.out.cut == uncut {
		countAnswered(x.fault, x.passes)
	}
	if x.out.bytes != nil || x.out.cut != uncut {
		c.client.send(x.out)
	}
	if x.alive = alive && x.out.cut == uncut; !x.alive {
		s.detach(c)
		c.client.closeAfterFlush()
	}
	s.notifyChange()
}

// finish waits for what must follow the reply.
func (x *exchange) finish(c *conn) outcome {
	if x.out.cut != uncut {
		<-c.client.written // a cut counts when visible to the client
		countAnswered(x.fault, x.passes)
	}
	if !x.alive {
		<-c.client.done // the queue is written before the connection is closed
		return ends
	}
	return goesOn
}

// faultBeforeApply injects a fault preceding the request, and reports whether the request
// is then applied.
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

// expireConn expires the session of a connection, or the session asked for, if any, and
// ends the connection.
func (s *Server) expireConn(c *conn) {
	if ss := s.sessions[c.client.session.Load()]; ss != nil {
		s.expire(ss)
	}
	s.detach(c)
	c.client.closeAfterFlush()
}

// replyError answers a request with a code instead of applying it.
func (s *Server) replyError(c *conn, r Request, code Code, answer answer) {
	rep := c.replica
	reply := func() { answer(s.reply(c, r, rep.zxid, code), true) }
	switch {
	case r.Op == OpConnect:
		answer(connectReply{}.encode(c.readOnly), false)
	case r.Op.writes():
		s.write(rep, func() { s.propose(s.begin(0, nil), rep, reply) })
	default:
		reply()
	}
}

// sendEvent sends a watch event, unless swallowed by a rule.
func (c *conn) sendEvent(event EventType, path string) {
	o := c.client.origin()
	f, passes := c.server.match(Request{
		Conn: o.conn, Member: o.member, Session: o.session, Xid: xidEvent, Op: OpEvent, Paths: []string{path}, Event: event,
	})
	c.server.record(Record{
		Kind: Notified, Conn: o.conn, Session: o.session, Paths: []string{path}, Event: event, Zxid: c.replica.zxid, Fault: f != nil,
	})
	countAnswered(f, passes)
	if f != nil {
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
