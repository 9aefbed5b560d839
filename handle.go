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

// Session is a handle on the pool: one holder of locks. What it holds it can
// lock again, deeper in the code, without waiting; see [Lock].
//
// A Session may move from one goroutine to another, but it is one holder, so it
// asks for one lock at a time: a call that locks while another one is under way
// returns ErrConcurrentUse and does nothing. Unlocking and closing never wait
// for another call.
type Handle struct {
	pool      *Pool
	transient bool // made by Pool.Lock: given back when it holds nothing
	closed    atomic.Bool

	mu          sync.Mutex              // never held during a wait or a call of users' code
	holds       map[string]*hold        // by name
	recent      *hold                   // of holds, or nil: what was locked last is likely locked again
	acquiring   bool                    // an acquisition is under way, which alone uses seat and trail
	giveUp      context.CancelCauseFunc // ends it
	slot        *puddleSlot
	acquisition acquisition // of the acquisition, if it needs no other: it is here to spare the heap
	cause       error       // of closed
}

// Format implements fmt.Formatter, so that a session can be logged while it is
// in use.
func (s *Handle) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "lockpool.Session(%p)", s) }

// Lock waits for the lock of that name until ctx ends. If the session holds it
// already, its count grows by one, without waiting and without a request to
// the service. Every call that succeeds returns a Lock of its own, to be
// unlocked once.
//
// ctx bounds the waiting, never how long the lock is held. When it ends, Lock
// returns within milliseconds with ctx's error in the chain, and its place in
// the queue is given up, in the background if the service does not answer.
func (s *Handle) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, request{op: opLock}, new(Lock), opts)
}

// Do calls fn while the handle holds the lock of that name, as [Pool.Do] does with
// a handle of its own.
func (s *Handle) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return errNilFunc
	}
	lock, err := s.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	return do(ctx, fn, []*Lock{lock})
}

// TryLock is Lock without waiting for other holders: if there is one, or
// somebody waits already, the error is ErrLocked. It does wait, until ctx ends,
// for the answer of the service.
func (s *Handle) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, request{op: opLock, try: true}, new(Lock), opts)
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
func (s *Handle) RLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, request{op: opLock, shared: true}, new(Lock), opts)
}

// TryRLock is RLock without waiting for other holders: if somebody holds the
// lock alone or asked before to be alone, the error is ErrLocked.
func (s *Handle) TryRLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return s.lock(ctx, name, request{op: opLock, shared: true, try: true}, new(Lock), opts)
}

// lock is enter for a call with options. Its callers are small enough to be
// inlined, so that l is on the stack of a user who does not keep it: entering a
// lock again costs no heap.
func (s *Handle) lock(ctx context.Context, name string, req request, l *Lock, opts []LockOption) (*Lock, error) {
	if len(opts) > 0 {
		if err := req.apply(opts); err != nil {
			return nil, &LockError{req.String(), name, err}
		}
	}
	return s.enter(ctx, name, req, l)
}

// enter makes l a held Lock and returns it.
func (s *Handle) enter(ctx context.Context, name string, req request, l *Lock) (*Lock, error) {
	err := ctx.Err() // panics if ctx is nil
	s.mu.Lock()
	h := s.recent
	if h == nil || h.name != name {
		h = s.holds[name]
		s.recent = h
	}
	switch {
	case s.acquiring:
		err = ErrConcurrentUse
	case err != nil:
		err = withCause(ctx, err)
	case h != nil:
		if err = h.checkReentry(req); err == nil {
			*l = h.enter(req.shared)
		}
	}
	s.mu.Unlock()
	if h == nil && err == nil {
		err = s.acquire(ctx, name, req, l)
	} else if err != nil {
		s.returnIfUnused() // it may have been made for this call
	}
	if err != nil {
		return nil, &LockError{req.String(), name, err}
	}
	return l, nil
}

// acquire makes l a Lock of a lock that the handle does not hold.
func (s *Handle) acquire(ctx context.Context, name string, req request, l *Lock) error {
	if err := s.pool.checkName(name); err != nil {
		s.returnIfUnused()
		return err
	}
	ctx, cancel := req.bound(ctx)
	defer cancel()
	returned := false
	defer func() {
		if !returned && l.hold != nil { // users' code panics, so nobody will unlock it
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_ = s.unlock(ended, l) // goes on in the background
		}
	}()
	err := s.exclusively(ctx, func(ctx context.Context) (err error) {
		ctx, t := s.startAcquisition(ctx, name, req)
		err = errPanic // unless grant returns
		defer func() {
			t.end(err)
			s.acquisition = acquisition{}
		}()
		if err = s.grant(ctx, name, req, t, l); err != nil && ctx.Err() != nil {
			err = withCause(ctx, err)
		}
		return err
	})
	returned = true
	return err
}

// errPanic is what is told of an acquisition during which users' code panics,
// such as a span processor.
var errPanic = errors.New("panic")

// exclusively calls do as the one acquisition of the handle. Its context ends
// with ctx, when the handle is closed, and when the pool is: a handle that holds
// something may acquire more until Pool.Close, others until Pool.Shutdown.
func (s *Handle) exclusively(ctx context.Context, do func(ctx context.Context) error) error {
	defer s.returnIfUnused()
	if !s.pool.begin() {
		return ErrPoolClosed
	}
	defer s.pool.work.Done()
	s.mu.Lock()
	switch {
	case s.acquiring:
		s.mu.Unlock()
		return ErrConcurrentUse
	case s.closed.Load():
		defer s.mu.Unlock()
		return s.cause
	}
	until := s.pool.accepting
	if len(s.holds) > 0 {
		until = s.pool.alive
	}
	ctx, giveUp := bound(ctx, until)
	defer giveUp(nil)
	s.acquiring, s.giveUp = true, giveUp
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.acquiring, s.giveUp = false, nil
		s.mu.Unlock()
	}()
	if err := ctx.Err(); err != nil {
		return withCause(ctx, err)
	}
	return do(ctx)
}

// grant gets the lock from the service and records the hold. It is the one
// place where handles and recipe meet. A waiter whose session dies, or whose
// node is removed by somebody, queues again.
func (s *Handle) grant(ctx context.Context, name string, req request, t *acquisition, l *Lock) error {
	var again error // why it queues again
	for {
		if err := s.ensureSlot(ctx); err != nil {
			return err
		}
		if again != nil {
			t.requeued(again)
		}
		m := s.slot.Value().session
		data := s.pool.owner.data(ctx, req, s.pool.telemetry.links)
		take, queue := req.recipe(recipe.Claim{
			Session:   m,
			Queue:     name,
			Data:      data,
			Observer:  t,
			Revocable: req.revocable,
		})
		t.onSession(m)
		node, err := take(ctx)
		if err == nil {
			h := (&hold{handle: s, name: name, kind: req.kind(), queue: queue, session: m, node: node, limit: req.limit, data: data, revocable: req.revocable}).begun()
			err = s.establish(ctx, h, req, t, l)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil: // its node may still be on the way out
			err = t.describeBlocker(ctx, err)
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w: %w", err, ctx.Err())
			}
			return err
		case !errors.Is(err, driver.ErrRemoved) && !errors.Is(err, driver.ErrSessionLost):
			return err
		}
		again = err
	}
}

// keep records a hold that was granted, and enters it.
func (s *Handle) establish(ctx context.Context, h *hold, req request, t *acquisition, l *Lock) (err error) {
	kept, told := false, false
	defer func() {
		if kept {
			return
		}
		// The pool or the handle is closed, or users' code panics.
		_ = h.session.Leave(ctx, h.queue, h.node) // goes on if it fails
		if told {
			s.pool.telemetry.withdrawn(h)
		}
	}()
	if err = h.session.Alive(ctx); err != nil {
		return err
	}
	t.granted(h.node)
	told = true
	s.pool.telemetry.granted(t.caller, h) // tell may come as soon as it is recorded
	s.mu.Lock()
	if err = s.cause; err == nil {
		err = s.pool.addHold(h)
	}
	if err == nil {
		if s.holds == nil {
			s.holds = map[string]*hold{}
		}
		s.holds[h.name] = h
		*l = h.enter(req.shared)
		kept = true
	}
	s.mu.Unlock()
	return err
}

// reseat gives the handle a seat whose session stands.
func (s *Handle) ensureSlot(ctx context.Context) error {
	if s.slot != nil && !s.slot.Value().isOver() {
		return nil
	}
	s.releaseSlot()
	began := time.Now()
	seat, err := s.pool.acquireSlot(ctx)
	if err == nil {
		s.slot = seat
		s.pool.inUse.Add(1)
	}
	s.pool.telemetry.slotAcquired(ctx, began, err)
	return err
}

// dropSeat gives the seat back. It is called by the acquisition, or with mu held
// if there is none.
func (s *Handle) releaseSlot() {
	if s.slot == nil {
		return
	}
	s.pool.inUse.Add(-1)
	if s.slot.Value().isOver() {
		s.slot.Destroy()
	} else {
		s.slot.Release()
	}
	s.slot = nil
}

// unlock leaves a lock once.
func (s *Handle) unlock(ctx context.Context, l *Lock) error {
	_ = ctx.Err() // panics if ctx is nil, before anything has changed
	h := l.hold
	s.mu.Lock()
	if !h.leave(l.entry) {
		s.mu.Unlock()
		if err := h.err(); err != nil && err != ErrNotHeld {
			return fmt.Errorf("%w: %w", ErrNotHeld, err)
		}
		return ErrNotHeld
	}
	if len(h.entries) > 0 {
		settled := func(context.Context) error { return h.failure() }
		if h.exclusive == 0 && l.entry&1 == 0 { // the others only read
			settled = h.downgrade()
		}
		s.mu.Unlock()
		return settled(ctx)
	}
	delete(s.holds, h.name)
	s.recent = nil
	s.mu.Unlock()
	defer s.returnIfUnused()
	r := h.release(ctx, ErrNotHeld)
	defer r.report(ctx)
	return r.err
}

// Close releases whatever the session still holds, whatever its counts, and
// gives the handle back to the pool. The contexts of those locks end, and
// unlocking them later is ErrNotHeld. A call that waits for a lock ends with
// ErrSessionClosed. Closing a session twice is no error.
//
// ctx bounds the waiting for the releases, never whether they happen.
func (s *Handle) Close(ctx context.Context) error { return s.close(ctx, ErrHandleClosed) }

func (s *Handle) close(ctx context.Context, cause error) error {
	_ = ctx.Err() // panics if ctx is nil, before anything has changed
	s.mu.Lock()
	s.markClosed(cause)
	if s.giveUp != nil {
		s.giveUp(cause)
	}
	holds := s.holds
	s.holds, s.recent = nil, nil
	for _, h := range holds {
		h.leaveAll()
	}
	s.mu.Unlock()
	defer s.returnIfUnused()
	var errs []error
	for name, h := range holds {
		r := h.release(ctx, cause)
		defer r.report(ctx) // once all are released
		if r.err != nil && cause == ErrHandleClosed {
			errs = append(errs, &LockError{opUnlock, name, r.err})
		}
	}
	return errors.Join(errs...)
}

// settle gives the handle back if it is closed, or needed no more.
func (s *Handle) returnIfUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transient && len(s.holds) == 0 && !s.acquiring {
		s.markClosed(ErrNotHeld)
	}
	if s.closed.Load() && !s.acquiring {
		s.releaseSlot()
	}
}

// shut lets nobody lock with the handle any more. It is called with mu held.
func (s *Handle) markClosed(cause error) {
	if s.closed.Load() {
		return
	}
	s.cause = cause
	s.closed.Store(true)
	s.pool.mu.Lock()
	delete(s.pool.handles, s)
	s.pool.mu.Unlock()
}
