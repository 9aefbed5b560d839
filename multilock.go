package lockpool

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Locks are several locks of one holder that were taken together.
type MultiLock struct {
	locks []*Lock // in the order in which they were taken
	lost  chan struct{}
	stop  []func() bool // looking at each for a loss
}

// LockAll locks all these names, or none: it waits for them one after the other
// until ctx ends, and if one can not be had it gives back the others; the error
// is a [*LockError] that names the one. Everybody who uses LockAll takes names
// in the same order, so that two never wait for each other. A name that is given
// twice is locked once.
//
// It is no protection against a deadlock to hold a lock already and then to
// take others, together or one by one.
func (s *Handle) LockAll(ctx context.Context, names ...string) (*MultiLock, error) {
	return s.lockAll(ctx, names)
}

// LockAll is [Session.LockAll] with a handle of its own, or the one in ctx, as
// [Pool.Lock] has it.
func (p *Pool) LockAll(ctx context.Context, names ...string) (*MultiLock, error) {
	if s := p.carriedHandle(ctx); s != nil {
		all, err := s.lockAll(ctx, names)
		if !errors.Is(err, ErrNotHeld) { // as in Pool.enter
			return all, err
		}
	}
	s, err := p.newHandle()
	if err != nil {
		return nil, &LockError{opLockAll.String(), "", err}
	}
	s.transient = true
	return s.lockAll(ctx, names)
}

func (s *Handle) lockAll(ctx context.Context, names []string) (*MultiLock, error) {
	defer s.returnIfUnused() // if nothing is locked
	if len(names) == 0 {
		return nil, &LockError{opLockAll.String(), "", errors.New("no names are given")}
	}
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names { // before anything is locked
		if err := s.pool.checkName(name); err != nil {
			return nil, &LockError{opLockAll.String(), name, err}
		}
	}
	all := &MultiLock{lost: make(chan struct{})}
	complete := false
	defer func() {
		if !complete { // after an error, or a panic of users' code
			_ = all.Unlock(ctx) // goes on if it fails
		}
	}()
	for _, name := range names {
		l, err := s.enter(ctx, name, request{op: opLockAll}, new(Lock))
		if err != nil {
			return nil, err
		}
		all.locks = append(all.locks, l)
	}
	complete = true
	lose := sync.OnceFunc(func() { close(all.lost) })
	for _, l := range all.locks {
		all.stop = append(all.stop, context.AfterFunc(l.hold.alive, func() {
			if l.hold.err() != ErrNotHeld {
				lose()
			}
		}))
	}
	return all, nil
}

// Unlock unlocks all of them, each as [Lock.Unlock] does, and the last that was
// taken first.
func (a *MultiLock) Unlock(ctx context.Context) (err error) {
	for _, stop := range a.stop { // a holder that keeps one of them may lock all again and again
		stop()
	}
	for _, l := range a.locks { // deferred, so that each is unlocked even if users' code panics
		defer func() { err = errors.Join(err, l.Unlock(ctx)) }()
	}
	return nil
}

// Context is [Lock.Context] for all of them: it ends when the first is lost or
// let go.
func (a *MultiLock) Context(parent context.Context) context.Context {
	for _, l := range a.locks {
		parent = l.Context(parent)
	}
	return parent
}

// Lost is closed when one of them is lost, or taken away because its session or
// pool was closed. It is not closed by unlocking.
func (a *MultiLock) Lost() <-chan struct{} { return a.lost }

// Verify is [Lock.Verify] for all of them.
func (a *MultiLock) Verify(ctx context.Context) error {
	for _, l := range a.locks {
		if err := l.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Lock returns the one of that name, for its token, or nil. It is unlocked
// together with the others.
func (a *MultiLock) Get(name string) *Lock {
	for _, l := range a.locks {
		if l.Name() == name {
			return l
		}
	}
	return nil
}

// Names returns their names, in the order in which they were taken.
func (a *MultiLock) Names() (names []string) {
	for _, l := range a.locks {
		names = append(names, l.Name())
	}
	return names
}
