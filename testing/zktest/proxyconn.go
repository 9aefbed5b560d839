package zktest

// This file has one connection through a proxy.

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"sync/atomic"
)

// proxyConn is a client's connection together with the proxy's connection to the
// server.
type proxyConn struct {
	proxy  *Proxy
	client *clientConn
	server serverConn

	fourLetter    atomic.Bool   // the connection carries a four letter command, not packets
	readOnly      bool          // the handshake has the read-only byte
	handshakeDone chan struct{} // closed when the reply to the handshake is queued
	serverDone    chan struct{} // closed when nothing more comes from the server

	// mu makes finding the request of a reply and queuing the reply one atomic step, so
	// that the replies of FailWith are in their place among the others.
	mu      sync.Mutex
	pending []pendingRequest
	zxid    int64 // the largest seen by the client
}

// pendingRequest is a request without a reply. The server replies in the order
// of the requests, except that replies to OpAuth may overtake others: so replies
// are matched by xid.
type pendingRequest struct {
	xid    int32
	fault  *Fault
	passes []*Fault
}

// forwardRequests forwards the client's requests to the server until one of the
// two connections ends.
func (p *proxyConn) forwardRequests() {
	for alive := p.handshake(); alive; {
		packet, err := p.client.read()
		if err != nil {
			p.closeServerWrite()
			break
		}
		// A packet without a header is forwarded, too: the server decides.
		req, _ := parseRequest(packet)
		alive = p.forwardRequest(req, packet)
	}
	select {
	case <-p.serverDone:
	case <-p.client.done:
	}
	if p.client.dropsOutbound() {
		_, _ = io.Copy(io.Discard, p.client.conn) // without a sign to the client
	} else {
		<-p.client.done // the replies queued before are delivered
	}
}

// closeServerWrite forwards the end of the client's connection to the server, unless
// discarded.
func (p *proxyConn) closeServerWrite() {
	if p.client.waitPass(Inbound) {
		_ = p.server.CloseWrite()
	}
}

// handshake handles the client's first packet and reports whether requests
// follow.
func (p *proxyConn) handshake() bool {
	c := p.client
	head, err := c.readHeader()
	if err != nil {
		p.closeServerWrite()
		return false
	}
	if n := binary.BigEndian.Uint32(head[:]); n > maxHandshake {
		p.fourLetter.Store(true)
		if c.waitPass(Inbound) {
			_, _ = p.server.Write(head[:])
			_, _ = io.Copy(p.server, c.conn)
		}
		p.closeServerWrite()
		return false
	}
	packet, err := c.readBody(head)
	if err != nil {
		p.closeServerWrite()
		return false
	}
	connect, _ := parseConnect(packet)
	c.session.Store(connect.session)
	if !c.waitPass(Inbound) { // again, for a partition of this session
		return true // to go on discarding
	}
	p.proxy.lockSession(connect.session, c.done)()
	p.readOnly, p.zxid = connect.hasReadOnly, connect.lastZxid
	return p.forwardRequest(Request{Op: OpConnect}, packet)
}

// forwardRequest sends a request to the server, with the fault of the rule hitting the
// request, if any. It reports whether to read further requests.
func (p *proxyConn) forwardRequest(req Request, packet []byte) bool {
	o := p.client.origin()
	req.Conn, req.Member, req.Session = o.conn, o.member, o.session
	f, passes := p.proxy.match(req)
	a := f.action()
	switch a.kind {
	case dropBeforeApply, resetBeforeApply:
		p.client.cut(a.cutMode())
		_ = p.server.Close()
		f.recordFired()
		return false
	case expireBeforeApply:
		p.expireSession(f)
		return false
	case freeze:
		p.client.blackhole(true, true)
		f.recordFired()
		return true
	case call:
		a.hook(req)
		f.recordFired()
	case delayApply, holdApply:
		if !f.waitBeforeApply(p.client) {
			return false
		}
	case failWith:
		if req.Op == OpConnect { // the reply has no code
			p.client.send(outgoing{bytes: connectReply{}.encode(p.readOnly), cut: fin})
			<-p.client.done
			countAnswered(f, passes)
			return false
		}
	}

	e := pendingRequest{req.Xid, f, passes}
	if req.Op == OpPing {
		e.xid = xidPing // the xid of the reply to any ping
	}
	p.mu.Lock()
	p.pending = append(p.pending, e)
	p.sendErrors()
	p.mu.Unlock()
	if a.kind == failWith {
		return true
	}
	if req.Op == OpConnect {
		p.forwardHandshake(packet)
	} else {
		p.writeServer(packet)
	}
	switch a.kind {
	case dropAfterApply, resetAfterApply, truncateReply, resetAfterReply, expireAfterApply:
		return false // or the server might apply later requests
	}
	return true
}

// forwardHandshake sends the handshake to the server and waits for the reply:
// from then on, the session of each request is known.
func (p *proxyConn) forwardHandshake(packet []byte) {
	p.writeServer(packet)
	select {
	case <-p.handshakeDone:
	case <-p.serverDone:
	case <-p.client.done:
	}
}

// writeServer sends a packet to the server. An error is ignored, because forwardReplies
// then gets an error, too.
func (p *proxyConn) writeServer(packet []byte) {
	frame := append(newPacket(), packet...)
	_, _ = p.server.Write(frame.packet())
}

// sendErrors sends the next replies in the order, as far as they are FailWith's.
func (p *proxyConn) sendErrors() {
	for len(p.pending) > 0 && p.pending[0].failed() {
		e := p.pending[0]
		p.pending = p.pending[1:]
		reply := newPacket()
		reply.int(e.xid)
		reply.long(p.zxid)
		reply.int(int32(e.fault.action().code))
		countAnswered(e.fault, e.passes)
		p.client.send(outgoing{bytes: reply.packet()})
	}
}

func (e pendingRequest) failed() bool { return e.fault.action().kind == failWith }

// expireSession expires the connection's session and ends the connection.
func (p *proxyConn) expireSession(f *Fault) {
	id := p.client.session.Load()
	var err error
	if id != 0 { // otherwise there is no session yet
		err = p.proxy.ExpireSession(id)
	}
	p.client.closeAfterFlush()
	if err == nil {
		f.recordFired()
	}
}

// forwardReplies forwards the server's packets to the client.
func (p *proxyConn) forwardReplies() {
	defer close(p.serverDone)
	from := bufio.NewReader(p.server)
	if _, err := from.Peek(1); err == nil && p.fourLetter.Load() {
		_, _ = io.Copy(rawWriter{p.client}, from)
	}
	for first, alive := true, true; alive; first = false {
		frame, err := readFrame(from)
		if err != nil {
			break
		}
		if first {
			p.recordSession(frame)
		}
		alive = p.forwardReply(frame, first)
		if first {
			close(p.handshakeDone) // not earlier: this reply must be the first
		}
	}
	p.proxy.lockSession(p.client.session.Load(), p.client.done)()
	p.client.closeAfterFlush()
}

// rawWriter sends the written bytes to the client.
type rawWriter struct{ *clientConn }

func (v rawWriter) Write(b []byte) (int, error) {
	v.send(outgoing{bytes: bytes.Clone(b)})
	return len(b), nil
}

// recordSession records the session granted by the reply to the handshake.
func (p *proxyConn) recordSession(frame []byte) {
	if id, password := decodeConnectReply(frame); id != 0 {
		p.client.session.Store(id)
		p.proxy.mu.Lock()
		p.proxy.passwords[id] = password
		p.proxy.mu.Unlock()
	}
}

// forwardReply sends a packet of the server to the client, with the fault of the rule
// hitting the request, if any. It reports whether the connection goes on.
func (p *proxyConn) forwardReply(frame []byte, first bool) bool {
	if !first && p.forwardEvent(frame) {
		return true
	}
	p.mu.Lock()
	e := p.takePending(frame, first)
	f := e.fault
	if f.action().kind == expireAfterApply {
		p.mu.Unlock()
		p.expireSession(f)
		return false
	}
	out := f.outgoing(frame)
	if out.cut == uncut {
		countAnswered(f, e.passes)
	}
	p.client.send(out)
	p.sendErrors()
	p.mu.Unlock()

	if out.cut != uncut {
		<-p.client.written // a cut counts when visible to the client
		_ = p.server.Close()
		countAnswered(f, e.passes)
	}
	return out.cut == uncut
}

// forwardEvent reports whether a packet is a watch event, and sends the event to the client
// unless swallowed by a rule.
func (p *proxyConn) forwardEvent(frame []byte) bool {
	d := &decoder{rest: frame[4:]}
	xid, _, code := d.int(), d.long(), d.int() // ZooKeeper 3.9 gives events a zxid
	if xid != xidEvent || code != 0 {
		return false
	}
	event := EventType(d.int())
	d.int() // the state, always SyncConnected
	o := p.client.origin()
	f, passes := p.proxy.match(Request{
		Conn: o.conn, Member: o.member, Session: o.session, Xid: xidEvent, Op: OpEvent, Paths: []string{d.string()}, Event: event,
	})
	countAnswered(f, passes)
	if f == nil {
		p.client.send(outgoing{bytes: frame})
	}
	return true
}

// takePending removes and returns the request answered by a packet, or the zero
// pendingRequest.
func (p *proxyConn) takePending(frame []byte, first bool) (e pendingRequest) {
	xid := int32(0) // of the handshake
	if !first {
		d := &decoder{rest: frame[4:]}
		xid = d.int()
		p.zxid = max(p.zxid, d.long())
	}
	i := slices.IndexFunc(p.pending, func(e pendingRequest) bool { return e.xid == xid && !e.failed() })
	if i >= 0 {
		e = p.pending[i]
		p.pending = slices.Delete(p.pending, i, i+1)
	}
	return e
}

// decodeConnectReply reads the reply to a handshake. A refused session is 0.
func decodeConnectReply(frame []byte) (session int64, password []byte) {
	d := &decoder{rest: frame}
	d.int() // length
	d.int() // version
	d.int() // timeout
	return d.long(), d.buffer()
}

// readFrame reads a packet and returns the packet with the length. Memory is allocated only
// for received bytes.
func readFrame(from io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > maxProxiedPacket {
		return nil, errPacketLength
	}
	frame := bytes.NewBuffer(head)
	if _, err := io.CopyN(frame, from, int64(n)); err != nil {
		return nil, err
	}
	return frame.Bytes(), nil
}
