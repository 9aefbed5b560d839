package etcd

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/internal/clock"
)

// proving is what the proofs of the lease share with calls that wait for one.
type proving struct {
	wanted chan struct{} // filled when one should begin at once

	mu       sync.Mutex
	began    int           // rounds
	skew     time.Duration // of the clocks when the last round began
	stopped  time.Duration // how long the machine had been suspended by then
	survived time.Duration // likewise, of the last round that has succeeded
	settled  chan struct{} // closed when a round that begins from now on has succeeded; nil if nobody waits
	settling int           // the first of these rounds
}

// maxSkew is how far the wall clock may move against ours between two proofs before it is
// in doubt whether ours stood still.
const maxSkew = 200 * time.Millisecond

// inDoubt returns a channel that is closed when a proof has settled a doubt in the clock,
// or nil if there is none.
func (s *session) inDoubt() <-chan struct{} {
	s.clock.Now()
	p, skew := &s.proving, s.clock.Skew()
	p.mu.Lock()
	defer p.mu.Unlock()
	if moved := skew - p.skew; moved > maxSkew || moved < -maxSkew {
		p.skew = skew
		if p.settled == nil {
			p.settled = make(chan struct{})
		}
		p.settling = p.began + 1
		select {
		case p.wanted <- struct{}{}:
		default:
		}
	}
	return p.settled
}

// beginRound begins a round.
func (s *session) beginRound() (round int) {
	s.inDoubt() // a jump is no drift
	p := &s.proving
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began++
	p.stopped = s.clock.Suspended()
	if p.settled == nil {
		p.skew = s.clock.Skew() // drift is allowed
	}
	return p.began
}

// succeeded ends a round.
func (p *proving) succeeded(round int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.survived = p.stopped
	if p.settled != nil && round >= p.settling {
		close(p.settled)
		p.settled = nil
	}
}

// lose ends the session.
func (s *session) lose(cause error) {
	p := &s.proving
	p.mu.Lock()
	suspended, jumped := s.clock.Suspended()-p.survived, p.settled != nil
	p.mu.Unlock()
	s.end(clock.Blame(cause, suspended, jumped))
}

// prove proves the lease again and again, and returns why the connection is of no use any
// longer.
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
		round := s.beginRound()
		for _, step := range []func(context.Context, *connection, time.Duration) error{s.renew, s.keepAlive, s.proveBy, s.renew} {
			if err := step(ctx, conn, ttl/4); err != nil {
				return err
			}
		}
		s.proving.succeeded(round)
		conn.watches.sweep()
		timer.Reset(s.clock.Span(ttl / 8))
		select {
		case <-ctx.Done():
			return context.Cause(conn.ctx)
		case <-s.proving.wanted:
		case <-timer.C:
		}
	}
}

// proveBy sends a read of the session's key that a majority must confirm.
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

// keepAlive sends a keep-alive, whose answer is the next one of the stream: servers answer in
// order.
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
	if settled := s.inDoubt(); settled != nil {
		select {
		case <-settled:
		case <-s.alive.Done():
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
