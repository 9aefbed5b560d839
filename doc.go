// Package lockpool is database/sql for distributed locks: a pool of lock
// sessions on a coordination service such as ZooKeeper, whose handles are
// reentrant, obey contexts, and show every wait as an OpenTelemetry span.
//
//	pool, err := lockpool.Open("zookeeper", "zk1:2181,zk2:2181,zk3:2181/locks")
//	...
//	err = pool.Do(ctx, "orders/42", func(ctx context.Context) error {
//		return charge(ctx) // by nobody else at the same time, on any machine
//	})
//
// # Pools, sessions, locks
//
// A [Pool] is opened once and shared. A [Session] is a handle on it: one holder
// of locks, cheap, to be used by one goroutine at a time. A [Lock] is one entry
// into a lock. [Pool.Do] and [Pool.Lock] take a handle for the occasion.
// Thousands of handles share a few sessions (connections) with the service.
//
// A lock's name is a relative path such as orders/42. Whoever locks the same
// name below the same chroot of the same ensemble excludes each other, in the
// order in which they asked.
//
// # Locking again
//
// A holder may lock what it holds: its count grows by one, without a wait and
// without a request, and the lock is let go when the count is back at zero.
// That is how code deep in a call stack can take the lock it needs without
// knowing whether its caller has it.
//
// The holder travels in the context. The context that [Pool.Do] gives to its
// function, and that of [Lock.Context], carry it, so that Do and Lock with that
// context enter again. It counts only on the goroutine that it was made on.
// Handed to another goroutine it carries nobody: two goroutines must not share
// an exclusive lock by accident.
//
// # Kinds of locks
//
// Who only reads can share a lock with others who do: [Pool.RLock] and, for Do,
// [Shared]. [Pool.LockAll] takes several locks, or none. [Pool.Semaphore] lets a
// limited number of holders in. [Plain] is the cheapest lock, without a queue.
// A name is for one kind at a time, see [ErrKindMismatch].
//
// [Pool.Queue] shows who holds a lock and who waits for it, [Pool.Revoke] asks
// for it back, and [Pool.Break] takes it by force.
//
// # Contexts
//
// The context given to a call bounds how long that call waits, and never how
// long the lock is held. When it ends, the call returns within milliseconds,
// and the place in the queue is given up, in the background if the service does
// not answer. Unlock always unlocks, even if its context has ended.
//
// # Losing a lock
//
// A lock stands on a session with the service, and a session can be lost: the
// network fails, the servers have no majority, or the process is paused. A pool
// proves by its own clock that its sessions live, and gives up what they hold
// before the service can give it to somebody else. Then [Lock.Lost] is closed,
// the contexts of [Lock.Context] and Do end with the cause [ErrLockLost],
// locking again is refused, and Unlock returns ErrLockLost. The same happens
// when somebody removes the lock's node. A nil error from Unlock or Do means that
// the lock was held until then. A session that is lost is never
// replaced underneath a holder; the next lock is taken on a new one. Who only
// waits for a lock queues again by itself.
//
// A process that is paused between its last look at the lock and a write can
// not be stopped by any lock. [Lock.Token] is what a store needs to refuse that
// write.
//
// # Seeing
//
// Every lock that goes to the service is a span lockpool.lock.acquire, and if
// it had to wait, that wait is a child lockpool.lock.wait, which is linked to the
// span of whoever held the lock. Waits, holds and losses are metrics, too. The
// README lists names and attributes. Entering a lock again records nothing.
package lockpool
