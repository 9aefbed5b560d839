// Package lockpool is database/sql for distributed locks: a pool of lock sessions on a
// coordination service such as ZooKeeper. It hands out reentrant handles that obey
// contexts, and shows every wait for a lock as an OpenTelemetry span.
//
//	pool, err := lockpool.Open("zookeeper", "zk1:2181,zk2:2181,zk3:2181/locks")
//	...
//	err = pool.Do(ctx, "orders/42", func(ctx context.Context) error {
//		return charge(ctx) // by no other caller at the same time, on any machine
//	})
//
// # Pools, handles, locks
//
// A [Pool] is opened once and shared. A [Handle] is one holder of locks. It is cheap
// and used by one goroutine at a time. A [Lock] is one entry into a lock. [Pool.Do] and
// [Pool.Lock] use a handle of their own. Thousands of handles share a few sessions
// (connections) with the service.
//
// A lock's name is a relative path such as orders/42. Callers that lock the same name
// below the same chroot of the same ensemble exclude each other, in the order in which
// they asked. [Escape] turns any text, such as a URL, into one part of a name.
//
// # Reentry
//
// A holder may lock again what it already holds: the depth grows by one, without a wait
// and without a request to the service. The lock is released when the depth is back at
// zero. Code deep in a call stack can therefore take the lock that it needs without
// knowing whether its caller holds it.
//
// The context carries the holder. Given the context that [Pool.Do] passes to its
// function, or one from [Lock.Context], Do and Lock enter the lock again. The context
// carries the holder only on the goroutine that created the context, so that two
// goroutines do not share an exclusive lock by accident. [LockFromContext] finds the
// lock on any goroutine, for its fencing token.
//
// # Kinds of locks
//
// Readers can share a lock: [Shared]. [Pool.LockAll] takes several locks, or none of them.
// A [Semaphore] has a limited number of permits. [Plain] is the cheapest lock, without a
// queue. A name is used for one kind of lock at a time; asking for another kind returns
// [ErrKindMismatch]. With [HoldAtLeast], a lock
// of any kind does not come free before some time has passed.
//
// # Jobs
//
// A lock is no memory: a job under it runs again whenever somebody starts it again.
// [Pool.Once] runs a job for a key, such as the day that it is due, unless a run for the
// key has finished before, on any machine:
//
//	err = pool.Once(ctx, "cron/cleanup", "2026-11-22", cleanUp)
//
// # Looking
//
// [Pool.Queue] returns the holders and waiters of a lock, [Pool.Revoke] asks the
// holders to release it, and [Pool.Break] takes it by force.
//
// # Leaders
//
// [Pool.Elect] calls a function while it holds a lock, and stands again when the lock is
// lost or the function fails: of all who call it for one name, on any machine, one leads.
// [Pool.Observe] is an iterator over who holds a lock, and who comes next, for those who
// follow a leader.
//
// # Contexts
//
// The context of a call bounds how long the call waits, and never how long the lock is
// held. When it ends, the call returns within milliseconds and gives up its place in
// the queue, in the background if the service does not answer. Unlock always unlocks,
// even if its context has ended. A nil context panics.
//
// # Losing a lock
//
// A lock depends on a session with the service, and a session can be lost: the network
// fails, the servers have no majority, or the process is paused. A pool proves by its
// own clock that its sessions are alive, and gives up what they hold before the service
// can grant it to another holder. Then [Lock.Lost] is closed, the contexts of
// [Lock.Context] and Do end with the cause [ErrLockLost], entering again is refused,
// and Unlock returns ErrLockLost. The same happens when the lock's node is removed. A
// nil error from Unlock or Do means that the lock was held until then. A lost session
// is never replaced underneath a holder; the next lock is taken on a new one. A waiter
// whose session is lost queues again automatically. [Lock.Expiring] tells a holder some
// time before the loss that the service does not answer.
//
// No lock can stop a process that is paused between its last look at the lock and a
// write. A store that is given [Lock.Token] can refuse that write.
//
// # Deadlocks
//
// A call of a handle that holds other locks may come to wait for somebody who waits, perhaps
// through others, for what its own handle holds. Such a cycle is found, over all kinds of
// locks, in any processes, and the call on it that asked last fails with [ErrDeadlock]; see
// [WithDeadlockCheck]. The [DeadlockError] says who holds what, who waits for what, and
// where in their programs.
//
// # Errors
//
// Test errors with errors.Is; see [ErrLocked] and the errors listed with it. An error
// about a lock is a [*LockError]. When a context ends a wait, its error is in the
// chain, and the text says what the call waited for: the contender in the way, an
// answer, a handle, or a connection.
//
// # Spans
//
// Spans go to the global tracer provider, or to that of [WithTracerProvider]:
//
//   - lockpool.lock.acquire, a request for a lock, whether it goes to the service or
//     waits for another handle of the pool. Reentry has none.
//   - lockpool.lock.wait, its child: the part spent behind other contenders. It is
//     linked to the span of the holder, and to that of the predecessor in the queue,
//     whatever process they are in (see [WithTraceLinks]); the attribute lockpool.link
//     of the link is holder or predecessor. In the same process, these are the very
//     requests in the way. If another process passes the lock on among its handles (see
//     [WithLocalTurns]), the link is to the one of them that asked the service, and has
//     the attribute lockpool.link.tenancy. A wait that ended because of a deadlock has the
//     event lockpool.deadlock, with lockpool.deadlock.length, the number of calls on the
//     cycle, and is linked to the others of them (lockpool.link is deadlock).
//   - lockpool.lock.release (none of a lock that rests), and with [WithHoldSpans]
//     lockpool.lock.hold, from the grant to the end. The latter has the status Error if
//     the lock was lost or the function of [Pool.Elect] failed.
//   - lockpool.session.connect, the opening of a session, and lockpool.session.acquire,
//     a wait for a handle or a session.
//
// Their attributes, all of which begin with lockpool:
//
//   - lock.name and lock.kind (mutex, read, semaphore or plain); driver.name;
//     pool.name (see [WithOwner]); session.id
//   - lock.outcome (acquired, busy, timeout, canceled, revoked, deadlock, pool_closed, ...)
//     and lock.contended, whether there was another contender
//   - lock.local, if the lock came from another handle of the pool, or was passed on to
//     one, without a request to the service
//   - lock.node, the contender's own node, or the one that it shares; lock.permits of a semaphore; lock.token,
//     once it is known
//   - lock.queue.position (0 is the head) and lock.queue.length when it joined;
//     lock.wakeups
//   - lock.requeues, how often it had to queue again, and lock.requeued_after, the
//     reason: session_lost, node_removed or holds_changed (another goroutine unlocked what
//     the handle held)
//   - lock.waiting_for, the node in the way, and lock.waiting_for.owner, its owner
//
// Beside them are server.address, server.port, and error.type on failure (see
// [LockError.ErrorType]).
//
// # Metrics
//
// Metrics go to the global meter provider, or to that of [WithMeterProvider]. Durations
// are in seconds. All have lockpool.pool.name; those of locks have lockpool.lock.kind,
// and lockpool.lock.name only with [WithMetricName].
//
//   - lockpool.lock.wait.duration: from the request to the grant or the error, by
//     outcome, contended and error.type; its count is that of grants, timeouts and so
//     on
//   - lockpool.lock.hold.duration, lockpool.lock.held, lockpool.lock.waiters,
//     lockpool.lock.queue.length, lockpool.lock.reentries
//   - lockpool.lock.lost, by lockpool.lost.reason: session_lost, node_removed or
//     no_permission
//   - lockpool.lock.rescues: nodes whose removal the service did not report and that a
//     later check found; more than 0 only where ACLs are changed
//   - lockpool.lock.deadlocks: calls that failed with ErrDeadlock
//   - lockpool.session.create_time and lockpool.session.wait_time, by error.type
//   - lockpool.session.count, .max and .lost; lockpool.handle.count and .max
//
// Synchronous processors, exporters and log handlers delay the caller, never the
// notification of a loss.
package lockpool
