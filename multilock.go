package lockpool

// This file has locks taken together.

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/lockpool/lockpool/driver"
)

// MultiLock has the locks that one holder has taken together, by name. Each lock can be used
// by itself, as for the token, and tells its own loss and revocation. A MultiLock without
// locks is not held.
type MultiLock map[string]*Lock

// LockAll locks all the names, or none. LockAll waits for one after the other until ctx
// ends; if one is not granted, the others are released, and the error is a [*LockError]
// with the name. All callers of LockAll take names in the order of slices.Sort, so two of
// them never wait for each other. A name that is given twice is locked once. The options
// apply to every lock; [WaitAtMost] bounds the whole wait.
//
// LockAll does not prevent a deadlock with callers who already hold a lock when they take
// others; see [ErrDeadlock].
func (h *Handle) LockAll(ctx context.Context, names []string, opts ...LockOption) (MultiLock, error) {
	return h.lockAll(ctx, names, opts)
}

// LockAll is [Handle.LockAll] with a new handle, or with the one that ctx carries, as in
// [Pool.Lock].
func (p *Pool) LockAll(ctx context.Context, names []string, opts ...LockOption) (MultiLock, error) {
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

func (h *Handle) lockAll(ctx context.Context, names []string, opts []LockOption) (MultiLock, error) {
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
	all := make(MultiLock, len(names))
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
func (h *Handle) takeAll(ctx context.Context, names []string, req *request, all MultiLock) (err error) {
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
		all[name] = l
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
	for name, l := range all { // the last grant has checked one session
		err := l.hold.check(ctx)
		if err != nil && ctx.Err() != nil && !errors.Is(err, driver.ErrSessionLost) {
			err = h.pool.withCause(ctx, h, unanswered(ctx.Err()))
		}
		if err != nil {
			return notAcquired(opLockAll, name, err)
		}
	}
	for _, l := range all {
		l.apply(req)
	}
	return nil
}

// inOrder returns the locks in the order in which LockAll has taken them.
func (a MultiLock) inOrder() []*Lock {
	locks := make([]*Lock, 0, len(a))
	for _, name := range slices.Sorted(maps.Keys(a)) {
		locks = append(locks, a[name])
	}
	return locks
}

// failure returns why one of the locks has ended, for LockAll.
func (a MultiLock) failure() error {
	for _, l := range a.inOrder() {
		if err := l.hold.life.err(); err != nil {
			return notAcquired(opLockAll, l.Name(), err)
		}
	}
	return nil
}

// Do calls fn with the context of all the locks (see [MultiLock.Context]) and unlocks them
// when fn returns or panics. The error is like the error of [Pool.Do]. If the locks are not
// held, the context of fn has ended from the beginning, and the error is that of Unlock.
// Without locks, fn is not called, and the error wraps ErrNotHeld.
func (a MultiLock) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	switch {
	case fn == nil:
		return errors.Join(errNilFunc, a.Unlock(ctx))
	case len(a) == 0:
		return a.Unlock(ctx)
	}
	return do(ctx, fn, a.inOrder())
}

// Unlock unlocks all of them in reverse order, each as [Lock.Unlock] does.
func (a MultiLock) Unlock(ctx context.Context) (err error) {
	if len(a) == 0 {
		return &LockError{opUnlock, "", ErrNotHeld}
	}
	for _, l := range a.inOrder() { // deferred, so that each is unlocked even if user code panics
		defer func() { err = errors.Join(err, l.Unlock(ctx)) }()
	}
	return nil
}

// Context is [Lock.Context] for all of them, and ends when the first is lost or unlocked. Without
// locks, the context has ended, with the cause ErrNotHeld.
func (a MultiLock) Context(parent context.Context) context.Context {
	if len(a) == 0 {
		parent, cancel := context.WithCancelCause(parent)
		cancel(ErrNotHeld)
		return parent
	}
	for _, l := range a.inOrder() {
		parent = l.Context(parent)
	}
	return parent
}

// Verify is [Lock.Verify] for all of them.
func (a MultiLock) Verify(ctx context.Context) error {
	if len(a) == 0 {
		return &LockError{opVerify, "", ErrNotHeld}
	}
	for _, l := range a.inOrder() {
		if err := l.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}
