package etcd

// This file has the session: its leases and its connections.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/clock"
)

var _ interface {
	driver.Session
	driver.PlainLocker
	driver.Limiter
	driver.Downgrader
	driver.Inspector
	driver.Follower
	driver.Breaker
	driver.Revoker
	driver.Recorder
	driver.Sizer
	driver.Refuser
	driver.Idler
} = (*session)(nil)

// session is a lease, which ends the session's nodes with it, and a connection to one
// member at a time. After an election the session has another lease, and the two IDs differ
// only in the last bits.
type session struct {
	*Connector
	id    clientv3.LeaseID // the first one
	clock clock.Clock
	lease lease

	alive context.Context // ends when the session is over; the cause says why
	end   context.CancelCauseFunc

	closed  chan struct{} // closed when no goroutine of the session is left, except in calls of Close
	revoked chan bool     // whether the leases have been revoked; empty while a call of Close revokes them
	last    *connection   // open at the end of a closed session, or nil

	mu      sync.Mutex
	current *connection   // nil while there is none
	peer    string        // of the current connection, or the last one
	changed chan struct{} // closed when current changes
	ending  bool          // no more tasks begin

	recordLeases map[time.Duration]*recordLease // by how long the records are kept
	tasks        sync.WaitGroup

	unremovable     context.Context // ends when the servers refuse to remove a node
	markUnremovable context.CancelFunc

	fence    fence
	keys     ownKeys
	usedKeys usedKeys
	proving  proving
	idle     idleness

	generation int // of the latest lease; only the goroutine of the proofs uses the number
}

var (
	errClosed  = errors.New("closed")
	errLease   = errors.New("no majority of the servers has answered for most of the session timeout")
	errRevoked = fmt.Errorf("%w: the servers have ended the lease", driver.ErrExpired)
	errSilent  = errors.New("the server is silent")
)

// Connect implements driver.Connector.
func (c *Connector) Connect(ctx context.Context) (driver.Session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &session{
		Connector: c, id: clientv3.LeaseID(rand.Int64N(1<<62)+1<<62) &^ generations, clock: clock.Start(ctx),
		closed: make(chan struct{}), revoked: make(chan bool, 1), changed: make(chan struct{}),
		keys: ownKeys{byKey: map[string]ownKey{}},
	}
	s.lease.changed, s.lease.id, s.lease.ttl = make(chan struct{}, 1), s.id, c.cfg().TTL
	s.proving.wanted = make(chan struct{}, 1)
	s.revoked <- false
	s.alive, s.end = context.WithCancelCause(context.Background())
	s.unremovable, s.markUnremovable = context.WithCancel(context.Background())
	conn, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	s.use(conn)
	s.tasks.Add(2)
	go s.run(conn)  // ends with the session
	go s.awaitEnd() // ends with the session
	go func() {     // ends with the session and the tasks
		<-s.alive.Done()
		s.mu.Lock()
		s.ending = true
		s.mu.Unlock()
		s.tasks.Wait()
		close(s.closed)
	}()
	return s, nil
}

// open opens the session: the first member to answer grants the lease.
func (s *session) open(ctx context.Context) (*connection, error) {
	cfg := s.cfg()
	began := s.clock.Now()
	limit, cancel := context.WithTimeoutCause(ctx, cfg.TTL/2, errSilent) // the lease may have begun with the first attempt
	defer cancel()
	last := errSilent
	permanent := map[string]bool{} // the members whose last answer was
	for a := range s.attempts(limit, nil) {
		if a.conn != nil && limit.Err() != nil {
			a.conn.close(errSilent)
			continue
		}
		if a.conn != nil {
			if a.err = s.grant(ctx, a.conn, began); a.err == nil {
				return a.conn, nil
			}
			a.err = s.connectError(a.endpoint, a.err)
			if errors.Is(a.err, driver.ErrPermanent) { // a granted lease is of no use
				once, cancel := context.WithTimeout(ctx, cfg.TTL/4)
				late := a.conn.revoke(once, s.id)
				cancel()
				if late != nil { // a later revocation would end the next grant
					a.conn.close(a.err)
					return nil, a.err
				}
			}
			a.conn.close(a.err)
		}
		if code, _ := answerOf(a.err); last == errSilent || limit.Err() == nil && code != codes.DeadlineExceeded { // the end of limit says nothing
			last = a.err
		}
		if delete(permanent, a.endpoint); errors.Is(a.err, driver.ErrPermanent) {
			permanent[a.endpoint] = true
		}
		if errors.Is(a.err, driver.ErrNoPermission) || len(permanent) == len(cfg.Endpoints) { // the cluster's answer
			return nil, a.err
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", ctx.Err(), last)
	}
	return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, last)
}

// grant asks for the lease and creates the session's own key.
func (s *session) grant(ctx context.Context, conn *connection, began time.Duration) (err error) {
	ttl := s.cfg().TTL
	ctx, cancel := context.WithTimeoutCause(ctx, ttl/4, errSilent)
	defer cancel()
	defer func() {
		if err != nil && context.Cause(ctx) == errSilent { // not an end of the caller's context
			err = errSilent
		}
	}()
	key := s.sessionKey()
	before, err := conn.kv.Get(ctx, key, clientv3.WithSerializable())
	if err != nil {
		return err
	}
	term := uint64(0)
	granted, err := conn.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(s.id), TTL: int64(ttl / time.Second)})
	switch {
	case err == nil:
		if granted.Header.RaftTerm == before.Header.RaftTerm {
			term = before.Header.RaftTerm
		}
	case !isLeaseExists(err): // otherwise the answer to an earlier request was lost
		return err
	}
	_, err = conn.kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "", clientv3.WithLease(s.id))).Commit()
	if err != nil {
		return err
	}
	s.fence.version = 1
	s.lease.granted(term, began)
	return nil
}

// sessionKey is the key showing that the session is not over.
func (s *session) sessionKey() string { return s.prefix + sessions + "/" + s.idText() }

func (s *session) idText() string { return strconv.FormatInt(int64(s.id), 16) }

// run keeps the session connected and proves the lease until the session is over.
func (s *session) run(conn *connection) {
	defer s.tasks.Done()
	for s.alive.Err() == nil {
		if conn == nil {
			if conn = s.reconnect(); conn == nil {
				break
			}
		}
		s.use(conn)
		began := s.clock.Now()
		err := s.prove(conn)
		s.use(nil)
		if s.alive.Err() != nil {
			break
		}
		s.proving.failed(s.describe(err))
		conn.close(err)
		conn = nil
		if s.clock.Now()-began < time.Second { // perhaps the member answers, but refuses a new lease
			pause(s.alive, 100*time.Millisecond)
		}
	}
	s.use(nil)
	if cause := context.Cause(s.alive); cause == errClosed {
		s.last = conn
	} else if conn != nil {
		conn.close(cause)
	}
}

// reconnect connects to a member that proves the lease, and returns nil if the session has
// ended.
func (s *session) reconnect() *connection {
	prove := func(ctx context.Context, conn *connection) error { return s.proveBy(ctx, conn, s.cfg().TTL/4) }
	for a := range s.attempts(s.alive, prove) {
		if a.err == nil {
			return a.conn
		}
		s.proving.failed(a.err)
	}
	return nil
}

// revokeAll ends the leases of an ended session, and so removes the nodes, as soon as a
// member answers. Without revokeAll the servers might keep the leases for long, because
// each leader gives leases their whole TTL.
func (s *session) revokeAll(ctx context.Context) error {
	done := false
	select {
	case done = <-s.revoked: // also with an ended context: the last connection is to be closed
	default:
		select {
		case done = <-s.revoked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { s.revoked <- done }()
	if errors.Is(context.Cause(s.alive), errLease) { // holders count on the time until the lease ends
		pause(ctx, s.clock.Span(s.lease.untilExpired(s.clock.Now())))
	}
	var refused error
	revoke := func(ctx context.Context, conn *connection) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg().TTL/4)
		defer cancel()
		err := conn.revoke(ctx, s.lease.all()...)
		if isConclusive(err) { // a right to write a key of the lease was withdrawn
			refused, err = s.describe(err), nil
		}
		return err
	}
	conn := s.last
	if s.last = nil; conn != nil {
		done = revoke(ctx, conn) == nil
		conn.close(errClosed)
	}
	if done {
		return refused
	}
	for a := range s.attempts(ctx, nil) { // without a proof: the lease may be gone
		if a.err != nil {
			continue
		}
		done = revoke(ctx, a.conn) == nil
		a.conn.close(errClosed)
		if done {
			return refused
		}
	}
	return ctx.Err()
}

// revoke ends leases.
func (c *connection) revoke(ctx context.Context, leases ...clientv3.LeaseID) (refused error) {
	for _, id := range leases {
		_, err := c.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(id)})
		switch {
		case err == nil || isLeaseGone(err):
		case isConclusive(err):
			refused = err
		default:
			return err
		}
	}
	return refused
}

// use makes conn, perhaps nil, the current connection.
func (s *session) use(conn *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && conn == nil {
		s.current.watches.interrupt()
	}
	if s.current = conn; conn != nil {
		s.peer = conn.endpoint
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// connected returns the current connection, and waits for one.
func (s *session) connected(ctx context.Context) (*connection, error) {
	for {
		s.mu.Lock()
		conn, changed := s.current, s.changed
		s.mu.Unlock()
		if err := s.Err(); err != nil {
			return nil, err
		}
		if conn != nil && conn.ctx.Err() == nil {
			return conn, nil
		}
		select {
		case <-changed:
		case <-s.alive.Done():
		case <-ctx.Done():
			return nil, s.noAnswer(ctx)
		}
	}
}

// noAnswer is the error of a call whose context has ended.
func (s *session) noAnswer(ctx context.Context) error {
	return fmt.Errorf("etcd: no answer from %s: %w", s.Info().Peer, ctx.Err())
}

// task runs f on a new goroutine, unless the session is over. f must end with the session.
func (s *session) task(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending || s.alive.Err() != nil {
		return false
	}
	s.tasks.Go(f)
	return true
}

// isOver reports whether the session is over. Timers may be late, so isOver reads the clock.
func (s *session) isOver() bool {
	if s.alive.Err() == nil && s.clock.AtLeast() >= s.lease.end() {
		s.lose(errLease)
	}
	return s.alive.Err() != nil
}

// tick is how often a session reads the clock. The clock may advance while timers stand still.
const tick = 50 * time.Millisecond

// awaitEnd returns when the session is over, at the latest when the lease ends.
func (s *session) awaitEnd() {
	defer s.tasks.Done()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		left := s.lease.end() - s.clock.Now()
		if s.isOver() {
			return
		}
		s.inDoubt()
		often := tick
		if s.isIdle() {
			often = s.lease.ttl // unless the end changes
		}
		timer.Reset(min(max(s.clock.Span(left), time.Millisecond), often))
		select {
		case <-s.alive.Done():
		case <-s.lease.changed:
		case <-timer.C:
		}
	}
}

// Done implements driver.Session.
func (s *session) Done() <-chan struct{} { return s.alive.Done() }

// Err implements driver.Session.
func (s *session) Err() error {
	if !s.isOver() {
		return nil
	}
	return fmt.Errorf("%w: %w", driver.ErrSessionLost, context.Cause(s.alive))
}

// Lease implements driver.Session.
func (s *session) Lease() time.Duration {
	if s.isOver() {
		return 0
	}
	return max(s.lease.end()-s.clock.Now(), 0)
}

// Unremovable implements driver.Refuser.
func (s *session) Unremovable() <-chan struct{} { return s.unremovable.Done() }

// Info implements driver.Session.
func (s *session) Info() driver.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return driver.Info{Driver: s.DriverName(), ID: s.idText(), Peer: s.peer}
}

// Close implements driver.Session.
func (s *session) Close(ctx context.Context) error {
	s.end(errClosed)
	<-s.closed // soon: no goroutine waits for an answer
	return s.revokeAll(ctx)
}

// pause reports false if the context ends before d has passed.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
