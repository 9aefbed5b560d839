package lockpool_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The operations of ZooKeeper's protocol that tests interfere with.
const (
	opCreate      = 1
	opDelete      = 2
	opGetData     = 4
	opGetChildren = 12
)

// proxy stands between a pool and a real server, and cuts or holds up one
// request of a kind.
type proxy struct {
	addr   string
	target string

	lag  atomic.Int64 // nanoseconds by which replies and events are late
	deaf atomic.Bool  // requests are lost, the connection stands

	mu      sync.Mutex
	conns   map[net.Conn]bool
	stopped bool // new connections are closed at once
	fault   *fault
}

// fault is what happens to the next request of one kind.
type fault struct {
	op      int32
	applied bool          // the request reaches the server; only the reply does not come back
	hold    chan struct{} // if not nil, the reply is held up until it is closed; nothing is cut
	hit     chan struct{} // closed when it has happened
	xid     int32         // of the request whose reply is awaited
}

func newProxy(t testing.TB, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return newProxyOn(t, l, target)
}

func newProxyOn(t testing.TB, l net.Listener, target string) *proxy {
	p := &proxy{addr: l.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

// cutBefore cuts the connection instead of forwarding the next request op.
func (p *proxy) cutBefore(op int32) *fault { return p.arm(&fault{op: op}) }

// cutAfter lets the server carry out the next request op, and cuts the
// connection instead of forwarding the reply.
func (p *proxy) cutAfter(op int32) *fault { return p.arm(&fault{op: op, applied: true}) }

// holdReply holds up the reply to the next request op until release is closed.
func (p *proxy) holdReply(op int32, release chan struct{}) *fault {
	return p.arm(&fault{op: op, applied: true, hold: release})
}

func (p *proxy) arm(f *fault) *fault {
	f.hit = make(chan struct{})
	p.mu.Lock()
	p.fault = f
	p.mu.Unlock()
	return f
}

// stop breaks all connections, and all new ones until resume.
func (p *proxy) stop() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.cut()
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = false
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) serve(client net.Conn) {
	upstream, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	stopped := p.stopped
	if !stopped {
		p.conns[client], p.conns[upstream] = true, true
	}
	p.mu.Unlock()
	if stopped {
		_ = client.Close()
		_ = upstream.Close()
		return
	}
	both := func() { _ = client.Close(); _ = upstream.Close() }
	var wg sync.WaitGroup
	wg.Go(func() { forward(toServer{upstream, p}, client, p.request); both() })
	wg.Go(func() { forward(toClient{client, p}, upstream, p.reply); both() })
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, upstream)
	p.mu.Unlock()
}

type toServer struct {
	net.Conn
	proxy *proxy
}

func (c toServer) Write(packet []byte) (int, error) {
	if c.proxy.deaf.Load() {
		return len(packet), nil
	}
	return c.Conn.Write(packet)
}

type toClient struct {
	net.Conn
	proxy *proxy
}

func (c toClient) Write(packet []byte) (int, error) {
	time.Sleep(time.Duration(c.proxy.lag.Load())) // the fault that is played
	return c.Conn.Write(packet)
}

// forward copies packets, each a length and that many bytes, as long as pass
// lets them. The first one, of the handshake, is not shown to pass.
func forward(to io.Writer, from io.Reader, pass func(packet []byte) bool) {
	for first := true; ; first = false {
		head := make([]byte, 4)
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		packet := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(from, packet); err != nil {
			return
		}
		if !first && !pass(packet) {
			return
		}
		if _, err := to.Write(append(head, packet...)); err != nil {
			return
		}
	}
}

func (p *proxy) request(packet []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fault
	if f == nil || f.xid != 0 || int32(binary.BigEndian.Uint32(packet[4:])) != f.op {
		return true
	}
	if !f.applied {
		p.fault = nil
		close(f.hit)
		return false
	}
	f.xid = int32(binary.BigEndian.Uint32(packet))
	return true
}

func (p *proxy) reply(packet []byte) bool {
	p.mu.Lock()
	f := p.fault
	if f == nil || f.xid == 0 || int32(binary.BigEndian.Uint32(packet)) != f.xid {
		p.mu.Unlock()
		return true
	}
	p.fault = nil
	p.mu.Unlock()
	close(f.hit)
	if f.hold == nil {
		return false
	}
	<-f.hold
	return true
}
