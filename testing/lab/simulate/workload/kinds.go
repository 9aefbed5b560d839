package workload

// This file has the kinds of locks in a workload, and the names and nodes of each.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
)

// The kinds of locks. A lock's name begins with its kind.
const (
	Exclusive = "lock"
	ReadWrite = "shared"
	Semaphore = "semaphore"
	Plain     = "plain"

	// own is the kind of the exclusive locks of one process each. It is not drawn for a
	// turn.
	own = "own"

	// once is the kind of the exclusive locks whose names are not used again.
	once = "once"

	// job is the name of the job to be finished once in each period, and the kind.
	job = "job"
)

// NameOf returns the name of a lock.
func NameOf(kind string, i int) string { return fmt.Sprintf("%s-%d", kind, i) }

func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	return kind
}

// locksOf returns how many locks of a kind there are. Rarely drawn kinds have few locks, so
// that there is contention.
func locksOf(kind string, most int) int {
	if kind == Exclusive {
		return most
	}
	return min(most, 2)
}

// mostPermits is how many permits one caller acquires at most. Callers state this limit, or
// one more.
const mostPermits = 3

// kind is a kind of lock.
type kind struct {
	directories []string      // possible nodes below the lock's path
	prepare     func(t *turn) // sets the turn's portion, lock and try
}

var kinds = map[string]*kind{
	Exclusive: {[]string{""}, prepareExclusive},
	own:       {[]string{""}, prepareExclusive},
	ReadWrite: {[]string{""}, func(t *turn) {
		t.portion = portion{many, many}
		t.acquire, t.try = t.with(t.pool.Lock), t.with(t.pool.TryLock)
		if chance(t.r, t.Reads) {
			t.permits = 1
			t.acquire, t.try = t.with(t.pool.Lock, lockpool.Shared()), t.with(t.pool.TryLock, lockpool.Shared())
		}
	}},
	Semaphore: {[]string{"", "/locks", "/leases", "/limit"}, func(t *turn) {
		const most = mostPermits
		if chance(t.r, t.Mixed) { // not to be mixed with permits
			t.portion = portion{most, most}
			t.acquire, t.try = t.with(t.pool.Lock), t.with(t.pool.TryLock)
			return
		}
		limit := most + t.r.IntN(2) // the smallest stated by a holder applies
		t.portion = portion{t.MinPermits + t.r.IntN(most-t.MinPermits+1), limit}
		s := t.pool.Semaphore(t.name, limit)
		t.acquire = func(ctx context.Context) (*lockpool.Lock, error) { return s.Acquire(ctx, t.permits, t.opts...) }
		t.try = func(ctx context.Context) (*lockpool.Lock, error) {
			return s.Acquire(ctx, t.permits, lockpool.WaitAtMost(0))
		}
	}},
	Plain: {nil, func(t *turn) {
		t.portion = portion{1, 1}
		t.acquire, t.try = t.with(t.pool.Lock, lockpool.Plain()), t.with(t.pool.TryLock, lockpool.Plain())
	}},
}

func prepareExclusive(t *turn) {
	t.portion = portion{1, 1}
	t.acquire, t.try = t.with(t.pool.Lock), t.with(t.pool.TryLock)
}

// with returns a function that acquires the turn's lock by a method of the pool.
func (t *turn) with(method func(context.Context, string, ...lockpool.LockOption) (*lockpool.Lock, error), opts ...lockpool.LockOption) func(context.Context) (*lockpool.Lock, error) {
	return func(ctx context.Context) (*lockpool.Lock, error) {
		return method(ctx, t.name, slices.Concat(opts, t.opts)...)
	}
}

// Kinds returns the names of all kinds drawn for turns, sorted.
func Kinds() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(kinds)), func(name string) bool { return name == own })
}

// Directories returns the paths, below a root, of the nodes other than contenders'. They
// stay for a while, or for good.
func (c Config) Directories(root string) (paths []string) {
	add := func(name string, locks int) {
		for i := range locks {
			for _, below := range kinds[name].directories {
				paths = append(paths, root+"/"+NameOf(name, i)+below)
			}
		}
	}
	for _, name := range c.Kinds {
		add(name, locksOf(name, c.Locks))
	}
	add(own, c.Processes)
	add(ReadWrite, locksOf(ReadWrite, c.Locks)+c.Processes)
	for i := range locksOf(Plain, c.Locks) + c.Processes {
		paths = append(paths, root+"/"+driver.Waits+"/"+NameOf(Plain, i))
	}
	return append(paths, root+"/"+driver.Waits, root+"/"+driver.Reports, root+"/"+driver.Costs, root+"/"+job)
}

// IsUsedOnce reports whether a path below the root of all locks is a lock's with a name
// never used again.
func IsUsedOnce(path string) bool { return kindOf(path) == once }

// IsRecord reports whether a path below the root of all locks is the path of the record of
// a run, or of a directory of records.
func IsRecord(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return first == driver.Records
}
