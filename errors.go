package lockpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// The errors of lockpool, to be tested with errors.Is. Those about a lock come
// inside a [*LockError]. If a context ended a wait, its own error
// (context.Canceled or context.DeadlineExceeded) is in the chain as well.
var (
	// ErrLocked: TryLock found somebody else in the way.
	ErrLocked = recipe.ErrBusy

	// ErrLockLost: the lock was taken away. Its session with the service has
	// expired, or might have by now because no answer came that proves the
	// contrary; or its node was removed, or hidden, by somebody. Whatever it
	// protected may be in other hands.
	ErrLockLost = errors.New("lock lost")

	// ErrNotHeld: this Lock holds nothing, because it was unlocked before, or
	// its Session or Pool was closed. No other lock was touched.
	ErrNotHeld = errors.New("not held")

	// ErrUpgrade: who holds a lock for reading asked to be alone, or who holds
	// permits of a semaphore asked for more. Unlock it first, or ask for all from
	// the start: of two who wait for more while they hold some, each may wait for
	// the other.
	ErrUpgrade = errors.New("cannot upgrade a held lock; unlock it first")

	// ErrKindMismatch: another kind of lock is in use under this name. The error
	// says what is there: a queue (Lock, RLock), a semaphore, a plain lock, or what
	// looks like a contender of a client that lockpool does not know.
	ErrKindMismatch = driver.ErrKind

	// ErrLimit: no limit was given for a semaphore and none is set, or what is set
	// is no number, or a holder acquires again with another limit than before. The
	// error says which.
	ErrLimit = driver.ErrLimit

	// ErrRevoked: somebody has asked for the lock back. See [Revocable].
	ErrRevoked = recipe.ErrRevoked

	// ErrConcurrentUse: a Session asked for a lock while another call of it was
	// asking for one. The second did nothing. Give each goroutine a Session of its
	// own.
	ErrConcurrentUse = errors.New("concurrent use of a handle")

	// ErrPoolClosed: the Pool is closed or shutting down.
	ErrPoolClosed = errors.New("pool closed")

	// ErrSessionClosed: the Session is closed.
	ErrHandleClosed = errors.New("handle closed")

	// ErrInvalidName: the name can not be that of a lock. The error says why.
	// Nothing was sent.
	ErrInvalidName = errors.New("invalid lock name")

	// ErrNoPermission: the service refused. The error names the missing right
	// and the path it is missing on.
	ErrNoPermission = driver.ErrNoPermission

	// ErrUnavailable: there was no session with the service, because no server
	// was reached or none answered; the error says why. It comes together with
	// the error of the context that ended the wait for one.
	ErrUnavailable = driver.ErrUnavailable

	// ErrSequenceExhausted: the numbers of the lock's queue do not tell any more
	// who came first, because the service has counted to its end (2147483647).
	// Nothing was granted. Remove the lock's node while nobody holds or waits:
	// that starts the count anew. The log warns 100 million locks earlier.
	ErrSequenceExhausted = driver.ErrSequenceExhausted
)

// LockError is the error of an operation on a lock.
type LockError struct {
	Op   string // such as "lock", "try lock", "read lock", "lock all" or "unlock"
	Name string // of the lock, as given
	Err  error
}

func (e *LockError) Error() string {
	return fmt.Sprintf("lockpool: %s %q: %s", e.Op, e.Name, e.Err)
}

func (e *LockError) Unwrap() error { return e.Err }

// ErrorType classifies the error in few words, for the attribute error.type of
// OpenTelemetry: timeout, canceled, busy, session_lost, pool_closed and so on.
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
	{ErrLocked, "busy"},
	{ErrPoolClosed, "pool_closed"},
	{ErrHandleClosed, "handle_closed"},
	{ErrLockLost, "lock_lost"},
	{ErrNotHeld, "not_held"},
	{ErrUpgrade, "upgrade"},
	{ErrKindMismatch, "kind_mismatch"},
	{ErrLimit, "limit"},
	{ErrRevoked, "revoked"},
	{ErrConcurrentUse, "concurrent_use"},
	{ErrInvalidName, "invalid_name"},
	{ErrNoPermission, "no_permission"},
	{ErrSequenceExhausted, "sequence_exhausted"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
	{driver.ErrSessionLost, "session_lost"},
	{driver.ErrRemoved, "node_removed"},
	{ErrUnavailable, "unavailable"},
	{driver.ErrPermanent, "unusable"},
}
