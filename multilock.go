package lockpool

// This file has locks taken together.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// MultiLock is a set of locks taken together by one holder. Like a [Lock], it must not be
// copied.
type MultiLock struct {
	_       noCopy
	locks   []*Lock // in the order in which they were taken
	lost    chan struct{}
	revoked chan struct{}

	mu       sync.Mutex
	expiring map[time.Duration]chan struct{} // by how far ahead they are closed
	stop     []func() bool                   // stop watching each lock for these channels
}

// LockAll locks all the names, or none. LockAll waits for one after the other until ctx
// ends; if one is not granted, the others are released, and the error is a [*LockError]
// with the name. All callers of LockAll take names in the order of slices.Sort, so two of
// them never wait for each other. A name that is given twice is locked once. The options
// apply to every lock; [WaitAtMost] bounds the whole wait.
//
// LockAll does not prevent a deadlock with callers who already hold a lock when they take
// others; see [ErrDeadlock].
func (h *Handle) LockAll(ctx context.Context, names []string, opts ...LockOption) (*MultiLock, error) {
	return h.lockAll(ctx, names, opts)
}

// LockAll is [Handle.LockAll] with a new handle, or with the one that ctx carries, as in
// [Pool.Lock].
func (p *Pool) LockAll(ctx context.Context, names []string, opts ...LockOption) (*MultiLock, error) {
	if h := p.carriedHandle(ctx); h != nil {
		all, err := h.lockAll(ctx, names, opts)
		if !shouldTryAnew(ctx, err) {
			return all, err
		}
	}
	h, err := p.newHandle()
	if err != nil {
		return nil, notAcquired(opLockAll, "", err)
	}
	return h.lockAll(ctx, names, opts)
}

func (h *Handle) lockAll(ctx context.Context, names []string, opts []LockOption) (*MultiLock, error) {
	defer h.returnIfUnused() // if nothing is locked
	req := request{op: opLockAll}
	if err := req.with(opts); err != nil {
		return nil, notAcquired(opLockAll, "", err)
	}
	if len(names) == 0 {
		return nil, notAcquired(opLockAll, "", errors.New("no names were given"))
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	for _, name := range names { // before anything is locked
		err := h.pool.checkName(name)
		if err == nil {
			err = h.lostBefore(name)
		}
		if err != nil {
			return nil, notAcquired(opLockAll, name, err)
		}
	}
	all := &MultiLock{lost: make(chan struct{}), revoked: make(chan struct{})}
	returned := false
	defer func() {
		if !returned { // user code panics
			_ = all.Unlock(canceled) // continues in the background
		}
	}()
	err := h.takeAll(ctx, names, &req, all)
	returned = true
	if err != nil {
		return nil, err
	}
	return all, nil
}

// takeAll adds the named locks to all, or unlocks them after an error.
func (h *Handle) takeAll(ctx context.Context, names []string, req *request, all *MultiLock) (err error) {
	ctx, cancel := req.bound(ctx)
	defer cancel()
	defer func() {
		if err != nil {
			_ = all.Unlock(ctx) // continues in the background after an error
		}
	}()
	req.bounded, req.asked = false, new(int64) // LockAll asks for all with the first
	waiting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	for _, name := range names {
		l, err := h.enter(waiting, name, req, new(Lock))
		if err != nil && ctx.Err() == nil { // perhaps because a taken lock has ended
			err = cmp.Or(all.failure(), context.Cause(waiting), err)
		}
		if err != nil && *req.asked != 0 && ctx.Err() != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, ErrUnavailable) {
			return also{err, ErrLocked} // the time has passed in the wait for an earlier name
		}
		if err != nil {
			return err
		}
		all.locks = append(all.locks, l)
		life := &l.hold.life
		defer context.AfterFunc(life.after(&life.finished), func() { giveUp(notAcquired(opLockAll, name, life.err())) })()
		if req.revocable {
			defer context.AfterFunc(life.after(&life.revoked), func() { giveUp(notAcquired(opLockAll, name, ErrRevoked)) })()
		}
	}
	if err := all.failure(); err != nil {
		return err
	}
	if waiting.Err() != nil && ctx.Err() == nil { // revoked
		return context.Cause(waiting)
	}
	for _, l := range all.locks { // the last grant has checked one session
		err := l.hold.check(ctx)
		if err != nil && ctx.Err() != nil && !errors.Is(err, driver.ErrSessionLost) {
			err = h.pool.withCause(ctx, h, unanswered(ctx.Err()))
		}
		if err != nil {
			return notAcquired(opLockAll, l.Name(), err)
		}
	}
	lose, revoke := sync.OnceFunc(func() { close(all.lost) }), sync.OnceFunc(func() { close(all.revoked) })
	for _, l := range all.locks {
		l.apply(req)
		life := &l.hold.life
		all.stop = append(all.stop, context.AfterFunc(life.after(&life.lost), lose), context.AfterFunc(life.after(&life.revoked), revoke))
	}
	return nil
}

// failure returns why one of the locks has ended, for LockAll.
func (a *MultiLock) failure() error {
	for _, l := range a.locks {
		if err := l.hold.life.err(); err != nil {
			return notAcquired(opLockAll, l.Name(), err)
		}
	}
	return nil
}

// Do calls fn with the context of all the locks (see [MultiLock.Context]) and unlocks them
// when fn returns or panics. The error is like the error of [Pool.Do]. If the locks are not
// held, the context of fn has ended from the beginning, and the error is that of Unlock. A
// nil or zero MultiLock has no locks: fn is not called, and the error wraps ErrNotHeld.
func (a *MultiLock) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	switch {
	case fn == nil:
		return errors.Join(errNilFunc, a.Unlock(ctx))
	case a.isZero():
		return a.Unlock(ctx)
	}
	defer a.stopLooking()
	return do(ctx, fn, a.locks)
}

// isZero reports whether a is nil or the zero value, and so has no locks.
func (a *MultiLock) isZero() bool { return a == nil || a.locks == nil }

// stopLooking stops watching the locks. Otherwise a holder that keeps one of them, and
// takes all of them again and again, would accumulate callbacks.
func (a *MultiLock) stopLooking() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, stop := range a.stop {
		stop()
	}
}

// Unlock unlocks all of them in reverse order, each as [Lock.Unlock] does.
func (a *MultiLock) Unlock(ctx context.Context) (err error) {
	if a.isZero() {
		return &LockError{opUnlock, "", ErrNotHeld}
	}
	defer a.stopLooking()
	for _, l := range a.locks { // deferred, so that each is unlocked even if user code panics
		defer func() { err = errors.Join(err, l.Unlock(ctx)) }()
	}
	return nil
}

// Context is [Lock.Context] for all of them, and ends when the first is lost or unlocked.
func (a *MultiLock) Context(parent context.Context) context.Context {
	for _, l := range a.locks {
		parent = l.Context(parent)
	}
	return parent
}

// Lost returns a channel that is closed when one of the locks is lost, or when the handle
// or pool is closed. Unlocking does not close the channel.
func (a *MultiLock) Lost() <-chan struct{} { return a.lost }

// Revoked returns a channel that is closed when one of the locks is revoked, as in
// [Lock.Revoked].
func (a *MultiLock) Revoked() <-chan struct{} {
	for _, l := range a.locks {
		l.Revoked() // starts watching
	}
	return a.revoked
}

// Verify is [Lock.Verify] for all of them.
func (a *MultiLock) Verify(ctx context.Context) error {
	if a.isZero() {
		return &LockError{opVerify, "", ErrNotHeld}
	}
	for _, l := range a.locks {
		if err := l.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Format implements fmt.Formatter: the locks are logged as their names, also while in use.
func (a *MultiLock) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "lockpool.MultiLock%v", a.locks) }

// Get returns the named lock, for the token, or nil if there is none. It is unlocked
// together with the others.
func (a *MultiLock) Get(name string) *Lock {
	for _, l := range a.locks {
		if l.Name() == name {
			return l
		}
	}
	return nil
}
