package workload

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/lockpool/lockpool"
)

// The kinds of locks. A lock's name begins with its kind.
const (
	Exclusive = "lock"
	ReadWrite = "shared"
	Semaphore = "semaphore"
	Plain     = "plain"
)

// NameOf returns the name of a lock.
func NameOf(kind string, i int) string { return fmt.Sprintf("%s-%d", kind, i) }

func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	return kind
}

// locksOf returns how many locks of a kind there are. Kinds that are rarely drawn
// have few, so that there is contention for them.
func locksOf(kind string, most int) int {
	if kind == Exclusive {
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
	Exclusive: {[]string{""}, func(t *turn) {
		t.portion = portion{1, 1}
		t.acquire, t.try = t.with(t.pool.Lock), t.with(t.pool.TryLock)
	}},
	ReadWrite: {[]string{""}, func(t *turn) {
		t.portion = portion{many, many}
		t.acquire, t.try = t.with(t.pool.Lock), t.with(t.pool.TryLock)
		if chance(t.r, t.Reads) {
			t.permits = 1
			t.acquire, t.try = t.with(t.pool.RLock), t.with(t.pool.TryRLock)
		}
	}},
	Semaphore: {[]string{"", "/locks", "/leases"}, func(t *turn) {
		const limit = 3
		t.portion = portion{t.MinPermits + t.r.IntN(limit-t.MinPermits+1), limit}
		s := t.pool.Semaphore(t.name, limit)
		t.acquire = func(ctx context.Context) (lock, error) {
			p, err := s.Acquire(ctx, t.permits, t.opts...)
			return permits{p}, err
		}
		t.try = func(ctx context.Context) (lock, error) {
			p, err := s.TryAcquire(ctx, t.permits)
			return permits{p}, err
		}
	}},
	Plain: {nil, func(t *turn) {
		t.portion = portion{1, 1}
		t.acquire, t.try = t.with(t.pool.Lock, lockpool.Plain()), t.with(t.pool.TryLock, lockpool.Plain())
	}},
}

// with returns a function that acquires the turn's lock by a method of the pool.
func (t *turn) with(method func(context.Context, string, ...lockpool.LockOption) (*lockpool.Lock, error), opts ...lockpool.LockOption) func(context.Context) (lock, error) {
	return func(ctx context.Context) (lock, error) { return method(ctx, t.name, slices.Concat(opts, t.opts)...) }
}

// Kinds returns the names of all kinds, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Directories returns the paths, below a root, of the nodes that are not contenders'
// own. They stay for a while, or for good.
func (c Config) Directories(root string) (paths []string) {
	for _, name := range c.Kinds {
		for i := range locksOf(name, c.Locks) {
			for _, below := range kinds[name].directories {
				paths = append(paths, root+"/"+NameOf(name, i)+below)
			}
		}
	}
	return paths
}

// Acquire acquires the second lock of a kind as a worker does that shares it if it can;
// of a semaphore it acquires two permits.
func Acquire(ctx context.Context, pool *lockpool.Pool, kind string) (release func(context.Context) error, err error) {
	t := &turn{
		Client: &Client{Config: Config{Reads: 100, MinPermits: 2}}, pool: pool, r: rand.New(rand.NewPCG(1, 1)),
		name: NameOf(kind, 1),
	}
	kinds[kind].prepare(t)
	t.permits = min(t.permits, 2)
	held, err := t.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return held.Unlock, nil
}
