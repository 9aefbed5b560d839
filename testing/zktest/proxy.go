package zktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	// maxProxied is the length of the largest packet that the proxy takes. What
	// is too large for the server is the server's business.
	maxProxiedPacket = 64 << 20
	// maxHandshake is a length that only four letter words seem to have.
	maxHandshake = 1 << 20

	expiryTimeout = 10 * time.Second // with the end of a session

	// expiryAttempt bounds one attempt to end a session. ZooKeeper may forget
	// to answer one of two who attach to a session at the same time.
	expiryAttemptTimeout = time.Second
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
	listener *listener
	ctx      context.Context // until Close
	cancel   context.CancelFunc
	serving  sync.WaitGroup // what Serve has begun
	closing  sync.Once
	closeErr error

	mu           sync.Mutex
	accepted     int                          // connections so far
	upstreams    map[*clientConn]*net.TCPConn // the other side of each line
	passwords    map[int64][]byte             // of the sessions that were given to clients
	sessionLocks map[int64]chan struct{}      // on sessions; closed when they end
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
		target:       target,
		upstreams:    map[*clientConn]*net.TCPConn{},
		passwords:    map[int64][]byte{},
		sessionLocks: map[int64]chan struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.faults.done = p.ctx.Done()
	p.network.init()
	if p.listener, err = newListener("", p.admit); err != nil {
		return nil, fmt.Errorf("zktest: starting a proxy: %w", err)
	}
	return p, nil
}

// Addr returns the address for clients, 127.0.0.1:port.
func (p *Proxy) Addr() string { return p.listener.address() }

// ConnectString returns the address for clients, like Addr.
func (p *Proxy) ConnectString() string { return p.Addr() }

// Serve lets the proxy accept connections from l, too, such as a listener with
// TLS or one on another address, until Close, which closes l. It returns at
// once and must not be called after Close. [Proxy.RefuseConnections] and the
// like are not for l.
func (p *Proxy) Serve(l net.Listener) {
	p.serving.Go(func() { // ends with l
		defer context.AfterFunc(p.ctx, func() { _ = l.Close() })()
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
func (p *Proxy) RefuseConnections(members ...int) error { return p.setAcceptMode(refusing, members) }

// RejectConnections closes new connections as soon as they are accepted.
func (p *Proxy) RejectConnections(members ...int) error { return p.setAcceptMode(rejecting, members) }

// HangConnections accepts new connections and never answers them.
func (p *Proxy) HangConnections(members ...int) error { return p.setAcceptMode(hanging, members) }

// AcceptConnections ends what RefuseConnections, RejectConnections or
// HangConnections began, for connections to come.
func (p *Proxy) AcceptConnections(members ...int) error { return p.setAcceptMode(accepting, members) }

func (p *Proxy) setAcceptMode(m acceptMode, members []int) error {
	for _, number := range members {
		if number != 1 {
			return fmt.Errorf("zktest: there is no member %d: a proxy has only member 1", number)
		}
	}
	if err := p.listener.setMode(m); err != nil {
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
	for _, c := range p.selected(sel) {
		c.blackhole(true, true)
		_ = p.upstreams[c].Close()
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
	ctx, cancel := context.WithTimeout(p.ctx, expiryTimeout)
	defer cancel()
	defer p.lockSession(id, ctx.Done())()
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
	if p.ctx.Err() != nil {
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
	if p.ctx.Err() != nil {
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
	ctx, cancel := context.WithTimeout(ctx, expiryAttemptTimeout)
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
	attach.int(int32(expiryTimeout.Milliseconds()))
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
		p.cancel()
		if err := p.listener.close(); err != nil {
			p.closeErr = fmt.Errorf("zktest: closing the proxy on %s: %w", p.Addr(), err)
		}
		for _, c := range p.selected(Selector{}) {
			c.abort()
		}
		p.listener.wait()
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
	server, err := d.DialContext(p.ctx, "tcp", p.target)
	if err != nil {
		_ = client.Close() // as that of a dead server
		return
	}
	r := &proxyConn{
		proxy: p, server: server.(*net.TCPConn),
		handshakeDone: make(chan struct{}), serverDone: make(chan struct{}),
	}
	p.mu.Lock()
	r.client = newClientConn(&p.network, client, maxProxiedPacket, number, 1)
	p.upstreams[r.client] = r.server
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		r.client.abort() // Close may have come too early for this line
	}

	var wg sync.WaitGroup
	wg.Go(r.forwardReplies)
	wg.Go(func() {
		<-r.client.done
		_ = server.Close()
	})
	r.forwardRequests()
	r.client.closeAndDrain()
	wg.Wait()
	p.mu.Lock()
	delete(p.upstreams, r.client)
	p.mu.Unlock()
}

// claim waits until nobody else claims a session, or cancel is closed, and
// returns what ends the claim. ExpireSession has it while it works. Others wait
// for it before they tell a client that its connection has ended, and before
// they let a client attach: it must not get the session back in between our
// taking it over and our closing it.
func (p *Proxy) lockSession(id int64, cancel <-chan struct{}) (release func()) {
	for {
		p.mu.Lock()
		other := p.sessionLocks[id]
		if other == nil {
			mine := make(chan struct{})
			p.sessionLocks[id] = mine
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.sessionLocks, id)
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
