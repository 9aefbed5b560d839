package zktest

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

// line is one client's TCP connection: packets in, packets out, and the faults
// that connections have. The server and the proxy read from it in one
// goroutine; what they send is written by another, so that nobody who sends
// ever waits for a client.
type clientConn struct {
	net      *network
	conn     net.Conn
	maxFrame int
	number   int // the connection's number
	member   int
	session  atomic.Int64

	sent     atomic.Int64 // packets
	received atomic.Int64

	done    chan struct{} // closed when nothing more will be read or written
	written chan struct{} // closed when the writing goroutine has ended

	mu           sync.Mutex
	wake         sync.Cond // more to write, or the end
	queue        []outgoing
	draining     bool // nothing more is queued: the connection ends with the queue
	closed       bool // dead is closed
	dropInbound  bool // what comes is read and forgotten
	dropOutbound bool // what is sent is forgotten
}

// outgoing is a packet to be written.
type outgoing struct {
	bytes []byte
	gate  <-chan struct{} // if not nil, not before it is closed
	delay time.Duration   // from when it is sent
	due   time.Time       // set by send from delay
	cut   cutMode         // afterwards
}

// cutting is how a connection is cut.
type cutMode int

const (
	uncut cutMode = iota
	fin
	rst
)

// lingering bounds how long a connection that we have ended is read from.
// Closing it with input unread would send a RST, which may take the last reply
// from the client.
const lingerTimeout = time.Second

var errConnCut = errors.New("the connection is cut")

// newLine begins the writing. end must be called when reading is over.
func newClientConn(n *network, conn net.Conn, maxFrame, number, member int) *clientConn {
	c := &clientConn{
		net: n, conn: conn, maxFrame: maxFrame, number: number, member: member,
		done: make(chan struct{}), written: make(chan struct{}),
	}
	c.wake.L = &c.mu
	n.add(c)
	go c.writeLoop() // ends with the line: see end
	return c
}

func (c *clientConn) origin() origin { return origin{c.number, c.member, c.session.Load()} }

// head reads the first four bytes of a packet.
func (c *clientConn) readHeader() (head [4]byte, err error) {
	_, err = io.ReadFull(c.conn, head[:])
	return head, err
}

// body reads the rest of the packet that head announces, and returns the packet
// without its length. It takes memory only for what has come.
func (c *clientConn) readBody(head [4]byte) ([]byte, error) {
	n := int(int32(binary.BigEndian.Uint32(head[:])))
	if n < 0 || n > c.maxFrame {
		return nil, errors.New("a packet of impossible length")
	}
	var packet bytes.Buffer
	if _, err := io.CopyN(&packet, c.conn, int64(n)); err != nil {
		return nil, err
	}
	c.received.Add(1)
	c.net.received.Add(1)
	return packet.Bytes(), nil
}

// read returns the next packet without its length. A partition holds up the end
// of the connection, too, and who is deaf does not hear of it.
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
		// Deaf: nobody hears this one.
		select {
		case <-c.done:
			return nil, errConnCut
		default:
		}
	}
}

// await waits while a partition holds up what goes in a direction, and reports
// whether it may then pass.
func (c *clientConn) waitPass(d Direction) bool {
	c.net.waitHealed(c, d)
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && (d == Inbound && !c.dropInbound || d == Outbound && !c.dropOutbound)
}

// send queues a packet. On a line that ends it does nothing.
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

// finish ends the connection (FIN) after all that is queued, unless the client
// is to hear nothing more.
func (c *clientConn) closeAfterFlush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropOutbound {
		return
	}
	c.draining = true
	_ = c.conn.SetWriteDeadline(time.Now().Add(lingerTimeout)) // for a client that does not read
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
	_ = c.conn.SetWriteDeadline(time.Unix(1, 0)) // a write that is stuck ends
	if tcp, ok := c.conn.(*net.TCPConn); ok && how == rst {
		_ = tcp.SetLinger(0)
	} else if ok && tcp.CloseWrite() == nil {
		// The reader goes on until the client has ended it too: see end.
		_ = c.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
		return
	}
	_ = c.conn.Close()
}

// forget lets the line vanish without a sign to the client: what it sends is
// read and forgotten, and nothing is sent any more.
func (c *clientConn) blackhole(deaf, mute bool) {
	c.mu.Lock()
	c.dropInbound, c.dropOutbound = c.dropInbound || deaf, c.dropOutbound || mute
	c.mu.Unlock()
	c.net.wake()
}

// end closes the connection when its reader is done with it.
func (c *clientConn) closeAndDrain() {
	c.cut(fin)
	// Again: the reader may have set another one since.
	_ = c.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.Copy(io.Discard, c.conn) // until the client's FIN or the deadline
	_ = c.conn.Close()
	<-c.written
	c.net.remove(c)
}

// abort closes the connection without any ceremony.
func (c *clientConn) abort() {
	c.cut(fin)
	_ = c.conn.Close()
}

// write writes what is queued until the line ends.
func (c *clientConn) writeLoop() {
	defer close(c.written)
	var batch []byte
	for {
		next, ok := c.nextBatch()
		if !ok {
			return
		}
		batch = batch[:0]
		for _, p := range next {
			if p.gate != nil || p.delay != 0 {
				p.delay = time.Until(p.due)
				if !c.writeBytes(batch) || !c.waitDue(p) {
					return
				}
				batch = batch[:0]
			}
			batch = append(batch, p.bytes...)
			if p.cut != uncut {
				c.writeBytes(batch)
				c.net.waitHealed(c, Outbound)
				c.cut(p.cut)
				return
			}
		}
		if !c.writeBytes(batch) {
			return
		}
	}
}

// next waits for packets to write.
func (c *clientConn) nextBatch() ([]outgoing, bool) {
	c.mu.Lock()
	for len(c.queue) == 0 && !c.draining && !c.closed {
		c.wake.Wait()
	}
	queue := c.queue
	c.queue = nil
	over, ended := c.closed, c.draining && len(queue) == 0
	c.mu.Unlock()
	if over || ended {
		if ended {
			c.net.waitHealed(c, Outbound)
			c.cut(fin)
		}
		return nil, false
	}
	return queue, true
}

// pause waits until a packet may be written.
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

// put writes bytes, in small pieces if the connection is throttled.
func (c *clientConn) writeBytes(bytes []byte) bool {
	for len(bytes) > 0 {
		if !c.waitPass(Outbound) {
			select {
			case <-c.done:
				return false
			default:
				return true // mute
			}
		}
		piece, delay := c.net.throttleFor(c)
		if piece <= 0 || piece > len(bytes) {
			piece = len(bytes)
		}
		if c.isDraining() {
			_ = c.conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
		}
		if _, err := c.conn.Write(bytes[:piece]); err != nil {
			c.cut(rst)
			return false
		}
		bytes = bytes[piece:]
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

// isMute reports whether what is sent is forgotten.
func (c *clientConn) dropsOutbound() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropOutbound
}
