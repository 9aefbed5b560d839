package locktest

// This file locks, waits and checks for tests.

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// Locker is a pool or a handle.
type Locker interface {
	Lock(ctx context.Context, name string, opts ...lockpool.LockOption) (*lockpool.Lock, error)
}

// Lock locks a name. Like the other methods, Lock fails the test on an error.
func (b *Bench) Lock(by Locker, name string, opts ...lockpool.LockOption) *lockpool.Lock {
	b.Helper()
	l, err := by.Lock(b.Ctx, name, opts...)
	require.NoError(b, err)
	return l
}

// Unlock unlocks a lock.
func (b *Bench) Unlock(l *lockpool.Lock) {
	b.Helper()
	require.NoError(b, l.Unlock(b.Ctx))
}

// Token returns a lock's token. The lock's node is watched from then on.
func (b *Bench) Token(l *lockpool.Lock) int64 {
	b.Helper()
	token, err := l.Token(b.Ctx)
	require.NoError(b, err)
	return token
}

// AwaitLoss waits until a lock is lost, and returns the cause.
func (b *Bench) AwaitLoss(l *lockpool.Lock) error {
	b.Helper()
	ctx := l.Context(b.Ctx)
	select {
	case <-l.Lost():
	case <-b.Ctx.Done():
		require.FailNow(b, "the lock is not lost")
	}
	<-ctx.Done()
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrLockLost)
	require.Zero(b, l.Depth())
	return context.Cause(ctx)
}

// AwaitRevocation waits until a lock is asked back.
func (b *Bench) AwaitRevocation(l *lockpool.Lock) {
	b.Helper()
	select {
	case <-l.Revoked():
	case <-b.Ctx.Done():
		require.FailNow(b, "the lock is not asked back")
	}
}

// Acquire acquires permits.
func (b *Bench) Acquire(s *lockpool.Semaphore, n int) *lockpool.Lock {
	b.Helper()
	p, err := s.Acquire(b.Ctx, n)
	require.NoError(b, err)
	return p
}

// Waiter is an acquisition in a separate goroutine.
type Waiter struct {
	Done   chan struct{} // closed when the acquisition has returned
	Err    error         // of the acquisition, after Done
	Cancel context.CancelFunc

	bench *Bench
	got   *lockpool.Lock
}

func start(b *Bench, acquire func(context.Context) (*lockpool.Lock, error)) *Waiter {
	ctx, cancel := context.WithCancel(b.Ctx)
	b.Cleanup(cancel)
	w := &Waiter{Done: make(chan struct{}), Cancel: cancel, bench: b}
	go func() { // ends with ctx
		defer close(w.Done)
		w.got, w.Err = acquire(ctx)
	}()
	return w
}

// StartLock starts to lock a name.
func (b *Bench) StartLock(by Locker, name string, opts ...lockpool.LockOption) *Waiter {
	return start(b, func(ctx context.Context) (*lockpool.Lock, error) { return by.Lock(ctx, name, opts...) })
}

// Enqueue starts to lock a name, and returns when the waiter is the nth contender
// in the queue.
func (b *Bench) Enqueue(by Locker, name string, nth int, opts ...lockpool.LockOption) *Waiter {
	w := b.StartLock(by, name, opts...)
	b.AwaitQueue(name, nth)
	return w
}

// EnqueueRead is [Bench.Enqueue] for reading.
func (b *Bench) EnqueueRead(by Locker, name string, nth int) *Waiter {
	return b.Enqueue(by, name, nth, lockpool.Shared())
}

// StartAcquire starts to acquire permits.
func (b *Bench) StartAcquire(s *lockpool.Semaphore, n int) *Waiter {
	return start(b, func(ctx context.Context) (*lockpool.Lock, error) { return s.Acquire(ctx, n) })
}

// EnqueueForPermits starts to acquire permits of the semaphore "s", and returns when the
// waiter is the nth contender for the guard, held by the first one.
func (b *Bench) EnqueueForPermits(s *lockpool.Semaphore, n int, nth int) *Waiter {
	w := b.StartAcquire(s, n)
	b.AwaitQueue("s/locks", nth)
	return w
}

// Granted waits until the acquisition has succeeded, and returns the lock.
func (w *Waiter) Granted() *lockpool.Lock {
	w.bench.Helper()
	select {
	case <-w.Done:
	case <-w.bench.Ctx.Done():
		require.FailNow(w.bench, "not granted")
	}
	require.NoError(w.bench, w.Err)
	return w.got
}

// StillWaits requires the acquisition not to have returned.
func (w *Waiter) StillWaits() {
	w.bench.Helper()
	select {
	case <-w.Done:
		require.FailNow(w.bench, "it does not wait anymore", "error: %v", w.Err)
	default:
	}
}
