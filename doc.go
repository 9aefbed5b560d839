// Package lockpool is database/sql for distributed locks: a pool of lock sessions on a
// coordination service such as ZooKeeper. The pool hands out reentrant handles that obey
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
// A [Pool] is opened once and shared. A [Handle] is one holder of locks, cheap and used by
// one goroutine at a time. A [Lock] is one entry into a lock. [Pool.Do] and [Pool.Lock] use
// a handle of their own. Thousands of handles share a few sessions (connections) with the
// service.
//
// A lock's name is a relative path such as orders/42. Callers of the same name below the
// same chroot of the same ensemble exclude each other, in the order in which they asked.
// [Escape] turns any text, such as a URL, into one part of a name.
//
// # Reentry
//
// A holder may lock a held lock again: the depth grows by one, without a wait and without a
// request to the service. The lock is released when the depth is back at zero. Code deep in
// a call stack can therefore take a lock without knowing whether the caller holds it.
//
// The context carries the holder. With the context of [Pool.Do]'s function, or of
// [Lock.Context], Do and Lock enter the lock again. The context carries the holder only on
// the goroutine that created the context, so two goroutines do not share an exclusive lock
// by accident. [LockFromContext] finds the lock on any goroutine, for the fencing token.
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
// A lock is no memory: a job under a lock runs again with every start. [Pool.Once] runs a
// job for a key, such as the due day, unless a run for the key has finished before, on any
// machine:
//
//	err = pool.Once(ctx, "cron/cleanup", "2026-11-22", cleanUp)
//
// # Looking
//
// [Pool.Queue] returns the holders and waiters of a lock, [Pool.Revoke] asks the holders to
// release the lock, and [Pool.Break] takes the lock by force.
//
// # Leaders
//
// [Pool.Elect] calls a function under a lock, and stands again when the lock is lost or the
// function fails: of all candidates for one name, on any machine, one leads. [Pool.Observe]
// is an iterator over who holds a lock, and who comes next, for followers of a leader.
//
// # Contexts
//
// The context of a call bounds how long the call waits, and never how long the lock is
// held. When the context ends, the call returns within milliseconds and gives up the place
// in the queue, in the background if the service does not answer. Unlock always unlocks,
// even after the end of the context. A nil context panics.
//
// # Losing a lock
//
// A lock depends on a session with the service, and a session can be lost: the network
// fails, the servers have no majority, or the process is paused. A pool proves by its own
// clock that the sessions are alive, and gives up their locks before the service can grant
// them to another holder. Then [Lock.Lost] is closed, the contexts of [Lock.Context] and Do
// end with the cause [ErrLockLost], entering again is refused, and Unlock returns
// ErrLockLost. The same happens when the lock's node is removed. A nil error from Unlock or
// Do means that the lock was held until then. A lost session is never replaced underneath a
// holder; the next lock is taken on a new one. A waiter whose session is lost queues again
// automatically. [Lock.Expiring] tells a holder some time before the loss that the service
// does not answer.
//
// No lock can stop a process that is paused between its last look at the lock and a write.
// With [Lock.Token], a store can refuse the write.
//
// # Deadlocks
//
// Callers that hold locks and ask for more may come to wait for each other, in a cycle. The
// pool finds such a cycle over any kinds of locks and any processes. One of the calls,
// usually the one that asked last, then fails with [ErrDeadlock]; see [WithDeadlockCheck].
// The [DeadlockError] names the callers, the locks they hold and wait for, and the places
// in their programs.
//
// # Errors
//
// Test errors with errors.Is; see [ErrLocked] and the errors listed with it. An error about
// a lock is a [*LockError]. When a context ends a wait, the context's error is in the
// chain, and the text says what the call waited for: the contender in the way, an answer, a
// handle, or a connection.
//
// # Telemetry
//
// Spans, metrics and logs go to OpenTelemetry's global providers and to slog.Default, or
// to those of [WithTracerProvider], [WithMeterProvider] and [WithLogger]. The wait for a
// lock is a span, linked to the spans of the holder and of the predecessor in the queue,
// in any process; a wait of under 10 ms for calls of the same pool is part of the span of
// the acquisition. docs/telemetry.md of the repository lists the names and attributes of all
// spans and metrics.
//
// Synchronous processors, exporters and log handlers delay the caller, never the
// notification of a loss.
package lockpool
