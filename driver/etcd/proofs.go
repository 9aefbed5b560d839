package etcd

// This file has the requests for the proofs of the lease.

import (
	"context"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/internal/clock"
)

// proving is the state shared by the proofs of the lease and the calls waiting for a proof.
type proving struct {
	wanted chan struct{} // filled when a round should begin at once

	mu       sync.Mutex
	began    int           // rounds
	skew     time.Duration // of the clocks when the last round began that has succeeded
	drifted  time.Duration // likewise, of the last round
	stopped  time.Duration // how long the machine had been suspended by then
	survived time.Duration // likewise, of the last successful round
	trusted  chan struct{} // closed when the clock is out of doubt; nil without a doubt
	needed   int           // the first round whose success ends the doubt
	ended    int           // the last successful round
	failure  error         // of the last attempt, or nil
}

// maxSkew is how far the wall clock may move against ours since the proof on which the lease
// rests: no more than half of the lease's margin. Beyond maxSkew, our clock is in doubt: the
// clock may have stood still.
func maxSkew(ttl time.Duration) time.Duration { return min(200*time.Millisecond, ttl/40) }

// inDoubt returns nil if neither the clock nor the end of the lease is in doubt, and otherwise a
// channel, closed when a proof has ended the doubt.
func (s *session) inDoubt() <-chan struct{} {
	s.clock.Now()
	p, skew := &s.proving, s.clock.Skew()
	p.mu.Lock()
	defer p.mu.Unlock()
	if (skew - p.skew).Abs() > maxSkew(s.cfg().TTL) {
		p.skew, p.needed = skew, p.began+1
		p.doubt()
	}
	return p.trusted
}

// doubt begins a doubt, unless there is one. mu is held.
func (p *proving) doubt() {
	if p.trusted == nil {
		p.trusted = make(chan struct{})
	}
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

// endDoubt ends the doubt, if any, when the lease is proved and no round is needed.
func (s *session) endDoubt() {
	p := &s.proving
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trusted != nil && p.ended >= p.needed && s.lease.isProved() {
		close(p.trusted)
		p.trusted = nil
	}
}

// beginRound begins a round.
func (s *session) beginRound() (round int) {
	s.inDoubt() // a jump is no drift
	p := &s.proving
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began++
	p.stopped, p.drifted = s.clock.Suspended(), s.clock.Skew()
	return p.began
}

// failed records an error of a proof. The text explains a later end of the session.
func (p *proving) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure = err
}

// succeeded ends a round.
func (s *session) succeeded(round int) {
	p := &s.proving
	p.mu.Lock()
	p.survived, p.failure, p.ended = p.stopped, nil, round
	if round >= p.needed {
		p.skew = p.drifted // drift is allowed
	}
	p.mu.Unlock()
	s.endDoubt()
}

// lose ends the session.
func (s *session) lose(cause error) {
	p := &s.proving
	p.mu.Lock()
	suspended, jumped := s.clock.Suspended()-p.survived, p.ended < p.needed
	if cause == errLease && p.failure != nil {
		cause = fmt.Errorf("%w (%v)", cause, p.failure)
	}
	p.mu.Unlock()
	s.end(clock.Blame(cause, suspended, jumped))
}

// prove proves the lease again and again, until the connection is of no use, and returns the
// reason.
func (s *session) prove(conn *connection) error {
	ttl := s.cfg().TTL
	ctx, cancel := context.WithCancel(s.alive)
	defer cancel()
	stop := context.AfterFunc(conn.ctx, cancel)
	defer stop()
	if err := s.proveBy(ctx, conn, ttl/4); err != nil {
		return err
	}
	timer := time.NewTimer(ttl)
	defer timer.Stop()
	for {
		if s.isIdle() {
			if err := s.keepIdle(ctx, conn); err != nil {
				return err
			}
		}
		round, began := s.beginRound(), s.clock.Now()
		for _, step := range []func(context.Context, *connection, time.Duration) error{s.renew, s.keepAlive, s.proveBy, s.renew} {
			if err := step(ctx, conn, ttl/4); err != nil {
				return err
			}
		}
		s.succeeded(round)
		conn.watches.sweep()
		if s.rest(s.clock.Now() - began) {
			continue
		}
		timer.Reset(s.clock.Span(ttl / 8))
		select {
		case <-ctx.Done():
			return context.Cause(conn.ctx)
		case <-s.proving.wanted:
		case <-timer.C:
		}
	}
}

// proveBy sends a read of the session's key, to be confirmed by a majority.
func (s *session) proveBy(ctx context.Context, conn *connection, within time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, errSilent)
	defer cancel()
	sent := s.clock.Now()
	got, err := conn.kv.Get(ctx, s.sessionKey(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	if len(got.Kvs) == 0 {
		s.lose(errRevoked)
		return errRevoked
	}
	s.lease.readAnswered(seen{conn, got.Header.MemberId, got.Header.RaftTerm, sent})
	return nil
}

// keepAlive sends a keep-alive. Servers answer in order, so the answer is the next one of the
// stream.
func (s *session) keepAlive(ctx context.Context, conn *connection, within time.Duration) error {
	defer context.AfterFunc(ctx, func() { conn.fail(errSilent) })()
	sent := s.clock.Now()
	if err := conn.alive.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.lease.current())}); err != nil {
		return err
	}
	late := time.AfterFunc(within, func() { conn.fail(errSilent) })
	defer late.Stop()
	got, err := conn.alive.Recv()
	if err != nil {
		return err
	}
	if got.TTL <= 0 {
		s.lose(errRevoked)
		return errRevoked
	}
	s.lease.keepAliveAnswered(seen{conn, got.Header.MemberId, got.Header.RaftTerm, sent})
	return nil
}

// retryPause is the pause before a request is sent again.
const retryPause = 10 * time.Millisecond

// Alive implements driver.Session.
func (s *session) Alive(ctx context.Context) error {
	s.awaken()
	for trusted := s.inDoubt(); trusted != nil; trusted = s.inDoubt() { // perhaps the machine was stopped meanwhile
		select {
		case <-trusted:
		case <-s.alive.Done():
			return s.Err()
		case <-ctx.Done():
			return s.noAnswer(ctx)
		}
	}
	return s.Err()
}

// Ping implements driver.Session.
func (s *session) Ping(ctx context.Context) error {
	return s.ask(ctx, func(ctx context.Context, conn *connection) error {
		got, err := conn.kv.Get(ctx, s.sessionKey(), clientv3.WithKeysOnly())
		if err == nil && len(got.Kvs) == 0 {
			s.lose(errRevoked)
		}
		return err
	})
}
