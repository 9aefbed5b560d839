package zktest

// This file has listeners on ports, able to refuse, reject and hang.

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// listener accepts connections on a port or in memory, in one of four modes.
type listener struct {
	inMemory bool // no port is opened

	// admit is called in the order of the connections. The returned function runs in a
	// separate goroutine.
	admit func(net.Conn) func()
	wg    sync.WaitGroup // of all goroutines here, admit's included

	mu          sync.Mutex
	addr        string       // host:port
	reservation io.Closer    // keeps the port while refusing; nil for a given port
	ln          net.Listener // nil while refusing
	mode        acceptMode
	dialed      int               // connections in memory so far
	hung        map[net.Conn]bool // accepted while hanging
	closed      bool
}

// acceptMode is what a listener does with new connections.
type acceptMode int

const (
	accepting acceptMode = iota
	refusing             // the port is closed
	rejecting            // connections are closed as soon as they are accepted
	hanging              // connections are accepted and never answered
)

// newMemoryListener returns a listener without a port. addr is only a name.
func newMemoryListener(addr string, admit func(net.Conn) func()) *listener {
	return &listener{inMemory: true, admit: admit, addr: addr, hung: map[net.Conn]bool{}}
}

// newListener opens addr, or a free port of 127.0.0.1 if addr is empty.
func newListener(addr string, admit func(net.Conn) func()) (*listener, error) {
	l := &listener{admit: admit, addr: addr, hung: map[net.Conn]bool{}, mode: refusing}
	if addr == "" {
		p, err := reservePort() // no other process gets the port while we refuse
		if err != nil {
			return nil, err
		}
		l.addr, l.reservation = p.addr(), p.reservation
	}
	if err := l.setMode(accepting); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// setMode changes what is done with new connections.
func (l *listener) setMode(m acceptMode) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	l.mode = m
	if m == refusing {
		return l.closePort()
	}
	if l.ln != nil || l.inMemory {
		return nil
	}
	ln, err := net.Listen("tcp", l.addr)
	if err != nil {
		return err
	}
	if _, port, _ := net.SplitHostPort(l.addr); port == "0" {
		host, _, _ := net.SplitHostPort(l.addr)
		l.addr = net.JoinHostPort(host, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
	}
	l.ln = ln
	l.wg.Go(func() { l.accept(ln) }) // ends when ln is closed
	return nil
}

func (l *listener) closePort() error {
	ln := l.ln
	l.ln = nil
	if ln == nil {
		return nil
	}
	stopListening(ln)
	return ln.Close()
}

func (l *listener) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // too many open files, for instance
			continue
		}
		l.mu.Lock()
		if l.ln != ln {
			_ = conn.Close()
		} else {
			l.take(conn)
		}
		l.mu.Unlock()
	}
}

// take treats a new connection as the mode says. It is called with mu held.
func (l *listener) take(conn net.Conn) {
	switch l.mode {
	case rejecting:
		_ = conn.Close()
	case hanging:
		l.hung[conn] = true
		l.wg.Go(func() { l.hang(conn) }) // ends with the connection
	default:
		l.wg.Go(l.admit(conn))
	}
}

// dial connects in memory, from an address of the client's.
func (l *listener) dial(host string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.mode == refusing {
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: memoryAddr(l.addr), Err: syscall.ECONNREFUSED}
	}
	l.dialed++
	client, server := newMemoryConn(memoryAddr(fmt.Sprintf("%s:%d", host, l.dialed)), memoryAddr(l.addr))
	l.take(server)
	return client, nil
}

func (l *listener) hang(conn net.Conn) {
	_, _ = io.Copy(io.Discard, conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hung, conn)
	_ = conn.Close()
}

// close closes the port for good. The caller then ends the admitted connections and calls
// wait, to wait for the end of all goroutines.
func (l *listener) close() error {
	defer l.closeHung() // when no more connections are accepted
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	err := l.closePort()
	if l.reservation != nil {
		err = errors.Join(err, l.reservation.Close())
		l.reservation = nil
	}
	return err
}

// closeHung closes the connections accepted while hanging.
func (l *listener) closeHung() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.hung {
		_ = conn.Close()
	}
}

func (l *listener) wait() { l.wg.Wait() }

func (l *listener) address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}
