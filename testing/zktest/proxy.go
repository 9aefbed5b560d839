package zktest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// maxProxied is the length of the largest packet that the proxy takes. What
	// is too large for the server is the server's business.
	maxProxied = 64 << 20
	// maxHandshake is a length that only four letter words seem to have.
	maxHandshake = 1 << 20

	expiryPatience = 10 * time.Second // with the end of a session

	// expiryAttempt bounds one attempt to end a session. ZooKeeper may forget
	// to answer one of two who attach to a session at the same time.
	expiryAttempt = time.Second
)

// Proxy stands between clients and a server, mostly a [RealServer], and lets
// the same faults happen that [Server] has by itself. Without a fault every
// packet goes through as it is, and so do four letter words.
//
// A proxy sees packets and not what the server does with them. So some things
// are not quite as in [Server]:
//   - A request that a rule holds up does not reach the server, and neither do
//     the connection's later ones, not even pings: the session may expire.
//   - [Pass] and [Call] have happened when the server has answered the request,
//     which is then carried out, with its watch set.
//   - What follows a request on its connection is not carried out if the reply
//     is to be cut off, and what follows a handshake waits for its reply.
//   - [FailWith] takes no zxid, as a failed write on a real server does: the
//     reply has the largest zxid seen on the connection.
//
// What a Server shows of its state, a proxy can not: to wait until a watch is
// set, inject a rule that does Pass to the read that sets it.
//
// All methods may be called concurrently, also from a rule's [Call], except
// Close, which waits for it.
type Proxy struct {
	faults
	network

	target   string
	entrance *entrance
	life     context.Context // until Close
	kill     context.CancelFunc
	serving  sync.WaitGroup // what Serve has begun
	closing  sync.Once
	closeErr error

	mu        sync.Mutex
	accepted  int                     // connections so far
	upstreams map[*line]*net.TCPConn  // the other side of each line
	passwords map[int64][]byte        // of the sessions that were given to clients
	claims    map[int64]chan struct{} // on sessions; closed when they end
}

// StartProxy starts a proxy for a test in front of the server at target,
// host:port. It is closed when the test ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := RunProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// RunProxy starts a proxy on a free port of 127.0.0.1, in front of the server
// at target, host:port; call Close when done with it. The server need not run:
// while it does not, clients' connections are closed.
func RunProxy(target string) (*Proxy, error) {
	_, port, err := net.SplitHostPort(target)
	if err != nil {
		return nil, fmt.Errorf("zktest: starting a proxy: the target %q is not host:port: %w", target, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return nil, fmt.Errorf("zktest: starting a proxy: the target %q has no port from 1 to 65535", target)
	}
	p := &Proxy{
		target:    target,
		upstreams: map[*line]*net.TCPConn{},
		passwords: map[int64][]byte{},
		claims:    map[int64]chan struct{}{},
	}
	p.life, p.kill = context.WithCancel(context.Background())
	p.faults.over = p.life.Done()
	p.network.init()
	if p.entrance, err = newEntrance("", p.admit); err != nil {
		return nil, fmt.Errorf("zktest: starting a proxy: %w", err)
	}
	return p, nil
}

// Addr returns the address for clients, 127.0.0.1:port.
func (p *Proxy) Addr() string { return p.entrance.address() }

// ConnectString returns the address for clients, like Addr.
func (p *Proxy) ConnectString() string { return p.Addr() }

// Serve lets the proxy accept connections from l, too, such as a listener with
// TLS or one on another address, until Close, which closes l. It returns at
// once and must not be called after Close. [Proxy.RefuseConnections] and the
// like are not for l.
func (p *Proxy) Serve(l net.Listener) {
	p.serving.Go(func() { // ends with l
		defer context.AfterFunc(p.life, func() { _ = l.Close() })()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.serving.Go(p.admit(conn))
		}
	})
}

// RefuseConnections closes the port: clients get ECONNREFUSED. Open
// connections stay. A proxy has one address, so the only member is 1.
func (p *Proxy) RefuseConnections(members ...int) error { return p.meet(refusing, members) }

// RejectConnections closes new connections as soon as they are accepted.
func (p *Proxy) RejectConnections(members ...int) error { return p.meet(rejecting, members) }

// HangConnections accepts new connections and never answers them.
func (p *Proxy) HangConnections(members ...int) error { return p.meet(hanging, members) }

// AcceptConnections ends what RefuseConnections, RejectConnections or
// HangConnections began, for connections to come.
func (p *Proxy) AcceptConnections(members ...int) error { return p.meet(admitting, members) }

func (p *Proxy) meet(m mood, members []int) error {
	for _, number := range members {
		if number != 1 {
			return fmt.Errorf("zktest: there is no member %d: a proxy has only member 1", number)
		}
	}
	if err := p.entrance.set(m); err != nil {
		return fmt.Errorf("zktest: the proxy on %s: %w", p.Addr(), err)
	}
	return nil
}

// HalfOpen ends the server's side of connections, so that it forgets them and
// their watches, without a sign to the clients: what they send vanishes, and
// nothing comes back. Their sessions run on to their end.
func (p *Proxy) HalfOpen(sel Selector) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.selected(sel) {
		l.forget(true, true)
		_ = p.upstreams[l].Close()
	}
}

// ExpireSession ends a session that a client got through the proxy, and
// returns when its ephemerals are gone. To the client it looks as if its time
// was up: the connection is closed without a message, and the next handshake
// says that the session has expired. In truth the session is closed, over a
// connection of the proxy's own that takes it over. For a client that is to
// hear nothing of it, use HalfOpen before. It is an error if the session did
// not come through the proxy, if it was ended by ExpireSession already, or if
// the server does not end it within 10 s.
func (p *Proxy) ExpireSession(id int64) error {
	ctx, cancel := context.WithTimeout(p.life, expiryPatience)
	defer cancel()
	defer p.claim(id, ctx.Done())()
	p.mu.Lock()
	password, known := p.passwords[id]
	p.mu.Unlock()
	if !known {
		return fmt.Errorf("zktest: there is no session 0x%x", id)
	}
	over, err := p.closeSession(ctx, id, password)
	for !over && err == nil {
		// A client has taken its session back, not through this proxy.
		select {
		case <-time.After(pollInterval):
			over, err = p.closeSession(ctx, id, password)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if p.life.Err() != nil {
		err = errClosed
	}
	if err != nil {
		return fmt.Errorf("zktest: ending the session 0x%x: %w", id, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.passwords, id)
	return nil
}

// ExpireAll ends all sessions that clients got through the proxy, one after
// the other, as [Proxy.ExpireSession] does.
func (p *Proxy) ExpireAll() error {
	if p.life.Err() != nil {
		return fmt.Errorf("zktest: ExpireAll: %w", errClosed)
	}
	p.mu.Lock()
	ids := slices.Sorted(maps.Keys(p.passwords))
	p.mu.Unlock()
	var errs []error
	for _, id := range ids {
		errs = append(errs, p.ExpireSession(id))
	}
	return errors.Join(errs...)
}

// closeSession attaches to a session and closes it, without a pause in between
// in which its client could attach again. It reports whether the session is
// over; if not, and the server could be reached, it is worth another attempt.
func (p *Proxy) closeSession(ctx context.Context, id int64, password []byte) (over bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, expiryAttempt)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	attach := newPacket()
	attach.int(0)
	attach.long(0)
	attach.int(int32(expiryPatience.Milliseconds()))
	attach.long(id)
	attach.buffer(password)
	end := newPacket()
	end.int(1)
	end.int(int32(OpCloseSession))
	if _, err := conn.Write(append(attach.packet(), end.packet()...)); err != nil {
		return false, nil
	}
	reply, err := readFrame(conn)
	if err != nil {
		return false, nil
	}
	if got, _ := decodeConnectReply(reply); got != id {
		return true, nil // it has expired by itself
	}
	_, err = readFrame(conn)
	return err == nil, nil
}

// Close ends the proxy, all its connections and goroutines. Sessions live on
// in the server. Further calls do nothing and return the same error.
func (p *Proxy) Close() error {
	p.closing.Do(func() {
		p.kill()
		if err := p.entrance.close(); err != nil {
			p.closeErr = fmt.Errorf("zktest: closing the proxy on %s: %w", p.Addr(), err)
		}
		for _, l := range p.selected(Selector{}) {
			l.abort()
		}
		p.entrance.wait()
		p.serving.Wait()
	})
	return p.closeErr
}

// admit numbers a connection and returns its life.
func (p *Proxy) admit(client net.Conn) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted++
	number := p.accepted
	return func() { p.serve(client, number) }
}

func (p *Proxy) serve(client net.Conn, number int) {
	var d net.Dialer
	server, err := d.DialContext(p.life, "tcp", p.target)
	if err != nil {
		_ = client.Close() // as that of a dead server
		return
	}
	r := &relay{
		proxy: p, server: server.(*net.TCPConn),
		shaken: make(chan struct{}), over: make(chan struct{}),
	}
	p.mu.Lock()
	r.line = newLine(&p.network, client, maxProxied, number, 1)
	p.upstreams[r.line] = r.server
	p.mu.Unlock()
	if p.life.Err() != nil {
		r.line.abort() // Close may have come too early for this line
	}

	var wg sync.WaitGroup
	wg.Go(r.replies)
	wg.Go(func() {
		<-r.line.dead
		_ = server.Close()
	})
	r.requests()
	r.line.end()
	wg.Wait()
	p.mu.Lock()
	delete(p.upstreams, r.line)
	p.mu.Unlock()
}

// claim waits until nobody else claims a session, or cancel is closed, and
// returns what ends the claim. ExpireSession has it while it works. Others wait
// for it before they tell a client that its connection has ended, and before
// they let a client attach: it must not get the session back in between our
// taking it over and our closing it.
func (p *Proxy) claim(id int64, cancel <-chan struct{}) (release func()) {
	for {
		p.mu.Lock()
		other := p.claims[id]
		if other == nil {
			mine := make(chan struct{})
			p.claims[id] = mine
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.claims, id)
				close(mine)
			}
		}
		p.mu.Unlock()
		select {
		case <-other:
		case <-cancel:
			return func() {}
		}
	}
}

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
	case dropAfterApply, resetAfterApply, truncateReply, expireAfterApply:
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
	r.mu.Lock()
	e := r.take(frame, first)
	f := e.fault
	out := outgoing{bytes: frame}
	switch a := f.action(); a.kind {
	case dropAfterApply, resetAfterApply:
		out = outgoing{cut: a.cutting()}
	case truncateReply:
		out.bytes, out.cut = frame[:min(a.bytes, len(frame))], fin
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
		<-r.line.dead // it has happened when the client can see it
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

// take removes the request that a packet answers. An event has an xid that no
// request has.
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
