package behavior

// This file has the tests of Once and of elections.

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

// lockOfRun returns the name of the lock of a run, as documented for Once.
func lockOfRun(name, key string) string { return name + "/" + lockpool.Escape("run:"+key) }

// ran returns a function for Once, counting its calls.
func ran(n *int) func(context.Context) error {
	return func(context.Context) error { *n++; return nil }
}

// never must not be called.
func (b *bench) never(context.Context) error {
	b.Error("it ran")
	return nil
}

// isDone requires err to say that a run for the key has finished.
func (b *bench) isDone(err error, name, key string) *lockpool.DoneError {
	b.Helper()
	require.ErrorIs(b, err, lockpool.ErrDone)
	var done *lockpool.DoneError
	require.ErrorAs(b, err, &done)
	require.Equal(b, []string{name, key}, []string{done.Name, done.Key})
	return done
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
		err := again.Once(b.ctx, a, "monday", ran(&n))
		done := b.isDone(err, a, "monday")
		require.WithinDuration(b, before, done.Finished, time.Minute)
		require.Equal(b, []any{"night shift", host, os.Getpid(), token}, []any{done.Owner, done.Host, done.PID, done.Token})
		require.ErrorContains(b, err, `lockpool: once "`+a+`": done before: the run for "monday" finished at 2`)
		require.ErrorContains(b, err, fmt.Sprintf("(night shift, process %d on %s)", os.Getpid(), host))
		var locking *lockpool.LockError
		require.ErrorAs(b, err, &locking)
		require.Equal(b, "done", locking.ErrorType())
	}
	require.Equal(b, 1, n)
	require.NoError(b, others.Once(b.ctx, a, "tuesday", ran(&n)))
	require.NoError(b, others.Once(b.ctx, b.name("cron/other"), "monday", ran(&n)))
	require.Equal(b, 3, n)
	runs := b.finished(a)
	require.Len(b, runs, 2)
	require.Equal(b, []string{"monday", "tuesday"}, []string{runs[0].Key, runs[1].Key})
	require.Equal(b, "night shift", runs[0].Owner)
	require.Less(b, runs[0].Token, runs[1].Token)
	require.Empty(b, b.list(b.prefix), "records are no locks")
	held := b.lock(others, lockOfRun(a, "monday"))
	b.isDone(p.Once(b.ctx, a, "monday", b.never), a, "monday") // without waiting
	b.unlock(held)
}

func onceUnderContention(b *bench) {
	const keys = 5
	var starts, nils, inside [keys]atomic.Int32
	pools, a := b.pools(3), b.name("a")
	b.together(9, func(i int) error {
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
	b.together(keys, func(i int) error {
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
	b.together(6, func(i int) error {
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
	busy := others.Once(b.ctx, a, "1", b.never, lockpool.WaitAtMost(0))
	require.ErrorIs(b, busy, lockpool.ErrLocked)
	require.ErrorContains(b, busy, lockOfRun(a, "1"))
	b.queued(lockOfRun(a, "1"), 1)
	require.ErrorIs(b, others.Once(b.ctx, a, "1", b.never, lockpool.WaitAtMost(30*time.Millisecond)), context.DeadlineExceeded)
	var waiters []*call[struct{}]
	for _, p := range []*lockpool.Pool{p, others, others} {
		waiters = append(waiters, do(b, func(ctx context.Context) error { return p.Once(ctx, a, "1", b.never) }))
	}
	b.waiting(p, 1)
	b.waiting(others, 2)
	close(finish)
	require.NoError(b, first.returned())
	for _, w := range waiters {
		b.isDone(w.returned(), a, "1")
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
		lock := lockOfRun(a, "1")
		inside := make(chan struct{})
		taken := do(b, func(ctx context.Context) error {
			<-inside
			return others.Once(ctx, a, "1", ran(&n))
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
		b.isDone(p.Once(b.ctx, a, "1", b.never), a, "1")
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
	require.NoError(b, b.looker.Once(b.ctx, a, "1", ran(&n)))
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
	b.isDone(b.looker.Once(b.ctx, a, "2", b.never), a, "2")
	b.isDone(b.looker.Once(b.ctx, a, "1", b.never), a, "1")
}

func runIsRecordedAfterItsContext(b *bench) {
	p, a := b.pool(), b.name("a")
	ctx, cancel := context.WithCancel(b.ctx)
	require.NoError(b, p.Once(ctx, a, "1", func(context.Context) error {
		cancel()
		return nil
	}))
	b.isDone(p.Once(b.ctx, a, "1", b.never), a, "1")
}

// A holder enters a lock with Once, and Once does not give the lock back.
func onceUnderItsOwnLock(b *bench) {
	for _, turns := range []int{0, 1000} {
		p, a, n := b.pool(lockpool.WithLocalTurns(turns)), b.name(fmt.Sprint("a", turns)), 0
		h := b.handle(p)
		l := b.lock(h, lockOfRun(a, "1"))
		require.NoError(b, h.Once(b.ctx, a, "1", ran(&n)))
		b.isDone(h.Once(b.ctx, a, "1", b.never), a, "1")
		b.isHeld(lockOfRun(a, "1"))
		last := b.lock(h, lockOfRun(a, "2"))
		require.NoError(b, p.Once(last.Context(b.ctx), a, "2", func(ctx context.Context) error {
			n++
			return last.Unlock(ctx) // the run's own entry is the last
		}))
		b.isFree(lockOfRun(a, "2"))
		require.Equal(b, 2, n)
		require.Len(b, b.finished(a), 2)
		require.ErrorIs(b, last.Unlock(b.ctx), lockpool.ErrNotHeld)
		b.unlock(l)
		l = b.lock(h, lockOfRun(a, "3"))
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
	err := p.Once(b.ctx, a, "1", func(ctx context.Context) error { return p.Once(ctx, a, "1", ran(&n)) })
	b.isDone(err, a, "1")
	require.Equal(b, 1, n)
	b.queued(lockOfRun(a, "1"), 0)

	// A run of another key has not finished.
	err = p.Once(b.ctx, a, "2", func(ctx context.Context) error { return p.Once(ctx, a, "1", b.never) })
	require.ErrorContains(b, err, "done before")
	require.NotErrorIs(b, err, lockpool.ErrDone)
	require.False(b, errors.As(err, new(*lockpool.DoneError)))
	require.Len(b, b.finished(a), 1)
}

func onceUnderALostLock(b *bench) {
	p, a, n := b.pool(), b.name("a"), 0
	l := b.lock(p, lockOfRun(a, "1"))
	err := p.Once(l.Context(b.ctx), a, "1", func(ctx context.Context) error {
		b.breakHolder(lockOfRun(a, "1"))
		<-ctx.Done()
		require.ErrorIs(b, p.Once(ctx, a, "2", b.never), lockpool.ErrLockLost)
		require.ErrorIs(b, p.Elect(ctx, a, b.never), lockpool.ErrLockLost)
		return nil
	})
	require.ErrorIs(b, err, lockpool.ErrLockLost)
	require.ErrorIs(b, l.Unlock(b.ctx), lockpool.ErrLockLost)
	require.NoError(b, p.Once(b.ctx, a, "1", ran(&n)))
	require.Equal(b, 1, n)
}

// Any text is a key, and every name of a lock is a name.
func keysAndNamesOfRuns(b *bench) {
	p := b.pool()
	keys := []string{"1", "a/b", "a%2Fb", ".", "..", "日本\x00\xff", "2026-11-22T18:00:00Z", " ", "~", "lock-0000000001", "zookeeper", ".done"}
	for _, name := range []string{b.name("a"), b.name("a/b"), b.name("größe/東京"), b.name("%2E"), b.name("a%2Fb")} {
		for _, key := range keys {
			n := 0
			require.NoError(b, p.Once(b.ctx, name, key, ran(&n)), "%q %q", name, key)
			require.Equal(b, 1, n)
			b.isDone(p.Once(b.ctx, name, key, b.never), name, key)
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
		p.Once(ctx, a, "", b.never), p.Once(ctx, a, strings.Repeat("ü", 86), b.never),
		p.Once(ctx, a, strings.Repeat("x", 508-len(a)), b.never), p.Forget(ctx, a, "x", ""), p.Forget(ctx, "/a"), finished,
	} {
		require.ErrorIs(b, err, lockpool.ErrInvalidName)
	}
	require.ErrorContains(b, p.Once(ctx, ".done", "k", b.never), ".done is where the records of finished runs are")
	require.ErrorContains(b, p.Once(ctx, a, "k", nil), "the function is nil")
	require.ErrorContains(b, p.Once(ctx, a, "k", b.never, lockpool.Plain()), "leave out Plain and Shared")
	require.ErrorContains(b, p.Once(ctx, a, "k", b.never, lockpool.Shared()), "leave out Plain and Shared")
	require.ErrorContains(b, p.Once(ctx, a, "k", b.never, lockpool.HoldAtLeast(time.Minute)), "leave out HoldAtLeast")
	require.ErrorContains(b, p.Once(ctx, a, "k", b.never, lockpool.KeepDone(0)), "must be kept for some time")
	require.ErrorContains(b, p.Do(ctx, a, b.never, lockpool.KeepDone(time.Hour)), "KeepDone is for Once")
	require.Zero(b, p.Stats().OpenSessions)
}

func forgetRuns(b *bench) {
	p, a, n := b.pool(), b.name("a"), 0
	require.NoError(b, p.Forget(b.ctx, a))
	require.NoError(b, p.Forget(b.ctx, a, "none"))
	const keys = 12
	for key := range keys {
		require.NoError(b, p.Once(b.ctx, a, fmt.Sprint(key), ran(&n)))
	}
	require.NoError(b, p.Forget(b.ctx, a, "7", "none", "8", "7"))
	require.Len(b, b.finished(a), keys-2)
	for _, key := range []string{"7", "9"} {
		err := p.Once(b.ctx, a, key, ran(&n))
		require.Equal(b, key == "9", errors.Is(err, lockpool.ErrDone), "%v", err)
	}
	require.Equal(b, keys+1, n)
	require.NoError(b, p.Forget(b.ctx, a))
	require.Empty(b, b.finished(a))
	require.NoError(b, p.Once(b.ctx, a, "9", ran(&n)))
}

// Records are removed when their time is over, by later runs of any name, and no earlier.
func oldRecordsAreRemoved(b *bench) {
	if !b.bubble {
		b.Skip("it would take long outside of a bubble")
	}
	const period, keep = 3 * time.Second, 10 * 3 * time.Second
	p, a, n := b.pool(), b.name("a"), 0
	b.ctx = b.timeout(2 * time.Hour)
	require.NoError(b, p.Once(b.ctx, a, "long", ran(&n), lockpool.KeepDone(time.Hour)))
	for i := range 40 {
		own := b.name(fmt.Sprint("once/", i)) // a name not used again
		require.NoError(b, p.Once(b.ctx, own, "x", ran(&n), lockpool.KeepDone(keep)))
		require.NoError(b, p.Once(b.ctx, a, fmt.Sprint(i), ran(&n), lockpool.KeepDone(keep)))
		runs := b.finished(a)
		require.GreaterOrEqual(b, len(runs), 1+min(i+1, 10))
		require.LessOrEqual(b, len(runs), 1+14, "kept for a quarter more at most, and a moment")
		require.Equal(b, "long", runs[0].Key, "this one is kept for longer")
		for _, run := range runs {
			b.isDone(p.Once(b.ctx, a, run.Key, b.never), a, run.Key)
		}
		if i >= 20 {
			require.Empty(b, b.finished(b.name(fmt.Sprint("once/", i-20))))
		}
		time.Sleep(period)
	}
	require.NoError(b, p.Once(b.ctx, a, "0", ran(&n), lockpool.KeepDone(keep)))
	require.Equal(b, 82, n)
}

var electTests = []test{
	{"ResigningMakesWay", leaderThatResignsMakesWay, nil},
	{"FailingMakesWay", leaderThatFailsMakesWay, nil},
	{"RepeatsWhateverLeadReturns", electRepeatsWhateverLeadReturns, nil},
	{"Pauses", electPausesAfterFailures, nil},
	{"StandsAgainAfterALoss", electStandsAgainAfterALoss, []string{"Breaker"}},
	{"RevokedLeaderQueuesAgain", revokedLeaderQueuesAgain, revoker},
	{"EndsWithItsContext", electEndsWithItsContext, nil},
	{"ErrorNamesTheLeader", errorOfElectNamesTheLeader, nil},
	{"EndsWithItsPool", electEndsWithItsPool, nil},
	{"CannotSucceed", electDoesNotRepeatWhatCannotSucceed, limiter},
	{"Panic", panicOfALeaderUnlocks, nil},
	{"Plain", electWithPlainLocks, plainLocker},
	{"OneLeads", oneLeads, nil},
}

// candidate is a call of Elect.
type candidate struct {
	*call[struct{}]
	terms chan *term // each is received at its beginning
}

// term is one call of lead; lead returns as told.
type term struct {
	ctx   context.Context
	began time.Time
	end   chan error
}

// stand starts a candidate.
func (b *bench) stand(p *lockpool.Pool, name string, opts ...lockpool.LockOption) *candidate {
	c := &candidate{terms: make(chan *term)}
	c.call = do(b, func(ctx context.Context) error {
		return p.Elect(ctx, name, func(lead context.Context) error {
			t := &term{lead, time.Now(), make(chan error)}
			select {
			case c.terms <- t:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case err := <-t.end:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}, opts...)
	})
	return c
}

// leads waits until the candidate leads.
func (c *candidate) leads() *term {
	c.bench.Helper()
	select {
	case t := <-c.terms:
		return t
	case <-c.done:
		require.FailNow(c.bench, "Elect has returned", "%v", c.err)
	case <-c.bench.ctx.Done():
		require.FailNow(c.bench, "the candidate does not lead")
	}
	return nil
}

// over waits until a term has ended, and returns why.
func (b *bench) over(t *term) error {
	b.Helper()
	b.await(t.ctx.Done(), "the end of the term")
	return context.Cause(t.ctx)
}

func leaderThatResignsMakesWay(b *bench) {
	a := b.name("a")
	first := b.stand(b.pool(), a)
	t := first.leads()
	require.Equal(b, a, b.lockIn(t.ctx).Name())
	second := b.stand(b.pool(), a)
	b.queued(a, 2)
	t.end <- nil
	require.NoError(b, first.returned())
	require.ErrorIs(b, b.over(t), lockpool.ErrNotHeld)
	second.leads().end <- nil
	require.NoError(b, second.returned())
	b.queued(a, 0)
}

func leaderThatFailsMakesWay(b *bench) {
	a := b.name("a")
	first := b.stand(b.pool(), a)
	t := first.leads()
	second := b.stand(b.pool(), a)
	b.queued(a, 2)
	t.end <- errWork
	next := second.leads()
	b.queued(a, 2) // the first stands again
	next.end <- nil
	require.NoError(b, second.returned())
	first.leads().end <- nil
	require.NoError(b, first.returned())
}

// After a loss, no return of lead is a resignation.
// Errors of lead say nothing about the election, even if the errors are those of a pool.
func electRepeatsWhateverLeadReturns(b *bench) {
	c := b.stand(b.pool(), b.name("a"))
	for _, err := range []error{lockpool.ErrPoolClosed, lockpool.ErrInvalidName, lockpool.ErrNoPermission, lockpool.ErrRevoked, context.Canceled, context.DeadlineExceeded} {
		c.leads().end <- err
	}
	c.leads().end <- nil
	require.NoError(b, c.returned())
}

// The pauses grow up to a limit, start over after a long term, and are random: candidates
// that fail together do not try again together.
func electPausesAfterFailures(b *bench) {
	if !b.bubble {
		b.Skip("the pauses take minutes")
	}
	b.ctx = b.timeout(time.Hour)
	c := b.stand(b.pool(), b.name("a"))
	t, all := c.leads(), map[time.Duration]bool{}
	fails := func(longest ...time.Duration) {
		b.Helper()
		for _, pause := range longest {
			failed := time.Now()
			t.end <- errWork
			t = c.leads()
			took := t.began.Sub(failed)
			require.Greater(b, took, pause/2-1)
			require.LessOrEqual(b, took, pause+time.Millisecond)
			all[took] = true
		}
	}
	const first = 100 * time.Millisecond
	doubling := []time.Duration{first, 2 * first, 4 * first, 8 * first, 16 * first, 32 * first, 64 * first,
		10 * time.Second, 10 * time.Second, 10 * time.Second}
	fails(doubling...)
	time.Sleep(10*time.Second - time.Millisecond) // too short a term
	fails(10 * time.Second)
	time.Sleep(10 * time.Second)
	fails(doubling...)
	require.Greater(b, len(all), 18, "of 21 pauses")
	t.end <- nil
	require.NoError(b, c.returned())
}

func electStandsAgainAfterALoss(b *bench) {
	lose := []func(name string){b.breakHolder}
	if b.options.Expire != nil {
		lose = append(lose, b.expire)
	}
	for _, lose := range lose {
		for _, returns := range []error{nil, context.Canceled, errWork} {
			a := b.name("a")
			c := b.stand(b.pool(), a)
			t := c.leads()
			before := b.token(b.lockIn(t.ctx))
			lose(a)
			require.ErrorIs(b, b.over(t), lockpool.ErrLockLost)
			b.settle()
			select {
			case <-c.terms:
				require.FailNow(b, "it leads again before lead has returned")
			default:
			}
			t.end <- returns
			t = c.leads()
			require.Greater(b, b.token(b.lockIn(t.ctx)), before)
			t.end <- nil
			require.NoError(b, c.returned())
		}
	}
	a := b.name("ended")
	ctx, cancel := context.WithCancel(b.ctx)
	c := do(b, func(context.Context) error {
		return b.looker.Elect(ctx, a, func(lead context.Context) error {
			cancel()
			b.breakHolder(a)
			<-b.lockIn(lead).Lost()
			return nil
		})
	})
	require.ErrorIs(b, c.returned(), lockpool.ErrLockLost)
	require.ErrorIs(b, c.err, context.Canceled)
	ctx, cancel = context.WithCancel(b.ctx)
	c = do(b, func(context.Context) error {
		return b.looker.Elect(ctx, a, func(lead context.Context) error {
			b.breakHolder(a)
			<-lead.Done()
			time.AfterFunc(20*time.Millisecond, cancel) // in the pause
			return errWork
		})
	})
	for _, want := range []error{lockpool.ErrLockLost, context.Canceled, errWork} {
		require.ErrorIs(b, c.returned(), want)
	}
}

// A leader or a candidate asked for the lock stands again at once, at the end.
func revokedLeaderQueuesAgain(b *bench) {
	for _, returns := range []error{nil, context.Canceled} {
		a := b.name("a")
		first := b.stand(b.pool(), a, lockpool.Revocable())
		t := first.leads()
		second := b.stand(b.pool(), a, lockpool.Revocable())
		b.queued(a, 2)
		require.NoError(b, b.looker.Revoke(b.ctx, a))
		require.ErrorIs(b, b.over(t), lockpool.ErrRevoked)
		resigned := time.Now()
		t.end <- returns
		t = second.leads()
		b.queued(a, 2) // the first stands again
		b.took(0, resigned)
		waits := b.contenders(a)[1].Node
		require.NoError(b, b.looker.Revoke(b.ctx, a, waits))
		b.until(func() bool { q := b.contenders(a); return len(q) == 2 && q[1].Node != waits }, "the first has queued again")
		t.end <- nil
		require.NoError(b, second.returned())
		first.leads().end <- nil
		require.NoError(b, first.returned())
	}
}

func electEndsWithItsContext(b *bench) {
	a := b.name("a")
	ctx, cancel := context.WithCancelCause(b.ctx)
	leading, mayEnd := make(chan struct{}), make(chan struct{})
	c := do(b, func(context.Context) error {
		return b.looker.Elect(ctx, a, func(ctx context.Context) error {
			close(leading)
			<-mayEnd
			return errWork
		})
	})
	<-leading
	cancel(errors.New("the process stops"))
	c.waits()
	b.queued(a, 1)
	close(mayEnd)
	err := c.returned()
	require.ErrorIs(b, err, context.Canceled)
	require.ErrorIs(b, err, errWork)
	require.ErrorContains(b, err, "the process stops")
	b.queued(a, 0)

	pausing := b.stand(b.pool(), a)
	for range 5 { // the pauses grow
		pausing.leads().end <- errWork
	}
	began := time.Now()
	pausing.cancel()
	require.ErrorIs(b, pausing.returned(), context.Canceled)
	b.took(0, began)
}

// A candidate whose context ends during the wait says who leads, as every other call says
// who holds the lock; and the error says "not acquired" only if the candidate has not led
// in a term before.
func errorOfElectNamesTheLeader(b *bench) {
	for _, led := range []bool{false, true} {
		a, p, others := b.name(fmt.Sprint(led)), b.pool(), b.named("night shift")
		ctx, cancel := context.WithCancel(b.ctx)
		var leader *candidate
		candidate := func() *call[struct{}] {
			return do(b, func(context.Context) error {
				return p.Elect(ctx, a, func(context.Context) error { return errWork })
			})
		}
		var c *call[struct{}]
		if led {
			held := b.lock(b.pool(), a)
			c = candidate()
			b.queued(a, 2)
			leader = b.stand(others, a)
			b.unlock(held)
		} else {
			leader = b.stand(others, a)
			b.queued(a, 1)
			c = candidate()
		}
		t := leader.leads()
		b.waiting(p, 1)
		b.queued(a, 2)
		cancel()
		err := c.returned()
		require.ErrorIs(b, err, context.Canceled)
		require.ErrorContains(b, err, "night shift")
		require.Equal(b, !led, errors.Is(err, lockpool.ErrNotAcquired))
		require.Equal(b, !led, errors.Is(err, lockpool.ErrLocked))
		t.end <- nil
		require.NoError(b, leader.returned())
	}
}

// ends are the ways to end a pool.
func (b *bench) ends() map[string]func(*lockpool.Pool) error {
	return map[string]func(*lockpool.Pool) error{
		"Close":    (*lockpool.Pool).Close,
		"Shutdown": func(p *lockpool.Pool) error { return p.Shutdown(b.ctx) },
	}
}

func electEndsWithItsPool(b *bench) {
	for what, end := range b.ends() {
		leads, waits, pauses, a := b.pool(), b.pool(), b.pool(), b.name(what)
		pausing := b.stand(pauses, a)
		pausing.leads().end <- errWork
		require.NoError(b, end(pauses), what)
		require.ErrorIs(b, pausing.returned(), lockpool.ErrPoolClosed)
		require.ErrorIs(b, pauses.Elect(b.ctx, a, b.never), lockpool.ErrPoolClosed)
		leader := b.stand(leads, a)
		t := leader.leads()
		waiter := b.stand(waits, a)
		b.waiting(waits, 1)
		require.NoError(b, end(waits), what)
		require.ErrorIs(b, waiter.returned(), lockpool.ErrPoolClosed)
		require.ErrorIs(b, waiter.err, lockpool.ErrNotAcquired)
		closing := do(b, func(context.Context) error { return end(leads) })
		require.ErrorIs(b, b.over(t), lockpool.ErrPoolClosed, what)
		t.end <- t.ctx.Err()
		require.NoError(b, closing.returned(), what)
		require.ErrorIs(b, leader.returned(), lockpool.ErrPoolClosed)
		b.queued(a, 0)
	}
}

func electDoesNotRepeatWhatCannotSucceed(b *bench) {
	p, a := b.pool(), b.name("a")
	require.ErrorContains(b, p.Elect(b.ctx, a, nil), "Elect: the function is nil")
	require.ErrorContains(b, p.Elect(b.ctx, a, b.never, lockpool.Shared()), "leave out")
	require.ErrorContains(b, p.Elect(b.ctx, a, b.never, lockpool.WaitAtMost(time.Second)), "leave out")
	require.ErrorContains(b, p.Elect(b.ctx, a, b.never, lockpool.WaitAtMost(0)), "leave out")
	require.ErrorContains(b, p.Elect(b.ctx, a, b.never, nil), "nil LockOption")
	require.Zero(b, p.Stats().OpenSessions)
	permits := b.acquire(p.Semaphore(a, 1), 1)
	require.ErrorIs(b, p.Elect(b.ctx, a, b.never), lockpool.ErrKindMismatch)
	b.unlock(permits)
}

func panicOfALeaderUnlocks(b *bench) {
	p, a := b.pool(), b.name("a")
	require.PanicsWithValue(b, "oops", func() {
		_ = p.Elect(b.ctx, a, func(context.Context) error { panic("oops") })
	})
	b.isFree(a)
}

func electWithPlainLocks(b *bench) {
	a := b.name("a")
	first := b.stand(b.pool(), a, lockpool.Plain())
	t := first.leads()
	second := b.stand(b.pool(), a, lockpool.Plain())
	t.end <- nil
	require.NoError(b, first.returned())
	second.leads().end <- nil
	require.NoError(b, second.returned())
}

// Of many candidates one leads at a time, whichever way a term ends.
func oneLeads(b *bench) {
	pools, a := b.pools(3), b.name("a")
	var leading atomic.Int32
	b.together(6, func(i int) error {
		terms := 0
		return pools[i%3].Elect(b.ctx, a, func(ctx context.Context) error {
			if leading.Add(1) != 1 {
				b.Error("two leaders")
			}
			defer leading.Add(-1)
			if terms++; terms < 3 {
				return errWork
			}
			return nil
		})
	})
}

var follower = []string{"Follower"}

var observeTests = []test{
	{"Election", observeFollowsAnElection, follower},
	{"HeadOfTheQueue", observeYieldsTheHead, follower},
	{"EachKind", observeEachKind, []string{"Follower", "PlainLocker", "Limiter"}},
	{"Ends", observeEnds, follower},
	{"Silence", observerIsToldOfSilence, follower},
	{"TellsTheNewestState", observersAgree, follower},
}

// observer is a loop over Observe.
type observer struct {
	*call[struct{}]
	values chan string // closed when the loop has ended
}

// observe follows a lock. A value is the owners of the holders, and of the next one behind a
// bar.
func (b *bench) observe(p *lockpool.Pool, name string) *observer {
	o := &observer{values: make(chan string, 10_000)}
	o.call = do(b, func(ctx context.Context) error {
		defer close(o.values)
		for q, err := range p.Observe(ctx, name) {
			if err != nil {
				return err
			}
			value := ""
			for _, c := range q.Contenders {
				if !c.Holds {
					value += "|"
				}
				value += c.Owner
			}
			o.values <- value
		}
		return nil
	})
	return o
}

// sees requires the next state to be the given one.
func (o *observer) sees(state string) {
	o.bench.Helper()
	select {
	case got, ok := <-o.values:
		o.goesOn(ok)
		require.Equal(o.bench, state, got)
	case <-o.bench.ctx.Done():
		require.FailNow(o.bench, "nothing is observed", state)
	}
}

func (o *observer) goesOn(ok bool) {
	o.bench.Helper()
	if !ok {
		require.FailNowf(o.bench, "the loop has ended", "%v", o.returned())
	}
}

// comesToSee waits until a state is seen.
func (o *observer) comesToSee(state string) {
	o.bench.Helper()
	for {
		select {
		case got, ok := <-o.values:
			o.goesOn(ok)
			if got == state {
				return
			}
		case <-o.bench.ctx.Done():
			require.FailNow(o.bench, "it is not observed", state)
		}
	}
}

func (b *bench) named(owner string) *lockpool.Pool { return b.pool(lockpool.WithOwner(owner)) }

func observeFollowsAnElection(b *bench) {
	p, a := b.pool(), b.name("deep/below/a")
	o := b.observe(p, a)
	o.sees("")
	elect := func(p *lockpool.Pool) (stop func()) {
		c := do(b, func(ctx context.Context) error {
			return p.Elect(ctx, a, func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
		})
		return func() { c.cancel(); <-c.done }
	}
	stopX := elect(b.named("x"))
	o.sees("x")
	stopY := elect(b.named("y"))
	o.sees("x|y")
	stopZ := elect(b.named("z"))
	b.queued(a, 3)
	stopX()
	o.sees("y|z")
	stopZ()
	o.sees("y")
	stopY()
	o.sees("")

	// Another observer starts with the present state.
	l := b.lock(b.named("w"), a)
	o.sees("w")
	other := b.observe(b.pool(), a)
	other.sees("w")
	b.unlock(l)
	o.sees("")
	other.sees("")
	o.cancel()
	require.ErrorIs(b, o.returned(), context.Canceled)
	require.Empty(b, o.values)
}

// What is observed is what Queue returns, without the waiters after the first.
func observeYieldsTheHead(b *bench) {
	p, a := b.pool(atService), b.name("a")
	holder := b.lock(p, a)
	waiters := []*call[*lockpool.Lock]{b.enqueue(p, a, 2), b.enqueue(p, a, 3), b.enqueue(p, a, 4)}
	for i := range 4 {
		q, err := p.Queue(b.ctx, a)
		require.NoError(b, err)
		for got, err := range p.Observe(b.ctx, a) {
			require.NoError(b, err)
			require.Equal(b, a, got.Name)
			require.Equal(b, q.Contenders[:min(2, len(q.Contenders))], got.Contenders)
			break
		}
		b.unlock(holder)
		if i < 3 {
			holder = waiters[i].granted()
		}
	}
}

func observeEachKind(b *bench) {
	x, y, a := b.named("x"), b.named("y"), b.name("a")
	o := b.observe(b.pool(), a)
	o.sees("")
	read := b.read(x, a)
	o.comesToSee("x")
	also := b.read(y, a)
	o.comesToSee("xy")
	write := b.enqueue(b.named("z"), a, 3)
	o.comesToSee("xy|z")
	b.unlock(read)
	o.comesToSee("y|z")
	b.unlock(also)
	o.comesToSee("z")
	b.unlock(write.granted())
	o.comesToSee("")

	c := b.name("c")
	o = b.observe(b.pool(), c)
	o.sees("")
	for range 2 {
		l := b.lock(x, c, lockpool.Plain())
		o.comesToSee("x")
		b.unlock(l)
		o.comesToSee("")
	}

	s := b.name("s")
	o = b.observe(b.pool(), s)
	o.sees("")
	one := b.acquire(x.Semaphore(s, 3), 1)
	o.comesToSee("x")
	two := b.acquire(y.Semaphore(s, 3), 2)
	o.comesToSee("xy")
	b.unlock(one)
	b.unlock(two)
	o.comesToSee("")
}

// An observer is told of the silence of the service, though nothing changes and no session
// is lost, and of the state after the silence.
func observerIsToldOfSilence(b *bench) {
	if b.options.Pause == nil {
		b.Skip("it needs Options.Pause")
	}
	p, a := b.named("x"), b.name("a")
	b.lock(p, a)
	type step struct {
		err  error
		head int
	}
	steps := make(chan step, 100)
	ctx, cancel := context.WithCancel(b.ctx)
	o := do(b, func(context.Context) error {
		for q, err := range p.Observe(ctx, a) {
			steps <- step{err, len(q.Contenders)}
		}
		return nil
	})
	for range 2 {
		require.Equal(b, step{head: 1}, <-steps)
		time.Sleep(10 * time.Second)
		require.Empty(b, steps, "the service answers")
		began, resume := time.Now(), b.options.Pause(b)
		require.ErrorIs(b, (<-steps).err, lockpool.ErrUnavailable)
		require.Less(b, time.Since(began), 3*time.Second)
		resume()
	}
	require.Equal(b, step{head: 1}, <-steps)
	cancel()
	require.ErrorIs(b, (<-steps).err, context.Canceled)
	require.NoError(b, o.returned())
}

func observeEnds(b *bench) {
	for what, end := range b.ends() {
		p, a := b.pool(), b.name("a")
		o := b.observe(p, a)
		o.sees("")
		require.NoError(b, end(p), what)
		require.ErrorIs(b, o.returned(), lockpool.ErrPoolClosed)
		require.ErrorIs(b, b.observe(p, a).returned(), lockpool.ErrPoolClosed)
	}
	p := b.pool()
	require.ErrorIs(b, b.observe(p, "/a").returned(), lockpool.ErrInvalidName)
	require.Zero(b, p.Stats().OpenSessions)

	// Shutdown waits for the loops.
	l, o := b.lock(p, b.name("held")), b.observe(p, b.name("a"))
	o.sees("")
	down := do(b, p.Shutdown)
	require.ErrorIs(b, o.returned(), lockpool.ErrPoolClosed)
	b.unlock(l)
	require.NoError(b, down.returned())
}

// Each observer sees the last state of the lock, after any number of changes.
func observersAgree(b *bench) {
	a := b.name("a")
	observers := []*observer{b.observe(b.pool(), a), b.observe(b.pool(), a)}
	pools := b.pools(3)
	b.together(9, func(i int) error {
		for range 5 {
			if err := pools[i%3].Do(b.ctx, a, nothing); err != nil {
				return err
			}
		}
		return nil
	})
	last := b.lock(b.named("last"), a)
	for _, o := range observers {
		o.comesToSee("last")
	}
	b.unlock(last)
	for _, o := range observers {
		o.sees("")
	}
}
