package lockpool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// op is an operation on a lock.
type op uint8

const (
	opLock op = iota
	opTryLock
	opRLock
	opTryRLock
	opLockAll
	opAcquire
	opTryAcquire
	opSetLimit
	opUnlock
	opToken
	opVerify
	opQueue
	opBreak
	opRevoke
)

// String is how a LockError names it.
func (o op) String() string {
	return [...]string{
		"lock", "try lock", "read lock", "try read lock", "lock all", "acquire", "try to acquire", "set limit of",
		"unlock", "token of", "verify", "queue of", "break", "revoke",
	}[o]
}

func (o op) tries() bool    { return o == opTryLock || o == opTryRLock || o == opTryAcquire }
func (o op) shares() bool   { return o == opRLock || o == opTryRLock }
func (o op) acquires() bool { return o == opAcquire || o == opTryAcquire }

// Session is a handle on the pool: one holder of locks. What it holds it can
// lock again, deeper in the code, without waiting; see [Lock].
//
// A Session may move from one goroutine to another, but it is one holder, so
// two calls at the same time make no sense: the second returns
// ErrConcurrentUse and does nothing.
type Session struct {
	pool    *Pool
	passing bool // made by Pool.Lock: given back when it holds nothing
	closed  atomic.Bool

	mu    sync.Mutex // held by the one call that may use what follows
	seat  *puddleSeat
	clean bool // no node of ours may be left on the seat's session
	holds map[string]*hold
	cause error // of closed
	trail trail // of the acquisition that is under way, if it needs no other: it is here to spare the heap

	recent *hold // of holds, or nil: what was locked last is likely locked again
}

// Format implements fmt.Formatter, so that a session can be logged while it is
// in use.
func (s *Session) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "lockpool.Session(%p)", s) }

// Lock waits for the lock of that name until ctx ends. If the session holds it
// already, its count grows by one, without waiting and without a request to
// the service. Every call that succeeds returns a Lock of its own, to be
// unlocked once.
//
// ctx bounds the waiting, never how long the lock is held. When it ends, Lock
// returns within milliseconds with ctx's error in the chain, and its place in
// the queue is given up, in the background if the service does not answer.
func (s *Session) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, opLock, new(Lock), opts)
}

// TryLock is Lock without waiting for other holders: if there is one, or
// somebody waits already, the error is ErrLocked. It does wait, until ctx ends,
// for the answer of the service.
func (s *Session) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, opTryLock, new(Lock), opts)
}

// RLock is Lock for the right to share the lock with others who only read: it
// waits for those who asked before to be alone, and who asks later to be alone
// waits for it. (The names are those of sync.RWMutex.) A session that holds the
// lock, alone or not, enters again at once, also while somebody waits to be
// alone.
//
// Who holds it alone may take it for reading as well; when it unlocks the other
// entries, the lock is shared from then on, without a moment in which it is not
// held. The reverse is ErrUpgrade: of two readers who asked to be alone, each
// would wait for the other for ever.
func (s *Session) RLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, opRLock, new(Lock), opts)
}

// TryRLock is RLock without waiting for other holders: if somebody holds the
// lock alone or asked before to be alone, the error is ErrLocked.
func (s *Session) TryRLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, opTryRLock, new(Lock), opts)
}

// lock is enter for a call with options. Its callers are small enough to be
// inlined, so that l is on the stack of a user who does not keep it: entering a
// lock again costs no heap.
func (s *Session) lock(ctx context.Context, name string, op op, l *Lock, opts []LockOption) (*Lock, error) {
	req := request{op: op}
	if len(opts) > 0 {
		var err error
		if req, err = newRequest(op, opts); err != nil {
			return nil, &LockError{op.String(), name, err}
		}
	}
	return s.enter(ctx, name, req, l)
}

// enter makes l a held Lock and returns it.
func (s *Session) enter(ctx context.Context, name string, req request, l *Lock) (*Lock, error) {
	if !s.mu.TryLock() {
		return nil, &LockError{req.op.String(), name, ErrConcurrentUse}
	}
	h, err := s.recent, ctx.Err()
	if h == nil || h.name != name {
		h = s.holds[name]
		s.recent = h
	}
	if h == nil && err == nil {
		h, err = s.acquire(ctx, name, req)
	} else if err == nil {
		err = h.admit(req)
	} else {
		err = withCause(ctx, err)
	}
	if err == nil {
		*l = h.enter(req.op.shares())
	}
	s.mu.Unlock()
	if err != nil {
		return nil, &LockError{req.op.String(), name, err}
	}
	return l, nil
}

// acquire gets a lock that the session does not hold.
func (s *Session) acquire(ctx context.Context, name string, req request) (*hold, error) {
	if s.closed.Load() {
		return nil, s.cause
	}
	if err := s.pool.checkName(name); err != nil {
		return nil, err
	}
	if req.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.wait)
		defer cancel()
	}
	var (
		h     *hold
		trail *trail
	)
	err := s.pool.bounded(ctx, func(ctx context.Context) (err error) {
		ctx, trail = s.follow(ctx, name, req)
		h, err = s.grant(ctx, name, req, trail)
		return err
	})
	if trail != nil {
		trail.end(err)
		s.forget()
	}
	return h, err
}

// forget lets go of what the last acquisition was about.
func (s *Session) forget() { s.trail = trail{} }

// grant gets the lock from the service and records the hold. It is the one
// place where handles and recipe meet. A waiter whose session dies, or whose
// node is removed by somebody, queues again.
func (s *Session) grant(ctx context.Context, name string, req request, trail *trail) (*hold, error) {
	var again error // why it queues again
	for {
		if err := s.reseat(ctx); err != nil {
			return nil, err
		}
		if again != nil {
			trail.requeued(again)
		}
		m := s.seat.Value().member
		data := s.pool.owner.data(ctx, req, s.pool.telemetry.links)
		take, queue := req.recipe(recipe.Claim{
			Session:   m,
			Queue:     name,
			Data:      data,
			Observer:  trail,
			Revocable: req.revocable,
		})
		trail.on(m)
		node, err := take(ctx)
		if err == nil {
			trail.granted(node)
			h := (&hold{session: s, name: name, kind: req.kind(), queue: queue, home: m, node: node, limit: req.limit, data: data, revocable: req.revocable}).begun()
			s.pool.telemetry.granted(trail.caller, h) // tell may come as soon as it is recorded
			if err = s.pool.record(h); err == nil {
				if s.holds == nil {
					s.holds = map[string]*hold{}
				}
				s.holds[name] = h
				return h, nil
			}
			s.pool.telemetry.withdrawn(h)
			_ = m.Leave(ctx, queue, node) // goes on if it fails
		}
		switch {
		case ctx.Err() != nil: // its node may still be on the way out
			s.clean = false
			err = trail.blame(err)
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w: %w", err, ctx.Err())
			}
			return nil, err
		case !errors.Is(err, driver.ErrRemoved) && !errors.Is(err, driver.ErrSessionLost):
			s.clean = s.clean && errors.Is(err, recipe.ErrBusy)
			return nil, err
		}
		again = err
	}
}

// reseat gives the session a seat whose own session stands.
func (s *Session) reseat(ctx context.Context) error {
	if s.seat != nil && !s.seat.Value().over() {
		return nil
	}
	s.dropSeat()
	began := time.Now()
	seat, err := s.pool.takeSeat(ctx)
	s.pool.telemetry.seated(ctx, began, err)
	if err == nil {
		s.seat, s.clean = seat, true
		s.pool.inUse.Add(1)
	}
	return err
}

// dropSeat gives the seat back, for others to use only if nothing of ours may
// be left on it.
func (s *Session) dropSeat() {
	if s.seat == nil {
		return
	}
	s.pool.inUse.Add(-1)
	switch {
	case s.clean && !s.seat.Value().over():
		s.seat.Release()
	default:
		s.seat.Destroy()
	}
	s.seat = nil
}

// Close releases whatever the session still holds, whatever its counts, and
// gives the handle back to the pool. The contexts of those locks end, and
// unlocking them later is ErrNotHeld. Closing a session twice is no error.
//
// ctx bounds the waiting for the releases, never whether they happen. A Close
// during another call on the session returns ErrConcurrentUse and does nothing.
func (s *Session) Close(ctx context.Context) error {
	if !s.mu.TryLock() {
		return ErrConcurrentUse
	}
	defer s.mu.Unlock()
	var errs []error
	for name, h := range s.holds {
		if err := s.release(ctx, h, ErrSessionClosed); err != nil {
			errs = append(errs, &LockError{opUnlock.String(), name, err})
		}
	}
	s.giveBack(ErrSessionClosed)
	return errors.Join(errs...)
}

// release lets go of h, whatever its count.
func (s *Session) release(ctx context.Context, h *hold, cause error) error {
	delete(s.holds, h.name)
	s.recent = nil
	h.leaveAll()
	if err := h.home.Err(); err != nil { // and mourn, which would say so, may not have come to it
		if cause := lostWith(err); h.end(cause) {
			h.tell(cause)
		}
	}
	if !h.end(cause) { // it was lost before
		s.pool.strike(h)
		return h.err()
	}
	ctx, span := s.pool.telemetry.release(ctx, h)
	err := h.leaveQueue(ctx)
	h.tell(cause) // now that others can have it
	s.pool.strike(h)
	s.clean = s.clean && err == nil
	if errors.Is(err, driver.ErrSessionLost) {
		err = nil // and the node with it
	}
	end(span, err)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("let go, which the server has not confirmed yet: %w", err)
	}
	return err
}

// giveBack ends the handle.
func (s *Session) giveBack(cause error) {
	if s.closed.Swap(true) {
		return
	}
	s.cause = cause
	for _, h := range s.holds { // none but when the pool is closed
		if h.end(cause) {
			h.tell(cause)
		}
		h.leaveAll()
		s.pool.strike(h)
	}
	s.holds, s.recent = nil, nil
	s.dropSeat()
	s.pool.mu.Lock()
	delete(s.pool.handles, s)
	s.pool.mu.Unlock()
}
