package memory

// This file has sessions: how they begin calls, and end.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// session implements driver.Session.
type session struct {
	*Store
	id   string
	done chan struct{} // closed when the session is over; then err is set
	err  error
}

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
} = (*session)(nil)

var errClosed = errors.New("closed")

// Connect implements driver.Connector.
func (st *Store) Connect(ctx context.Context) (driver.Session, error) {
	s := &session{Store: st, done: make(chan struct{})}
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("memory: connect: %w", err)
	}
	defer st.mu.Unlock()
	st.order++
	s.id = fmt.Sprintf("session-%d", st.order)
	st.sessions = append(st.sessions, s)
	return s, nil
}

// begin begins a call. It waits while the store is paused. After nil, the caller must
// unlock mu, locked by begin.
func (s *session) begin(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		resumed := s.resumed
		if s.err == nil && resumed == nil {
			return nil
		}
		s.mu.Unlock()
		select {
		case <-s.done:
			return s.err
		case <-resumed:
		case <-ctx.Done():
		}
	}
}

// end ends the session, if not ended, and removes the nodes. It is called with mu held.
func (s *session) end(cause error) {
	if s.err != nil {
		return
	}
	s.err = fmt.Errorf("%w: %w", driver.ErrSessionLost, cause)
	close(s.done) // before anybody else sees that its nodes are gone
	s.sessions = slices.DeleteFunc(s.sessions, func(other *session) bool { return other == s })
	s.unwatch()
	for queue, q := range s.queues {
		for i := len(q.entries) - 1; i >= 0; i-- { // backwards, because remove changes the entries
			if e := q.entries[i]; e.session == s {
				_ = s.remove(queue, e.Node, nil) // surely there
			}
		}
	}
}

// Close implements driver.Session.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	over, resumed := s.err != nil, s.resumed
	s.end(errClosed)
	s.mu.Unlock()
	if over || resumed == nil {
		return nil
	}
	select { // others see the nodes gone when the store goes on
	case <-resumed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done implements driver.Session.
func (s *session) Done() <-chan struct{} { return s.done }

// Err implements driver.Session.
func (s *session) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Alive implements driver.Session. The store itself ends sessions, so the answer is
// certain, even while the store is paused.
func (s *session) Alive(context.Context) error { return s.Err() }

// Lease implements driver.Session. No silence of the store ends a session, so an open
// session has as much time left as a Duration can say.
func (s *session) Lease() time.Duration {
	if s.Err() != nil {
		return 0
	}
	return math.MaxInt64
}

// Info implements driver.Session.
func (s *session) Info() driver.Info {
	return driver.Info{Driver: s.DriverName(), ID: s.id, Peer: "memory"}
}

// Ping implements driver.Session.
func (s *session) Ping(ctx context.Context) error {
	err := s.begin(ctx)
	if err == nil {
		s.mu.Unlock()
	}
	return err
}
