package etcdtest

// This file has a proxy for whole connections: cuts, holds and half-open connections.

import (
	"errors"
	"io"
	"net"
	"regexp"
	"sync"
)

// Proxy passes connections on to a server, unless cut: then nothing passes, and everything
// sent is kept for the healing, as in a partitioned network.
type Proxy struct {
	target    string
	connected func()
	listener  net.Listener
	serving   sync.WaitGroup

	mu          sync.Mutex
	healed      *sync.Cond
	requestsCut bool
	repliesCut  bool
	cutFrom     map[string]bool // by member
	closed      bool
	conns       map[net.Conn]bool
	passages    map[*passage]bool
}

// passage is a connection through a proxy.
type passage struct {
	from     string   // the connecting member, as soon as a request says so
	server   net.Conn // the connection to the server
	halfOpen bool
}

// sender finds the sending member in a request. Members do not say who they are in passing
// on keep-alives of leases.
var sender = regexp.MustCompile(`(?i)\r\nX-Server-From: ([0-9a-f]+)\r\n`)

// NewProxy starts a proxy in front of the server at target. It calls connected, if not nil,
// when a client has connected to the server.
func NewProxy(target string, connected func()) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, connected: connected, listener: l, conns: map[net.Conn]bool{}, passages: map[*passage]bool{}, cutFrom: map[string]bool{}}
	p.healed = sync.NewCond(&p.mu)
	p.serving.Go(p.accept)
	return p, nil
}

// Addr returns the address of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut stops all traffic until Heal is called. Connections stay open, and new ones are
// accepted.
func (p *Proxy) Cut() { p.Hold(true, true) }

// Heal undoes Cut and Hold.
func (p *Proxy) Heal() { p.Hold(false, false) }

// Hold stops requests to the server, or replies, or both, until Heal is called.
func (p *Proxy) Hold(requests, replies bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requestsCut, p.repliesCut = requests, replies
	p.healed.Broadcast()
}

// HalfOpen closes the connections to the server. Connections of clients stay open, and
// nothing happens on them any more.
func (p *Proxy) HalfOpen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for of := range p.passages {
		of.halfOpen = true
		_ = of.server.Close()
	}
}

// Break closes all connections.
func (p *Proxy) Break() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Close stops the proxy.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.healed.Broadcast()
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Break()
	p.serving.Wait()
}

// CutFrom stops the traffic of connections made by a member, given by the number in
// hexadecimal, or lets the traffic go on.
func (p *Proxy) CutFrom(member string, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutFrom[member] = cut
	p.healed.Broadcast()
}

// pass waits until traffic may pass, and reports false if the proxy is closed before.
func (p *Proxy) pass(of *passage, toServer bool, data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.from == "" && toServer {
		if found := sender.FindSubmatch(data); found != nil {
			of.from = string(found[1])
		}
	}
	for (toServer && p.requestsCut || !toServer && p.repliesCut || p.cutFrom[of.from]) && !p.closed {
		p.healed.Wait()
	}
	return !p.closed
}

func (p *Proxy) add(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	if p.closed {
		_ = c.Close()
	}
}

func (p *Proxy) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			p.add(client)
			p.serving.Go(func() { p.serve(client) })
		}
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.remove(client)
	of := &passage{}
	if !p.pass(of, true, nil) {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	if p.connected != nil {
		p.connected()
	}
	p.add(server)
	defer p.remove(server)
	p.mu.Lock()
	of.server = server
	p.passages[of] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.passages, of)
		p.mu.Unlock()
	}()
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client, of, true) })
	both.Go(func() { p.copy(client, server, of, false) })
	both.Wait()
	if p.isHalfOpen(of) {
		_, _ = io.Copy(io.Discard, client)
	}
}

func (p *Proxy) isHalfOpen(of *passage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return of.halfOpen
}

func (p *Proxy) copy(to, from net.Conn, of *passage, toServer bool) {
	defer func() {
		if !p.isHalfOpen(of) {
			p.remove(to)
			p.remove(from)
		}
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !p.pass(of, toServer, buf[:n]) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
