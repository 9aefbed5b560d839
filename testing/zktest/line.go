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
type line struct {
	net      *network
	conn     net.Conn
	maxFrame int
	number   int // the connection's number
	member   int
	session  atomic.Int64

	sent     atomic.Int64 // packets
	received atomic.Int64

	dead    chan struct{} // closed when nothing more will be read or written
	written chan struct{} // closed when the writing goroutine has ended

	mu     sync.Mutex
	wake   sync.Cond // more to write, or the end
	queue  []outgoing
	ending bool // nothing more is queued: the connection ends with the queue
	over   bool // dead is closed
	deaf   bool // what comes is read and forgotten
	mute   bool // what is sent is forgotten
}

// outgoing is a packet to be written.
type outgoing struct {
	bytes []byte
	gate  <-chan struct{} // if not nil, not before it is closed
	delay time.Duration   // from when it is sent
	due   time.Time       // set by send from delay
	cut   cutting         // afterwards
}

// cutting is how a connection is cut.
type cutting int

const (
	uncut cutting = iota
	fin
	rst
)

// lingering bounds how long a connection that we have ended is read from.
// Closing it with input unread would send a RST, which may take the last reply
// from the client.
const lingering = time.Second

var errLineCut = errors.New("the connection is cut")

// newLine begins the writing. end must be called when reading is over.
func newLine(n *network, conn net.Conn, maxFrame, number, member int) *line {
	l := &line{
		net: n, conn: conn, maxFrame: maxFrame, number: number, member: member,
		dead: make(chan struct{}), written: make(chan struct{}),
	}
	l.wake.L = &l.mu
	n.add(l)
	go l.write() // ends with the line: see end
	return l
}

func (l *line) origin() origin { return origin{l.number, l.member, l.session.Load()} }

// head reads the first four bytes of a packet.
func (l *line) head() (head [4]byte, err error) {
	_, err = io.ReadFull(l.conn, head[:])
	return head, err
}

// body reads the rest of the packet that head announces, and returns the packet
// without its length. It takes memory only for what has come.
func (l *line) body(head [4]byte) ([]byte, error) {
	n := int(int32(binary.BigEndian.Uint32(head[:])))
	if n < 0 || n > l.maxFrame {
		return nil, errors.New("a packet of impossible length")
	}
	var packet bytes.Buffer
	if _, err := io.CopyN(&packet, l.conn, int64(n)); err != nil {
		return nil, err
	}
	l.received.Add(1)
	l.net.received.Add(1)
	return packet.Bytes(), nil
}

// read returns the next packet without its length. A partition holds up the end
// of the connection, too, and who is deaf does not hear of it.
func (l *line) read() ([]byte, error) {
	for {
		head, err := l.head()
		var packet []byte
		if err == nil {
			packet, err = l.body(head)
		}
		if err != nil {
			if !l.await(Inbound) && !l.isMute() {
				<-l.dead
			}
			return nil, err
		}
		if l.await(Inbound) {
			return packet, nil
		}
		// Deaf: nobody hears this one.
		select {
		case <-l.dead:
			return nil, errLineCut
		default:
		}
	}
}

// await waits while a partition holds up what goes in a direction, and reports
// whether it may then pass.
func (l *line) await(d Direction) bool {
	l.net.await(l, d)
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.over && (d == Inbound && !l.deaf || d == Outbound && !l.mute)
}

// send queues a packet. On a line that ends it does nothing.
func (l *line) send(p outgoing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ending && !l.over {
		if p.delay > 0 {
			p.due = time.Now().Add(p.delay)
		}
		l.queue = append(l.queue, p)
		l.sent.Add(1)
		l.net.sent.Add(1)
		l.wake.Signal()
	}
}

// finish ends the connection (FIN) after all that is queued, unless the client
// is to hear nothing more.
func (l *line) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute {
		return
	}
	l.ending = true
	_ = l.conn.SetWriteDeadline(time.Now().Add(lingering)) // for a client that does not read
	l.wake.Signal()
}

// cut ends the connection at once.
func (l *line) cut(how cutting) {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return
	}
	l.over = true
	l.queue = nil
	close(l.dead)
	l.wake.Signal()
	l.mu.Unlock()
	l.net.changed()
	_ = l.conn.SetWriteDeadline(time.Unix(1, 0)) // a write that is stuck ends
	if tcp, ok := l.conn.(*net.TCPConn); ok && how == rst {
		_ = tcp.SetLinger(0)
	} else if ok && tcp.CloseWrite() == nil {
		// The reader goes on until the client has ended it too: see end.
		_ = l.conn.SetReadDeadline(time.Now().Add(lingering))
		return
	}
	_ = l.conn.Close()
}

// forget lets the line vanish without a sign to the client: what it sends is
// read and forgotten, and nothing is sent any more.
func (l *line) forget(deaf, mute bool) {
	l.mu.Lock()
	l.deaf, l.mute = l.deaf || deaf, l.mute || mute
	l.mu.Unlock()
	l.net.changed()
}

// end closes the connection when its reader is done with it.
func (l *line) end() {
	l.cut(fin)
	// Again: the reader may have set another one since.
	_ = l.conn.SetReadDeadline(time.Now().Add(lingering))
	_, _ = io.Copy(io.Discard, l.conn) // until the client's FIN or the deadline
	_ = l.conn.Close()
	<-l.written
	l.net.remove(l)
}

// abort closes the connection without any ceremony.
func (l *line) abort() {
	l.cut(fin)
	_ = l.conn.Close()
}

// write writes what is queued until the line ends.
func (l *line) write() {
	defer close(l.written)
	var batch []byte
	for {
		next, ok := l.next()
		if !ok {
			return
		}
		batch = batch[:0]
		for _, p := range next {
			if p.gate != nil || p.delay != 0 {
				p.delay = time.Until(p.due)
				if !l.put(batch) || !l.pause(p) {
					return
				}
				batch = batch[:0]
			}
			batch = append(batch, p.bytes...)
			if p.cut != uncut {
				l.put(batch)
				l.net.await(l, Outbound)
				l.cut(p.cut)
				return
			}
		}
		if !l.put(batch) {
			return
		}
	}
}

// next waits for packets to write.
func (l *line) next() ([]outgoing, bool) {
	l.mu.Lock()
	for len(l.queue) == 0 && !l.ending && !l.over {
		l.wake.Wait()
	}
	queue := l.queue
	l.queue = nil
	over, ended := l.over, l.ending && len(queue) == 0
	l.mu.Unlock()
	if over || ended {
		if ended {
			l.net.await(l, Outbound)
			l.cut(fin)
		}
		return nil, false
	}
	return queue, true
}

// pause waits until a packet may be written.
func (l *line) pause(p outgoing) bool {
	if p.gate != nil {
		select {
		case <-p.gate:
		case <-l.dead:
			return false
		}
	}
	if p.delay > 0 {
		timer := time.NewTimer(p.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.dead:
			return false
		}
	}
	return true
}

// put writes bytes, in small pieces if the connection is throttled.
func (l *line) put(bytes []byte) bool {
	for len(bytes) > 0 {
		if !l.await(Outbound) {
			select {
			case <-l.dead:
				return false
			default:
				return true // mute
			}
		}
		piece, delay := l.net.throttled(l)
		if piece <= 0 || piece > len(bytes) {
			piece = len(bytes)
		}
		if l.isEnding() {
			_ = l.conn.SetWriteDeadline(time.Now().Add(lingering))
		}
		if _, err := l.conn.Write(bytes[:piece]); err != nil {
			l.cut(rst)
			return false
		}
		bytes = bytes[piece:]
		if delay > 0 && !l.pause(outgoing{delay: delay}) {
			return false
		}
	}
	return true
}

func (l *line) isEnding() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

// isMute reports whether what is sent is forgotten.
func (l *line) isMute() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mute
}
