package zktest

// This file has the connection of a client, as servers and proxies see it.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// clientConn is one client's TCP connection as a stream of packets, together with the
// connection faults. The server and the proxy read in one goroutine. Another goroutine
// writes, so that a sender never waits for a client.
type clientConn struct {
	net      *network
	conn     net.Conn
	maxFrame int
	number   int // of the connection
	member   int // of the ensemble, as chosen by the client
	session  atomic.Int64
	host     string // of the client

	sent     atomic.Int64 // packets
	received atomic.Int64

	done    chan struct{} // closed when nothing more will be read or written
	written chan struct{} // closed when the writing goroutine has ended

	mu           sync.Mutex
	wake         sync.Cond // more to write, or the end
	queue        []outgoing
	draining     bool // the connection ends when the queue is written; nothing is added
	closed       bool // done is closed
	dropInbound  bool // packets are read and discarded
	dropOutbound bool // queued packets are discarded
}

// outgoing is a packet to be written.
type outgoing struct {
	bytes []byte
	gate  <-chan struct{} // if not nil, the packet waits until gate is closed
	delay time.Duration   // counted from the call of send
	due   time.Time       // set by send, from delay
	cut   cutMode         // what is done to the connection afterwards
}

// cutMode is how a connection is cut.
type cutMode int

const (
	uncut cutMode = iota
	fin
	rst
)

// lingerTimeout bounds how long a connection is still read after our FIN. Closing with
// unread input would send an RST, and the RST may discard the last reply before the client
// has read it.
const lingerTimeout = time.Second

var (
	errConnCut      = errors.New("the connection is cut")
	errPacketLength = errors.New("a packet of impossible length")
)

// newClientConn starts the writing goroutine. The caller must call closeAndDrain after
// reading.
func newClientConn(n *network, conn net.Conn, maxFrame, number, member int) *clientConn {
	c := &clientConn{
		net: n, conn: conn, maxFrame: maxFrame, number: number, member: member,
		done: make(chan struct{}), written: make(chan struct{}),
	}
	c.wake.L = &c.mu
	c.host, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
	n.add(c)
	go c.writeLoop() // ends with the connection; closeAndDrain waits for the end
	return c
}

func (c *clientConn) origin() origin { return origin{c.number, c.member, c.session.Load(), c.host} }

// readHeader reads the first four bytes of a packet.
func (c *clientConn) readHeader() (head [4]byte, err error) {
	_, err = io.ReadFull(c.conn, head[:])
	return head, err
}

// readBody reads the rest of the packet after head, and returns the packet without the
// length. Memory is allocated only for bytes that have arrived.
func (c *clientConn) readBody(head [4]byte) ([]byte, error) {
	n := int(int32(binary.BigEndian.Uint32(head[:])))
	if n < 0 || n > c.maxFrame {
		return nil, errPacketLength
	}
	var packet bytes.Buffer
	if _, err := io.CopyN(&packet, c.conn, int64(n)); err != nil {
		return nil, err
	}
	c.received.Add(1)
	c.net.received.Add(1)
	return packet.Bytes(), nil
}

// read returns the next packet without the length. A partition also delays the
// end of the connection, and with dropInbound the end is not reported.
func (c *clientConn) read() ([]byte, error) {
	for {
		head, err := c.readHeader()
		var packet []byte
		if err == nil {
			packet, err = c.readBody(head)
		}
		if err != nil {
			if !c.waitPass(Inbound) && !c.dropsOutbound() {
				<-c.done
			}
			return nil, err
		}
		if c.waitPass(Inbound) {
			return packet, nil
		}
		// With dropInbound the packet is discarded.
		select {
		case <-c.done:
			return nil, errConnCut
		default:
		}
	}
}

// waitPass waits while a partition holds up the direction, and reports whether
// packets may then pass.
func (c *clientConn) waitPass(d Direction) bool {
	c.net.waitHealed(c, d)
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && (d == Inbound && !c.dropInbound || d == Outbound && !c.dropOutbound)
}

// send queues a packet, unless the connection is ending.
func (c *clientConn) send(p outgoing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.draining && !c.closed {
		if p.delay > 0 {
			p.due = time.Now().Add(p.delay)
		}
		c.queue = append(c.queue, p)
		c.sent.Add(1)
		c.net.sent.Add(1)
		c.wake.Signal()
	}
}

// closeAfterFlush ends the connection (FIN) when the queue is written. With
// dropOutbound, closeAfterFlush does nothing: the client must not see the end.
func (c *clientConn) closeAfterFlush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropOutbound {
		return
	}
	c.draining = true
	_ = c.conn.SetWriteDeadline(time.Now().Add(lingerTimeout)) // if the client does not read
	c.wake.Signal()
}

// cut ends the connection at once.
func (c *clientConn) cut(how cutMode) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	c.queue = nil
	close(c.done)
	c.wake.Signal()
	c.mu.Unlock()
	c.net.wake()
	_ = c.conn.SetWriteDeadline(time.Unix(1, 0)) // ends a blocked write
	if tcp, ok := c.conn.(tcpLike); ok && how == rst {
		_ = tcp.SetLinger(0)
	} else if ok && tcp.CloseWrite() == nil {
		// The reader goes on until the client's FIN: see closeAndDrain.
		_ = c.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
		return
	}
	_ = c.conn.Close()
}

// tcpLike is a connection that ends as TCP does.
type tcpLike interface {
	SetLinger(sec int) error
	CloseWrite() error
}

// blackhole discards, from now on, the packets read, sent, or both, without a sign to the
// client.
func (c *clientConn) blackhole(inbound, outbound bool) {
	c.mu.Lock()
	c.dropInbound, c.dropOutbound = c.dropInbound || inbound, c.dropOutbound || outbound
	c.mu.Unlock()
	c.net.wake()
}

// closeAndDrain closes the connection after the reader's end.
func (c *clientConn) closeAndDrain() {
	c.cut(fin)
	// Again, because the reader may have set another deadline since.
	_ = c.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.Copy(io.Discard, c.conn) // until the client's FIN or the deadline
	_ = c.conn.Close()
	<-c.written
	c.net.remove(c)
}

// abort closes the connection without draining.
func (c *clientConn) abort() {
	c.cut(fin)
	_ = c.conn.Close()
}

// writeLoop writes queued packets until the connection ends.
func (c *clientConn) writeLoop() {
	defer close(c.written)
	var buf []byte
	for {
		batch, ok := c.nextBatch()
		if !ok {
			return
		}
		if buf, ok = c.writeBatch(batch, buf[:0]); !ok {
			return
		}
	}
}

// writeBatch writes packets, all due ones in one piece. It returns the buffer for reuse,
// and false when the connection has ended.
func (c *clientConn) writeBatch(batch []outgoing, buf []byte) ([]byte, bool) {
	for _, p := range batch {
		if p.gate != nil || p.delay != 0 {
			p.delay = time.Until(p.due)
			if !c.writeBytes(buf) || !c.waitDue(p) {
				return buf, false
			}
			buf = buf[:0]
		}
		buf = append(buf, p.bytes...)
		if p.cut != uncut {
			c.writeBytes(buf)
			c.net.waitHealed(c, Outbound)
			c.cut(p.cut)
			return buf, false
		}
	}
	return buf, c.writeBytes(buf)
}

// nextBatch waits for packets to write. It reports false when there will be no
// more.
func (c *clientConn) nextBatch() ([]outgoing, bool) {
	c.mu.Lock()
	for len(c.queue) == 0 && !c.draining && !c.closed {
		c.wake.Wait()
	}
	queue, closed := c.queue, c.closed
	c.queue = nil
	c.mu.Unlock()
	if !closed && len(queue) == 0 { // drained
		c.net.waitHealed(c, Outbound)
		c.cut(fin)
		return nil, false
	}
	return queue, !closed
}

// waitDue waits until the packet may be written: until its gate is closed and
// its delay has passed. It reports false if the connection ends first.
func (c *clientConn) waitDue(p outgoing) bool {
	if p.gate != nil {
		select {
		case <-p.gate:
		case <-c.done:
			return false
		}
	}
	if p.delay > 0 {
		timer := time.NewTimer(p.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
			return false
		}
	}
	return true
}

// writeBytes writes b, in pieces if the connection is throttled.
func (c *clientConn) writeBytes(b []byte) bool {
	for len(b) > 0 {
		if !c.waitPass(Outbound) {
			select {
			case <-c.done:
				return false
			default:
				return true // dropOutbound
			}
		}
		piece, delay := c.net.throttleFor(c)
		if piece <= 0 || piece > len(b) {
			piece = len(b)
		}
		if c.isDraining() {
			_ = c.conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
		}
		if _, err := c.conn.Write(b[:piece]); err != nil {
			c.cut(rst)
			return false
		}
		b = b[piece:]
		if delay > 0 && !c.waitDue(outgoing{delay: delay}) {
			return false
		}
	}
	return true
}

func (c *clientConn) isDraining() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining
}

// dropsOutbound reports whether sent packets are discarded.
func (c *clientConn) dropsOutbound() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropOutbound
}
