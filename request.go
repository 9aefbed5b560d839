package lockpool

import (
	"context"
	"errors"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// request is what a call asks for.
type request struct {
	op        op
	bounded   bool          // by WaitAtMost
	wait      time.Duration // then: at the most
	plain     bool
	revocable bool

	permits, limit int // of a semaphore
}

// LockOption changes one call of Lock, TryLock, RLock, TryRLock or Do. When a lock
// that is held is entered again, its kind must be the same, and Revocable holds
// from then on for all entries.
type LockOption func(*request)

// Shared makes a Do take the lock as [Pool.RLock] does.
func Shared() LockOption {
	return func(r *request) {
		switch r.op {
		case opLock:
			r.op = opRLock
		case opTryLock:
			r.op = opTryRLock
		}
	}
}

// WaitAtMost bounds the wait for the lock, without bounding the work that Do
// does under it. If the time is up the error wraps context.DeadlineExceeded.
//
// A time of 0 or less means now or not at all, as TryLock does it: if somebody
// is in the way the error is ErrLocked. With it Do tries.
func WaitAtMost(d time.Duration) LockOption {
	return func(r *request) { r.bounded, r.wait = true, d }
}

// Plain asks for a lock without a queue: a single node that exists or does not.
// It is the cheapest lock to try, with one write to take it and one to give it
// back, for locks that hardly anybody ever waits for.
//
// Whoever does wait is woken whenever the lock is let go, together with all
// others who wait, and they race for it: among n waiters each release costs n
// notifications and 3n requests (a herd), and who gets the lock is left to chance,
// for ever if need be. A plain lock cannot be shared.
//
// ZooKeeper cannot make a delete depend on whose node it is. So if somebody removes
// the node by hand, and another process takes the lock, both within 50 ms of the
// grant or while the holder's delete is on its way, that delete removes the next
// holder's node; the next holder is told that the lock is lost.
//
// Everybody must use a name in the same way: if a queue is in use there, or a
// semaphore, the error is ErrKindMismatch, and so it is for them if a plain lock
// is held.
func Plain() LockOption {
	return func(r *request) { r.plain = true }
}

// Revocable declares that the lock will be given back on request, see
// [Pool.Revoke]: then the contexts of [Lock.Context] and Do end with the cause
// ErrRevoked. The lock stays held until it is unlocked; nobody takes it by force.
// A call that still waits for the lock then gives up, with ErrRevoked.
func Revocable() LockOption {
	return func(r *request) { r.revocable = true }
}

func newRequest(op op, opts []LockOption) (request, error) {
	r := request{op: op}
	for _, opt := range opts {
		if opt == nil {
			return r, errors.New("a nil LockOption was given")
		}
		opt(&r)
	}
	switch {
	case r.plain && r.op.shares():
		return r, errors.New("a plain lock cannot be shared: leave out Plain, or lock it alone")
	case r.bounded && r.wait > 0 && r.op.tries():
		return r, errors.New("a try does not wait for others: leave out WaitAtMost, or use Lock or RLock")
	case r.bounded && r.wait <= 0:
		r.op = r.op.trying()
	}
	return r, nil
}

// kind is what the node of such a request asks for.
func (r request) kind() driver.Kind {
	switch {
	case r.op.shares():
		return driver.Read
	case r.op.acquires():
		return driver.Permit
	case r.plain:
		return driver.Plain
	}
	return driver.Mutex
}

// recipe returns the algorithm for the request, and the queue where the node will
// be that holds.
func (r request) recipe(c recipe.Claim) (take func(context.Context) (driver.Node, error), queue string) {
	c.Kind, c.Rule = r.kind(), recipe.RuleOf(r.kind())
	var algorithm interface {
		Acquire(context.Context) (driver.Node, error)
		Try(context.Context) (driver.Node, error)
	} = c
	queue = c.Queue
	switch c.Kind {
	case driver.Permit:
		c.Permits, c.Limit = r.permits, r.limit
		algorithm, queue = recipe.Semaphore{Claim: c}, queue+"/"+driver.Leases
	case driver.Plain:
		algorithm = recipe.Plain{Claim: c}
	}
	if r.op.tries() {
		return algorithm.Try, queue
	}
	return algorithm.Acquire, queue
}
