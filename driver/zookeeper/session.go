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
	"github.com/lockpool/lockpool/internal/clock"
)

// Session is one ZooKeeper session on one client connection. The client opens
// a new session by itself when the old one has expired, and sends requests
// that were queued for the old one on the new; a Session prevents that by
// refusing to dial once it is over, so that every reply it sees belongs to the
// one session it was made with.
type Session struct {
	settings
	conn   *requests
	client *zk.Conn // for what is not bounded: the proofs, and its own affairs

	route route

	ready   chan struct{} // closed when the session is first established
	stopped chan struct{} // closed when the client's connect loop has ended
	closed  chan struct{} // closed when nothing of the session is left running

	unremovable     context.Context // ends when a node could not be removed
	markUnremovable context.CancelFunc
	alive           context.Context // ends when the session is over; its cause says why
	end             context.CancelCauseFunc
	dialing         context.Context // ends when no connection is to be made any more
	stopDialing          context.CancelFunc

	clock      clock.Clock
	lease      lease
	leaseChanged chan struct{} // filled when the lease may have come to end earlier
	proofWanted    chan struct{} // filled when there is a doubt about the clock
	asleep     atomic.Int64  // how long the machine had been suspended when the last proof began

	slots chan struct{}  // one per call that may be under way
	calls sync.WaitGroup // calls under way; none begins once over

	mu           sync.Mutex
	id           int64
	timeout      time.Duration // negotiated
	link         *link
	peer         string
	watches      map[string]*watch   // by path, until they fire
	fastpaths    map[string]fastpath // by path of the queue
	plains       map[string]plainNode    // by path
	listings     map[string]*listing // by path of the directory: the last that was begun
	lengths      map[string]int64    // of the answers to them, where they are long
	warned       map[string]bool     // by path of a queue: of the end of its numbers
	lasting      map[string]bool     // by path: children with a number that are no contenders
	noContainers bool                // the server is older than container nodes
}

// now is the time since the session began, by the clock that the lease goes by.
func (s *Session) now() time.Duration { return s.clock.Now() }

// tick is how often a session looks at the clock, which may have gone on when
// timers did not. All do so together, so that an idle process wakes once for all.
const tick = 50 * time.Millisecond

func untilTick() time.Duration { return tick - time.Duration(time.Now().UnixNano())%tick }

// maxCalls bounds the calls that wait for a server that does not answer.
const maxCalls = 1024

func connect(ctx context.Context, set settings) (*Session, error) {
	cfg := set.cfg
	s := &Session{
		settings:   set,
		route:      newRoute(cfg.Servers),
		timeout:    cfg.SessionTimeout,
		ready:      make(chan struct{}),
		leaseChanged: make(chan struct{}, 1),
		proofWanted:    make(chan struct{}, 1),
		stopped:    make(chan struct{}),
		closed:     make(chan struct{}),
		clock:      clock.Start(ctx),
		slots:      make(chan struct{}, maxCalls),
		watches:    map[string]*watch{},
		fastpaths:  map[string]fastpath{},
		plains:     map[string]plainNode{},
		listings:   map[string]*listing{},
		lengths:    map[string]int64{},
		warned:     map[string]bool{},
		lasting:    map[string]bool{},
	}
	s.alive, s.end = context.WithCancelCause(context.Background())
	s.dialing, s.stopDialing = context.WithCancel(context.Background())
	s.unremovable, s.markUnremovable = context.WithCancel(context.Background())
	conn, events, err := zk.Connect(cfg.Servers, cfg.SessionTimeout,
		zk.WithHostProvider(hostProvider{s}),
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
	s.client, s.conn = conn, newRequests(conn, s.dialing)
	go func() { // ends when the client's connect loop does, after conn.Close
		for range events { // the channel drops events; what counts comes to s.event
		}
		close(s.stopped)
	}()
	go s.shutdown() // ends with the session
	fail := func(err error) (*Session, error) {
		s.mu.Lock()
		if s.id != 0 { // opened at this very moment: the server is told
			s.end(errClosed)
		}
		s.end(err)
		s.mu.Unlock()
		s.abandoned.Go(func() { <-s.closed }) // up to seconds, and the reason is of interest now
		return nil, fmt.Errorf("zookeeper: connect to %s: %w", cfg, err)
	}
	select {
	case <-s.ready:
	case <-s.alive.Done():
		return fail(context.Cause(s.alive))
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	if s.begin() {
		go s.renew() // ends with the session
	}
	if s.begin() {
		go s.recheckWatches() // ends with the session
	}
	return s, nil
}

// maxSend is the client's send buffer, and so the largest request in bytes.
const maxSend = 64 << 10

// renew sends what the lease needs, one request at a time. (A sync or a write
// that waits for the leader holds back the answers to everything after it on
// the connection.)
func (s *Session) renew() {
	defer s.calls.Done()
	for {
		write, in := s.lease.nextProof(s.now())
		select {
		case <-s.alive.Done():
			return
		case <-s.proofWanted:
		case <-time.After(clock.Span(max(in, 0))):
		}
		if in > 0 { // other requests may have served
			continue
		}
		asleep := s.clock.Suspended()
		if err := s.prove(write); err != nil {
			select { // a server that is overloaded is not to be asked at once
			case <-s.alive.Done():
			case <-time.After(clock.Span(s.lease.retryPause())):
			}
			continue
		}
		s.asleep.Store(int64(asleep))
	}
}

// prove sends a request that takes the leader, and if it is a write a majority,
// to answer. The write changes nothing.
func (s *Session) prove(write bool) error {
	if !write {
		_, err := s.client.Sync("/")
		return err
	}
	_, err := s.client.Multi(&zk.CheckVersionRequest{Path: "/", Version: -1})
	if errors.Is(err, zk.ErrNoAuth) { // inside an answer, of a majority all the same
		return nil
	}
	return err
}

// bury waits for the end of the session, then stops the client. It gives the
// calls under way a moment to get their replies, because the client races with
// itself over a reply that arrives while it is being closed.
func (s *Session) shutdown() {
	defer close(s.closed)
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for !s.isOver() {
		select {
		case <-s.alive.Done():
			continue
		case <-s.leaseChanged:
		case <-expiry.C:
		}
		s.checkClock()
		if ends := time.Duration(s.lease.ends.Load()); ends != 0 {
			expiry.Reset(min(clock.Span(max(ends-s.now(), 0)), untilTick()))
		}
	}
	if cause := context.Cause(s.alive); cause != errClosed {
		s.stopDialing()
		s.abortLink()
		s.interrupt()
		if s.ID() != 0 {
			s.cfg.Logger.Warn("lockpool: ZooKeeper session lost", "session", s.Info().ID, "cause", cause)
		}
	}
	s.interrupt() // after it, and so after a begin that came before the end, no more calls begin
	idle := make(chan struct{})
	go func() { // ends with the last call, which conn.Close ends if nothing else
		s.calls.Wait()
		for s.dialing.Err() == nil { // a connection that stands is needed to close the session
			if _, err := s.client.Sync("/"); err == nil {
				break
			}
			time.Sleep(minBackoff)
		}
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(time.Second):
	}
	s.client.Close() // within 3 s; asks the server to close the session if it can
	s.stopDialing()
	s.abortLink()
	<-s.stopped
	<-idle
}

// adopt makes conn the session's present connection.
func (s *Session) attach(conn net.Conn, to target) net.Conn {
	l := newLink(s, conn, to)
	s.mu.Lock()
	s.link, s.peer = l, to.server
	s.mu.Unlock()
	if s.dialing.Err() != nil { // hangUp may have come before
		l.abort()
	}
	return l
}

func (s *Session) abortLink() {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		l.abort()
	}
}

// greeted is told what the server answered to a handshake that began at asked.
// Id 0 says that the session has expired.
func (s *Session) onHandshake(id int64, timeout, asked time.Duration) error {
	s.mu.Lock()
	if s.id == 0 && s.isOver() { // nobody waits for it any more
		s.mu.Unlock()
		return s.Err()
	}
	first := s.id == 0
	if first {
		s.id = id
	}
	same := s.id == id
	if same && !first || first && id != 0 {
		s.timeout = timeout
		s.lease.established(asked, timeout, first)
		select {
		case s.leaseChanged <- struct{}{}:
		default: // bury has not seen the last one yet
		}
	}
	s.mu.Unlock()
	if first && timeout < twoTicks {
		s.warnShortTimeout.Do(func() {
			s.cfg.Logger.Warn("lockpool: the ZooKeeper session timeout is short: be sure that tickTime is at most half of it "+
				"(that is, that minSessionTimeout was not lowered), or a lock may not end in time", "timeout", timeout)
		})
	}
	switch {
	case id == 0:
		s.stopDialing()
		s.end(driver.ErrExpired)
	case !same:
		s.stopDialing()
		s.end(errReplaced)
		return errReplaced
	case first && timeout != s.cfg.SessionTimeout:
		s.cfg.Logger.Warn("lockpool: the ZooKeeper server changed the session timeout",
			"asked", s.cfg.SessionTimeout, "granted", timeout)
	}
	return nil
}

// twoTicks is the least timeout that a server with ZooKeeper's usual tickTime of
// two seconds grants, and what the lease needs at the least.
const twoTicks = 4 * time.Second

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
	return driver.Info{ID: sessionID(s.id), Peer: s.peer}
}

// Stuck implements driver.Session.
func (s *Session) Unremovable() <-chan struct{} { return s.unremovable.Done() }

// Done implements driver.Session.
func (s *Session) Done() <-chan struct{} { return s.alive.Done() }

// Err implements driver.Session.
func (s *Session) Err() error {
	if !s.isOver() {
		return nil
	}
	return fmt.Errorf("%w: %w", driver.ErrSessionLost, context.Cause(s.alive))
}

// lookAtClock asks for a proof if there is a doubt about the clock. Then it
// returns a channel that is closed when the proof has been answered.
func (s *Session) checkClock() <-chan struct{} {
	now := s.now()
	settled := s.lease.checkSkew(now, s.clock.Skew())
	if settled != nil {
		select {
		case s.proofWanted <- struct{}{}:
		default: // renew has not seen the last one yet
		}
	}
	return settled
}

// Alive implements driver.Session.
func (s *Session) Alive(ctx context.Context) error {
	settled := s.checkClock()
	if settled != nil {
		select {
		case <-settled:
		case <-s.alive.Done():
		case <-ctx.Done():
			return s.noAnswerError(ctx)
		}
	}
	return s.Err()
}

// isOver looks at the lease itself, because timers may be late.
func (s *Session) isOver() bool {
	if s.alive.Err() != nil {
		return true
	}
	if ends := time.Duration(s.lease.ends.Load()); ends == 0 || s.clock.AtLeast() < ends {
		return false
	}
	cause := errLease
	if d := s.clock.Suspended() - time.Duration(s.asleep.Load()); d > 0 {
		cause = fmt.Errorf("the machine was suspended for %v: %w", d.Round(time.Millisecond), errLease)
	}
	s.end(cause)
	return true
}

// errLease is why a session is over whose lease has ended.
var errLease = errors.New("no answer that took the ensemble's leader for most of the session timeout")

var errClosed = errors.New("closed")

// Close implements driver.Session.
func (s *Session) Close(ctx context.Context) error {
	s.end(errClosed)
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
	}
	s.stopDialing()
	s.abortLink()
	<-s.closed
	return ctx.Err()
}

// clientLog passes the client's own messages on. They are of interest only to
// who looks for a fault in the connection.
type clientLog struct{ *slog.Logger }

func (l clientLog) Printf(format string, args ...any) {
	l.Debug("zookeeper client: " + fmt.Sprintf(format, args...))
}
