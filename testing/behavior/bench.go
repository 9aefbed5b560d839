package behavior

// This file has the bench of a test: its pools, names, calls and waits.

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// patience is how long tests wait for what must happen.
const patience = 3 * time.Minute

// bench is one test's part of a service: separate names, and pools.
type bench struct {
	testing.TB
	ctx     context.Context // ends when the test has waited for too long
	options Options
	bubble  bool
	prefix  string
	looker  *lockpool.Pool // sees what the service shows to an outside process
}

// name returns a name of this test only.
func (b *bench) name(name string) string { return b.prefix + "/" + name }

// timeout returns a context that ends after d.
func (b *bench) timeout(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	b.Cleanup(cancel)
	return ctx
}

// pool returns a new pool, closed when the test ends.
func (b *bench) pool(opts ...lockpool.Option) *lockpool.Pool {
	b.Helper()
	p := b.options.Open(b.TB, append([]lockpool.Option{silent}, opts...)...)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return p
}

// pools returns n of them.
func (b *bench) pools(n int, opts ...lockpool.Option) (all []*lockpool.Pool) {
	b.Helper()
	for range n {
		all = append(all, b.pool(opts...))
	}
	return all
}

// silent turns off warnings, because they are not about the tests.
var silent = lockpool.WithLogger(slog.New(slog.DiscardHandler))

// atService makes all handles of a pool queue at the service.
var atService = lockpool.WithLocalTurns(0)

// handle returns a handle of the pool.
func (b *bench) handle(p *lockpool.Pool) *lockpool.Handle {
	b.Helper()
	h, err := p.Handle(b.ctx)
	require.NoError(b, err)
	return h
}

func (b *bench) close(h *lockpool.Handle) {
	b.Helper()
	require.NoError(b, h.Close(b.ctx))
}

// locker is a pool or a handle.
type locker interface {
	Lock(ctx context.Context, name string, opts ...lockpool.LockOption) (*lockpool.Lock, error)
}

func (b *bench) lock(by locker, name string, opts ...lockpool.LockOption) *lockpool.Lock {
	b.Helper()
	l, err := by.Lock(b.ctx, name, opts...)
	require.NoError(b, err)
	return l
}

func (b *bench) read(by locker, name string) *lockpool.Lock {
	b.Helper()
	return b.lock(by, name, lockpool.Shared())
}

func (b *bench) unlock(l *lockpool.Lock) {
	b.Helper()
	require.NoError(b, l.Unlock(b.ctx))
}

func (b *bench) lockAll(p *lockpool.Pool, names []string, opts ...lockpool.LockOption) lockpool.MultiLock {
	b.Helper()
	all, err := p.LockAll(b.ctx, names, opts...)
	require.NoError(b, err)
	return all
}

func (b *bench) token(l *lockpool.Lock) int64 {
	b.Helper()
	token, err := l.Token(b.ctx)
	require.NoError(b, err)
	return token
}

// lockIn returns the lock in a context.
func (b *bench) lockIn(ctx context.Context) *lockpool.Lock {
	b.Helper()
	l, ok := lockpool.LockFromContext(ctx)
	require.True(b, ok)
	return l
}

func (b *bench) acquire(s *lockpool.Semaphore, n int) *lockpool.Lock {
	b.Helper()
	p, err := s.Acquire(b.ctx, n)
	require.NoError(b, err)
	return p
}

// isFree requires that another process can have the lock.
func (b *bench) isFree(name string, opts ...lockpool.LockOption) {
	b.Helper()
	l, err := b.looker.TryLock(b.ctx, name, opts...)
	require.NoError(b, err)
	b.unlock(l)
}

// isHeld requires that no other process can have the lock.
func (b *bench) isHeld(name string, opts ...lockpool.LockOption) {
	b.Helper()
	_, err := b.looker.TryLock(b.ctx, name, opts...)
	require.ErrorIs(b, err, lockpool.ErrLocked)
}

// isHeldFor is isHeld for a lock that comes free when d has passed since it was granted, and
// may have, on a busy machine.
func (b *bench) isHeldFor(d time.Duration, granted time.Time, by locker, name string) {
	b.Helper()
	l, err := by.Lock(b.ctx, name, lockpool.WaitAtMost(0))
	if err == nil && time.Since(granted) >= d {
		b.unlock(l)
		return
	}
	require.ErrorIs(b, err, lockpool.ErrLocked)
}

// isFull requires that n more permits are not free.
func (b *bench) isFull(s *lockpool.Semaphore, n int) {
	b.Helper()
	_, err := s.Acquire(b.ctx, n, lockpool.WaitAtMost(0))
	require.ErrorIs(b, err, lockpool.ErrLocked)
}

// contenders returns what another process sees of a lock.
func (b *bench) contenders(name string) []lockpool.Contender {
	b.Helper()
	q, err := b.looker.Queue(b.ctx, name)
	require.NoError(b, err)
	return q.Contenders
}

// nodes returns the nodes in a queue.
func (b *bench) nodes(name string) (nodes []string) {
	b.Helper()
	for _, c := range b.contenders(name) {
		nodes = append(nodes, c.Node)
	}
	return nodes
}

// list returns the locks with a contender below a prefix.
func (b *bench) list(prefix string) []string {
	b.Helper()
	names, err := b.looker.List(b.ctx, prefix)
	require.NoError(b, err)
	return names
}

// expire has the service end the session of the first contender for a lock, or skips the
// test.
func (b *bench) expire(name string) {
	b.Helper()
	if b.options.Expire == nil {
		b.Skip("it needs Options.Expire")
	}
	b.options.Expire(b.TB, b.contenders(name)[0].Session)
}

// breakHolder takes a lock from its holder.
func (b *bench) breakHolder(name string) {
	b.Helper()
	require.NoError(b, b.looker.Break(b.ctx, name, b.contenders(name)[0].Node))
}

// await waits until a channel is closed.
func (b *bench) await(c <-chan struct{}, what string) {
	b.Helper()
	select {
	case <-c:
	case <-b.ctx.Done():
		require.FailNow(b, "it has never happened", what)
	}
}

// notYet requires that a channel is not closed.
func (b *bench) notYet(c <-chan struct{}, what string) {
	b.Helper()
	b.settle()
	select {
	case <-c:
		require.FailNow(b, "it has happened", what)
	default:
	}
}

// isLost waits until a lock is lost.
func (b *bench) isLost(l *lockpool.Lock) {
	b.Helper()
	ctx := l.Context(b.ctx)
	b.await(l.Lost(), "the loss")
	b.await(ctx.Done(), "the end of the lock's context")
	require.ErrorIs(b, context.Cause(ctx), lockpool.ErrLockLost)
	require.Zero(b, l.Depth())
}

// until waits until a condition holds.
func (b *bench) until(condition func() bool, what string, args ...any) {
	b.Helper()
	if b.bubble {
		synctest.Wait()
	}
	for !condition() {
		if b.ctx.Err() != nil {
			require.FailNowf(b, "the condition was never met", what, args...)
		}
		if b.bubble {
			time.Sleep(10 * time.Millisecond)
		} else {
			time.Sleep(time.Millisecond)
		}
	}
}

// settle gives forbidden events the chance to happen: in a bubble everything possible
// without time, and otherwise a moment.
func (b *bench) settle() {
	if b.bubble {
		synctest.Wait()
	} else {
		time.Sleep(10 * time.Millisecond)
	}
}

// took requires not much more time than d since began.
func (b *bench) took(d time.Duration, began time.Time) {
	b.Helper()
	late := 200 * time.Millisecond
	if !b.bubble {
		late = 20 * time.Second // on a busy machine
	}
	took := time.Since(began)
	require.GreaterOrEqual(b, took, d-time.Millisecond)
	require.Less(b, took, d+late)
}

// queued waits until another process sees n contenders for a lock.
func (b *bench) queued(name string, n int) {
	b.Helper()
	b.until(func() bool { return len(b.contenders(name)) == n }, "%d contenders for %s", n, name)
}

// waiting waits until n calls of a pool wait for locks.
func (b *bench) waiting(p *lockpool.Pool, n int) {
	b.Helper()
	b.until(func() bool { return p.Stats().Waiting == n }, "%d calls wait", n)
}

// call is a call in a separate goroutine.
type call[T any] struct {
	bench  *bench
	done   chan struct{} // closed after the return
	cancel context.CancelFunc
	got    T
	err    error
}

// begin makes a call, whose context ends with the test.
func begin[T any](b *bench, f func(ctx context.Context) (T, error)) *call[T] {
	ctx, cancel := context.WithCancel(b.ctx)
	c := &call[T]{bench: b, done: make(chan struct{}), cancel: cancel}
	b.Cleanup(func() {
		cancel()
		<-c.done
	})
	go func() { // ends with ctx
		defer close(c.done)
		c.got, c.err = f(ctx)
	}()
	return c
}

// do is begin for a call returning only an error.
func do(b *bench, f func(ctx context.Context) error) *call[struct{}] {
	return begin(b, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
}

// startLock begins to lock a name.
func (b *bench) startLock(by locker, name string, opts ...lockpool.LockOption) *call[*lockpool.Lock] {
	return begin(b, func(ctx context.Context) (*lockpool.Lock, error) { return by.Lock(ctx, name, opts...) })
}

// enqueue begins to lock a name, and returns when another process sees the call as the nth
// contender.
func (b *bench) enqueue(by locker, name string, nth int, opts ...lockpool.LockOption) *call[*lockpool.Lock] {
	b.Helper()
	c := b.startLock(by, name, opts...)
	b.queued(name, nth)
	return c
}

// waiter begins to lock a name, and returns when n calls of the pool wait for locks.
func (b *bench) waiter(p *lockpool.Pool, name string, n int, opts ...lockpool.LockOption) *call[*lockpool.Lock] {
	b.Helper()
	c := b.startLock(p, name, opts...)
	b.waiting(p, n)
	return c
}

// startAcquire begins to acquire permits.
func (b *bench) startAcquire(s *lockpool.Semaphore, n int) *call[*lockpool.Lock] {
	return begin(b, func(ctx context.Context) (*lockpool.Lock, error) { return s.Acquire(ctx, n) })
}

// returned waits until the call has returned, and returns the error.
func (c *call[T]) returned() error {
	c.bench.Helper()
	c.bench.await(c.done, "the end of the call")
	return c.err
}

// granted waits until the call has succeeded, and returns the result.
func (c *call[T]) granted() T {
	c.bench.Helper()
	require.NoError(c.bench, c.returned())
	return c.got
}

// waits requires the call not to have returned.
func (c *call[T]) waits() {
	c.bench.Helper()
	c.bench.notYet(c.done, "the call has returned")
}

var errWork = errors.New("work failed")

func nothing(context.Context) error { return nil }
