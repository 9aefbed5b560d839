package zookeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// lifecycle is the state of a session. Its channels and contexts only ever go from open
// to closed, so it needs no mutex.
type lifecycle struct {
	ready   chan struct{} // closed when the session is first established
	stopped chan struct{} // closed when the client's connect loop has ended
	closed  chan struct{} // closed when nothing of the session is left running

	alive context.Context // ends when the session is over; its cause says why
	end   context.CancelCauseFunc

	dialing    context.Context // ends when no further connection may be made
	endDialing context.CancelFunc

	unremovable     context.Context // ends when the server has refused to remove a node
	markUnremovable context.CancelFunc
}

func newLifecycle() lifecycle {
	l := lifecycle{ready: make(chan struct{}), stopped: make(chan struct{}), closed: make(chan struct{})}
	l.alive, l.end = context.WithCancelCause(context.Background())
	l.dialing, l.endDialing = context.WithCancel(context.Background())
	l.unremovable, l.markUnremovable = context.WithCancel(context.Background())
	return l
}

// isOver reports whether the session is over. It reads the clock itself, because
// timers may be late.
func (s *Session) isOver() bool {
	if s.alive.Err() != nil {
		return true
	}
	cause := s.expiry.passed()
	if cause == nil {
		return false
	}
	s.end(cause)
	return true
}

// mustNotDial reports whether the client must no longer connect: it would open a new
// session in place of one that is over, underneath the holders of locks. It may
// reconnect only when we close the session ourselves, to tell the server.
func (s *Session) mustNotDial() bool {
	return s.dialing.Err() != nil || s.isOver() && context.Cause(s.alive) != errClosed
}

// Done implements driver.Session.
func (s *Session) Done() <-chan struct{} { return s.alive.Done() }

// Unremovable implements driver.Refuser.
func (s *Session) Unremovable() <-chan struct{} { return s.unremovable.Done() }

// Err implements driver.Session.
func (s *Session) Err() error {
	if !s.isOver() {
		return nil
	}
	return fmt.Errorf("%w: %w", driver.ErrSessionLost, context.Cause(s.alive))
}

// Close implements driver.Session.
func (s *Session) Close(ctx context.Context) error {
	s.end(errClosed)
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
	}
	s.disconnect()
	<-s.closed
	return ctx.Err()
}

// stopDialing makes the client connect no more.
func (s *Session) stopDialing() {
	s.endDialing()
	s.requests.end()
}

// disconnect breaks the connection for good.
func (s *Session) disconnect() {
	s.stopDialing()
	s.connection.abort()
}

// shutdown waits for the end of the session, then stops the client.
func (s *Session) shutdown() {
	defer close(s.closed)
	s.awaitEnd()
	if cause := context.Cause(s.alive); cause != errClosed {
		s.disconnect()
		s.watches.interrupt()
		if s.ID() != 0 {
			s.cfg.Logger.Warn("lockpool: ZooKeeper session lost", "session", s.Info().ID, "cause", cause)
		}
	}
	s.calls.settle()
	s.watches.interrupt() // no more watches are added
	idle := make(chan struct{})
	go func() { // ends with the last call, which disconnect ends at the latest
		s.calls.underWay.Wait()
		for s.dialing.Err() == nil { // closing the session requires a connection
			if s.requests.Sync("/") == nil {
				break
			}
			time.Sleep(minBackoff)
		}
		close(idle)
	}()
	// Calls in progress get a moment for their replies.
	select {
	case <-idle:
	case <-time.After(time.Second):
	}
	s.client.Close() // within 3 s; asks the server to close the session if it can
	s.disconnect()
	<-s.stopped
	<-idle
	s.requests.writers.Wait()
}

// awaitEnd returns when the session is over, at the latest when its lease ends.
func (s *Session) awaitEnd() {
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for !s.isOver() {
		select {
		case <-s.alive.Done():
			continue
		case <-s.expiry.leaseChanged:
		case <-expiry.C:
		}
		s.expiry.checkClock()
		if left, ok := s.expiry.left(); ok {
			expiry.Reset(min(left, untilTick()))
		}
	}
}
