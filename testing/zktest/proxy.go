package zktest

// This file has the proxy in front of a server.

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

	"github.com/lockpool/lockpool/testing/zktest/bubble"
)

const (
	// maxProxiedPacket bounds the length of a packet. It is more than any server allows:
	// the server's own limit applies.
	maxProxiedPacket = 64 << 20
	// maxHandshake bounds the length of a first packet: four letters, read as a
	// length, are above it.
	maxHandshake = 1 << 20

	expiryTimeout = 10 * time.Second // of ExpireSession

	// expiryAttemptTimeout bounds one attempt to end a session. When two
	// connections attach to a session at the same time, ZooKeeper may never
	// answer one of them.
	expiryAttemptTimeout = time.Second
)

// Proxy stands between clients and a server, usually a [RealServer], and injects the faults
// built into [Server]. Without a fault it forwards every packet, and every four letter
// command, unchanged.
//
// A proxy sees packets, not what the server does with them. So a proxy differs from
// [Server] in some respects:
//   - While a rule delays a request, neither the request nor later ones of the connection
//     reach the server, not even pings: the session may expire.
//   - [Pass] and [Call] have happened when the server has replied: then the request is
//     applied and the watch is set.
//   - If a rule drops or truncates a reply, later requests of the connection are not
//     applied. Requests after a handshake wait for the reply.
//   - [FailWith] takes no zxid, unlike a failed write on a server: the reply has
//     the largest zxid seen on the connection.
//
// A proxy cannot show the server's state: to wait until a watch is set, inject a rule with
// Pass for the read setting the watch.
//
// All methods may be called concurrently, even from a rule's [Call], except Close: Close
// waits for the Call.
type Proxy struct {
	faults
	network

	target   string
	dial     dialer
	listener *listener
	ctx      context.Context // until Close
	cancel   context.CancelFunc
	serving  sync.WaitGroup // the goroutines of Serve
	closing  sync.Once
	closeErr error

	mu           sync.Mutex
	accepted     int                        // connections so far
	upstreams    map[*clientConn]serverConn // the connection to the server for each client
	passwords    map[int64][]byte           // by session, of sessions granted through the proxy
	sessionLocks map[int64]chan struct{}    // by session; closed when the lock is released
}

// serverConn is the connection to the server, on TCP or in memory.
type serverConn interface {
	net.Conn
	CloseWrite() error
}

// StartProxy starts a proxy for a test, in front of the server at target,
// host:port. The proxy is closed when the test ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := RunProxy(target)
	return closeWithTest(t, p, err)
}

// RunProxy starts a proxy on a free port of 127.0.0.1, in front of the server at
// target, host:port. Call Close to release it. While the server is not running,
// the proxy closes clients' connections.
func RunProxy(target string) (*Proxy, error) {
	_, port, err := net.SplitHostPort(target)
	if err != nil {
		return nil, fmt.Errorf("zktest: starting a proxy: the target %q is not host:port: %w", target, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return nil, fmt.Errorf("zktest: starting a proxy: the target %q has no port from 1 to 65535", target)
	}
	if bubble.Inside() {
		return nil, fmt.Errorf("zktest: starting a proxy: %w", errBubble)
	}
	p := newProxy(target, dialTCP)
	if p.listener, err = newListener("", p.admit); err != nil {
		return nil, fmt.Errorf("zktest: starting a proxy: %w", err)
	}
	return p, nil
}

// StartBubbleProxy is [StartProxy] in memory, in front of the first member of an embedded
// server started by [StartBubble]. Clients connect with [Proxy.Dial].
func StartBubbleProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	p := newProxy(s.Addr(), s.Dial)
	p.listener = newMemoryListener("proxy.zktest:2181", p.admit)
	return closeWithTest(t, p, nil)
}

func newProxy(target string, dial dialer) *Proxy {
	p := &Proxy{
		target:       target,
		dial:         dial,
		upstreams:    map[*clientConn]serverConn{},
		passwords:    map[int64][]byte{},
		sessionLocks: map[int64]chan struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.faults.done = p.ctx.Done()
	p.network.init(p.setAcceptMode)
	return p
}

// Dial connects in memory to a proxy started by [StartBubbleProxy], as [Server.Dial] does
// to a server.
func (p *Proxy) Dial(_ context.Context, address string) (net.Conn, error) {
	if !p.listener.inMemory || address != p.Addr() {
		return nil, fmt.Errorf("zktest: the proxy on %s is not at %s in memory", p.Addr(), address)
	}
	return p.listener.dial("127.0.0.1")
}

// Addr returns the address for clients, 127.0.0.1:port, or a name in memory.
func (p *Proxy) Addr() string { return p.listener.address() }

// ConnectString returns the address for clients, as Addr does.
func (p *Proxy) ConnectString() string { return p.Addr() }

// Serve makes the proxy accept connections from l as well, such as a listener with TLS or
// on another address, until Close, which also closes l. Serve returns at once and must not
// be called after Close. [Proxy.RefuseConnections] and the like do not apply to l.
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

func (p *Proxy) setAcceptMode(m acceptMode, members []int) error {
	for _, number := range members {
		if number != 1 {
			return fmt.Errorf("zktest: there is no member %d: the only member of a proxy is 1", number)
		}
	}
	if err := p.listener.setMode(m); err != nil {
		return fmt.Errorf("zktest: the proxy on %s: %w", p.Addr(), err)
	}
	return nil
}

// HalfOpen ends the server's side of the selected connections, so that the server forgets
// them and their watches, while the clients believe them open: everything sent is
// discarded, and nothing comes back. Their sessions stay alive until they expire.
func (p *Proxy) HalfOpen(sel Selector) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.selected(sel) {
		c.blackhole(true, true)
		_ = p.upstreams[c].Close()
	}
}

// ExpireSession ends a session opened through the proxy, and returns when the session's
// ephemerals are deleted. To the client this looks like an expiry: the connection is closed
// without a message, and the next handshake says that the session has expired. In fact the
// proxy attaches to the session over another connection and closes the session. To hide the
// expiry from the client, call HalfOpen first. ExpireSession fails if the session was not
// opened through the proxy, was already ended by ExpireSession, or is not ended by the
// server within 10 s.
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
		// The client has reattached, though not through this proxy.
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

// ExpireAll ends all sessions opened through the proxy, one after the other, as
// [Proxy.ExpireSession] does.
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

// closeSession attaches to a session and closes the session. Both requests are sent at
// once, so that the client cannot reattach in between. It reports whether the session has
// ended. If not, the error says whether the server was unreachable; without an error,
// another attempt may succeed.
func (p *Proxy) closeSession(ctx context.Context, id int64, password []byte) (over bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, expiryAttemptTimeout)
	defer cancel()
	conn, err := p.dial(ctx, p.target)
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
		return true, nil // the session has expired
	}
	_, err = readFrame(conn)
	return err == nil, nil
}

// Close ends the proxy, with all connections and goroutines. Sessions stay alive on the
// server. Further calls do nothing and return the same error.
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

// admit numbers a connection and returns the function to serve the connection.
func (p *Proxy) admit(client net.Conn) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted++
	number := p.accepted
	return func() { p.serve(client, number) }
}

func (p *Proxy) serve(client net.Conn, number int) {
	server, err := p.dial(p.ctx, p.target)
	if err != nil {
		_ = client.Close() // like the connection to a dead server
		return
	}
	r := &proxyConn{
		proxy: p, server: server.(serverConn),
		handshakeDone: make(chan struct{}), serverDone: make(chan struct{}),
	}
	p.mu.Lock()
	r.client = newClientConn(&p.network, client, maxProxiedPacket, number, 1)
	p.upstreams[r.client] = r.server
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		r.client.abort() // Close may have missed this connection
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

// lockSession locks a session and returns the function that unlocks the session. If
// cancel is closed first, lockSession returns without the lock. ExpireSession works
// with the lock. A connection takes the lock before telling the client of the end and
// before letting a client attach: no client may reattach while the proxy attaches to
// the session and closes the session.
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
