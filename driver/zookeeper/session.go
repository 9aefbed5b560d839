package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// Session is one ZooKeeper session on one client connection. The client opens
// a new session by itself when the old one has expired, and sends requests
// that were queued for the old one on the new; a Session prevents that by
// refusing to dial once it is over, so that every reply it sees belongs to the
// one session it was made with.
type Session struct {
	settings
	conn *zk.Conn

	// Of the client's connect loop alone.
	attempts int   // at connecting, since the session was last established
	lastErr  error // of the last attempt

	ready   chan struct{} // closed when the session is first established
	stopped chan struct{} // closed when the client's connect loop has ended
	buried  chan struct{} // closed when nothing of the session is left running

	living context.Context // ends when the session is over; its cause says why
	end    context.CancelCauseFunc

	began     time.Time
	lastHeard atomic.Int64 // when the request was sent that was answered last: nanoseconds since began

	slots chan struct{}  // one per call that may be under way
	calls sync.WaitGroup // calls under way; none begins once over

	mu           sync.Mutex
	id           int64
	timeout      time.Duration // negotiated
	link         *link
	peer         string
	watches      map[string]*watch // by path, until they fire
	solos        map[string]solo   // by path of the queue
	noContainers bool              // the server is older than container nodes
}

// maxCalls bounds the calls that wait for a server that does not answer.
const maxCalls = 1024

func connect(ctx context.Context, set settings) (*Session, error) {
	cfg := set.cfg
	s := &Session{
		settings: set,
		timeout:  cfg.SessionTimeout,
		ready:    make(chan struct{}),
		stopped:  make(chan struct{}),
		buried:   make(chan struct{}),
		began:    time.Now(),
		slots:    make(chan struct{}, maxCalls),
		watches:  map[string]*watch{},
		solos:    map[string]solo{},
	}
	s.living, s.end = context.WithCancelCause(context.Background())
	conn, events, err := zk.Connect(cfg.Servers, cfg.SessionTimeout,
		zk.WithHostProvider(newServers(s)),
		zk.WithDialer(s.dial),
		zk.WithEventCallback(s.event),
		zk.WithLogger(clientLog{cfg.Logger}),
		zk.WithLogInfo(false),
		zk.WithMaxBufferSize(cfg.MaxPacket),
		zk.WithMaxConnBufferSize(maxSend),
	)
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	s.conn = conn
	go func() { // ends when the client's connect loop does, after conn.Close
		for range events { // the channel drops events; what counts comes to s.event
		}
		close(s.stopped)
	}()
	go s.bury() // ends with the session
	fail := func(err error) (*Session, error) {
		s.end(err)
		s.failed.Go(func() { <-s.buried }) // up to seconds, and the reason is of interest now
		return nil, fmt.Errorf("zookeeper: connect to %s: %w", cfg, err)
	}
	select {
	case <-s.ready:
	case <-s.living.Done():
		return fail(context.Cause(s.living))
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	if s.auth != nil {
		// Remembered by the client for the connections to come.
		_, err := run(ctx, s, func() (struct{}, error) {
			return struct{}{}, s.conn.AddAuth("digest", s.auth())
		}, nil)
		if err != nil {
			return fail(fmt.Errorf("authenticate %v: %w", cfg.Digest, err))
		}
	}
	return s, nil
}

// maxSend is the client's send buffer, and so the largest request in bytes.
const maxSend = 64 << 10

// bury waits for the end of the session, then stops the client. It gives the
// calls under way a moment to get their replies, because the client races with
// itself over a reply that arrives while it is being closed.
func (s *Session) bury() {
	defer close(s.buried)
	patience := time.NewTimer(s.cfg.SessionTimeout) // a server may take that long to open one
	defer patience.Stop()
	for !s.isOver() {
		select {
		case <-s.living.Done():
		case <-patience.C:
			left := s.contactLeft()
			if left <= 0 {
				s.end(errors.New("no word from any server for most of the session timeout"))
			}
			patience.Reset(left)
		}
	}
	if cause := context.Cause(s.living); cause != errClosed {
		if s.ID() != 0 {
			s.cfg.Logger.Warn("lockpool: ZooKeeper session lost", "session", s.Info().ID, "cause", cause)
		}
		s.hangUp()
	}
	s.interrupt() // after it, and so after a begin that came before the end, no more calls begin
	idle := make(chan struct{})
	go func() { // ends with the last call, which conn.Close ends if nothing else
		s.calls.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(time.Second):
	}
	s.conn.Close() // within 3 s; asks the server to close the session if it can
	s.hangUp()
	<-s.stopped
}

// contactLeft is how much longer the session may be believed in without an
// answer from a server. The server counts from what it heard of us last, which
// is not before we sent what it answered last. A sixth is left out for clocks
// that differ and for telling the holders.
func (s *Session) contactLeft() time.Duration {
	silence := time.Since(s.began) - time.Duration(s.lastHeard.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeout*5/6 - silence
}

// handshakeTimeout leaves time to try another server within the session's.
func (s *Session) handshakeTimeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeout / 3
}

// adopt makes conn the session's present connection.
func (s *Session) adopt(conn net.Conn, address string) net.Conn {
	l := newLink(s, conn)
	s.mu.Lock()
	s.link, s.peer = l, address
	s.mu.Unlock()
	if s.isOver() { // hangUp may have come before
		l.hangUp()
	}
	return l
}

func (s *Session) hangUp() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.hangUp()
	}
}

// greeted is told what the server answered to a handshake. Id 0 says that the
// session has expired.
func (s *Session) greeted(id int64, timeout time.Duration) error {
	s.mu.Lock()
	first := s.id == 0
	if first {
		s.id = id
	}
	same := s.id == id
	if same && !first || first && id != 0 {
		s.timeout = timeout
	}
	s.mu.Unlock()
	switch {
	case id == 0:
		s.end(errors.New("expired"))
	case !same:
		s.end(errReplaced)
		return errReplaced
	case first && timeout != s.cfg.SessionTimeout:
		s.cfg.Logger.Warn("lockpool: the ZooKeeper server changed the session timeout",
			"asked", s.cfg.SessionTimeout, "granted", timeout)
	}
	return nil
}

// event is called by the client, on its own goroutines and sometimes under its
// own locks, in the order in which events came in. It must not block and not
// call the client.
func (s *Session) event(e zk.Event) {
	switch {
	case e.Type == zk.EventNodeDeleted:
		s.fire(e.Path, driver.Deleted)
	case e.Type == zk.EventNodeDataChanged:
		s.fire(e.Path, driver.Changed)
	case e.Type != zk.EventSession:
	case e.State == zk.StateHasSession:
		s.attempts = 0
		select {
		case <-s.ready:
		default:
			close(s.ready)
		}
	case e.State == zk.StateDisconnected:
		s.interrupt()
	}
}

// ID is the session's id, 0 before there is one.
func (s *Session) ID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Info implements driver.Session.
func (s *Session) Info() driver.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return driver.Info{ID: fmt.Sprintf("%#x", uint64(s.id)), Peer: s.peer}
}

// Done implements driver.Session.
func (s *Session) Done() <-chan struct{} { return s.living.Done() }

// Err implements driver.Session.
func (s *Session) Err() error {
	if !s.isOver() {
		return nil
	}
	return fmt.Errorf("%w: %w", driver.ErrSessionLost, context.Cause(s.living))
}

func (s *Session) isOver() bool { return s.living.Err() != nil }

var errClosed = errors.New("closed")

// Close implements driver.Session.
func (s *Session) Close(ctx context.Context) error {
	s.end(errClosed)
	select {
	case <-s.buried:
		return nil
	case <-ctx.Done():
	}
	s.hangUp()
	<-s.buried
	return ctx.Err()
}

// clientLog passes the client's own messages on. They are of interest only to
// who looks for a fault in the connection.
type clientLog struct{ *slog.Logger }

func (l clientLog) Printf(format string, args ...any) {
	l.Debug("zookeeper client: " + fmt.Sprintf(format, args...))
}
