package lockpool

import (
	"context"
	"fmt"
	"math"

	"github.com/lockpool/lockpool/driver"
)

// Semaphore is a lock with a limited number of permits, which can be held at the same
// time. Create one with [Pool.Semaphore] or [Handle.Semaphore]; it consists of a name
// and a limit, and costs nothing.
//
// (The names are those of golang.org/x/sync/semaphore. The nodes are those of Curator's
// InterProcessSemaphoreV2, which can be used alongside it. They are below the
// semaphore's name, in locks, leases and limit: if gpus is a semaphore, gpus/locks is
// not the name of another lock.)
type Semaphore struct {
	pool   *Pool
	handle *Handle // nil for a handle of its own, or the one in the context
	name   string
	limit  int
}

// Semaphore returns the semaphore of that name with that many permits.
//
// Callers may state different limits, so that a deployment can change the limit while
// the semaphore is in use. The smallest of the following applies: the limits that the
// holders of permits state, that of the next waiter, and the one that was set, if any.
// While a holder states a limit, no more permits than that are granted. A lower limit
// applies from the first holder that states it, a higher one when the last holder that
// states less has released its permits.
//
// A limit of 0 states none. It is for a semaphore whose limit is stored at the service;
// see [Semaphore.SetLimit].
func (p *Pool) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{pool: p, name: name, limit: limit}
}

// Semaphore is [Pool.Semaphore], with the handle as the holder.
func (h *Handle) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{pool: h.pool, handle: h, name: name, limit: limit}
}

// Acquire waits until n permits are free, and takes all of them at once. Permits are
// granted in the order of the calls: a call for many permits is not overtaken by later
// calls for few. A call for more than the limit delays no other call: it waits without
// a place in the queue until the limit allows it, and then for its turn.
//
// A holder that acquires no more permits than it has enters again, as with a lock.
// Acquiring more returns ErrUpgrade. To take permits one by one, take each with a
// handle of its own, as Acquire does with a context that carries no holder.
//
// Unlock of the Lock that Acquire returns leaves once: the permits are released together when
// the holder has left as many times as it has acquired them. Their token is larger than those of
// all permits that were granted before, some of which may still be held.
//
// n is bounded by the size of a request, to a few hundred; the error says how many.
// ctx bounds the wait, never how long the permits are held. The options are
// [WaitAtMost], [Revocable] and [HoldAtLeast]. With WaitAtMost(0) the error is ErrLocked if
// fewer than n permits are free, or there is a waiter; Acquire then waits, for at most a second,
// only for contenders that are in the middle of taking or releasing permits.
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...LockOption) (*Lock, error) {
	req, err := request{op: opAcquire, permits: n, limit: s.limit}.with(opts)
	if err == nil {
		err = checkLimit(s.limit)
	}
	switch {
	case err != nil:
	case n <= 0:
		err = fmt.Errorf("%d permits: ask for at least one", n)
	case s.limit > 0 && n > s.limit:
		err = fmt.Errorf("%d permits are more than the limit of %d, so they would never be free", n, s.limit)
	default:
		err = s.pool.connector.CheckPermits(s.name, n)
	}
	if err != nil {
		return nil, notAcquired(req.String(), s.name, err)
	}
	if s.handle != nil {
		return s.handle.enter(ctx, s.name, req, new(Lock))
	}
	return s.pool.enter(ctx, s.name, req, new(Lock))
}

// Do calls fn while it holds n permits, as [Pool.Do] does with a lock.
func (s *Semaphore) Do(ctx context.Context, n int, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return errNilFunc
	}
	l, err := s.Acquire(ctx, n, opts...)
	if err != nil {
		return err
	}
	return do(ctx, fn, []*Lock{l})
}

func checkLimit(limit int) error {
	if limit < 0 || limit > math.MaxInt32 {
		return fmt.Errorf("the limit %d is not between 0 and %d", limit, math.MaxInt32)
	}
	return nil
}

// SetLimit sets the limit of the semaphore at the service, for all callers and in
// addition to the limits that they state (see [Pool.Semaphore]). It applies until its
// node is removed: the node named limit below the semaphore's, in the format of
// Curator's SharedCount. Waiters under a limit that was set learn of a new one at once.
// A lower limit takes no permits from holders: it applies as they are released. With a
// limit of 0, nothing is granted until there is another limit.
func (s *Semaphore) SetLimit(ctx context.Context, limit int) error {
	err := checkLimit(limit)
	if err == nil {
		err = s.pool.checkName(s.name)
	}
	if err == nil {
		err = s.pool.withSession(ctx, use(func(ctx context.Context, limits driver.Limiter) error {
			return limits.SetLimit(ctx, s.name, limit)
		}))
	}
	return lockError(opSetLimit, s.name, err)
}
