package etcdtest

import (
	"errors"
	"io"
	"net"
	"regexp"
	"sync"
)

// Proxy passes connections on to a server, unless it is cut: then it passes nothing on, and
// keeps what was sent for when it is healed, like a network that is partitioned.
type Proxy struct {
	target   string
	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	healed  *sync.Cond
	cut     bool
	cutFrom map[string]bool // by member
	closed  bool
	conns   map[net.Conn]bool
}

// passage is a connection through a proxy.
type passage struct {
	from string // the member that has made it, as soon as one of its requests says so
}

// sender finds the member in a request of another one. Members do not say who they are in
// those that pass on keep-alives of leases.
var sender = regexp.MustCompile(`(?i)\r\nX-Server-From: ([0-9a-f]+)\r\n`)

func newProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, conns: map[net.Conn]bool{}, cutFrom: map[string]bool{}}
	p.healed = sync.NewCond(&p.mu)
	p.serving.Go(p.accept)
	return p, nil
}

// Addr returns the address on which the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut stops all traffic until Heal is called. Connections stay open, and new ones are
// accepted.
func (p *Proxy) Cut() { p.set(true) }

// Heal undoes Cut.
func (p *Proxy) Heal() { p.set(false) }

func (p *Proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	p.healed.Broadcast()
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

// setFrom is set for the connections of one member.
func (p *Proxy) setFrom(member string, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutFrom[member] = cut
	p.healed.Broadcast()
}

// pass waits until traffic may pass, and reports false if the proxy is closed before. data
// is what is about to pass to the server.
func (p *Proxy) pass(of *passage, data []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.from == "" && data != nil {
		if found := sender.FindSubmatch(data); found != nil {
			of.from = string(found[1])
		}
	}
	for (p.cut || p.cutFrom[of.from]) && !p.closed {
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
	if !p.pass(of, nil) {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	p.add(server)
	defer p.remove(server)
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client, of, true) })
	both.Go(func() { p.copy(client, server, of, false) })
	both.Wait()
}

func (p *Proxy) copy(to, from net.Conn, of *passage, toServer bool) {
	defer p.remove(to)
	defer p.remove(from)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			var request []byte
			if toServer {
				request = buf[:n]
			}
			if !p.pass(of, request) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err == io.EOF || err != nil {
			return
		}
	}
}
