package lockpool

// This file has semaphores.

import (
	"context"
	"fmt"
	"math"

	"github.com/lockpool/lockpool/driver"
)

// Semaphore is a lock with a limited number of permits at the same time. Create one with
// [Pool.Semaphore] or [Handle.Semaphore]; a Semaphore consists of a name and a limit, and
// costs nothing.
//
// (The names are those of golang.org/x/sync/semaphore. The nodes are those of Curator's
// InterProcessSemaphoreV2, for use side by side. They are below the semaphore's name, in
// locks, leases and limit: if gpus is a semaphore, gpus/locks is not the name of another
// lock.)
type Semaphore struct {
	pool   *Pool
	handle *Handle // nil for a handle of its own, or the one in the context
	name   string
	limit  int
}

// Semaphore returns the named semaphore with the given number of permits.
//
// Callers may state different limits, so that a deployment can change the limit while the
// semaphore is in use. The smallest of the following applies: the limits stated by the
// holders of permits and by the next waiter, and the set limit, if any. While a holder
// states a limit, no more permits are granted. A lower limit applies from the first holder
// with the limit, a higher one when the last holder with a lower limit has released all
// permits.
//
// A limit of 0 states none, for a semaphore whose limit is stored at the service; see
// [Semaphore.SetLimit].
func (p *Pool) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{pool: p, name: name, limit: limit}
}

// Semaphore is [Pool.Semaphore], with the handle as the holder.
func (h *Handle) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{pool: h.pool, handle: h, name: name, limit: limit}
}

// Acquire waits until n permits are free, and takes all of them at once. Permits are
// granted in the order of the calls: a call for many permits is not overtaken by later
// calls for few. A call for more than the limit delays no other call: the call waits
// without a place in the queue until the limit allows so many, and then in the queue.
//
// A holder that acquires no more permits than held enters again, as with a lock. Acquiring
// more returns ErrUpgrade. To take permits one by one, take each with a handle of its own,
// as Acquire does with a context without a holder.
//
// Unlock of the Lock from Acquire leaves once: the permits are released together when the
// holder has left once for each acquisition. Their token is larger than the tokens of all
// permits granted before, some of them perhaps still held.
//
// n is bounded by the size of a request, to a few hundred; the error says how many. ctx
// bounds the wait, never how long the permits are held. The options are [WaitAtMost],
// [Revocable] and [HoldAtLeast]. With WaitAtMost(0) the error is ErrLocked if fewer than n
// permits are free, or there is a waiter; Acquire then waits, for at most a second, only
// for contenders in the middle of taking or releasing permits.
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...LockOption) (*Lock, error) {
	req := &request{op: opAcquire, permits: n, limit: s.limit}
	err := req.with(opts)
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

// Do calls fn with n permits, as [Pool.Do] does with a lock.
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

// SetLimit sets the limit of the semaphore at the service, for all callers and in addition
// to the stated limits (see [Pool.Semaphore]). The limit applies until its node is removed:
// the node named limit below the semaphore's, in the format of Curator's SharedCount.
// Waiters under a set limit learn of a new one at once. A lower limit takes no permits from
// holders, and applies as permits are released. With a limit of 0, nothing is granted until
// there is another limit.
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
