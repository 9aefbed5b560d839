package lockpool

import (
	"context"
	"fmt"
	"math"
)

// Semaphore lets a limited number of holders in at the same time. Make one with
// [Pool.Semaphore] or [Session.Semaphore]; it is a name and a limit, and costs
// nothing.
//
// (The names are those of golang.org/x/sync/semaphore, the nodes those of
// Curator's InterProcessSemaphoreV2, which can be used beside it. They are below
// the semaphore's name, in locks, leases and limit: gpus/locks is no name for
// another lock if gpus is a semaphore.)
type Semaphore struct {
	pool   *Pool
	handle *Handle // nil for a handle of its own, or the context's
	name   string
	limit  int
}

// Semaphore returns the semaphore of that name with that many permits. If callers
// state different limits, the smallest counts of those that the holders of permits
// state, the one that the next in the queue states, and the one that was set, if
// any: while someone who states a limit has permits, no more than that are granted.
// So a deployment can change the limit while the semaphore is in use. A lower one
// counts from the first holder that states it, a higher one when the last holder
// that states less has released its permits.
//
// The limit 0 states none. It is for a semaphore whose limit is kept at the
// service, see [Semaphore.SetLimit].
func (p *Pool) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{pool: p, name: name, limit: limit}
}

// Semaphore is [Pool.Semaphore], with the session as the holder.
func (s *Handle) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{pool: s.pool, handle: s, name: name, limit: limit}
}

// Acquire waits until n permits are free, and takes all of them at once. Permits
// are granted in the order of asking, so who asks for many is not overtaken by
// who asks for few. Asking for more than the limit that counts holds up nobody:
// the call waits, without a place in the queue, until the limit allows it, and then
// for its turn.
//
// A holder that acquires again, with no more permits than it has, enters again:
// it needs no others for what it does under those it has. Asking for more is
// ErrUpgrade. To take permits one by one, take each with a handle of its own,
// which is what Acquire does with a context that carries no holder.
//
// n is bounded by what fits into one request, a few hundred; the error says how
// many. ctx bounds the waiting, never how long the permits are held.
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...LockOption) (*Permits, error) {
	return s.acquire(ctx, request{op: opAcquire, permits: n, limit: s.limit}, opts)
}

// TryAcquire is Acquire without waiting for other holders: if fewer than n
// permits are free, or somebody waits already, the error is ErrLocked. It does
// wait for who is just taking or releasing some, for a second at the most.
func (s *Semaphore) TryAcquire(ctx context.Context, n int, opts ...LockOption) (*Permits, error) {
	return s.acquire(ctx, request{op: opAcquire, permits: n, limit: s.limit, try: true}, opts)
}

// Do calls fn while holding n permits, as [Pool.Do] does with a lock.
func (s *Semaphore) Do(ctx context.Context, n int, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return errNilFunc
	}
	permits, err := s.Acquire(ctx, n, opts...)
	if err != nil {
		return err
	}
	return do(ctx, fn, []*Lock{permits.lock})
}

func (s *Semaphore) acquire(ctx context.Context, req request, opts []LockOption) (*Permits, error) {
	n, err := req.permits, checkLimit(s.limit)
	if err == nil {
		err = req.apply(opts)
	}
	switch {
	case err != nil:
	case n <= 0:
		err = fmt.Errorf("%d permits: ask for one at least", n)
	case s.limit > 0 && n > s.limit:
		err = fmt.Errorf("%d permits are more than the limit of %d, so they would never be free", n, s.limit)
	default:
		err = s.pool.connector.CheckPermits(s.name, n)
	}
	if err != nil {
		return nil, &LockError{req.String(), s.name, err}
	}
	l := new(Lock)
	if s.handle != nil {
		l, err = s.handle.enter(ctx, s.name, req, l)
	} else {
		l, err = s.pool.enter(ctx, s.name, req, l)
	}
	if err != nil {
		return nil, err
	}
	return &Permits{lock: l}, nil
}

func checkLimit(limit int) error {
	if limit < 0 || limit > math.MaxInt32 {
		return fmt.Errorf("the limit %d is not between 0 and %d", limit, math.MaxInt32)
	}
	return nil
}

// SetLimit sets the limit of a semaphore at the service. It counts for everyone,
// beside the limits that are stated (see [Pool.Semaphore]), until somebody removes
// the node, by the name limit below that of the semaphore, in the format of
// Curator's SharedCount. Waiters under a limit that was set learn of another at
// once. A lower limit takes permits from nobody: it counts when they are
// released. With the limit 0 nobody gets in until there is another.
func (s *Semaphore) SetLimit(ctx context.Context, limit int) error {
	err := checkLimit(limit)
	if err == nil {
		err = s.pool.checkName(s.name)
	}
	if err == nil {
		err = s.pool.withSession(ctx, func(ctx context.Context, m *session) error { return m.SetLimit(ctx, s.name, limit) })
	}
	if err != nil {
		return &LockError{opSetLimit, s.name, err}
	}
	return nil
}

// Permits are held by one holder, until they are released.
type Permits struct {
	_    noCopy
	lock *Lock
}

// Release gives all of them back, once this has been called as often as the
// holder has acquired them. Apart from that it is [Lock.Unlock].
func (p *Permits) Release(ctx context.Context) error {
	if p == nil {
		return &LockError{opUnlock, "", ErrNotHeld}
	}
	return p.lock.Unlock(ctx)
}

// Context is [Lock.Context].
func (p *Permits) Context(parent context.Context) context.Context { return p.lock.Context(parent) }

// Lost is [Lock.Lost].
func (p *Permits) Lost() <-chan struct{} { return p.lock.Lost() }

// Revoked is [Lock.Revoked].
func (p *Permits) Revoked() <-chan struct{} { return p.lock.Revoked() }

// Verify is [Lock.Verify].
func (p *Permits) Verify(ctx context.Context) error { return p.lock.Verify(ctx) }

// Token is [Lock.Token]: larger than that of everyone who was granted permits
// before, some of whom may hold theirs still.
func (p *Permits) Token(ctx context.Context) (int64, error) { return p.lock.Token(ctx) }
