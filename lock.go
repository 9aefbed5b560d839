package lockpool

// This file has what the holder of a lock can do with the lock.

import (
	"context"
	"fmt"
)

// Lock is one entry into a lock. A holder of the lock enters again and gets another Lock;
// the lock is released when all have been unlocked, in any order. (Curator's
// InterProcessMutex counts the same way, per thread.)
//
// The methods of a Lock may be called from any goroutine, at any time. A Lock must
// not be copied.
type Lock struct {
	_     noCopy
	hold  *hold
	entry uint64
}

// noCopy makes go vet report copies of a struct with this field, by the convention of the
// standard library.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Unlock leaves the lock once. The last Unlock releases the lock and waits, until ctx ends,
// for the service's confirmation. The lock is released in any case: after an error of ctx,
// the release continues in the background.
//
// ctx may come from [Lock.Context]: the release ends the context, but not the wait. The end
// of the parent, and the deadline, do end the wait.
//
// Unlocking a Lock a second time returns ErrNotHeld and changes nothing. If the lock was
// lost, the error is ErrLockLost: another holder may have worked at the same time. The
// error is the same if the machine was stopped, as far as the clocks tell, and no server
// has answered since. A nil error means that the lock was held until now. (The Unlock of an
// inner entry reads no clock: the last Unlock does. If the lock goes to another handle of
// the pool, or rests, no request is sent, so a removal of the node is unknown while the
// event is on the way: see [WithLocalTurns] and [HoldAtLeast]. If an answer is lost with
// the connection, the next answer only says that the node is gone, which counts as removed
// by this call.) A lost lock needs no Unlock, unless the handle is to lock the name again.
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

// Lost returns a channel that is closed when the lock is lost, or when the handle or pool
// is closed. Unlocking does not close the channel. See [ErrLockLost] for the ways to lose a
// lock, and [Lock.Expiring] for a warning ahead of some of them.
func (l *Lock) Lost() <-chan struct{} { return l.hold.life.after(&l.hold.life.lost).Done() }

// Revoked returns a channel that is closed when the holder is asked to release the lock
// (see [Pool.Revoke]), whether before or after this call. Unlocking does not close the
// channel. All entries into a lock are revoked together. The contexts of a lock with
// [Revocable] end at the same time.
//
// On ZooKeeper a lock can also be revoked by writing __REVOKE__ into its node, as Curator's
// Revoker does.
func (l *Lock) Revoked() <-chan struct{} {
	l.hold.tenancy.watchSoon()
	return l.hold.life.after(&l.hold.life.revoked).Done()
}

// Context returns a context for work under the lock. The context is derived from parent,
// and also ends when the lock is lost (the cause wraps ErrLockLost), when this Lock is
// unlocked (ErrNotHeld), though another entry may still hold the lock, or when the handle
// or the pool is closed (ErrHandleClosed, ErrPoolClosed). When a writer becomes a reader,
// the writer's context has ended before other readers share the lock.
//
// The context carries the holder: on the goroutine that called Context, Pool.Lock and
// Pool.Do enter again what the holder holds. On another goroutine the context carries no
// holder, because two goroutines must not share an exclusive lock: there, the same calls
// use a holder of their own.
//
// Each call creates a new context until the end of parent or the entry: call Context once
// per critical section, not in every iteration of a loop.
func (l *Lock) Context(parent context.Context) context.Context {
	return newHeldContext(parent, l)
}

// Token returns the fencing token of the lock: a positive number, larger than the token of
// every earlier exclusive holder, on any machine, even if the lock's node was removed and
// created again, servers restarted, or another leader was elected. The token of an
// exclusive holder is also larger than the tokens of all earlier readers. Send the token
// with every write to a store, and let the store refuse writes with a smaller token than
// one already seen. This stops the late write of a paused holder who does not know of a
// loss yet. (On ZooKeeper the token is the zxid of the creation of the lock's node, and in
// the lower ten bits the holder's turn with the node; see [WithLocalTurns]. If ZooKeeper's
// epoch, the number of elections, exceeds 21 bits, no lock is granted.)
//
// Tokens start over when the service loses data: an ensemble that was wiped, or restored
// from a backup, issues numbers again. Then let the store forget its tokens, or compare the
// token together with a number of your own, raised after each such event.
//
// The first call for a lock may ask the service; ctx bounds the wait. All entries into a
// lock have one token. If the lock is no longer held, the error is the same as from Unlock.
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

// Verify asks the service whether the lock is still held, in a way that a server cut off
// from the majority cannot answer. A nil error means that the lock was held at some moment
// during the call. ErrLockLost means that the lock is lost from now on. Any other error
// means that there was no answer: ErrUnavailable, with the error of ctx.
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
