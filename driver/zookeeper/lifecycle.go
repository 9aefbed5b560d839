package zookeeper

// This file has the life of a session: ready, over, gone, and what happens at each step.

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// lifecycle is the state of a session. The channels and contexts only ever go from open to
// closed, so there is no mutex.
type lifecycle struct {
	ready  chan struct{}   // closed when the session is first established
	closed chan struct{}   // closed when nothing of the session is left running but calls of Close
	events <-chan zk.Event // of the client; closed when the connect loop has ended

	alive context.Context // ends when the session is over; the cause says why
	end   context.CancelCauseFunc

	gone    context.Context // ends when the servers have closed the session, or do not know the session
	setGone context.CancelFunc

	dialing    context.Context // ends when the client may make no further connection
	endDialing context.CancelFunc
	parked     context.Context // ends when the client waits for quitting, in hosts.Next
	park       context.CancelFunc
	quitting   context.Context // ends when the client is being closed
	quit       context.CancelFunc

	farewell chan struct{} // has an element while a call of Close has the servers close the session

	unremovable     context.Context // ends when the server has refused to remove a node
	markUnremovable context.CancelFunc
}

func newLifecycle() lifecycle {
	l := lifecycle{ready: make(chan struct{}), closed: make(chan struct{}), farewell: make(chan struct{}, 1)}
	l.alive, l.end = context.WithCancelCause(context.Background())
	l.gone, l.setGone = context.WithCancel(context.Background())
	l.dialing, l.endDialing = context.WithCancel(l.gone)
	l.parked, l.park = context.WithCancel(context.Background())
	l.quitting, l.quit = context.WithCancel(context.Background())
	l.unremovable, l.markUnremovable = context.WithCancel(context.Background())
	return l
}

// isReady is called when the session is established on a connection.
func (l *lifecycle) isReady() {
	select {
	case <-l.ready:
	default:
		close(l.ready)
	}
}

// isOver reports whether the session is over. It reads the clock, because timers may be
// late.
func (s *session) isOver() bool {
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

// mustNotDial reports whether the client must no longer connect: the client would open a
// new session in place of the ended session, underneath the holders of locks. While the
// session is being closed, the client may reconnect for a moment, for the calls in
// progress.
func (s *session) mustNotDial() bool {
	return s.dialing.Err() != nil || s.isOver() && context.Cause(s.alive) != errClosed
}

// Done implements driver.Session.
func (s *session) Done() <-chan struct{} { return s.alive.Done() }

// Unremovable implements driver.Refuser.
func (s *session) Unremovable() <-chan struct{} { return s.unremovable.Done() }

// Err implements driver.Session.
func (s *session) Err() error {
	if !s.isOver() {
		return nil
	}
	return fmt.Errorf("%w: %w", driver.ErrSessionLost, context.Cause(s.alive))
}

// Close implements driver.Session.
func (s *session) Close(ctx context.Context) error {
	s.end(errClosed)
	select {
	case <-s.closed:
	case <-ctx.Done():
		s.disconnect()
		<-s.closed
	}
	return s.closeAtServer(ctx)
}

// disconnect breaks the client's connection for good.
func (s *session) disconnect() {
	s.endDialing()
	s.requests.disconnected(false, true)
}

// shutdown waits for the end of the session, then stops the client. If the session was
// closed and has a connection, the client asks the server there to close it.
func (s *session) shutdown() {
	defer close(s.closed)
	s.awaitEnd()
	cause := context.Cause(s.alive)
	if cause != errClosed && s.id() != 0 {
		s.cfg.Logger.Warn("lockpool: ZooKeeper session lost", "session", s.Info().ID, "cause", cause)
	}
	if cause != errClosed {
		s.disconnect()
	}
	s.calls.awaitBegins()
	s.watches.interrupt() // no more watches are added
	idle := make(chan struct{})
	go func() { // ends with the last call, which disconnect ends at the latest
		s.calls.underWay.Wait()
		close(idle)
	}()
	// Calls in progress get a moment for their replies.
	select {
	case <-idle:
	case <-time.After(time.Second):
	}
	if !s.requests.connected() {
		s.disconnect()
		<-s.parked.Done()
	}
	time.AfterFunc(time.Millisecond, s.quit)
	s.client.Close() // within a second
	s.disconnect()
	for range s.events { // the client drops unread events
	}
	<-idle
	s.relays.Wait()
	s.requests.writers.Wait()
}

// awaitEnd returns when the session is over, at the latest when the lease ends.
func (s *session) awaitEnd() {
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for !s.isOver() {
		select {
		case <-s.alive.Done():
			continue
		case <-s.expiry.leaseChanged:
		case <-expiry.C:
		}
		left, ok := s.expiry.left()
		if !s.expiry.isIdle() {
			s.expiry.checkClock()
			left = min(left, untilTick())
		}
		if ok {
			expiry.Reset(left)
		}
	}
}
