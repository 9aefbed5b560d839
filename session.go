package lockpool

// This file has the sessions of a pool with the service, and the slots on the sessions.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// session is a session with the service, shared by the handles with a slot there.
type session struct {
	driver.Session
	users     int                   // guarded by Pool.mu: handles and calls that use the session now
	tenancies map[string][]*tenancy // by name, guarded by Pool.mu: those that are not over, or have holds
	views     recipe.Views          // of the queues in which handles wait

	alarms alarms // of holders who want to know when the lease runs out

	calls   atomic.Int64 // under way that need the session
	joining atomic.Int64 // how long it has taken recently to create a node, in nanoseconds

	retired atomic.Bool // takes no more slots
	closed  atomic.Bool // by the pool, not by the service
}

// close ends the session. ctx bounds the wait for the service.
func (s *session) close(ctx context.Context) {
	s.closed.Store(true)
	_ = s.Close(ctx) // without an answer, its nodes go when the session expires
}

// holdsOf returns the holds of a lock that depend on the session. The caller holds Pool.mu.
func (s *session) holdsOf(name string) (holds []*hold) {
	for _, t := range s.tenancies[name] {
		holds = append(holds, t.holds...)
	}
	return holds
}

// forget removes a tenancy, perhaps again. The caller holds Pool.mu.
func (s *session) forget(t *tenancy) {
	all := slices.DeleteFunc(s.tenancies[t.name], func(other *tenancy) bool { return other == t })
	if len(all) == 0 {
		delete(s.tenancies, t.name)
	} else {
		s.tenancies[t.name] = all
	}
}

// closeTenancies closes the tenancies of an ending session, and returns the holds. The caller
// holds Pool.mu.
func (s *session) closeTenancies() (holds []*hold) {
	for name, all := range s.tenancies {
		holds = append(holds, s.holdsOf(name)...)
		for _, t := range slices.Clone(all) { // a tenancy without holds goes
			t.close()
		}
	}
	return holds
}

// noteJoined records how long it has taken to create a node. One slow answer is not to count for
// long.
func (s *session) noteJoined(took time.Duration) {
	took = min(took, localTime/sharedCreates)
	if before := s.joining.Load(); before > 0 {
		took = (3*time.Duration(before) + took) / 4
	}
	s.joining.Store(int64(took))
}

// share is how long a tenancy may have the lock while another process waits: ten times what an
// acquisition costs, which is two writes.
func (s *session) share() time.Duration {
	return max(sharedCreates*time.Duration(s.joining.Load()), leastShare)
}

const sharedCreates = 20

// areNeighbors reports whether no other client has joined a queue between two nodes, as far
// as the driver can tell.
func (s *session) areNeighbors(before, after driver.Node) bool {
	counter, ok := s.Session.(driver.Counter)
	return !ok || counter.Adjoins(before, after)
}

// isUnused reports whether nothing is held or awaited on the session. A call under way
// counts until a lock granted to the call is registered.
func (p *Pool) isUnused(s *session) bool {
	if s.calls.Load() > 0 { // before tenancies is read
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(s.tenancies) == 0
}

func (s *session) isOver() bool { return s.retired.Load() || s.Err() != nil }

// withSession calls do with a living session, and again with another one after a loss of
// the session. withSession takes no handle: a pool whose handles all wait can still inspect
// and break what they wait for.
func (p *Pool) withSession(ctx context.Context, do func(ctx context.Context, s *session) error) error {
	return p.withSessionUntil(p.accepting, ctx, nil, nil, do)
}

// withSessionUntil is withSession until a context of the pool ends, accepting or alive, with
// the handle of the call, if any, for errors, and with the session of the caller's last use,
// if alive.
func (p *Pool) withSessionUntil(until, ctx context.Context, h *Handle, before *session, do func(ctx context.Context, s *session) error) error {
	err := ctx.Err() // panics if ctx is nil
	if until.Err() != nil || !p.begin() {
		return ErrPoolClosed
	}
	defer p.work.Done()
	if err != nil {
		return p.withCause(ctx, h, err)
	}
	ctx, cancel := bound(ctx, until)
	defer cancel(nil)
	for {
		began := time.Now()
		s, err := p.useSession(ctx, before)
		err = func() error { // user code may panic
			if err == nil {
				defer p.leaveSession(s)
			}
			if p.telemetry.SlotAcquired(ctx, began, err); err != nil {
				return err
			}
			s.calls.Add(1)
			defer s.calls.Add(-1)
			return do(ctx, s)
		}()
		switch lost := errors.Is(err, driver.ErrSessionLost) || errors.Is(err, driver.ErrUnavailable); {
		case ctx.Err() != nil && (lost || errors.Is(err, ctx.Err())):
			return p.withCause(ctx, h, unanswered(err))
		case !lost:
			return err
		}
	}
}

// use returns a function for withSession that calls do with the driver's T.
func use[T any](do func(ctx context.Context, offer T) error) func(context.Context, *session) error {
	return func(ctx context.Context, s *session) error {
		offer, err := driver.Offer[T](s.Session)
		if err != nil {
			return err
		}
		return do(ctx, offer)
	}
}

// slot is a handle's place on a session, pooled by puddle. An idle slot takes no place, but
// remembers the session, which knows the queues used by the handle.
type slot struct{ *session }

type puddleSlot = puddle.Resource[*slot]

// errNoFreeHandle is the error of a wait for a slot that was shorter than the context.
var errNoFreeHandle = errors.New("no free handle")

// acquireSlot waits for a slot, for no longer than patience unless patience is 0, and for a
// living session, until ctx ends.
func (p *Pool) acquireSlot(ctx context.Context, patience time.Duration) (*puddleSlot, error) {
	free := ctx
	if patience > 0 {
		var cancel context.CancelFunc
		free, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	began := p.slotWaits.begin(p.areSlotsTaken())
	res, err := p.slots.Acquire(free)
	p.slotWaits.end(began)
	switch {
	case errors.Is(err, puddle.ErrClosedPool):
		return nil, ErrPoolClosed
	case err != nil && ctx.Err() == nil:
		return nil, errNoFreeHandle
	case err != nil:
		return nil, p.explainNoSlot(ctx, err)
	}
	p.taken.Add(1)
	place := res.Value()
	if place.session, err = p.useSession(ctx, place.session); err != nil {
		p.taken.Add(-1)
		res.Release()
		return nil, err
	}
	return res, nil
}

// areSlotsTaken reports whether a call has to wait for a slot.
func (p *Pool) areSlotsTaken() bool { return int(p.taken.Load()) >= p.cfg.maxHandles }

// slotWaits counts waits for a slot. (puddle counts each new slot as a wait, too.)
type slotWaits struct{ count, time atomic.Int64 }

// begin returns when a wait has begun, or the zero Time if there is none.
func (w *slotWaits) begin(waits bool) time.Time {
	if !waits {
		return time.Time{}
	}
	return time.Now()
}

func (w *slotWaits) end(began time.Time) {
	if !began.IsZero() {
		w.count.Add(1)
		w.time.Add(int64(time.Since(began)))
	}
}

// ensureSlot gets the handle a slot on a living session, and returns the session. A handle
// without a hold moves to the session that suits a wait in the queue, if one is given. If no slot
// is free within patience, the handle does without. Such handles are rare, and are not counted
// as users.
func (h *Handle) ensureSlot(ctx context.Context, queue string, patience time.Duration) (s *session, err error) {
	if h.slot != nil && !h.slot.Value().isOver() {
		if !h.holdsAny() {
			h.pool.move(h.slot.Value(), queue)
		}
		return h.slot.Value().session, nil
	}
	h.releaseSlot()
	began := time.Now()
	slot, err := h.pool.acquireSlot(ctx, patience)
	switch err {
	case nil:
		h.pool.move(slot.Value(), queue)
		h.slot, s = slot, slot.Value().session
		h.pool.inUse.Add(1)
	case errNoFreeHandle:
		if s, err = h.pool.useSession(ctx, nil); err == nil {
			h.pool.leaveSession(s)
		}
	}
	h.pool.telemetry.SlotAcquired(ctx, began, err)
	return s, err
}

// releaseSlot is called by the acquisition, or with mu held if there is none.
func (h *Handle) releaseSlot() {
	if h.slot == nil {
		return
	}
	h.pool.inUse.Add(-1)
	h.pool.leaveSession(h.slot.Value().session)
	h.pool.taken.Add(-1)
	h.slot.Release()
	h.slot = nil
}

// countSeeker counts the calls waiting for a session.
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
		if p.areSlotsTaken() {
			err = fmt.Errorf("%w, all %d are in use: %w", errNoFreeHandle, p.cfg.maxHandles, err)
		}
		return err // a session was about to be chosen, or another one to be opened
	case p.connectErr != nil:
		return fmt.Errorf("no session: %w (%w)", err, p.connectErr)
	default:
		return fmt.Errorf("no session yet, no server has answered: %w", err)
	}
}

// useSession returns a living session, with the caller as a user until leaveSession:
// before, the session of the last use, or the one with the fewest users. If each has many
// users, useSession starts to open another one, and waits for a moment. Without any
// session, useSession waits until ctx ends.
func (p *Pool) useSession(ctx context.Context, before *session) (*session, error) {
	p.countSeeker(1)
	defer p.countSeeker(-1)
	for {
		p.mu.Lock()
		if p.alive.Err() != nil {
			p.mu.Unlock()
			return nil, ErrPoolClosed
		}
		least, alive := p.leastUsed()
		full := least == nil || least.users >= sessionLoad
		if full && p.pending == nil && alive < p.cfg.maxSessions {
			p.pending = newPendingSession()
			p.work.Add(1)
			go p.openSession(context.WithoutCancel(ctx), p.pending) // ends when no call waits for a session
		}
		pending := p.pending
		s := prefer(before, least)
		worthWaiting := full && pending != nil && p.connectErr == nil && pending.patience.Err() == nil && ctx.Err() == nil
		if s != nil && !worthWaiting {
			s.users++
			p.mu.Unlock()
			return s, nil
		}
		p.mu.Unlock()
		var opened <-chan struct{} = pending.done
		if s != nil {
			opened = pending.patience.Done()
		}
		select {
		case <-opened:
			if s == nil && pending.err != nil && !errors.Is(pending.err, driver.ErrUnavailable) { // else it gave up with other calls
				return nil, pending.err
			}
		case <-ctx.Done():
			if s == nil {
				return nil, p.explainNoSlot(ctx, ctx.Err())
			}
		}
	}
}

// leaveSession ends a use of the session.
func (p *Pool) leaveSession(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
}

// leastUsed returns the session with the fewest users, or nil if none is alive, and how
// many are. The caller holds p.mu.
func (p *Pool) leastUsed() (least *session, alive int) {
	for _, s := range p.sessions {
		if s.isOver() {
			continue
		}
		if alive++; least == nil || s.users < least.users {
			least = s
		}
	}
	return least, alive
}

// prefer returns before, if alive and without many more users than least, and otherwise
// least. The caller holds Pool.mu.
func prefer(before, least *session) *session {
	if before != nil && !before.isOver() && least != nil && before.users <= least.users+sessionImbalance {
		return before
	}
	return least
}

// move moves the place of a handle without a hold to the session whose waiters know the queue:
// they share what they know. Without such a session, move leaves a session that has many more
// users than another one.
func (p *Pool) move(place *slot, queue string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	least, _ := p.leastUsed()
	s := prefer(place.session, least)
	for _, other := range p.sessions { // the first, so that all waiters meet on one
		if !other.isOver() && other.views.Knows(queue) {
			s = other
			break
		}
	}
	if s != nil {
		place.users--
		place.session = s
		place.users++
	}
}

// pendingSession is a session being opened, for all waiting calls.
type pendingSession struct {
	done chan struct{}
	err  error // set before done is closed

	// patience ends when calls with another session wait no longer, at the latest when done
	// is closed.
	patience    context.Context
	endPatience context.CancelFunc
}

func newPendingSession() *pendingSession {
	pending := &pendingSession{done: make(chan struct{})}
	pending.patience, pending.endPatience = context.WithTimeout(context.Background(), openPatience)
	return pending
}

// openSession opens one more session, with retries for as long as a call waits for one. An
// attempt is finished even if no call waits any longer: the next call may come before the
// answer.
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
	case err != nil && p.connected: // what has worked before may work again
		pending.err = fmt.Errorf("%w: %v", driver.ErrUnavailable, err)
	case err != nil:
		pending.err = fmt.Errorf("no session: %w", err)
	default:
		p.connectErr, p.connected = nil, true
		s := &session{Session: opened, tenancies: map[string][]*tenancy{}}
		p.sessions = append(p.sessions, s)
		if idler, ok := opened.(driver.Idler); ok {
			idler.IdleIf(func() bool { return p.isUnused(s) })
		}
		p.work.Add(1)
		go p.watchSession(s) // ends with the session
	}
	close(pending.done)
	pending.endPatience()
}

// shouldRetry records why there is no session, and reports whether to try again. A
// permanent error counts as permanent only for a pool without any session so far: what has
// worked before may work again.
func (p *Pool) shouldRetry(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connectErr = err
	return p.seekers > 0 && (p.connected || !errors.Is(err, driver.ErrPermanent))
}

// watchSession waits for the end of a session. The session then takes no more slots, and
// the locks are lost.
func (p *Pool) watchSession(s *session) {
	defer p.work.Done()
	var unremovable <-chan struct{}
	if refuser, ok := s.Session.(driver.Refuser); ok {
		unremovable = refuser.Unremovable()
	}
	select {
	case <-unremovable:
		s.retired.Store(true)
		p.mu.Lock()
		all := slices.Concat(slices.Collect(maps.Values(s.tenancies))...)
		p.closeIfIdle(s)
		p.mu.Unlock()
		p.work.Go(func() { // a loss of the session is not to wait for the removals
			for _, t := range all {
				t.after(canceled, p.local.recall(&t.turns, false))
			}
		})
		<-s.Done()
	case <-s.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.sessions, s)
	p.sessions = slices.Concat(p.sessions[:i], p.sessions[i+1:]) // a copy, because Close may be using the original
	lost := s.closeTenancies()
	s.tenancies = nil
	p.mu.Unlock()
	cause := lostWith(s.Err())
	lost = slices.DeleteFunc(lost, func(h *hold) bool { return !h.life.end(cause, false) })
	p.work.Go(func() { p.bury(s) }) // holders have been told: others may have the locks
	if !s.closed.Load() {
		p.telemetry.SessionLost()
	}
	for _, h := range lost { // after all have ended
		h.reportEnd(cause)
	}
}

// bury closes a session that is over, but may live on at the service with nodes in the way
// of others, and of this pool. bury waits for an answer of the service for as long as the
// pool is open, and for closeTimeout afterward.
func (p *Pool) bury(s *session) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(p.alive, func() { time.AfterFunc(closeTimeout, cancel) })()
	_ = s.Close(ctx)
}

// closeIfIdle closes a retired session when nothing is held there any longer. The waiters
// queue again on another one. The caller holds p.mu.
func (p *Pool) closeIfIdle(s *session) {
	if !s.retired.Load() || len(s.tenancies) > 0 || p.alive.Err() != nil || s.closed.Load() || s.Err() != nil {
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
