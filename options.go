package lockpool

// This file has the options of a pool.

import (
	"cmp"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/lockpool/lockpool/internal/telemetry"
)

// The defaults of the options of the same names.
const (
	defaultMaxSessions   = 4
	defaultMaxHandles    = 10_000
	defaultLocalTurns    = 1000
	defaultDeadlockCheck = 500 * time.Millisecond
	defaultKeepDone      = 7 * 24 * time.Hour
	defaultKeptLocks     = 10_000
	defaultKeptUnused    = 10 * time.Second
)

const (
	// sessionLoad is the number of handles on a session at which another one is opened. The
	// number is no limit: when no more sessions may be opened, handles share them.
	sessionLoad = 32

	// sessionImbalance is how many more handles than another a session may have before idle
	// handles move to the other. The difference keeps handles and their queues on the
	// sessions that know the queues while the numbers of handles go up and down.
	sessionImbalance = sessionLoad / 4

	// openPatience bounds how long a call that could share a session waits for an opening
	// one. A service that refuses more connections delays no call for longer.
	openPatience = 100 * time.Millisecond

	// closeTimeout bounds how long Close waits for the service to confirm the end of
	// the sessions.
	closeTimeout = 5 * time.Second
)

// Option configures a Pool.
type Option func(*config) error

type config struct {
	maxSessions   int
	maxHandles    int
	localTurns    int
	keptLocks     int
	keptUnused    time.Duration
	maxWaiters    int
	inTime        bool
	maxHold       time.Duration
	revokeOverdue bool
	checkAfter    time.Duration // see WithDeadlockCheck
	owner         string
	telemetry     telemetry.Config
}

func newConfig(opts []Option) (config, error) {
	cfg := config{maxSessions: defaultMaxSessions, maxHandles: defaultMaxHandles, localTurns: defaultLocalTurns, checkAfter: defaultDeadlockCheck}
	for _, opt := range opts {
		if opt == nil {
			return config{}, errors.New("lockpool: a nil Option was given")
		}
		if err := opt(&cfg); err != nil {
			return config{}, fmt.Errorf("lockpool: %w", err)
		}
	}
	return cfg, nil
}

// WithMaxSessions limits the sessions (connections) with the service that the pool opens to
// n, from 1 to 1,000. The default is 4. Handles share them: a session carries 32
// handles before another is opened, and the waiters for an exclusive lock meet on one. ZooKeeper
// servers accept 60 connections from one address unless configured otherwise. Sessions with a
// node that the service refuses to remove do not count; they end when nothing else is held there.
func WithMaxSessions(n int) Option {
	return func(c *config) error {
		if n < 1 || n > 1000 {
			return fmt.Errorf("WithMaxSessions(%d): not between 1 and 1000", n)
		}
		c.maxSessions = n
		return nil
	}
}

// WithMaxHandles limits the handles that exist at one time to n, from 1 to 1<<30.
// The default is 10,000. Counted are the handles of Pool.Handle, and of the holders and
// waiters of Pool.Lock and Pool.Do. Further callers block until a handle is returned.
// Callers of Pool.Lock that wait for another one in memory (see [WithLocalTurns]), and get
// the lock there, do not count. A call that may delay others, as the first waiter in memory
// or with a lock already, takes a free handle, but does not wait for one.
func WithMaxHandles(n int) Option {
	return func(c *config) error {
		if n < 1 || n > 1<<30 {
			return fmt.Errorf("WithMaxHandles(%d): not between 1 and 1<<30", n)
		}
		c.maxHandles = n
		return nil
	}
}

// WithLocalTurns bounds how many turns in succession the pool's handles may have with a
// lock before the pool gives the lock back to the service: n, at most 1023, or as many as
// begin within 100 ms or, while another pool waits, within ten times what an acquisition
// costs, at least 5 ms. (Another pool that begins to wait is noticed after twice that time at
// most.) The default is 1000. With 0, each handle queues at the service.
//
// Handles of one pool pass a lock on in memory, without a request: one acquires the lock
// from the service, and the others wait in the order in which they asked. When the turns or
// the time are used up, the pool's next waiter queues at the service behind the waiters of
// other processes, so each process gets its share. A waiter whose context ends leaves the
// place in the service's queue to the next one, if both are readers or both are not.
// Readers share the lock in the same way, and may so pass a writer of another process for
// at most 100 ms.
//
// A handle that holds another lock queues at the service by itself, as do semaphores,
// plain locks, Once, and calls that do not wait.
func WithLocalTurns(n int) Option {
	return func(c *config) error {
		if n < 0 || n > maxTurns {
			return fmt.Errorf("WithLocalTurns(%d): not between 0 and %d", n, maxTurns)
		}
		c.localTurns = n
		return nil
	}
}

// WithKeptLocks lets the pool keep locks after their last unlock, at most n locks (10,000 if n
// is 0), each unused for at most d (10 s if d is 0). Without the option, the pool keeps none.
//
// A lock that the pool uses again, with no other contender in between, stays with the pool:
// Unlock returns without a request, and the next Lock of any handle of the pool gets the lock
// without a request, with a larger token. As soon as another contender of any client joins the
// queue, the pool gives the lock back: at once if the lock is unused, and otherwise with the
// next unlock. The pool keeps such a lock again from the next use on if keeping has paid, and
// otherwise later and later, so a contended lock costs what the lock costs without the option.
//
// If the process crashes, others wait for a kept lock until the session has expired, as for a
// held lock. TryLock of another pool with the option waits until the lock has been given back,
// for about 0.1 s at most. Tries of other pools and clients are refused, and ask for the lock:
// the next try finds the lock free.
//
// Kept are locks of Lock, TryLock, Do and LockAll, with Shared or without. WithLocalTurns(0)
// keeps none. After n turns (see WithLocalTurns), the pool takes a kept lock anew. The idea is
// that of GFS2 and of distributed lock managers, which cache locks.
func WithKeptLocks(n int, d time.Duration) Option {
	return func(c *config) error {
		if n < 0 || n > 1<<30 || d < 0 {
			return fmt.Errorf("WithKeptLocks(%d, %v): negative, or more than 1<<30 locks", n, d)
		}
		c.keptLocks, c.keptUnused = cmp.Or(n, defaultKeptLocks), cmp.Or(d, defaultKeptUnused)
		return nil
	}
}

// WithMaxWaiters gives every call of the pool for a lock the option [MaxWaiters], unless the call
// has that option, or cannot have it (tries, plain locks, permits and elections). By
// default any number may wait.
func WithMaxWaiters(n int) Option {
	return func(c *config) error {
		if n < 1 {
			return fmt.Errorf("WithMaxWaiters(%d): must be at least 1", n)
		}
		c.maxWaiters = n
		return nil
	}
}

// WithInTime gives every call of the pool for a lock the option [InTime], unless the call cannot
// have it (tries, plain locks, permits and elections).
func WithInTime() Option {
	return func(c *config) error { c.inTime = true; return nil }
}

// WithOwner sets the name of the pool's holders and waiters, such as "billing", that
// [Pool.Queue] and other clients show: at most 200 bytes of UTF-8. The name is stored in
// each of the pool's nodes, visible to every client with the right to read. The default is
// the name of the program; telemetry carries only a name set here.
func WithOwner(name string) Option {
	return func(c *config) error {
		if len(name) > 200 || !utf8.ValidString(name) {
			return fmt.Errorf("WithOwner(%q): longer than 200 bytes, or not UTF-8", name)
		}
		c.owner = name
		return nil
	}
}
