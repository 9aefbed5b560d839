//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/lockpool/lockpool"
)

// The kinds of locks. A lock's name begins with its kind.
const (
	exclusive = "lock"
	readWrite = "shared"
	semaphore = "semaphore"
	plain     = "plain"
)

func nameOf(kind string, i int) string { return fmt.Sprintf("%s-%d", kind, i) }

func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	return kind
}

// locksOf returns how many locks of a kind there are. Kinds that are rarely drawn
// have few, so that there is contention for them.
func locksOf(kind string, most int) int {
	if kind == exclusive {
		return most
	}
	return min(most, 2)
}

// lock is the common interface of held locks and permits.
type lock interface {
	Context(context.Context) context.Context
	Lost() <-chan struct{}
	Revoked() <-chan struct{}
	Token(context.Context) (int64, error)
	Verify(context.Context) error
	Unlock(context.Context) error
}

type permits struct{ *lockpool.Permits }

func (p permits) Unlock(ctx context.Context) error { return p.Release(ctx) }

// kind is a kind of lock.
type kind struct {
	directories []string      // that may exist, below the lock's path
	prepare     func(t *turn) // sets the turn's portion, lock and try
}

var kinds = map[string]*kind{
	exclusive: {[]string{""}, func(t *turn) {
		t.portion = portion{1, 1}
		t.acquire, t.try = t.with(t.pool.Lock), t.with(t.pool.TryLock)
	}},
	readWrite: {[]string{""}, func(t *turn) {
		t.portion = portion{many, many}
		t.acquire, t.try = t.with(t.pool.Lock), t.with(t.pool.TryLock)
		if chance(t.r, t.Reads) {
			t.permits = 1
			t.acquire, t.try = t.with(t.pool.RLock), t.with(t.pool.TryRLock)
		}
	}},
	semaphore: {[]string{"", "/locks", "/leases"}, func(t *turn) {
		const limit = 3
		t.portion = portion{t.MinPermits + t.r.IntN(limit-t.MinPermits+1), limit}
		s := t.pool.Semaphore(t.name, limit)
		t.acquire = func(ctx context.Context) (lock, error) {
			p, err := s.Acquire(ctx, t.permits)
			return permits{p}, err
		}
		t.try = func(ctx context.Context) (lock, error) {
			p, err := s.TryAcquire(ctx, t.permits)
			return permits{p}, err
		}
	}},
	plain: {nil, func(t *turn) {
		t.portion = portion{1, 1}
		t.acquire, t.try = t.with(t.pool.Lock, lockpool.Plain()), t.with(t.pool.TryLock, lockpool.Plain())
	}},
}

// with returns a function that acquires the turn's lock by a method of the pool.
func (t *turn) with(method func(context.Context, string, ...lockpool.LockOption) (*lockpool.Lock, error), opts ...lockpool.LockOption) func(context.Context) (lock, error) {
	if t.revocable {
		opts = append(opts, lockpool.Revocable())
	}
	return func(ctx context.Context) (lock, error) { return method(ctx, t.name, opts...) }
}
