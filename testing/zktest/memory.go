package zktest

// This file has connections and listeners in memory.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// memoryConn is one end of a connection in memory. As on TCP, and not as with net.Pipe, a
// write returns when there is room in a buffer, each direction can be closed for itself,
// and an end can be reset. Goroutines waiting for a memoryConn are durably blocked (see
// testing/synctest).
type memoryConn struct {
	in, out       *stream
	local, remote net.Addr
}

// newMemoryConn returns the two ends of a connection.
func newMemoryConn(client, server net.Addr) (atClient, atServer *memoryConn) {
	up, down := newStream(), newStream()
	return &memoryConn{down, up, client, server}, &memoryConn{up, down, server, client}
}

func (c *memoryConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *memoryConn) Write(b []byte) (int, error) { return c.out.write(b) }

func (c *memoryConn) LocalAddr() net.Addr  { return c.local }
func (c *memoryConn) RemoteAddr() net.Addr { return c.remote }

func (c *memoryConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *memoryConn) SetReadDeadline(t time.Time) error  { return c.in.setDeadline(&c.in.readBy, t) }
func (c *memoryConn) SetWriteDeadline(t time.Time) error { return c.out.setDeadline(&c.out.writeBy, t) }

// CloseWrite ends what the other end reads, after what has been written.
func (c *memoryConn) CloseWrite() error {
	c.out.finish(nil)
	return nil
}

// SetLinger resets the connection if sec is 0. With TCP, the following Close does.
func (c *memoryConn) SetLinger(sec int) error {
	if sec == 0 {
		c.out.finish(syscall.ECONNRESET)
	}
	return nil
}

func (c *memoryConn) Close() error {
	c.out.finish(nil)
	c.in.abandon()
	return nil
}

// stream is one direction of a connection.
type stream struct {
	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	ended   error // of the reader, after buf; nil while the writer may write
	closed  bool  // by the reader
	readBy  deadline
	writeBy deadline
}

// deadline is one of a stream; passed is guarded by the stream's mutex.
type deadline struct {
	timer  *time.Timer
	passed bool
}

// maxBuffered is how much a stream holds: about as much as the buffers of TCP.
const maxBuffered = 1 << 20

func newStream() *stream {
	s := new(stream)
	s.changed.L = &s.mu
	return s
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.closed:
			return 0, net.ErrClosed
		case s.readBy.passed:
			return 0, os.ErrDeadlineExceeded
		case s.ended != nil && s.ended != io.EOF: // a reset discards what was not read
			return 0, s.ended
		case len(s.buf) > 0 || len(b) == 0:
			n := copy(b, s.buf)
			s.buf = s.buf[n:]
			s.changed.Broadcast()
			return n, nil
		case s.ended != nil:
			return 0, s.ended
		}
		s.changed.Wait()
	}
}

func (s *stream) write(b []byte) (written int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.ended != nil:
			return written, net.ErrClosed
		case s.closed:
			return written, syscall.EPIPE
		case s.writeBy.passed:
			return written, os.ErrDeadlineExceeded
		case len(b) == 0:
			return written, nil
		}
		if n := min(len(b), maxBuffered-len(s.buf)); n > 0 {
			s.buf = append(s.buf, b[:n]...)
			written, b = written+n, b[n:]
			s.changed.Broadcast()
			continue
		}
		s.changed.Wait()
	}
}

// finish ends the stream for the reader: with EOF, or with the given error.
func (s *stream) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = io.EOF
		if err != nil {
			s.ended = err
		}
	}
	s.writeBy.stop()
	s.changed.Broadcast()
}

// abandon ends the stream for the writer.
func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.buf = true, nil
	s.readBy.stop()
	s.changed.Broadcast()
}

func (s *stream) setDeadline(d *deadline, t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.stop()
	wait := time.Until(t)
	d.passed = !t.IsZero() && wait <= 0
	if !t.IsZero() && wait > 0 && !s.closed {
		var timer *time.Timer
		timer = time.AfterFunc(wait, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if d.timer == timer {
				d.passed = true
				s.changed.Broadcast()
			}
		})
		d.timer = timer
	}
	s.changed.Broadcast()
	return nil
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// memoryAddr is the address of an end in memory.
type memoryAddr string

func (a memoryAddr) Network() string { return "memory" }
func (a memoryAddr) String() string  { return string(a) }

// Dial connects to the member at address, one of [Server.Members], in memory: as a client
// would over TCP, with all faults. Clients take Dial as their dialer:
//
//	zookeeper.Config{Servers: server.Members(), Dial: server.Dial}
//
// ctx has no effect: Dial does not wait.
func (s *Server) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.DialFrom("127.0.0.1")(ctx, address)
}

// DialFrom returns a dialer like [Server.Dial] for a client on another host with a separate
// IP address: for faults of this host's connections (see [Selector]).
func (s *Server) DialFrom(host string) func(ctx context.Context, address string) (net.Conn, error) {
	return func(_ context.Context, address string) (net.Conn, error) {
		for _, rep := range s.replicas {
			if rep.listener.address() == address {
				return rep.listener.dial(host)
			}
		}
		return nil, fmt.Errorf("zktest: no member has the address %s: it is one of %q", address, s.Members())
	}
}
