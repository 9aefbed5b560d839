package zookeeper

// This file ends a session whose lease has ended, and sends the proofs that keep the lease.

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/internal/clock"
)

// expiry determines when a session ends by the process's own clock, no matter what a server
// says: the lease, and the clock for the lease. It has no mutex; the lease guards itself.
type expiry struct {
	clock clock.Clock
	lease lease

	leaseChanged chan struct{} // filled by each handshake, and when idleness ends: the lease begins, or may end earlier
	proofWanted  chan struct{} // filled when a proof may be due earlier: the clock is in doubt, or idleness ends
	idleEnded    chan struct{} // filled when idleness ends
	suspended    atomic.Int64  // how long the machine had been suspended when the last proof began

	used   atomic.Bool                 // a request has been sent that is no proof, since the last proof
	usedAt time.Duration               // used by renew: when used was last seen
	unused atomic.Pointer[func() bool] // of IdleIf
}

// tick is how often a session reads the clock, because the clock may have advanced while
// timers stood still. All sessions read the clock together, so that an idle process wakes
// once for all of them.
const tick = 50 * time.Millisecond

func untilTick() time.Duration { return tick - time.Duration(time.Now().UnixNano())%tick }

// now returns the time since the session began.
func (e *expiry) now() time.Duration { return e.clock.Now() }

// left returns how long a timer must run until the lease ends, if there is a lease yet.
func (e *expiry) left() (d time.Duration, ok bool) {
	ends := time.Duration(e.lease.ends.Load())
	return e.clock.Span(max(ends-e.now(), 0)), ends != 0
}

// untilExpired returns how long a timer must run until the servers may have expired the
// session for want of activity since the last proof.
func (e *expiry) untilExpired() time.Duration {
	ends := time.Duration(e.lease.ends.Load())
	return e.clock.Span(ends + e.lease.margin() - e.now())
}

// passed returns nil if the lease has not ended, and otherwise the cause of the
// session's end.
func (e *expiry) passed() error {
	if ends := time.Duration(e.lease.ends.Load()); ends == 0 || e.clock.AtLeast() < ends {
		return nil
	}
	return e.explain(errLease)
}

// explain adds to the cause of a session's end that the machine was stopped since the last
// proof, as far as the clocks tell.
func (e *expiry) explain(cause error) error {
	return clock.Blame(cause, e.clock.Suspended()-time.Duration(e.suspended.Load()), e.lease.inDoubt())
}

// errLease is the cause of the end of a session whose lease has ended.
var errLease = errors.New("no answer that required the ensemble's leader for most of the session timeout")

// checkClock asks for a proof if the clock is in doubt. It then returns a channel, closed
// when the proof has been answered.
func (e *expiry) checkClock() (settled <-chan struct{}) {
	settled = e.lease.checkSkew(e.clock.Read())
	if settled != nil {
		select {
		case e.proofWanted <- struct{}{}:
		default: // renew has not seen the last one yet
		}
	}
	return settled
}

// Alive implements driver.Session.
func (s *session) Alive(ctx context.Context) error {
	s.use()
	if settled := s.expiry.checkClock(); settled != nil {
		select {
		case <-settled:
		case <-s.alive.Done():
		case <-ctx.Done():
			return s.noAnswerError(ctx)
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	return checkEpoch(s.requests.lastSeen())
}

// use is called before each request but proofs, and before each grant: it ends idleness.
func (s *session) use() {
	e := &s.expiry
	if !e.used.Load() {
		e.used.Store(true) // before lease.use is read: rest reads in the other order
	}
	if e.lease.use.Load() != inUse {
		s.endIdle()
	}
}

// Lease implements driver.Session.
func (s *session) Lease() time.Duration {
	if s.isOver() {
		return 0
	}
	ends := time.Duration(s.expiry.lease.ends.Load())
	return max(ends-s.expiry.now(), 0)
}

// checkEpoch returns an error if zxids have reached an epoch too large for
// driver.Watch.Created. A server's answer after creating a node has a zxid no smaller than
// the node's.
func checkEpoch(zxid int64) error {
	const maxEpoch = 1<<21 - 1
	if epoch := zxid >> 32; epoch > maxEpoch {
		return fmt.Errorf("there are no more fencing tokens: the ensemble's epoch, which grows with each election, is %d, and may be at most %d: "+
			"copy the data to a new ensemble, and let stores forget their tokens", epoch, maxEpoch)
	}
	return nil
}

// renew sends the proofs required by the lease, one at a time. (A sync or a write waiting
// for the leader holds back the answers to all later requests on the connection.)
func (s *session) renew() {
	defer s.calls.done()
	for {
		write, in := s.expiry.lease.nextProof(s.expiry.now())
		select {
		case <-s.alive.Done():
			return
		case <-s.expiry.proofWanted:
		case <-time.After(s.expiry.clock.Span(max(in, 0))):
		}
		if in > 0 { // other requests may have served as proofs
			continue
		}
		suspended := s.expiry.clock.Suspended()
		if s.isOver() { // no proof revives a lease ended by a suspension
			return
		}
		if s.expiry.rest(); s.expiry.isIdle() {
			write = false
			s.expiry.checkClock()
		}
		if err := s.prove(write); err == nil {
			s.expiry.suspended.Store(int64(suspended))
			if s.expiry.lease.idleOnSlowServers() {
				s.endIdle()
			}
			continue
		}
		if !s.sleep(s.expiry.clock.Span(s.expiry.lease.retryPause())) { // spares an overloaded server
			return
		}
	}
}

// prove sends a request that requires the leader or, if write is true, the leader with a
// majority. The write changes nothing.
func (s *session) prove(write bool) error {
	q := syncRequest("/")
	if write {
		q = changeNothing()
	}
	q.answer = 0
	return s.requests.do(q)
}

// sleep reports false if the session is over before d has passed.
func (s *session) sleep(d time.Duration) bool {
	select {
	case <-s.alive.Done():
		return false
	case <-time.After(d):
		return true
	}
}
