package zktest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// relay is a client's connection together with the one to the server.
type proxyConn struct {
	proxy  *Proxy
	client *clientConn
	server *net.TCPConn

	fourLetter    atomic.Bool   // a four letter word: there are no packets
	readOnly      bool          // the handshake has that byte
	handshakeDone chan struct{} // closed when the reply to the handshake is queued
	serverDone    chan struct{} // closed when nothing more comes from the server

	// mu makes it one step to find the request that a reply is for and to
	// queue the reply, so that those of FailWith have their place among them.
	mu      sync.Mutex
	pending []pendingRequest
	zxid    int64 // the largest that the client has heard of
}

// awaited is a request without a reply. The server answers in the order of the
// requests; only replies to OpAuth may overtake others, so xids are looked at.
type pendingRequest struct {
	xid    int32
	fault  *Fault
	passes passRules
}

// requests takes what the client sends to the server, as long as there is
// something to read and somebody to write to.
func (p *proxyConn) forwardRequests() {
	for goOn := p.handshake(); goOn; {
		packet, err := p.client.read()
		if err != nil {
			p.closeServerWrite()
			break
		}
		// What has no header goes on all the same: let the server judge it.
		req, _ := parseRequest(packet)
		goOn = p.forwardRequest(req, packet)
	}
	select {
	case <-p.serverDone:
	case <-p.client.done:
	}
	if p.client.dropsOutbound() {
		_, _ = io.Copy(io.Discard, p.client.conn) // the client is to find out by itself
	} else {
		<-p.client.done // what was received before is delivered
	}
}

// leave tells the server that the client has ended the connection, unless
// nobody is to know.
func (p *proxyConn) closeServerWrite() {
	if p.client.waitPass(Inbound) {
		_ = p.server.CloseWrite()
	}
}

// greet deals with the client's first packet and reports whether requests
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
	if !c.waitPass(Inbound) { // a partition may be that of the session
		return true // to go on not hearing
	}
	p.proxy.lockSession(connect.session, c.done)()
	p.readOnly, p.zxid = connect.hasReadOnly, connect.lastZxid
	return p.forwardRequest(Request{Op: OpConnect}, packet)
}

// request sends a request to the server, and does to it what a rule says. It
// reports whether there is any point in reading more of them.
func (p *proxyConn) forwardRequest(req Request, packet []byte) bool {
	o := p.client.origin()
	req.Conn, req.Member, req.Session = o.conn, o.member, o.session
	f, counting := p.proxy.match(req)
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
	case delayApply, holdApply:
		until := outgoing{delay: a.duration}
		if a.kind == holdApply {
			until.gate = f.gate
		}
		f.recordFired()
		if !p.client.waitDue(until) {
			return false
		}
	case failWith:
		if req.Op == OpConnect { // its reply has no code
			p.client.send(outgoing{bytes: connectReply{}.encode(p.readOnly), cut: fin})
			<-p.client.done
			f.recordFired()
			return false
		}
	}

	e := pendingRequest{req.Xid, f, counting}
	if req.Op == OpPing {
		e.xid = xidPing // whatever it was
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
		return false // so that it is certain what is carried out
	}
	return true
}

// attach sends the handshake and waits for the reply: from then on requests can
// be told by their session.
func (p *proxyConn) forwardHandshake(packet []byte) {
	p.writeServer(packet)
	select {
	case <-p.handshakeDone:
	case <-p.serverDone:
	case <-p.client.done:
	}
}

// write sends a packet to the server. If that fails, replies meets the error,
// too.
func (p *proxyConn) writeServer(packet []byte) {
	frame := append(newPacket(), packet...)
	_, _ = p.server.Write(frame.packet())
}

// refuse sends the replies of FailWith whose turn it is.
func (p *proxyConn) sendErrors() {
	for len(p.pending) > 0 && p.pending[0].failed() {
		e := p.pending[0]
		p.pending = p.pending[1:]
		reply := newPacket()
		reply.int(e.xid)
		reply.long(p.zxid)
		reply.int(int32(e.fault.action().code))
		p.client.send(outgoing{bytes: reply.packet()})
		e.fault.recordFired()
		e.passes.recordFired()
	}
}

func (e pendingRequest) failed() bool { return e.fault.action().kind == failWith }

// expire lets the session of the connection expire, which then ends.
func (p *proxyConn) expireSession(f *Fault) {
	id := p.client.session.Load()
	var err error
	if id != 0 { // or there is no session yet that could
		err = p.proxy.ExpireSession(id)
	}
	p.client.closeAfterFlush()
	if err == nil {
		f.recordFired()
	}
}

// replies takes what the server sends to the client.
func (p *proxyConn) forwardReplies() {
	defer close(p.serverDone)
	from := bufio.NewReader(p.server)
	if _, err := from.Peek(1); err == nil && p.fourLetter.Load() {
		_, _ = io.Copy(rawWriter{p.client}, from)
	}
	for first, goOn := true, true; goOn; first = false {
		frame, err := readFrame(from)
		if err != nil {
			break
		}
		if first {
			p.recordSession(frame)
		}
		goOn = p.forwardReply(frame, first)
		if first {
			close(p.handshakeDone) // not before: nothing may come in front of this reply
		}
	}
	p.proxy.lockSession(p.client.session.Load(), p.client.done)()
	p.client.closeAfterFlush()
}

// verbatim sends what is written to it.
type rawWriter struct{ *clientConn }

func (v rawWriter) Write(b []byte) (int, error) {
	v.send(outgoing{bytes: bytes.Clone(b)})
	return len(b), nil
}

// shake learns from the reply to the handshake which session this is.
func (p *proxyConn) recordSession(frame []byte) {
	if id, password := decodeConnectReply(frame); id != 0 {
		p.client.session.Store(id)
		p.proxy.mu.Lock()
		p.proxy.passwords[id] = password
		p.proxy.mu.Unlock()
	}
}

// reply sends a packet of the server to the client, and does to it what the
// rule says that hit the request. It reports whether the connection goes on.
func (p *proxyConn) forwardReply(frame []byte, first bool) bool {
	if !first && p.forwardEvent(frame) {
		return true
	}
	p.mu.Lock()
	e := p.takePending(frame, first)
	f := e.fault
	out := outgoing{bytes: frame}
	switch a := f.action(); a.kind {
	case dropAfterApply, resetAfterApply:
		out = outgoing{cut: a.cutMode()}
	case truncateReply:
		out.bytes, out.cut = frame[:min(a.bytes, len(frame))], fin
	case resetAfterReply:
		out.cut = rst
	case grantTimeout:
		a.setTimeout(frame)
	case delayReply:
		out.delay = a.duration
	case holdReply:
		out.gate = f.gate
	case expireAfterApply:
		p.mu.Unlock()
		p.expireSession(f)
		return false
	}
	p.client.send(out)
	p.sendErrors()
	p.mu.Unlock()

	if out.cut != uncut {
		<-p.client.written // it has happened when the client can see it
		_ = p.server.Close()
	}
	switch f.action().kind {
	case delayApply, holdApply: // it happened long ago
	default:
		if f != nil {
			f.recordFired()
		}
	}
	e.passes.recordFired()
	return out.cut == uncut
}

// event reports whether a packet is a watch event, which it then sends to the
// client, unless a rule swallows it.
func (p *proxyConn) forwardEvent(frame []byte) bool {
	d := &decoder{rest: frame[4:]}
	if d.int() != xidEvent || d.long() != -1 || d.int() != 0 {
		return false
	}
	event := EventType(d.int())
	d.int() // the state, always connected
	o := p.client.origin()
	f, counting := p.proxy.match(Request{
		Conn: o.conn, Member: o.member, Session: o.session, Xid: xidEvent, Op: OpEvent, Paths: []string{d.string()}, Event: event,
	})
	if f == nil {
		p.client.send(outgoing{bytes: frame})
	} else {
		f.recordFired()
	}
	counting.recordFired()
	return true
}

// take removes the request that a packet answers.
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

func decodeConnectReply(frame []byte) (session int64, password []byte) {
	d := &decoder{rest: frame}
	d.int() // length
	d.int() // version
	d.int() // timeout
	return d.long(), d.buffer()
}

// readFrame reads a packet and returns it with its length. It takes memory
// only for what has come.
func readFrame(from io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > maxProxiedPacket {
		return nil, errors.New("a packet of impossible length")
	}
	frame := bytes.NewBuffer(head)
	if _, err := io.CopyN(frame, from, int64(n)); err != nil {
		return nil, err
	}
	return frame.Bytes(), nil
}
