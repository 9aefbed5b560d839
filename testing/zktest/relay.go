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
type relay struct {
	proxy  *Proxy
	line   *line
	server *net.TCPConn

	raw      atomic.Bool   // a four letter word: there are no packets
	readOnly bool          // the handshake has that byte
	shaken   chan struct{} // closed when the reply to the handshake is queued
	over     chan struct{} // closed when nothing more comes from the server

	// mu makes it one step to find the request that a reply is for and to
	// queue the reply, so that those of FailWith have their place among them.
	mu      sync.Mutex
	pending []awaited
	zxid    int64 // the largest that the client has heard of
}

// awaited is a request without a reply. The server answers in the order of the
// requests; only replies to OpAuth may overtake others, so xids are looked at.
type awaited struct {
	xid      int32
	fault    *Fault
	counting counting
}

// requests takes what the client sends to the server, as long as there is
// something to read and somebody to write to.
func (r *relay) requests() {
	for goOn := r.greet(); goOn; {
		packet, err := r.line.read()
		if err != nil {
			r.leave()
			break
		}
		// What has no header goes on all the same: let the server judge it.
		req, _ := parseRequest(packet)
		goOn = r.request(req, packet)
	}
	select {
	case <-r.over:
	case <-r.line.dead:
	}
	if r.line.isMute() {
		_, _ = io.Copy(io.Discard, r.line.conn) // the client is to find out by itself
	} else {
		<-r.line.dead // what was received before is delivered
	}
}

// leave tells the server that the client has ended the connection, unless
// nobody is to know.
func (r *relay) leave() {
	if r.line.await(Inbound) {
		_ = r.server.CloseWrite()
	}
}

// greet deals with the client's first packet and reports whether requests
// follow.
func (r *relay) greet() bool {
	l := r.line
	head, err := l.head()
	if err != nil {
		r.leave()
		return false
	}
	if n := binary.BigEndian.Uint32(head[:]); n > maxHandshake {
		r.raw.Store(true)
		if l.await(Inbound) {
			_, _ = r.server.Write(head[:])
			_, _ = io.Copy(r.server, l.conn)
		}
		r.leave()
		return false
	}
	packet, err := l.body(head)
	if err != nil {
		r.leave()
		return false
	}
	connect, _ := parseConnect(packet)
	l.session.Store(connect.session)
	if !l.await(Inbound) { // a partition may be that of the session
		return true // to go on not hearing
	}
	r.proxy.claim(connect.session, l.dead)()
	r.readOnly, r.zxid = connect.hasReadOnly, connect.lastZxid
	return r.request(Request{Op: OpConnect}, packet)
}

// request sends a request to the server, and does to it what a rule says. It
// reports whether there is any point in reading more of them.
func (r *relay) request(req Request, packet []byte) bool {
	o := r.line.origin()
	req.Conn, req.Member, req.Session = o.conn, o.member, o.session
	f, counting := r.proxy.hit(req)
	a := f.action()
	switch a.kind {
	case dropBeforeApply, resetBeforeApply:
		r.line.cut(a.cutting())
		_ = r.server.Close()
		f.happened()
		return false
	case expireBeforeApply:
		r.expire(f)
		return false
	case freeze:
		r.line.forget(true, true)
		f.happened()
		return true
	case call:
		a.hook(req)
	case delayApply, holdApply:
		until := outgoing{delay: a.duration}
		if a.kind == holdApply {
			until.gate = f.gate
		}
		f.happened()
		if !r.line.pause(until) {
			return false
		}
	case failWith:
		if req.Op == OpConnect { // its reply has no code
			r.line.send(outgoing{bytes: connectReply{}.encode(r.readOnly), cut: fin})
			<-r.line.dead
			f.happened()
			return false
		}
	}

	e := awaited{req.Xid, f, counting}
	if req.Op == OpPing {
		e.xid = xidPing // whatever it was
	}
	r.mu.Lock()
	r.pending = append(r.pending, e)
	r.refuse()
	r.mu.Unlock()
	if a.kind == failWith {
		return true
	}
	if req.Op == OpConnect {
		r.attach(packet)
	} else {
		r.write(packet)
	}
	switch a.kind {
	case dropAfterApply, resetAfterApply, truncateReply, resetAfterReply, expireAfterApply:
		return false // so that it is certain what is carried out
	}
	return true
}

// attach sends the handshake and waits for the reply: from then on requests can
// be told by their session.
func (r *relay) attach(packet []byte) {
	r.write(packet)
	select {
	case <-r.shaken:
	case <-r.over:
	case <-r.line.dead:
	}
}

// write sends a packet to the server. If that fails, replies meets the error,
// too.
func (r *relay) write(packet []byte) {
	frame := append(newPacket(), packet...)
	_, _ = r.server.Write(frame.packet())
}

// refuse sends the replies of FailWith whose turn it is.
func (r *relay) refuse() {
	for len(r.pending) > 0 && r.pending[0].refused() {
		e := r.pending[0]
		r.pending = r.pending[1:]
		reply := newPacket()
		reply.int(e.xid)
		reply.long(r.zxid)
		reply.int(int32(e.fault.action().code))
		r.line.send(outgoing{bytes: reply.packet()})
		e.fault.happened()
		e.counting.happened()
	}
}

func (e awaited) refused() bool { return e.fault.action().kind == failWith }

// expire lets the session of the connection expire, which then ends.
func (r *relay) expire(f *Fault) {
	id := r.line.session.Load()
	var err error
	if id != 0 { // or there is no session yet that could
		err = r.proxy.ExpireSession(id)
	}
	r.line.finish()
	if err == nil {
		f.happened()
	}
}

// replies takes what the server sends to the client.
func (r *relay) replies() {
	defer close(r.over)
	from := bufio.NewReader(r.server)
	if _, err := from.Peek(1); err == nil && r.raw.Load() {
		_, _ = io.Copy(verbatim{r.line}, from)
	}
	for first, goOn := true, true; goOn; first = false {
		frame, err := readFrame(from)
		if err != nil {
			break
		}
		if first {
			r.shake(frame)
		}
		goOn = r.reply(frame, first)
		if first {
			close(r.shaken) // not before: nothing may come in front of this reply
		}
	}
	r.proxy.claim(r.line.session.Load(), r.line.dead)()
	r.line.finish()
}

// verbatim sends what is written to it.
type verbatim struct{ *line }

func (v verbatim) Write(b []byte) (int, error) {
	v.send(outgoing{bytes: bytes.Clone(b)})
	return len(b), nil
}

// shake learns from the reply to the handshake which session this is.
func (r *relay) shake(frame []byte) {
	if id, password := decodeConnectReply(frame); id != 0 {
		r.line.session.Store(id)
		r.proxy.mu.Lock()
		r.proxy.passwords[id] = password
		r.proxy.mu.Unlock()
	}
}

// reply sends a packet of the server to the client, and does to it what the
// rule says that hit the request. It reports whether the connection goes on.
func (r *relay) reply(frame []byte, first bool) bool {
	if !first && r.event(frame) {
		return true
	}
	r.mu.Lock()
	e := r.take(frame, first)
	f := e.fault
	out := outgoing{bytes: frame}
	switch a := f.action(); a.kind {
	case dropAfterApply, resetAfterApply:
		out = outgoing{cut: a.cutting()}
	case truncateReply:
		out.bytes, out.cut = frame[:min(a.bytes, len(frame))], fin
	case resetAfterReply:
		out.cut = rst
	case grantTimeout:
		a.grant(frame)
	case delayReply:
		out.delay = a.duration
	case holdReply:
		out.gate = f.gate
	case expireAfterApply:
		r.mu.Unlock()
		r.expire(f)
		return false
	}
	r.line.send(out)
	r.refuse()
	r.mu.Unlock()

	if out.cut != uncut {
		<-r.line.written // it has happened when the client can see it
		_ = r.server.Close()
	}
	switch f.action().kind {
	case delayApply, holdApply: // it happened long ago
	default:
		if f != nil {
			f.happened()
		}
	}
	e.counting.happened()
	return out.cut == uncut
}

// event reports whether a packet is a watch event, which it then sends to the
// client, unless a rule swallows it.
func (r *relay) event(frame []byte) bool {
	d := &decoder{rest: frame[4:]}
	if d.int() != xidEvent || d.long() != -1 || d.int() != 0 {
		return false
	}
	event := EventType(d.int())
	d.int() // the state, always connected
	o := r.line.origin()
	f, counting := r.proxy.hit(Request{
		Conn: o.conn, Member: o.member, Session: o.session, Xid: xidEvent, Op: OpEvent, Paths: []string{d.string()}, Event: event,
	})
	if f == nil {
		r.line.send(outgoing{bytes: frame})
	} else {
		f.happened()
	}
	counting.happened()
	return true
}

// take removes the request that a packet answers.
func (r *relay) take(frame []byte, first bool) (e awaited) {
	xid := int32(0) // of the handshake
	if !first {
		d := &decoder{rest: frame[4:]}
		xid = d.int()
		r.zxid = max(r.zxid, d.long())
	}
	i := slices.IndexFunc(r.pending, func(e awaited) bool { return e.xid == xid && !e.refused() })
	if i >= 0 {
		e = r.pending[i]
		r.pending = slices.Delete(r.pending, i, i+1)
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
	if n > maxProxied {
		return nil, errors.New("a packet of impossible length")
	}
	frame := bytes.NewBuffer(head)
	if _, err := io.CopyN(frame, from, int64(n)); err != nil {
		return nil, err
	}
	return frame.Bytes(), nil
}
