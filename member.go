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
type member struct {
	driver.Session
	seats int                // guarded by Pool.mu
	holds map[*hold]struct{} // guarded by Pool.mu: what stands on the session

	retired atomic.Bool // nobody sits down any more
	closed  atomic.Bool // by the pool
}

// seat is a handle's place on a member, and what the pool of puddle is made of.
// Seats outlive handles: an idle one keeps its place.
type seat struct{ *member }

type puddleSeat = puddle.Resource[seat]

// close ends the session. The context bounds the wait for the service.
func (m *member) close(ctx context.Context) {
	m.closed.Store(true)
	_ = m.Close(ctx) // if it is not heard of, its nodes go with the session's timeout
}

func (m *member) over() bool { return m.retired.Load() || m.Err() != nil }

// sit is the constructor of seats. puddle passes the caller's values, but not its
// cancellation: what is begun here is of use to the next caller. It ends when
// the pool closes.
func (p *Pool) sit(ctx context.Context) (seat, error) {
	m, err := p.member(ctx)
	if err != nil {
		return seat{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m.seats++
	return seat{m}, nil
}

// member returns the least loaded member. It opens another one if all are well
// filled and there may be more, and waits for that if there is none.
func (p *Pool) member(ctx context.Context) (*member, error) {
	for {
		p.mu.Lock()
		if p.living.Err() != nil {
			p.mu.Unlock()
			return nil, ErrPoolClosed
		}
		var least *member
		for _, m := range p.members {
			if !m.over() && (least == nil || m.seats < least.seats) {
				least = m
			}
		}
		opening := p.opening
		if opening == nil && (least == nil || least.seats >= sessionLoad && len(p.members) < p.cfg.maxSessions) {
			opening = &openingMember{done: make(chan struct{})}
			p.opening = opening
			p.work.Add(1)
			go p.open(context.WithoutCancel(ctx), opening) // ends when nobody waits for a seat any more
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
			return nil, p.seatless(ctx, ctx.Err())
		}
	}
}

// openingMember is a session being opened, for all who wait for it.
type openingMember struct {
	done chan struct{}
	err  error // set before done is closed
}

// open opens one more member. It tries again for as long as somebody waits for a
// seat, and is not stopped in the middle of a try when nobody does: the next
// caller may come before the answer does.
func (p *Pool) open(ctx context.Context, o *openingMember) {
	defer p.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.living, cancel)()
	ctx, connected := p.telemetry.connecting(ctx)
	session, err := p.connector.Connect(ctx)
	for pause := 50 * time.Millisecond; err != nil && p.triesAgain(err); pause = min(2*pause, time.Second) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		session, err = p.connector.Connect(ctx)
	}
	connected(session, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening = nil
	switch {
	case err != nil:
		o.err = fmt.Errorf("no session: %w", err)
	case p.living.Err() != nil: // Close does not know of it
		o.err = ErrPoolClosed
		m := &member{Session: session}
		p.work.Go(func() { // ends within closePatience
			ctx, cancel := context.WithTimeout(context.Background(), closePatience)
			defer cancel()
			m.close(ctx)
		})
	default:
		p.connectErr, p.connected = nil, true
		m := &member{Session: session, holds: map[*hold]struct{}{}}
		p.members = append(p.members, m)
		p.work.Add(1)
		go p.mourn(m) // ends with the session
	}
	close(o.done)
}

// triesAgain remembers why there is no session, and reports whether to try again.
// An error that is permanent is one only to a pool that never had a session: what
// worked before may do so again.
func (p *Pool) triesAgain(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connectErr = err
	return p.seeking > 0 && (p.connected || !errors.Is(err, driver.ErrPermanent))
}

// mourn waits for the end of a member's session. Then no handle sits down there
// any more, and its locks are lost.
func (p *Pool) mourn(m *member) {
	defer p.work.Done()
	select {
	case <-m.Stuck():
		m.retired.Store(true)
		p.mu.Lock()
		p.dismiss(m)
		p.mu.Unlock()
		<-m.Done()
	case <-m.Done():
	}
	p.mu.Lock()
	for i, other := range p.members {
		if other == m {
			p.members = append(p.members[:i:i], p.members[i+1:]...)
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
		h.tell(cause)
	}
	_ = m.Close(context.Background()) // it is over; waits for its goroutines
}

// dismiss closes a retired member's session when it holds nothing any more.
// Who waits on it queues again on another. It is called with p.mu held.
func (p *Pool) dismiss(m *member) {
	if !m.retired.Load() || len(m.holds) > 0 || p.living.Err() != nil || m.closed.Load() {
		return
	}
	m.closed.Store(true) // from here on record puts nothing on it
	p.work.Go(func() {   // ends within closePatience
		ctx, cancel := context.WithTimeout(p.living, closePatience)
		defer cancel()
		m.close(ctx)
	})
}

// unsit is the destructor of seats.
func (p *Pool) unsit(s seat) {
	p.mu.Lock()
	s.seats--
	p.mu.Unlock()
}

// takeSeat waits for a seat on a session that stands, until ctx ends.
func (p *Pool) takeSeat(ctx context.Context) (*puddleSeat, error) {
	p.seek(1)
	defer p.seek(-1)
	for {
		res, err := p.seats.Acquire(ctx)
		switch {
		case err == nil:
		case errors.Is(err, puddle.ErrClosedPool):
			return nil, ErrPoolClosed
		case ctx.Err() == nil && errors.Is(err, driver.ErrUnavailable):
			continue // it was begun for others, and ended when they had gone
		default:
			return nil, p.seatless(ctx, err)
		}
		if !res.Value().over() {
			return res, nil
		}
		res.Destroy() // sat idle while its session died
	}
}

// seek counts those who wait for a session.
func (p *Pool) seek(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seeking += n
}

// seatless completes the error of a wait for a seat with what was waited for.
func (p *Pool) seatless(ctx context.Context, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.living.Err() != nil:
		return ErrPoolClosed
	case ctx.Err() == nil:
		return err
	case slices.ContainsFunc(p.members, func(m *member) bool { return !m.over() }):
		return fmt.Errorf("no free handle, all %d are in use: %w", p.cfg.maxHandles, err)
	case p.connectErr != nil:
		return fmt.Errorf("no session: %w (%w)", err, p.connectErr)
	default:
		return fmt.Errorf("no session yet, no server has answered: %w", err)
	}
}
