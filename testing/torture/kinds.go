//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/lockpool/lockpool"
)

// The kinds of locks. That of a lock is the first part of its name.
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

// locksOf returns how many locks there are of a kind. Few are enough of those
// that are not drawn often, so that holders meet.
func locksOf(kind string, most int) int {
	if kind == exclusive {
		return most
	}
	return min(most, 2)
}

// lock is what locks and permits that are held have in common.
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

// way is how locks of a kind are used.
type way struct {
	directories []string      // that may be there, below the path of the lock
	prepare     func(t *turn) // says how much of the lock is taken, and how
}

var ways = map[string]*way{
	exclusive: {[]string{""}, func(t *turn) {
		t.portion = portion{1, 1}
		t.take, t.try = t.by(t.pool.Lock), t.by(t.pool.TryLock)
	}},
	readWrite: {[]string{""}, func(t *turn) {
		t.portion = portion{many, many}
		t.take, t.try = t.by(t.pool.Lock), t.by(t.pool.TryLock)
		if chance(t.r, t.Reads) {
			t.permits = 1
			t.take, t.try = t.by(t.pool.RLock), t.by(t.pool.TryRLock)
		}
	}},
	semaphore: {[]string{"", "/locks", "/leases"}, func(t *turn) {
		const limit = 3
		t.portion = portion{t.Fewest + t.r.IntN(limit-t.Fewest+1), limit}
		s := t.pool.Semaphore(t.name, limit)
		acquire := func(do func(context.Context, int, ...lockpool.LockOption) (*lockpool.Permits, error)) func(context.Context) (lock, error) {
			return func(ctx context.Context) (lock, error) {
				p, err := do(ctx, t.permits)
				return permits{p}, err
			}
		}
		t.take, t.try = acquire(s.Acquire), acquire(s.TryAcquire)
	}},
	plain: {nil, func(t *turn) {
		t.portion = portion{1, 1}
		t.take, t.try = t.by(t.pool.Lock, lockpool.Plain()), t.by(t.pool.TryLock, lockpool.Plain())
	}},
}

// by makes a way to take the turn's lock of a method that does.
func (t *turn) by(take func(context.Context, string, ...lockpool.LockOption) (*lockpool.Lock, error), opts ...lockpool.LockOption) func(context.Context) (lock, error) {
	if t.listens {
		opts = append(opts, lockpool.Revocable())
	}
	return func(ctx context.Context) (lock, error) { return take(ctx, t.name, opts...) }
}
