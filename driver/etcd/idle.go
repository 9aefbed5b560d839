package etcd

// This file has idle sessions, which cost the servers little.

import (
	"context"
	"sync/atomic"
	"time"
)

// While nothing is held or awaited on the session, there is nothing to end in time. An idle
// session sends a keep-alive every third of the TTL, and no read. The keep-alives prove nothing,
// and only say until when the session is of use: a session without an answer is given up.
//
// The first request of the next caller ends the idleness, and begins a doubt as after a jump of
// the clock. The read that goes out together with the request is usually the proof: the read
// follows the newest keep-alive, and the reads need not be close to each other (type lease). So
// nothing is granted before the lease is proved, and the proof takes no longer than the request,
// unless a keep-alive is under way. The lease then is at least 0.61 TTL, less the time of three
// answers; with slow servers, no session becomes idle. A whole round of proofs follows at once.
//
// An idle session does not move to another lease after an election, so elections cost no write.
// The lease is of an earlier term then, and only the whole round, which moves the session, ends
// the doubt.
//
// A stop of the machine that the system does not report would make the keep-alive older than
// the clock says. So an idle session compares the clocks at each keep-alive, and at the end of
// the idleness. After a jump, only a keep-alive sent later counts.

// idleness is whether a session is idle.
type idleness struct {
	unused atomic.Pointer[func() bool] // from IdleIf
	used   atomic.Bool                 // since usedAt was set
	state  atomic.Int32
	usedAt time.Duration // only the goroutine of the proofs uses the time
}

// The states of a session.
const (
	inUse  = iota
	asking // becoming idle, unless the session is used
	idle
)

// idlePart is the part of the TTL between two keep-alives of an idle session. A session becomes
// idle when unused for as long.
const idlePart = 3

// IdleIf implements driver.Idler.
func (s *session) IdleIf(unused func() bool) { s.idle.unused.Store(&unused) }

func (s *session) isIdle() bool { return s.idle.state.Load() == idle }

// awaken is called before each request but proofs, and before each grant: it ends idleness.
func (s *session) awaken() {
	if !s.idle.used.Load() {
		s.idle.used.Store(true) // before state is read: rest reads in the other order
	}
	if s.idle.state.Load() != inUse {
		s.endIdle()
	}
}

func (s *session) endIdle() {
	p := &s.proving
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.idle.state.Swap(inUse) == idle { // otherwise another call has begun the doubt, or rest was asking
		p.doubt()
		s.lease.tellChanged() // the clock is read more often from now on
	}
}

// rest makes the session idle, and reports true, if no request but proofs has been sent for some
// time, nothing depends on the session, and the last round took no longer than quick answers do.
func (s *session) rest(round time.Duration) bool {
	i := &s.idle
	unused := i.unused.Load()
	if unused == nil || !s.lease.isProved() || round > 2*s.quick() {
		return false
	}
	defer s.lease.tellChanged() // perhaps no longer idle
	i.state.Store(asking)
	now := s.clock.Now()
	if i.used.Swap(false) {
		i.usedAt = now
	}
	if now-i.usedAt >= s.lease.ttl/idlePart && (*unused)() && i.state.CompareAndSwap(asking, idle) {
		return true
	}
	i.state.CompareAndSwap(asking, inUse)
	return false
}

// quick is how long an answer may take while sessions become idle, and stay idle. After slower
// answers the lease would be too short.
func (s *session) quick() time.Duration { return s.lease.ttl / 50 }

// keepIdle keeps the lease of an idle session until a whole round of proofs is to follow.
func (s *session) keepIdle(ctx context.Context, conn *connection) error {
	ttl := s.lease.ttl
	timer := time.NewTimer(ttl)
	defer timer.Stop()
	for {
		round, began := s.beginRound(), s.clock.Now()
		if s.isOver() { // timers stand still while the machine is suspended
			return context.Cause(s.alive)
		}
		err := s.keepAlive(ctx, conn, ttl/4)
		if err == nil && !s.lease.assume() { // the term is another one than at the last read
			if err = s.proveBy(ctx, conn, ttl/4); err == nil {
				err = s.keepAlive(ctx, conn, ttl/4)
			}
			if err == nil && !s.lease.assume() {
				return nil
			}
		}
		if err == nil && s.cfg().Username != "" { // keep-alives do not keep a token
			err = s.proveBy(ctx, conn, ttl/4)
		}
		if err != nil {
			return err
		}
		s.succeeded(round)
		if s.clock.Now()-began > 3*s.quick() {
			s.endIdle()
			return nil
		}
		conn.watches.sweep()
		timer.Reset(s.clock.Span(ttl / idlePart))
		select {
		case <-ctx.Done():
			return context.Cause(conn.ctx)
		case <-s.proving.wanted:
			if s.isIdle() { // the clock is in doubt
				return nil
			}
			err := s.proveBy(ctx, conn, ttl/4)
			if err == nil {
				s.endDoubt()
			}
			return err
		case <-timer.C:
		}
	}
}
