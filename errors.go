package lockpool

// This file has the errors.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// The errors of lockpool, for errors.Is. An error about a lock is a [*LockError]. If a
// context ended a wait, the context's error (context.Canceled or context.DeadlineExceeded)
// is in the chain as well.
//
// Three errors tell why a call such as Lock, Do, Acquire or Once did not get the lock and
// so did not call its function: ErrNotAcquired always, ErrLocked if the lock was busy, and
// ErrUnavailable if the service did not answer. Any other error of Do comes from the
// function, or says with ErrLockLost what became of the lock. An error returned by the
// function, such as the error of another Do within, does not count: in the error of Do,
// errors.Is finds ErrNotAcquired, ErrLocked, ErrQueueFull, ErrUnavailable, ErrLockLost and
// ErrDone only where they are about the call itself.
var (
	// ErrNotAcquired means that a call did not get the lock, whatever the reason: nothing is
	// held, and the function of Do or Once was not called.
	ErrNotAcquired = errors.New("not acquired")

	// ErrLocked means that another contender has the lock: TryLock, or another call without
	// a wait, found a holder or a waiter; or the context or the WaitAtMost of a call ended
	// while the call waited for another contender; or the queue was too long for the call
	// (ErrQueueFull).
	ErrLocked = recipe.ErrBusy

	// ErrLockLost means that the lock was lost while held: the session has expired, or may
	// have, because no answer of the service proves the contrary; or the node was removed
	// or hidden. Another holder may have the lock.
	ErrLockLost = errors.New("lock lost")

	// ErrNotHeld means that the Lock holds nothing: the Lock was unlocked before, or the
	// Handle or Pool was closed. No other lock was touched.
	ErrNotHeld = errors.New("not held")

	// ErrUpgrade means that a reader asked for the exclusive lock, or a holder of permits
	// asked for more. Unlock first, or ask for everything at once: two holders waiting for
	// more may wait for each other.
	ErrUpgrade = errors.New("cannot upgrade a held lock; unlock it first")

	// ErrKindMismatch means that another kind of lock is in use under the name. The error
	// says which: a queue (Lock), a semaphore, a plain lock, or a node like a contender of
	// a client unknown to lockpool.
	ErrKindMismatch = driver.ErrKind

	// ErrLimit means that a semaphore has no limit, because none was given and none is set;
	// or the limit set at the service is not a number; or a holder acquires again with a
	// different limit. The error says which.
	ErrLimit = driver.ErrLimit

	// ErrDone means that a run for the key has finished before. See [Pool.Once] and
	// [DoneError].
	ErrDone = errors.New("done before")

	// ErrRevoked means that the lock was revoked: the holder or waiter was asked to give
	// the lock up. See [Revocable].
	ErrRevoked = recipe.ErrRevoked

	// ErrDeadlock means that the call waited, perhaps through others, for a waiter on a
	// lock of the call's own handle. The error is a [*DeadlockError], which says who. The
	// handle still holds all of its locks: release all, so that the others can go on, and
	// begin again. See [WithDeadlockCheck].
	ErrDeadlock = errors.New("deadlock")

	// ErrQueueFull means that the call did not join the queue of the lock, because too many
	// waited, or the wait would have been too long. The error is a [*QueueFullError], which
	// says how many, how long, and who holds the lock. See [MaxWaiters] and [InTime].
	ErrQueueFull = errors.New("queue full")

	// ErrConcurrentUse means that a Handle was asked for a lock while another call of the
	// Handle was waiting for one. The second call did nothing. Give each goroutine a Handle
	// of its own.
	ErrConcurrentUse = errors.New("concurrent use of a handle")

	// ErrPoolClosed means that the Pool is closed or shutting down.
	ErrPoolClosed = errors.New("pool closed")

	// ErrHandleClosed means that the Handle is closed.
	ErrHandleClosed = errors.New("handle closed")

	// ErrInvalidName means that the name is not a valid lock name, or the key not a valid
	// key of a run. The error says why.
	// Nothing was sent. [Escape] turns any text into one part of a name.
	ErrInvalidName = errors.New("invalid lock name")

	// ErrNoPermission means that the service refused the request. The error names the
	// missing right and the path.
	ErrNoPermission = driver.ErrNoPermission

	// ErrUnavailable means that no server was reached or none answered; the error says why.
	// The error of the context is in the chain as well; except from Pool.Observe, which
	// goes on.
	ErrUnavailable = driver.ErrUnavailable

	// ErrSequenceExhausted means that sequence numbers no longer order the queue of the
	// lock: the service's counter is exhausted (2147483647). Nothing was granted. To
	// start the counter over, remove the lock's node while the lock has neither holders
	// nor waiters. A warning is logged (zookeeper.Config.Logger) 100 million locks before
	// the counter is exhausted.
	ErrSequenceExhausted = driver.ErrSequenceExhausted
)

// lockError returns err as the error of an operation, or nil.
func lockError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &LockError{op, name, err}
}

// notAcquired returns the error of a call that did not get the lock. It is not inlined, because
// the frames of waiters would grow.
//
//go:noinline
func notAcquired(op, name string, err error) error {
	return &LockError{op, name, also{err, ErrNotAcquired}}
}

// also is an error with another one added for errors.Is. The text stays.
type also struct {
	error
	added error
}

func (a also) Is(target error) bool { return target == a.added }
func (a also) Unwrap() error        { return a.error }

// unanswered adds ErrUnavailable to the error of a call whose context has ended, unless the
// call waited for something else than an answer.
func unanswered(err error) error {
	if errors.Is(err, ErrLocked) || errors.Is(err, ErrUnavailable) || errors.Is(err, errNoFreeHandle) {
		return err
	}
	return also{err, ErrUnavailable}
}

// asked returns the error of a request about a held lock: ErrUnavailable if ctx has ended
// the wait for the answer.
func asked(ctx context.Context, err error) error {
	if err != nil && errors.Is(err, ctx.Err()) {
		return unanswered(err)
	}
	return err
}

// apart returns an error of a function under a lock, without the errors about the lock.
func apart(err error) error { return hide(err, ofTheCall) }

var (
	ofTheCall     = []error{ErrNotAcquired, ErrLocked, ErrQueueFull, ErrUnavailable, ErrLockLost, ErrDone}
	ofTheFunction = []error{context.Canceled, context.DeadlineExceeded} // unless a release says it
)

// hide returns err without the errors that errors.Is shall not find.
func hide(err error, hidden []error) error {
	if slices.ContainsFunc(hidden, func(h error) bool { return errors.Is(err, h) }) {
		return &hiding{err, hidden}
	}
	return err
}

// hiding is used as a pointer, because callers may compare errors.
type hiding struct {
	err    error
	hidden []error
}

func (h *hiding) Error() string { return h.err.Error() }

func (h *hiding) Is(target error) bool {
	return !slices.Contains(h.hidden, target) && errors.Is(h.err, target)
}

func (h *hiding) As(target any) bool {
	switch target.(type) {
	case **DoneError:
		return !slices.Contains(h.hidden, ErrDone) && errors.As(h.err, target)
	case **QueueFullError:
		return !slices.Contains(h.hidden, ErrQueueFull) && errors.As(h.err, target)
	}
	return errors.As(h.err, target)
}

// LockError is the error of an operation on a lock.
type LockError struct {
	Op   string // such as "lock", "try lock", "read lock", "lock all" or "unlock"
	Name string // of the lock, as the caller gave it
	Err  error
}

func (e *LockError) Error() string {
	return fmt.Sprintf("lockpool: %s %q: %s", e.Op, e.Name, e.Err)
}

func (e *LockError) Unwrap() error { return e.Err }

// ErrorType classifies the error in one word, for OpenTelemetry's attribute error.type:
// timeout, canceled, busy, lock_lost, session_lost, pool_closed and so on.
func (e *LockError) ErrorType() string {
	for _, class := range errorClasses {
		if errors.Is(e.Err, class.err) {
			return class.name
		}
	}
	return "_OTHER"
}

var errorClasses = []struct {
	err  error
	name string
}{
	{ErrDone, "done"},
	{ErrPoolClosed, "pool_closed"},
	{ErrHandleClosed, "handle_closed"},
	{ErrLockLost, "lock_lost"},
	{ErrNotHeld, "not_held"},
	{ErrUpgrade, "upgrade"},
	{ErrKindMismatch, "kind_mismatch"},
	{ErrLimit, "limit"},
	{ErrRevoked, "revoked"},
	{ErrDeadlock, "deadlock"},
	{ErrQueueFull, "queue_full"},
	{ErrConcurrentUse, "concurrent_use"},
	{ErrInvalidName, "invalid_name"},
	{ErrNoPermission, "no_permission"},
	{errors.ErrUnsupported, "unsupported"},
	{ErrSequenceExhausted, "sequence_exhausted"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
	{ErrLocked, "busy"},
	{driver.ErrSessionLost, "session_lost"},
	{driver.ErrRemoved, "node_removed"},
	{ErrUnavailable, "unavailable"},
	{driver.ErrPermanent, "unusable"},
}
