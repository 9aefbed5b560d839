package lockpool

// This file has the request of a call, its options, and the recipe for the request.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// The operations, as a LockError names them.
const (
	opLock     = "lock"
	opLockAll  = "lock all"
	opAcquire  = "acquire"
	opOnce     = "once"
	opFinished = "finished runs of"
	opForget   = "forget runs of"
	opSetLimit = "set limit of"
	opUnlock   = "unlock"
	opHold     = "hold"
	opToken    = "token of"
	opVerify   = "verify"
	opQueue    = "queue of"
	opBreak    = "break"
	opRevoke   = "revoke"
	opElect    = "elect"
	opObserve  = "observe"
)

// request is what a call asks for.
type request struct {
	op            string // opLock, opLockAll, opAcquire, opOnce or opElect
	shared        bool
	try           bool // does not wait for other contenders
	plain         bool
	revocable     bool
	bounded       bool          // by WaitAtMost
	wait          time.Duration // then the longest wait
	maxWaiters    int           // with the call; 0 for the pool's bound
	hasMaxWaiters bool
	inTime        bool
	atLeast       time.Duration // how long the lock is not to come free
	asked         *int64        // acquisition.asked of LockAll, or nil

	permits, limit int // of a semaphore

	keepDone    time.Duration // of opOnce: how long records are kept
	hasKeepDone bool
}

// String is the operation as a LockError names it.
func (r *request) String() string {
	switch {
	case r.op == opLock && r.shared && r.try:
		return "try read lock"
	case r.op == opLock && r.shared:
		return "read lock"
	case r.op == opLock && r.try:
		return "try lock"
	case r.op == opAcquire && r.try:
		return "try to acquire"
	}
	return r.op
}

// LockOption configures one call for a lock or permits. Entering a held lock again requires
// the same kind of lock; Revocable then applies to all entries.
//
// (An option gets and returns the request by value, so that reentry needs no heap.)
type LockOption func(request) request

// Shared asks for the lock as a reader. Readers share the lock; a reader waits for the
// earlier writers (calls without Shared), and later writers wait for the reader. A reader
// without a wait, as with TryLock, gets ErrLocked if a writer holds the lock or waits for
// the lock. A handle that holds the lock, exclusively or not, enters again at once, even if
// writers wait.
//
// A writer may enter the lock as a reader. When the writer has unlocked the other entries,
// the lock is shared from then on, and held all the time. The reverse returns ErrUpgrade:
// two upgrading readers would wait for each other forever.
func Shared() LockOption {
	return func(r request) request { r.shared = true; return r }
}

// WaitAtMost bounds the wait for the lock, not the work under the lock. When d has passed,
// the error wraps context.DeadlineExceeded. LockAll waits for d in all.
//
// With d <= 0 the call does not wait for other contenders, as TryLock does not: if
// the lock is not free, the error is ErrLocked.
func WaitAtMost(d time.Duration) LockOption {
	return func(r request) request { r.bounded, r.wait = true, d; return r }
}

// MaxWaiters lets the call join the queue of the lock only if fewer than n others wait;
// otherwise the error is ErrQueueFull, at once. n must be at least 1; a call that is not to wait
// at all is TryLock. Under too much load, short queues let callers do something else in time,
// where long ones let all callers wait in vain.
//
// For a call that waits in memory, behind another call of the pool (see [WithLocalTurns]), the
// waiters of the pool count, and nothing is sent. For other calls the waiters at the service
// count, each perhaps the first of another process: asking costs one request and, to refuse,
// three (with locks below the name, one more). No node is created, unless several calls come at
// the same time; then the later ones remove theirs.
//
// A call that has joined is not refused later. A call that need not wait is not refused.
func MaxWaiters(n int) LockOption {
	return func(r request) request { r.maxWaiters, r.hasMaxWaiters = n, true; return r }
}

// InTime lets the call join the queue only if the call can expect the lock before the deadline,
// of the context or of WaitAtMost; otherwise the error is ErrQueueFull, at once. Expected is the
// number of waiters (see [MaxWaiters]), the holder and the call itself, times what each has taken
// in the recent waits of the pool for this lock, those with InTime or MaxWaiters, and four times
// the deviation (three times the first wait, as long as there is one alone). Without a wait in
// the last second (of long waits, in the last five), or without a deadline, the call joins.
func InTime() LockOption {
	return func(r request) request { r.inTime = true; return r }
}

// Plain asks for a lock without a queue: a single node that exists or does not. A plain
// lock is the cheapest lock to try, with one write to take and one to release, and meant
// for locks with rarely a waiter.
//
// Every release wakes all waiters, and they race: with n waiters, each release costs n
// notifications and 3n requests (a herd), and a waiter may starve. A plain lock cannot
// be shared.
//
// ZooKeeper cannot make a delete depend on the owner of the node. So if the node is removed
// by hand and another process takes the lock, both within 50 ms of the grant or while the
// holder's delete is on its way, the delete removes the next holder's node; the next holder
// is notified of the loss.
//
// All clients must use a name in the same way: where a queue or a semaphore is in use,
// asking for a plain lock returns ErrKindMismatch, and so does asking for either of
// them where a plain lock is held.
func Plain() LockOption {
	return func(r request) request { r.plain = true; return r }
}

// Revocable declares that the holder releases the lock on request (see [Pool.Revoke]): the
// contexts of [Lock.Context] and Do then end with the cause ErrRevoked. The lock stays held
// until the unlock; no request takes the lock by force. A call that is still waiting for
// the lock gives up with ErrRevoked.
func Revocable() LockOption {
	return func(r request) request { r.revocable = true; return r }
}

// HoldAtLeast keeps the lock from coming free before d has passed since the call got the
// lock. Unlock ends the hold for the holder: contexts end, and the handle is free. But the
// lock rests until the time has come, and then the pool gives the lock back. No other
// process gets the lock earlier, and no handle of the pool, not even the same one; TryLock
// returns ErrLocked. (Readers share a lock that a reader has left to rest.) Resting locks
// do not count for [WithMaxHandles], so nothing limits their number. HoldAtLeast is for
// short work begun by several machines at nearly the same time, such as a cron job:
// otherwise, each would find the lock free.
//
// If a holder enters again with HoldAtLeast, the later end applies. For LockAll, d begins
// when all locks were granted.
//
// The rest outlives the handle, and [Pool.Shutdown] waits for the rest. [Pool.Close] cuts
// the rest short, and returns an error that says so. If the process ends without either,
// the lock comes free when the session expires. Like a hold, a rest ends early if the
// session is lost or the node is removed, as by [Pool.Break]; no caller is told. Revoking
// the lock does not end the rest.
func HoldAtLeast(d time.Duration) LockOption {
	return func(r request) request { r.atLeast = d; return r }
}

// KeepDone sets how long the record of this run is kept (see [Pool.Once]): 7 days, unless
// set. The record is removed between d and 1.25 d after the run.
func KeepDone(d time.Duration) LockOption {
	return func(r request) request { r.keepDone, r.hasKeepDone = d, true; return r }
}

// with applies the options of the call. (A request is passed by reference, because copies on
// the stack are what a waiter weighs.)
func (r *request) with(opts []LockOption) error {
	for _, opt := range opts {
		if opt == nil {
			return errors.New("a nil LockOption was given")
		}
		*r = opt(*r)
	}
	switch {
	case r.plain && r.shared:
		return errors.New("a plain lock cannot be shared: leave out Plain, or lock it exclusively")
	case r.op == opAcquire && (r.plain || r.shared):
		return errors.New("permits are neither plain nor shared: leave out Plain and Shared")
	case r.atLeast < 0:
		return fmt.Errorf("HoldAtLeast(%v): negative", r.atLeast)
	case r.op == opOnce && (r.plain || r.shared):
		return errors.New("a run is neither plain nor shared: leave out Plain and Shared")
	case r.op == opOnce && r.keepDone <= 0:
		return errors.New("KeepDone: records must be kept for some time")
	case r.op == opOnce && r.atLeast > 0:
		return errors.New("leave out HoldAtLeast: what keeps others from running again is the record")
	case r.op != opOnce && r.hasKeepDone:
		return errors.New("KeepDone is for Once")
	case r.hasMaxWaiters && r.maxWaiters < 1:
		return fmt.Errorf("MaxWaiters(%d): must be at least 1; TryLock and WaitAtMost(0) do not wait", r.maxWaiters)
	case r.plain && (r.hasMaxWaiters || r.inTime):
		return errors.New("a plain lock has no queue: leave out MaxWaiters and InTime")
	case r.op == opAcquire && (r.hasMaxWaiters || r.inTime):
		return errors.New("permits have no bounded queue: leave out MaxWaiters and InTime")
	case r.op == opElect && (r.hasMaxWaiters || r.inTime):
		return errors.New("candidates wait as long as they stand: leave out MaxWaiters and InTime")
	case r.op == opElect && (r.shared || r.bounded):
		return errors.New("an election has one leader, for which candidates wait as long as they stand: leave out Shared and WaitAtMost")
	case r.try && r.bounded && r.wait > 0:
		return errors.New("a try does not wait for other holders: leave out WaitAtMost, or use Lock")
	case r.bounded && r.wait <= 0:
		r.try, r.bounded = true, false
	}
	return nil
}

// bound returns a context that ends when the wait is over. The caller must call the
// returned function.
func (r *request) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if !r.bounded {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, r.wait)
}

// kind is the kind of the request's node.
func (r *request) kind() driver.Kind {
	switch {
	case r.op == opAcquire:
		return driver.Permit
	case r.shared:
		return driver.Shared
	case r.plain:
		return driver.Plain
	}
	return driver.Exclusive
}

// keeps reports whether the pool may keep the lock that a request asks for (WithKeptLocks).
func (p *Pool) keeps(r *request) bool {
	return p.local.keeping.most > 0 && p.local.most > 1 && (r.op == opLock || r.op == opLockAll) && !r.plain
}

// recipe returns the recipe for the request.
func (r *request) recipe(c *recipe.Claim) taker {
	c.Kind, c.Rule = r.kind(), recipe.RuleOf(r.kind())
	switch c.Kind {
	case driver.Permit:
		c.Permits, c.Limit = r.permits, r.limit
		return &recipe.Semaphore{Claim: *c}
	case driver.Plain:
		return &recipe.Plain{Claim: *c}
	}
	return c
}

// queue returns the queue of the node that will hold the lock.
func (r *request) queue(name string) string {
	if r.op == opAcquire {
		return name + "/" + driver.Leases
	}
	return name
}

// taker is a claim of any kind.
type taker interface {
	Acquire(context.Context) (driver.Node, error)
	Try(context.Context) (driver.Node, error)
}
