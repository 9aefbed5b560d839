package lockpool

// This file has what the holder of a lock can do with the lock.

import (
	"context"
	"fmt"
)

// Lock is one entry into a lock. A holder that locks what it holds enters again and
// gets another Lock; the lock is released when all of them have been unlocked, in any
// order. (Curator's InterProcessMutex counts the same way, per thread.)
//
// The methods of a Lock may be called from any goroutine, at any time. A Lock must
// not be copied.
type Lock struct {
	_     noCopy
	hold  *hold
	entry uint64
}

// noCopy makes go vet report copies of the struct that it is a field of. (The
// convention is that of the standard library.)
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Unlock leaves the lock once. The last Unlock releases the lock and waits, until
// ctx ends, for the service to confirm that. The lock is released in any case: an
// error of ctx means that the release continues in the background.
//
// ctx may come from [Lock.Context]: the release ends that context, but not the wait.
// The end of its parent, and its deadline, do end the wait.
//
// Unlocking a Lock a second time returns ErrNotHeld and changes nothing. If the lock
// was lost, the error is ErrLockLost: another holder may have worked at the same time.
// That is also the error if the machine was stopped, as far as its clocks tell, and no
// server has answered since that the session still lived. A nil error means that the lock was
// held until now. (The Unlock of an inner entry reads no clock: the last Unlock does. If the
// lock goes to another handle of the pool, or rests, no request is sent, so a removal of the
// node whose event is still on its way is not known: see [WithLocalTurns] and
// [HoldAtLeast]. If an answer is lost with the connection, the next answer only says that the
// node is gone, which counts as removed by this call.) A lock that is lost needs no Unlock.
func (l *Lock) Unlock(ctx context.Context) error {
	if l == nil || l.hold == nil {
		return &LockError{opUnlock, "", ErrNotHeld}
	}
	if err := l.hold.handle.unlock(ctx, l); err != nil {
		return &LockError{opUnlock, l.hold.name, err}
	}
	return nil
}

// Depth returns how many of the holder's entries into the lock have not been unlocked:
// 0 if the lock is not held.
func (l *Lock) Depth() int {
	if l.hold.life.over.Load() {
		return 0
	}
	h := l.hold.handle
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(l.hold.entries.list)
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.hold.name }

// Format implements fmt.Formatter: a lock is logged as its name.
func (l *Lock) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "lockpool.Lock(%s)", l.Name()) }

// Lost returns a channel that is closed when the lock is lost, or ends because its
// handle or pool is closed. Unlocking does not close it. See [ErrLockLost] for the
// ways to lose a lock, and [Lock.Expiring] for a warning ahead of some of them.
func (l *Lock) Lost() <-chan struct{} { return l.hold.life.after(&l.hold.life.lost).Done() }

// Revoked returns a channel that is closed when the lock is revoked, which asks its
// holder to release it (see [Pool.Revoke]), whether before or after this call.
// Unlocking does not close it. All entries into a lock are revoked together. The
// contexts of a lock that was taken with [Revocable] end at the same time.
//
// On ZooKeeper a lock can also be revoked by writing __REVOKE__ into its node, as Curator's
// Revoker does.
func (l *Lock) Revoked() <-chan struct{} {
	l.hold.tenancy.watchNow()
	return l.hold.life.after(&l.hold.life.revoked).Done()
}

// Context returns a context for work under the lock. It is derived from parent, and
// also ends when the lock is lost (its cause wraps ErrLockLost), when this Lock is unlocked
// (ErrNotHeld), though another entry may still hold the lock, or when the handle or the pool
// is closed (ErrHandleClosed, ErrPoolClosed). The context of a writer that becomes a reader
// has ended before other readers share the lock.
//
// It carries the holder: given this context on the goroutine that called Context,
// Pool.Lock and Pool.Do enter again what the holder holds. On another goroutine it
// carries no holder, because two goroutines must not share an exclusive lock: there,
// the same calls use a holder of their own.
//
// Each call creates a new context, which lasts until parent or the entry ends: call
// Context once per critical section, not in every iteration of a loop.
func (l *Lock) Context(parent context.Context) context.Context {
	return newHeldContext(parent, l)
}

// Token returns the fencing token of the lock: a positive number that is larger than
// that of every earlier exclusive holder, on any machine, even if the lock's node was
// removed and created again, servers restarted, or another one was elected leader; that
// of an exclusive holder is also larger than those of all earlier readers. Send it
// with every write to a store, and let the store refuse writes whose token is smaller
// than one that it has seen. That stops the late write of a holder that was paused
// and does not know yet that it has lost the lock. (On ZooKeeper it is the zxid that
// created the lock's node, and in the lower ten bits the turn that the holder has with
// that node; see [WithLocalTurns]. If ZooKeeper's epoch, the number of its elections,
// exceeds 21 bits, no lock is granted.)
//
// Tokens start over when the service loses its data: an ensemble that was wiped, or
// restored from a backup, issues numbers that a store has seen. In that case, let the
// store forget its tokens, or compare the token together with a number of your own that
// you raise whenever that happens.
//
// The first call for a lock may ask the service; ctx bounds its wait. All entries
// into a lock have one token. If the lock is no longer held, the error is that of
// Unlock.
func (l *Lock) Token(ctx context.Context) (int64, error) {
	h := l.hold
	for {
		err, token := h.life.failure(), int64(0)
		created := h.tenancy.created.Load()
		switch {
		case err != nil:
		case created != 0:
			token, err = packToken(created, h.turn)
		case ctx.Err() != nil:
			err = ctx.Err()
		default:
			if _, err = h.tenancy.watchNode(ctx); err == nil {
				continue
			}
			err = asked(ctx, err)
			if lost := h.life.failure(); lost != nil {
				err = lost
			}
		}
		return token, lockError(opToken, h.name, err)
	}
}

// Verify asks the service whether the lock is still held, in a way that a server cut
// off from the majority cannot answer. A nil error means that the lock was held at
// some moment during the call. ErrLockLost means that the lock is lost from now on.
// Any other error means that there was no answer: ErrUnavailable, with that of ctx.
//
// A holder learns of a loss without calling Verify: see [Lock.Lost].
func (l *Lock) Verify(ctx context.Context) error {
	h := l.hold
	err := h.life.failure()
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = asked(ctx, h.endIfLost(h.tenancy.verify(ctx)))
	}
	if err != nil {
		return &LockError{opVerify, h.name, err}
	}
	return nil
}
