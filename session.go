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

// session is a session with the service, shared by the handles that have a slot on it.
type session struct {
	driver.Session
	slots int                // guarded by Pool.mu
	holds map[*hold]struct{} // guarded by Pool.mu: the locks that depend on the session

	retired atomic.Bool // takes no more slots
	closed  atomic.Bool // by the pool, not by the service
}

// close ends the session. ctx bounds the wait for the service.
func (s *session) close(ctx context.Context) {
	s.closed.Store(true)
	_ = s.Close(ctx) // without an answer, its nodes go when the session expires
}

func (s *session) isOver() bool { return s.retired.Load() || s.Err() != nil }

// withSession calls do with a session that is alive, and again with another one if that
// session is lost meanwhile. It takes no handle: a pool whose handles all wait can
// still inspect and break what they wait for.
func (p *Pool) withSession(ctx context.Context, do func(ctx context.Context, s *session) error) error {
	if err := ctx.Err(); err != nil { // panics if ctx is nil
		return withCause(ctx, err)
	}
	if p.accepting.Err() != nil || !p.begin() {
		return ErrPoolClosed
	}
	defer p.work.Done()
	ctx, cancel := bound(ctx, p.accepting)
	defer cancel(nil)
	for {
		began := time.Now()
		p.countSeeker(1)
		s, err := p.pickSession(ctx)
		p.countSeeker(-1)
		p.telemetry.SlotAcquired(ctx, began, err)
		if err == nil {
			err = do(ctx, s)
		}
		if ctx.Err() != nil && err != nil {
			return withCause(ctx, err)
		}
		if !errors.Is(err, driver.ErrSessionLost) && !errors.Is(err, driver.ErrUnavailable) {
			return err
		}
	}
}

// slot is a handle's place on a session, and what puddle pools. Slots outlive handles:
// an idle slot keeps its place.
type slot struct{ *session }

type puddleSlot = puddle.Resource[slot]

// acquireSlot waits for a slot on a session that is alive, until ctx ends.
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
			continue // the constructor ran for other callers, and gave up with them
		default:
			return nil, p.explainNoSlot(ctx, err)
		}
		if !res.Value().isOver() {
			return res, nil
		}
		res.Destroy() // its session ended while it was idle
	}
}

// ensureSlot gets the handle a slot on a session that is alive.
func (h *Handle) ensureSlot(ctx context.Context) error {
	if h.slot != nil && !h.slot.Value().isOver() {
		return nil
	}
	h.releaseSlot()
	began := time.Now()
	slot, err := h.pool.acquireSlot(ctx)
	if err == nil {
		h.slot = slot
		h.pool.inUse.Add(1)
	}
	h.pool.telemetry.SlotAcquired(ctx, began, err)
	return err
}

// releaseSlot is called by the acquisition, or with mu held if there is none.
func (h *Handle) releaseSlot() {
	if h.slot == nil {
		return
	}
	h.pool.inUse.Add(-1)
	if h.slot.Value().isOver() {
		h.slot.Destroy()
	} else {
		h.slot.Release()
	}
	h.slot = nil
}

// countSeeker counts the calls that wait for a session.
func (p *Pool) countSeeker(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seekers += n
}

// explainNoSlot completes the error of a wait for a slot.
func (p *Pool) explainNoSlot(ctx context.Context, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.alive.Err() != nil:
		return ErrPoolClosed
	case ctx.Err() == nil:
		return err
	case slices.ContainsFunc(p.sessions, func(s *session) bool { return !s.isOver() }):
		return fmt.Errorf("no free handle, all %d are in use: %w", p.cfg.maxHandles, err)
	case p.connectErr != nil:
		return fmt.Errorf("no session: %w (%w)", err, p.connectErr)
	default:
		return fmt.Errorf("no session yet, no server has answered: %w", err)
	}
}

// openSlot is puddle's constructor. puddle passes on the values of the caller's
// context, but not its end: the session that is opened here can serve the next caller.
// Opening stops when the pool closes.
func (p *Pool) openSlot(ctx context.Context) (slot, error) {
	s, err := p.pickSession(ctx)
	if err != nil {
		return slot{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.slots++
	return slot{s}, nil
}

// closeSlot is puddle's destructor.
func (p *Pool) closeSlot(s slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.slots--
}

// pickSession returns the session with the fewest slots. If all are well filled, it
// starts to open another one; if there is none, it waits for that one.
func (p *Pool) pickSession(ctx context.Context) (*session, error) {
	for {
		p.mu.Lock()
		if p.alive.Err() != nil {
			p.mu.Unlock()
			return nil, ErrPoolClosed
		}
		var least *session
		for _, s := range p.sessions {
			if !s.isOver() && (least == nil || s.slots < least.slots) {
				least = s
			}
		}
		pending := p.pending
		if pending == nil && (least == nil || least.slots >= sessionLoad && len(p.sessions) < p.cfg.maxSessions) {
			pending = &pendingSession{done: make(chan struct{})}
			p.pending = pending
			p.work.Add(1)
			go p.openSession(context.WithoutCancel(ctx), pending) // ends when no call waits for a session
		}
		p.mu.Unlock()
		if least != nil {
			return least, nil
		}
		select {
		case <-pending.done:
			if pending.err != nil {
				return nil, pending.err
			}
		case <-ctx.Done():
			return nil, p.explainNoSlot(ctx, ctx.Err())
		}
	}
}

// pendingSession is a session that is being opened, for all the calls that wait for it.
type pendingSession struct {
	done chan struct{}
	err  error // set before done is closed
}

// openSession opens one more session. It retries for as long as a call waits for one.
// It finishes an attempt even if no call waits any longer: the next call may come
// before the answer.
func (p *Pool) openSession(ctx context.Context, pending *pendingSession) {
	defer p.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.alive, cancel)()
	ctx, connected := p.telemetry.Connecting(ctx)
	opened, err := p.connector.Connect(ctx)
	for pause := 50 * time.Millisecond; err != nil && p.shouldRetry(err); pause = min(2*pause, time.Second) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		opened, err = p.connector.Connect(ctx)
	}
	connected(opened, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = nil
	switch {
	case p.alive.Err() != nil: // which may also be why there is an error
		pending.err = ErrPoolClosed
		if err == nil { // Close does not know of the session
			p.closeSoon(context.Background(), &session{Session: opened})
		}
	case err != nil:
		pending.err = fmt.Errorf("no session: %w", err)
	default:
		p.connectErr, p.connected = nil, true
		s := &session{Session: opened, holds: map[*hold]struct{}{}}
		p.sessions = append(p.sessions, s)
		p.work.Add(1)
		go p.watchSession(s) // ends with the session
	}
	close(pending.done)
}

// shouldRetry records why there is no session, and reports whether to try again. A
// permanent error counts as permanent only for a pool that has never had a session:
// what has worked before may work again.
func (p *Pool) shouldRetry(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connectErr = err
	return p.seekers > 0 && (p.connected || !errors.Is(err, driver.ErrPermanent))
}

// watchSession waits for the end of a session. The session then takes no more slots,
// and its locks are lost.
func (p *Pool) watchSession(s *session) {
	defer p.work.Done()
	select {
	case <-s.Unremovable():
		s.retired.Store(true)
		p.mu.Lock()
		p.closeIfIdle(s)
		p.mu.Unlock()
		<-s.Done()
	case <-s.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.sessions, s)
	p.sessions = slices.Concat(p.sessions[:i], p.sessions[i+1:]) // a copy, because Close may be using the original
	lost := s.holds
	s.holds = nil
	p.mu.Unlock()
	cause := lostWith(s.Err())
	for h := range lost {
		if !h.life.end(cause) {
			delete(lost, h)
		}
	}
	if !s.closed.Load() {
		p.telemetry.SessionLost()
	}
	for h := range lost { // after all have ended
		h.reportEnd(cause)
	}
	_ = s.Close(context.Background()) // it is over; this waits for its goroutines
}

// closeIfIdle closes a retired session when nothing is held on it any longer. Its
// waiters queue again on another one. It is called with p.mu held.
func (p *Pool) closeIfIdle(s *session) {
	if !s.retired.Load() || len(s.holds) > 0 || p.alive.Err() != nil || s.closed.Load() {
		return
	}
	s.closed.Store(true) // from here on addHold adds nothing to it
	p.closeSoon(p.alive, s)
}

// closeSoon closes a session in the background, within closeTimeout.
func (p *Pool) closeSoon(ctx context.Context, s *session) {
	p.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		s.close(ctx)
	})
}
