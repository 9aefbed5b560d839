package behavior

// This file has the tests of Once.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var recorder = []string{"Recorder"}

var onceTests = []test{
	{"RunsOnce", onceRunsOnce, recorder},
	{"Contention", onceUnderContention, recorder},
	{"KeysDoNotWaitForEachOther", keysDoNotWaitForEachOther, recorder},
	{"KeysUnderALock", keysUnderALock, recorder},
	{"TellsItsWaiters", onceTellsItsWaiters, recorder},
	{"UnfinishedRunsAreTakenUp", unfinishedRunsAreTakenUp, []string{"Recorder", "Breaker"}},
	{"OfAClosedPool", runOfAClosedPool, recorder},
	{"ShutdownWaits", shutdownWaitsForARun, recorder},
	{"AfterItsContext", runIsRecordedAfterItsContext, recorder},
	{"UnderItsOwnLock", onceUnderItsOwnLock, recorder},
	{"WithinItself", onceWithinItself, recorder},
	{"UnderALostLock", onceUnderALostLock, []string{"Recorder", "Breaker"}},
	{"KeysAndNames", keysAndNamesOfRuns, recorder},
	{"BadInput", onceRefusesBadInput, recorder},
	{"Forget", forgetRuns, recorder},
	{"OldRecords", oldRecordsAreRemoved, recorder},
}

func (b *bench) finished(name string) []lockpool.Run {
	b.Helper()
	runs, err := b.looker.Finished(b.ctx, name)
	require.NoError(b, err)
	return runs
}

func onceRunsOnce(b *bench) {
	p, others, a := b.pool(lockpool.WithOwner("night shift")), b.pool(), b.name("cron/a")
	n, before, token := 0, time.Now(), int64(0)
	require.NoError(b, p.Once(b.ctx, a, "monday", func(ctx context.Context) error {
		token = b.token(b.lockIn(ctx))
		n++
		return nil
	}))
	host, _ := os.Hostname()
	for _, again := range []*lockpool.Pool{p, others} {
		err := again.Once(b.ctx, a, "monday", plays.Count(&n))
		done := plays.IsDone(b, err, a, "monday")
		require.WithinDuration(b, before, done.Finished, time.Minute)
		require.Equal(b, []any{"night shift", host, os.Getpid(), token}, []any{done.Owner, done.Host, done.PID, done.Token})
		require.ErrorContains(b, err, `lockpool: once "`+a+`": done before: the run for "monday" finished at 2`)
		require.ErrorContains(b, err, fmt.Sprintf("(night shift, process %d on %s)", os.Getpid(), host))
		var locking *lockpool.LockError
		require.ErrorAs(b, err, &locking)
		require.Equal(b, "done", locking.ErrorType())
	}
	require.Equal(b, 1, n)
	require.NoError(b, others.Once(b.ctx, a, "tuesday", plays.Count(&n)))
	require.NoError(b, others.Once(b.ctx, b.name("cron/other"), "monday", plays.Count(&n)))
	require.Equal(b, 3, n)
	runs := b.finished(a)
	require.Len(b, runs, 2)
	require.Equal(b, []string{"monday", "tuesday"}, []string{runs[0].Key, runs[1].Key})
	require.Equal(b, "night shift", runs[0].Owner)
	require.Less(b, runs[0].Token, runs[1].Token)
	require.Empty(b, b.list(b.prefix), "records are no locks")
	held := b.lock(others, plays.LockOfRun(a, "monday"))
	plays.IsDone(b, p.Once(b.ctx, a, "monday", plays.Never(b)), a, "monday") // without waiting
	b.unlock(held)
}

func onceUnderContention(b *bench) {
	const keys = 5
	var starts, nils, inside [keys]atomic.Int32
	pools, a := b.pools(3), b.name("a")
	plays.Together(b, 9, func(i int) error {
		for key := range keys {
			err := pools[i%3].Once(b.ctx, a, fmt.Sprint(key), func(context.Context) error {
				if inside[key].Add(1) != 1 {
					return errors.New("two runs at a time")
				}
				starts[key].Add(1)
				inside[key].Add(-1)
				return nil
			})
			if err == nil {
				nils[key].Add(1)
			} else if !errors.Is(err, lockpool.ErrDone) {
				return err
			}
		}
		return nil
	})
	for key := range keys {
		require.Equal(b, []int32{1, 1}, []int32{starts[key].Load(), nils[key].Load()}, "key %d", key)
	}
}

// Runs for different keys of a name are under way at the same time, also as tries.
func keysDoNotWaitForEachOther(b *bench) {
	const keys = 30
	pools, a := b.pools(2), b.name("orders")
	var inside sync.WaitGroup
	inside.Add(keys)
	plays.Together(b, keys, func(i int) error {
		return pools[i%2].Once(b.ctx, a, fmt.Sprint(i), func(context.Context) error {
			inside.Done()
			inside.Wait()
			return nil
		}, lockpool.WaitAtMost(0))
	})
	require.Len(b, b.finished(a), keys)
	require.Empty(b, b.list(b.prefix))
}

// Keys exclude each other if the caller holds a lock, such as the lock of the name itself.
func keysUnderALock(b *bench) {
	pools, a := b.pools(2), b.name("a")
	var inside atomic.Int32
	plays.Together(b, 6, func(i int) error {
		return pools[i%2].Do(b.ctx, a, func(ctx context.Context) error {
			return pools[i%2].Once(ctx, a, fmt.Sprint(i), func(context.Context) error {
				if inside.Add(1) != 1 {
					return errors.New("two runs at a time")
				}
				inside.Add(-1)
				return nil
			})
		})
	})
	require.Len(b, b.finished(a), 6)
}

// Waiters for the lock when a run finishes do not run.
func onceTellsItsWaiters(b *bench) {
	p, others, a := b.pool(), b.pool(), b.name("a")
	inside, finish := make(chan struct{}), make(chan struct{})
	first := do(b, func(ctx context.Context) error {
		return p.Once(ctx, a, "1", func(context.Context) error {
			close(inside)
			<-finish
			return nil
		})
	})
	<-inside
	busy := others.Once(b.ctx, a, "1", plays.Never(b), lockpool.WaitAtMost(0))
	require.ErrorIs(b, busy, lockpool.ErrLocked)
	require.ErrorContains(b, busy, plays.LockOfRun(a, "1"))
	b.queued(plays.LockOfRun(a, "1"), 1)
	require.ErrorIs(b, others.Once(b.ctx, a, "1", plays.Never(b), lockpool.WaitAtMost(30*time.Millisecond)), context.DeadlineExceeded)
	var waiters []*call[struct{}]
	for _, p := range []*lockpool.Pool{p, others, others} {
		waiters = append(waiters, do(b, func(ctx context.Context) error { return p.Once(ctx, a, "1", plays.Never(b)) }))
	}
	b.waiting(p, 1)
	b.waiting(others, 2)
	close(finish)
	require.NoError(b, first.returned())
	for _, w := range waiters {
		plays.IsDone(b, w.returned(), a, "1")
	}
}

func unfinishedRunsAreTakenUp(b *bench) {
	for name, c := range map[string]struct {
		fn   func(ctx context.Context, a string) error
		want error // nil if Once does not return
	}{
		"error":  {func(context.Context, string) error { return errWork }, errWork},
		"panic":  {func(context.Context, string) error { panic("job") }, nil},
		"goexit": {func(context.Context, string) error { runtime.Goexit(); return nil }, nil},
		"broken, and nobody looks": {func(_ context.Context, a string) error {
			b.breakHolder(a)
			return nil
		}, lockpool.ErrLockLost},
		"broken": {func(ctx context.Context, a string) error {
			b.breakHolder(a)
			<-ctx.Done()
			return nil
		}, lockpool.ErrLockLost},
		"unlocked": {func(ctx context.Context, _ string) error {
			return b.lockIn(ctx).Unlock(ctx)
		}, lockpool.ErrNotHeld},
	} {
		p, others, a, n := b.pool(), b.pool(), b.name(lockpool.Escape(name)), 0
		lock := plays.LockOfRun(a, "1")
		inside := make(chan struct{})
		taken := do(b, func(ctx context.Context) error {
			<-inside
			return others.Once(ctx, a, "1", plays.Count(&n))
		})
		var err error
		returned := false
		run := do(b, func(ctx context.Context) error {
			defer func() { _ = recover() }()
			err = p.Once(ctx, a, "1", func(ctx context.Context) error {
				close(inside)
				b.queued(lock, 2)
				return c.fn(ctx, lock)
			})
			returned = true
			return nil
		})
		require.NoError(b, run.returned())
		require.Equal(b, c.want != nil, returned, name)
		require.ErrorIs(b, err, c.want, name)
		if errors.Is(err, lockpool.ErrLockLost) {
			require.ErrorContains(b, err, `the run was not recorded as finished: `)
		}
		require.NoError(b, taken.returned(), name)
		require.Equal(b, 1, n, name)
		plays.IsDone(b, p.Once(b.ctx, a, "1", plays.Never(b)), a, "1")
	}
}

func runOfAClosedPool(b *bench) {
	p, a, n := b.pool(), b.name("a"), 0
	err := p.Once(b.ctx, a, "1", func(ctx context.Context) error {
		require.NoError(b, p.Close())
		require.ErrorIs(b, ctx.Err(), context.Canceled)
		return nil
	})
	require.ErrorIs(b, err, lockpool.ErrPoolClosed)
	require.NoError(b, b.looker.Once(b.ctx, a, "1", plays.Count(&n)))
	require.Equal(b, 1, n)
}

func shutdownWaitsForARun(b *bench) {
	p, a := b.pool(), b.name("a")
	var down *call[struct{}]
	require.NoError(b, p.Once(b.ctx, a, "1", func(ctx context.Context) error {
		down = do(b, p.Shutdown)
		b.until(func() bool { return errors.Is(p.Ping(b.ctx), lockpool.ErrPoolClosed) }, "the pool shuts down")
		return p.Once(ctx, a, "2", nothing) // in order to finish
	}))
	require.NoError(b, down.returned())
	plays.IsDone(b, b.looker.Once(b.ctx, a, "2", plays.Never(b)), a, "2")
	plays.IsDone(b, b.looker.Once(b.ctx, a, "1", plays.Never(b)), a, "1")
}

func runIsRecordedAfterItsContext(b *bench) {
	p, a := b.pool(), b.name("a")
	ctx, cancel := context.WithCancel(b.ctx)
	require.NoError(b, p.Once(ctx, a, "1", func(context.Context) error {
		cancel()
		return nil
	}))
	plays.IsDone(b, p.Once(b.ctx, a, "1", plays.Never(b)), a, "1")
}

// A holder enters a lock with Once, and Once does not give the lock back.
func onceUnderItsOwnLock(b *bench) {
	for _, turns := range []int{0, 1000} {
		p, a, n := b.pool(lockpool.WithLocalTurns(turns)), b.name(fmt.Sprint("a", turns)), 0
		h := b.handle(p)
		l := b.lock(h, plays.LockOfRun(a, "1"))
		require.NoError(b, h.Once(b.ctx, a, "1", plays.Count(&n)))
		plays.IsDone(b, h.Once(b.ctx, a, "1", plays.Never(b)), a, "1")
		b.isHeld(plays.LockOfRun(a, "1"))
		last := b.lock(h, plays.LockOfRun(a, "2"))
		require.NoError(b, p.Once(last.Context(b.ctx), a, "2", func(ctx context.Context) error {
			n++
			return last.Unlock(ctx) // the run's own entry is the last
		}))
		b.isFree(plays.LockOfRun(a, "2"))
		require.Equal(b, 2, n)
		require.Len(b, b.finished(a), 2)
		require.ErrorIs(b, last.Unlock(b.ctx), lockpool.ErrNotHeld)
		b.unlock(l)
		l = b.lock(h, plays.LockOfRun(a, "3"))
		require.ErrorIs(b, p.Once(l.Context(b.ctx), a, "3", func(ctx context.Context) error {
			return b.lockIn(ctx).Unlock(ctx) // the run's own
		}), lockpool.ErrNotHeld)
		require.Len(b, b.finished(a), 2)
		b.unlock(l)
		b.close(h)
	}
}

// A run calling Once for the same key finds the inner run's record.
func onceWithinItself(b *bench) {
	p, a, n := b.pool(), b.name("a"), 0
	err := p.Once(b.ctx, a, "1", func(ctx context.Context) error { return p.Once(ctx, a, "1", plays.Count(&n)) })
	plays.IsDone(b, err, a, "1")
	require.Equal(b, 1, n)
	b.queued(plays.LockOfRun(a, "1"), 0)

	// A run of another key has not finished.
	err = p.Once(b.ctx, a, "2", func(ctx context.Context) error { return p.Once(ctx, a, "1", plays.Never(b)) })
	require.ErrorContains(b, err, "done before")
	require.NotErrorIs(b, err, lockpool.ErrDone)
	require.False(b, errors.As(err, new(*lockpool.DoneError)))
	require.Len(b, b.finished(a), 1)
}

func onceUnderALostLock(b *bench) {
	p, a, n := b.pool(), b.name("a"), 0
	l := b.lock(p, plays.LockOfRun(a, "1"))
	err := p.Once(l.Context(b.ctx), a, "1", func(ctx context.Context) error {
		b.breakHolder(plays.LockOfRun(a, "1"))
		<-ctx.Done()
		require.ErrorIs(b, p.Once(ctx, a, "2", plays.Never(b)), lockpool.ErrLockLost)
		require.ErrorIs(b, p.Elect(ctx, a, plays.Never(b)), lockpool.ErrLockLost)
		return nil
	})
	require.ErrorIs(b, err, lockpool.ErrLockLost)
	require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
	require.NoError(b, p.Once(b.ctx, a, "1", plays.Count(&n)))
	require.Equal(b, 1, n)
}

// Any text is a key, and every name of a lock is a name.
func keysAndNamesOfRuns(b *bench) {
	p := b.pool()
	keys := []string{"1", "a/b", "a%2Fb", ".", "..", "日本\x00\xff", "2026-11-22T18:00:00Z", " ", "~", "lock-0000000001", "zookeeper", ".done"}
	for _, name := range []string{b.name("a"), b.name("a/b"), b.name("größe/東京"), b.name("%2E"), b.name("a%2Fb")} {
		for _, key := range keys {
			n := 0
			require.NoError(b, p.Once(b.ctx, name, key, plays.Count(&n)), "%q %q", name, key)
			require.Equal(b, 1, n)
			plays.IsDone(b, p.Once(b.ctx, name, key, plays.Never(b)), name, key)
		}
		runs := b.finished(name)
		require.Len(b, runs, len(keys))
		require.Equal(b, "日本\x00\xff", runs[5].Key)
	}
}

func onceRefusesBadInput(b *bench) {
	p, ctx, a := b.pool(), b.ctx, b.name("a")
	_, finished := p.Finished(ctx, ".done")
	for _, err := range []error{
		p.Once(ctx, a, "", plays.Never(b)), p.Once(ctx, a, strings.Repeat("ü", 86), plays.Never(b)),
		p.Once(ctx, a, strings.Repeat("x", 508-len(a)), plays.Never(b)), p.Forget(ctx, a, "x", ""), p.Forget(ctx, "/a"), finished,
	} {
		require.ErrorIs(b, err, lockpool.ErrInvalidName)
	}
	require.ErrorContains(b, p.Once(ctx, ".done", "k", plays.Never(b)), ".done is where the records of finished runs are")
	require.ErrorContains(b, p.Once(ctx, a, "k", nil), "the function is nil")
	require.ErrorContains(b, p.Once(ctx, a, "k", plays.Never(b), lockpool.Plain()), "leave out Plain and Shared")
	require.ErrorContains(b, p.Once(ctx, a, "k", plays.Never(b), lockpool.Shared()), "leave out Plain and Shared")
	require.ErrorContains(b, p.Once(ctx, a, "k", plays.Never(b), lockpool.HoldAtLeast(time.Minute)), "leave out HoldAtLeast")
	require.ErrorContains(b, p.Once(ctx, a, "k", plays.Never(b), lockpool.KeepDone(0)), "must be kept for some time")
	require.ErrorContains(b, p.Do(ctx, a, plays.Never(b), lockpool.KeepDone(time.Hour)), "KeepDone is for Once")
	require.Zero(b, p.Stats().OpenSessions)
}

func forgetRuns(b *bench) {
	p, a, n := b.pool(), b.name("a"), 0
	require.NoError(b, p.Forget(b.ctx, a))
	require.NoError(b, p.Forget(b.ctx, a, "none"))
	const keys = 12
	for key := range keys {
		require.NoError(b, p.Once(b.ctx, a, fmt.Sprint(key), plays.Count(&n)))
	}
	require.NoError(b, p.Forget(b.ctx, a, "7", "none", "8", "7"))
	require.Len(b, b.finished(a), keys-2)
	for _, key := range []string{"7", "9"} {
		err := p.Once(b.ctx, a, key, plays.Count(&n))
		require.Equal(b, key == "9", errors.Is(err, lockpool.ErrDone), "%v", err)
	}
	require.Equal(b, keys+1, n)
	require.NoError(b, p.Forget(b.ctx, a))
	require.Empty(b, b.finished(a))
	require.NoError(b, p.Once(b.ctx, a, "9", plays.Count(&n)))
}

// Records are removed when their time is over, by later runs of any name, and no earlier.
func oldRecordsAreRemoved(b *bench) {
	if !b.bubble {
		b.Skip("it would take long outside of a bubble")
	}
	const period, keep = 3 * time.Second, 10 * 3 * time.Second
	p, a, n := b.pool(), b.name("a"), 0
	b.ctx = b.timeout(2 * time.Hour)
	require.NoError(b, p.Once(b.ctx, a, "long", plays.Count(&n), lockpool.KeepDone(time.Hour)))
	for i := range 40 {
		own := b.name(fmt.Sprint("once/", i)) // a name not used again
		require.NoError(b, p.Once(b.ctx, own, "x", plays.Count(&n), lockpool.KeepDone(keep)))
		require.NoError(b, p.Once(b.ctx, a, fmt.Sprint(i), plays.Count(&n), lockpool.KeepDone(keep)))
		runs := b.finished(a)
		require.GreaterOrEqual(b, len(runs), 1+min(i+1, 10))
		require.LessOrEqual(b, len(runs), 1+14, "kept for a quarter more at most, and a moment")
		require.Equal(b, "long", runs[0].Key, "this one is kept for longer")
		for _, run := range runs {
			plays.IsDone(b, p.Once(b.ctx, a, run.Key, plays.Never(b)), a, run.Key)
		}
		if i >= 20 {
			require.Empty(b, b.finished(b.name(fmt.Sprint("once/", i-20))))
		}
		time.Sleep(period)
	}
	require.NoError(b, p.Once(b.ctx, a, "0", plays.Count(&n), lockpool.KeepDone(keep)))
	require.Equal(b, 82, n)
}
