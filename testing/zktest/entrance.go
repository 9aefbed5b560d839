package zktest

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// entrance is a port on which connections are accepted, in one of four moods.
type entrance struct {
	admit func(net.Conn) func() // called in the order of the connections; what it returns runs in a goroutine of its own
	wg    sync.WaitGroup        // of the accepting and of admit

	mu       sync.Mutex
	addr     string // host:port
	hold     io.Closer
	listener net.Listener // nil while refusing
	mood     mood
	hung     map[net.Conn]bool // accepted and never answered
	closed   bool
}

type mood int

const (
	admitting mood = iota
	refusing       // the port is closed
	rejecting      // connections are closed as soon as they are accepted
	hanging        // connections are accepted, and nothing else
)

// newEntrance opens addr, or any port of 127.0.0.1 if that is "".
func newEntrance(addr string, admit func(net.Conn) func()) (*entrance, error) {
	e := &entrance{admit: admit, addr: addr, hung: map[net.Conn]bool{}, mood: refusing}
	if addr == "" {
		p, err := reservePort() // so that it stays ours while we refuse
		if err != nil {
			return nil, err
		}
		e.addr, e.hold = p.addr(), p.hold
	}
	if err := e.set(admitting); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// set changes how new connections are met.
func (e *entrance) set(m mood) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errClosed
	}
	e.mood = m
	if m == refusing {
		return e.shut()
	}
	if e.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", e.addr)
	if err != nil {
		return err
	}
	if _, port, _ := net.SplitHostPort(e.addr); port == "0" {
		host, _, _ := net.SplitHostPort(e.addr)
		e.addr = net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	e.listener = l
	e.wg.Go(func() { e.accept(l) }) // ends when l is closed
	return nil
}

func (e *entrance) shut() error {
	l := e.listener
	e.listener = nil
	if l == nil {
		return nil
	}
	return l.Close()
}

func (e *entrance) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // too many open files, for instance
			continue
		}
		e.mu.Lock()
		switch {
		case e.listener != l, e.mood == rejecting:
			_ = conn.Close()
		case e.mood == hanging:
			e.hung[conn] = true
			e.wg.Go(func() { e.hang(conn) }) // ends with the connection
		default:
			e.wg.Go(e.admit(conn))
		}
		e.mu.Unlock()
	}
}

func (e *entrance) hang(conn net.Conn) {
	_, _ = io.Copy(io.Discard, conn)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.hung, conn)
	_ = conn.Close()
}

// close closes the port for good. Then the connections that were admitted must
// be ended, and wait returns when they have.
func (e *entrance) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	err := e.shut()
	for conn := range e.hung {
		_ = conn.Close()
	}
	if e.hold != nil {
		err = errors.Join(err, e.hold.Close())
		e.hold = nil
	}
	return err
}

func (e *entrance) wait() { e.wg.Wait() }

func (e *entrance) address() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addr
}
