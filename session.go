package lockpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/lockpool/lockpool/driver"
)

// member is one session with the service, shared by the handles seated on it.
type session struct {
	driver.Session
	slots int                // guarded by Pool.mu
	holds map[*hold]struct{} // guarded by Pool.mu: what stands on the session

	retired atomic.Bool // nobody sits down any more
	closed  atomic.Bool // by the pool
}

// seat is a handle's place on a member, and what the pool of puddle is made of.
// Seats outlive handles: an idle one keeps its place.
type slot struct{ *session }

type puddleSlot = puddle.Resource[slot]

// close ends the session. The context bounds the wait for the service.
func (m *session) close(ctx context.Context) {
	m.closed.Store(true)
	_ = m.Close(ctx) // if it is not heard of, its nodes go with the session's timeout
}

func (m *session) isOver() bool { return m.retired.Load() || m.Err() != nil }

// sit is the constructor of seats. puddle passes the caller's values, but not its
// cancellation: what is begun here is of use to the next caller. It ends when
// the pool closes.
func (p *Pool) openSlot(ctx context.Context) (slot, error) {
	m, err := p.pickSession(ctx)
	if err != nil {
		return slot{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m.slots++
	return slot{m}, nil
}

// member returns the least loaded member. It opens another one if all are well
// filled and there may be more, and waits for that if there is none.
func (p *Pool) pickSession(ctx context.Context) (*session, error) {
	for {
		p.mu.Lock()
		if p.alive.Err() != nil {
			p.mu.Unlock()
			return nil, ErrPoolClosed
		}
		var least *session
		for _, m := range p.sessions {
			if !m.isOver() && (least == nil || m.slots < least.slots) {
				least = m
			}
		}
		opening := p.pending
		if opening == nil && (least == nil || least.slots >= sessionLoad && len(p.sessions) < p.cfg.maxSessions) {
			opening = &pendingSession{done: make(chan struct{})}
			p.pending = opening
			p.work.Add(1)
			go p.openSession(context.WithoutCancel(ctx), opening) // ends when nobody waits for a seat any more
		}
		p.mu.Unlock()
		if least != nil {
			return least, nil
		}
		select {
		case <-opening.done:
			if opening.err != nil {
				return nil, opening.err
			}
		case <-ctx.Done():
			return nil, p.explainNoSlot(ctx, ctx.Err())
		}
	}
}

// openingMember is a session being opened, for all who wait for it.
type pendingSession struct {
	done chan struct{}
	err  error // set before done is closed
}

// open opens one more member. It tries again for as long as somebody waits for a
// seat, and is not stopped in the middle of a try when nobody does: the next
// caller may come before the answer does.
func (p *Pool) openSession(ctx context.Context, o *pendingSession) {
	defer p.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.alive, cancel)()
	ctx, connected := p.telemetry.connecting(ctx)
	conn, err := p.connector.Connect(ctx)
	for pause := 50 * time.Millisecond; err != nil && p.shouldRetry(err); pause = min(2*pause, time.Second) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		conn, err = p.connector.Connect(ctx)
	}
	connected(conn, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = nil
	switch {
	case err != nil:
		o.err = fmt.Errorf("no session: %w", err)
	case p.alive.Err() != nil: // Close does not know of it
		o.err = ErrPoolClosed
		m := &session{Session: conn}
		p.work.Go(func() { // ends within closePatience
			ctx, cancel := context.WithTimeout(context.Background(), closePatience)
			defer cancel()
			m.close(ctx)
		})
	default:
		p.connectErr, p.connected = nil, true
		m := &session{Session: conn, holds: map[*hold]struct{}{}}
		p.sessions = append(p.sessions, m)
		p.work.Add(1)
		go p.watchSession(m) // ends with the session
	}
	close(o.done)
}

// triesAgain remembers why there is no session, and reports whether to try again.
// An error that is permanent is one only to a pool that never had a session: what
// worked before may do so again.
func (p *Pool) shouldRetry(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connectErr = err
	return p.seekers > 0 && (p.connected || !errors.Is(err, driver.ErrPermanent))
}

// mourn waits for the end of a member's session. Then no handle sits down there
// any more, and its locks are lost.
func (p *Pool) watchSession(m *session) {
	defer p.work.Done()
	select {
	case <-m.Unremovable():
		m.retired.Store(true)
		p.mu.Lock()
		p.closeIfIdle(m)
		p.mu.Unlock()
		<-m.Done()
	case <-m.Done():
	}
	p.mu.Lock()
	for i, other := range p.sessions {
		if other == m {
			p.sessions = append(p.sessions[:i:i], p.sessions[i+1:]...)
			break
		}
	}
	lost := m.holds
	m.holds = nil
	p.mu.Unlock()
	cause := lostWith(m.Err())
	for h := range lost {
		if !h.end(cause) {
			delete(lost, h)
		}
	}
	p.telemetry.sessionLost(m)
	for h := range lost { // now that all know
		h.reportEnd(cause)
	}
	_ = m.Close(context.Background()) // it is over; waits for its goroutines
}

// dismiss closes a retired member's session when it holds nothing any more.
// Who waits on it queues again on another. It is called with p.mu held.
func (p *Pool) closeIfIdle(m *session) {
	if !m.retired.Load() || len(m.holds) > 0 || p.alive.Err() != nil || m.closed.Load() {
		return
	}
	m.closed.Store(true) // from here on record puts nothing on it
	p.work.Go(func() {   // ends within closePatience
		ctx, cancel := context.WithTimeout(p.alive, closePatience)
		defer cancel()
		m.close(ctx)
	})
}

// unsit is the destructor of seats.
func (p *Pool) closeSlot(s slot) {
	p.mu.Lock()
	s.slots--
	p.mu.Unlock()
}

// takeSeat waits for a seat on a session that stands, until ctx ends.
func (p *Pool) acquireSlot(ctx context.Context) (*puddleSlot, error) {
	p.countSeeker(1)
	defer p.countSeeker(-1)
	for {
		res, err := p.slots.Acquire(ctx)
		switch {
		case err == nil:
		case errors.Is(err, puddle.ErrClosedPool):
			return nil, ErrPoolClosed
		case ctx.Err() == nil && errors.Is(err, driver.ErrUnavailable):
			continue // it was begun for others, and ended when they had gone
		default:
			return nil, p.explainNoSlot(ctx, err)
		}
		if !res.Value().isOver() {
			return res, nil
		}
		res.Destroy() // sat idle while its session died
	}
}

// seek counts those who wait for a session.
func (p *Pool) countSeeker(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seekers += n
}

// seatless completes the error of a wait for a seat with what was waited for.
func (p *Pool) explainNoSlot(ctx context.Context, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.alive.Err() != nil:
		return ErrPoolClosed
	case ctx.Err() == nil:
		return err
	case slices.ContainsFunc(p.sessions, func(m *session) bool { return !m.isOver() }):
		return fmt.Errorf("no free handle, all %d are in use: %w", p.cfg.maxHandles, err)
	case p.connectErr != nil:
		return fmt.Errorf("no session: %w (%w)", err, p.connectErr)
	default:
		return fmt.Errorf("no session yet, no server has answered: %w", err)
	}
}
