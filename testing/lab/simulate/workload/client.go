package workload

// This file has the clients of a workload: their configuration, and calls with their
// errors.

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/clock"
)

// Config is what the workers of a client do.
type Config struct {
	Seed         uint64
	Timeout      time.Duration // of sessions
	Locks        int           // number of exclusive locks; there are at most two of each other kind
	Process      int           // number of the process, from 0, and of the process's own lock
	Processes    int           // number of own locks, or 0
	RushEvery    time.Duration // from one rush, in which all workers take own locks, to the next
	Rush         time.Duration // how long a rush lasts
	TangleEvery  time.Duration // from one tangle, in which workers take several locks one after the other, to the next
	Tangle       time.Duration // how long a tangle lasts
	Kinds        []string      // of locks; each turn draws one of them
	Reads        float64       // percentage of readers
	MinPermits   int           // acquired of a semaphore
	Pause        time.Duration // the longest between two turns of a worker
	Bursts       float64       // percentage of turns begun at once after the last
	Hold         time.Duration // the longest of an ordinary hold
	LongHolds    float64       // percentage of the holds of each kind's first lock, lasting from MinLong to MaxLong
	MinLong      time.Duration
	MaxLong      time.Duration
	Bystander    bool    // the workers take no locks, but revoke and break locks of others
	Once         bool    // the workers also take locks with names never used again, and run a job to be finished once in each period
	Mixed        float64 // percentage of the requests for permits replaced by requests for the exclusive lock of the name
	Uses         bool    // the holders of exclusive locks take time to use what the locks protect
	IgnoreLosses bool    // the workers believe they hold a lock until Unlock, as if there were no lease
}

// The operations of calls.
const (
	opLock      = "lock"
	opTry       = "try"
	opAgain     = "lock again" // by the holder who has just lost the lock
	opReenter   = "reenter"
	opDowngrade = "downgrade"
	opToken     = "token"
	opVerify    = "verify"
	opUnlock    = "unlock"
	opRevoke    = "revoke"
	opAsk       = "revoke a contender"
	opBreak     = "break"
	opSetLimit  = "set limit"
	opDo        = "do" // the release of a lock by Do
	opDuel      = "duel"
	opShutdown  = "shutdown"
	opLockAll   = "lock all"
	opUnlockAll = "unlock all"
	opQueue     = "queue"
	opList      = "list"
	opRun       = "run" // of a job to be finished once in each period
)

// ShutdownTimeout bounds how long [Client.Shutdown] waits for holders.
const ShutdownTimeout = 10 * time.Second

// closing is how much longer the end of a pool may take if servers do not answer.
const closing = 5 * time.Second

// Client is a process whose workers contend for locks, or what stands for one.
type Client struct {
	Config
	// Now returns the time, once the process runs.
	Now func() Instant
	// Report receives the client's events.
	Report func(Event)
	// Machine has the clock for leases; nil is the machine of this process.
	Machine *clock.Machine

	ids atomic.Int64
}

// Work takes turns until the pool is closed. Workers are numbered from 0; the first
// lock of each kind is left to worker 0.
func (c *Client) Work(pool *lockpool.Pool, worker int) {
	r := rand.New(rand.NewPCG(c.Seed, uint64(worker)))
	work, bursts, pause := c.takeTurn, c.Bursts, c.Pause
	if c.Bystander { // more often, and hardly any of the others' holds end by themselves
		work, bursts, pause = c.meddle, 0, c.LongestPause()
	}
	for !errors.Is(work(pool, r, worker), lockpool.ErrPoolClosed) {
		if !chance(r, bursts) {
			time.Sleep(between(r, 0, pause))
		}
	}
}

// LongestPause is the longest sleep of a worker, also after the pool has been closed.
func (c *Config) LongestPause() time.Duration { return 2 * c.Pause }

// Shutdown shuts the pool of a worker down.
func (c *Client) Shutdown(pool *lockpool.Pool, worker int) {
	_ = c.call(Event{ID: c.ids.Add(1), Worker: worker, Op: opShutdown, Limit: closing}, bound{limit: ShutdownTimeout}, pool.Shutdown)
}

// bound is the time limit of a call: by a deadline, by a cancellation (never while the
// machine is stopped), or by the option WaitAtMost.
type bound struct {
	limit    time.Duration
	canceled bool
	atMost   bool
}

func (b bound) context(parent context.Context, now func() Instant) (context.Context, context.CancelFunc) {
	if !b.canceled && !b.atMost {
		return context.WithTimeout(parent, b.limit)
	}
	ctx, cancel := context.WithCancel(parent)
	if b.atMost {
		return ctx, cancel
	}
	timer := time.AfterFunc(b.limit, func() { now(); cancel() })
	return ctx, func() { timer.Stop(); cancel() }
}

// call makes a call, and reports the beginning, described by e, and the outcome.
func (c *Client) call(e Event, b bound, do func(context.Context) error) error {
	return c.callFrom(context.Background(), e, b, do)
}

// callFrom is call with a parent of the call's context. The call may outlast the context by
// the limit in e.
func (c *Client) callFrom(parent context.Context, e Event, b bound, do func(context.Context) error) error {
	e.Kind, e.At, e.Limit = eventCall, c.Now(), e.Limit+b.limit
	c.Report(e)
	ctx, cancel := b.context(c.Machine.On(parent), c.Now)
	defer cancel()
	err := do(ctx)
	c.Report(Event{Kind: eventReturn, At: c.Now(), ID: e.ID, Error: class(err)})
	return err
}

// removed is the class of the loss of a lock by removal of the node, and mixed the class of
// a request for a name in use for another kind of lock.
const (
	removed = "lock_lost by removal"
	mixed   = "kind_mismatch"
)

// notHeld is the class of the error of Break if there is no such contender.
const notHeld = "not_held"

// done is the class of the error of a run made unnecessary by another one, and undecided
// the class of a run whose client does not know whether the run was recorded.
const (
	done      = "done"
	undecided = "undecided"
)

func class(err error) string {
	var lockErr *lockpool.LockError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, lockpool.ErrDeadlock): // also if a lock was lost at that time
		return deadlock
	case errors.Is(err, driver.ErrUndecided):
		return undecided
	case errors.Is(err, lockpool.ErrLockLost) && errors.Is(err, driver.ErrRemoved):
		return removed
	case errors.As(err, &lockErr):
		if t := lockErr.ErrorType(); t != "_OTHER" {
			return t
		}
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, lockpool.ErrPoolClosed):
		return "pool_closed"
	}
	return err.Error()
}

// chance reports true in the given percentage of cases.
func chance(r *rand.Rand, percent float64) bool { return r.Float64()*100 < percent }

// between returns a duration from least to most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}
