package interop

// This file has the clients of the other libraries, each in a separate process.

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver/zookeeper"
)

// noTimeout lets a client wait until the context ends.
const noTimeout time.Duration = -1

// client uses one lock. Its calls must not overlap.
type client interface {
	// acquire reports false if the lock was not granted within the timeout. With timeout 0,
	// acquire does not wait.
	acquire(ctx context.Context, kind string, timeout time.Duration) (bool, error)
	release(ctx context.Context, kind string) error
}

// pool is a pool of lockpool in this process.
type pool struct {
	testing.TB
	*lockpool.Pool
	name string // of the lock
}

// openPool returns a pool of one session with the layout.
func (c *contest) openPool(layout string, opts ...lockpool.Option) *pool {
	cfg := c.Config()
	cfg.Layout, cfg.SessionTimeout = zookeeper.Layout(layout), 15*time.Second
	return &pool{c, c.PoolWith(cfg, append(opts, lockpool.WithMaxSessions(1))...), c.name}
}

func (p *pool) handle(ctx context.Context) *lockpool.Handle {
	handle, err := p.Handle(ctx)
	require.NoError(p, err)
	return handle
}

// locker returns a client for the pool's lock, with a separate handle.
func (p *pool) locker(ctx context.Context) client {
	return &locker{p.handle(ctx), p.name, map[string][]*lockpool.Lock{}}
}

// locker has the kinds "exclusive" and "read".
type locker struct {
	handle *lockpool.Handle
	name   string
	held   map[string][]*lockpool.Lock // by kind
}

func (l *locker) acquire(ctx context.Context, kind string, timeout time.Duration) (bool, error) {
	lock, opts := l.handle.Lock, []lockpool.LockOption{}
	if kind == "read" {
		opts = append(opts, lockpool.Shared())
	}
	if timeout == 0 {
		lock = l.handle.TryLock
	}
	ctx, cancel := bounded(ctx, timeout)
	defer cancel()
	held, err := lock(ctx, l.name, opts...)
	if timedOut(err, timeout) {
		return false, nil
	}
	l.held[kind] = append(l.held[kind], held)
	return err == nil, err
}

func (l *locker) release(ctx context.Context, kind string) error {
	last := len(l.held[kind]) - 1
	held := l.held[kind][last]
	l.held[kind] = l.held[kind][:last]
	return held.Unlock(ctx)
}

// bounded returns a context with the timeout, if positive.
func bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout > 0 {
		return context.WithTimeout(ctx, timeout)
	}
	return context.WithCancel(ctx)
}

// timedOut reports whether an error of lockpool means no grant within the timeout.
func timedOut(err error, timeout time.Duration) bool {
	return timeout == 0 && errors.Is(err, lockpool.ErrLocked) || timeout > 0 && errors.Is(err, context.DeadlineExceeded)
}

// semaphore returns a client for the semaphore of the pool's name, with a separate handle.
func (p *pool) semaphore(ctx context.Context, limit int) client {
	return &semaphore{p.handle(ctx).Semaphore(p.name, limit), nil}
}

// semaphore acquires as many permits as the kind says.
type semaphore struct {
	*lockpool.Semaphore
	held []*lockpool.Lock
}

func (s *semaphore) acquire(ctx context.Context, kind string, timeout time.Duration) (bool, error) {
	n, err := strconv.Atoi(kind)
	if err != nil {
		return false, err
	}
	var opts []lockpool.LockOption
	if timeout == 0 {
		opts = append(opts, lockpool.WaitAtMost(0))
	}
	ctx, cancel := bounded(ctx, timeout)
	defer cancel()
	permits, err := s.Acquire(ctx, n, opts...)
	if timedOut(err, timeout) {
		return false, nil
	}
	s.held = append(s.held, permits)
	return err == nil, err
}

func (s *semaphore) release(ctx context.Context, _ string) error {
	last := len(s.held) - 1
	permits := s.held[last]
	s.held = s.held[:last]
	return permits.Unlock(ctx)
}

// zkLock is go-zookeeper's Lock. It cannot give up waiting.
type zkLock struct{ *zk.Lock }

func (l zkLock) acquire(ctx context.Context, _ string, timeout time.Duration) (bool, error) {
	if timeout != noTimeout {
		return false, errors.New("go-zookeeper's Lock cannot give up waiting")
	}
	locked := make(chan error, 1)
	go func() { locked <- l.Lock.Lock() }() // ends with the connection at the latest
	select {
	case err := <-locked:
		return err == nil, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (l zkLock) release(context.Context, string) error { return l.Unlock() }
