package gocron_test

// This file tests lockers and electors on several machines.

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	lockgocron "github.com/lockpool/lockpool/adapters/gocron"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }

const period = 500 * time.Millisecond

// job is a job of several machines, counting runs and overlapping runs.
type job struct {
	length         time.Duration
	skipped        atomic.Int32 // because another machine had the lock
	overlaps, busy atomic.Int32
}

// schedule starts a machine that runs the job every period, from a moment on. It returns
// the number of the machine's runs.
func (j *job) schedule(b *locktest.Bench, start time.Time, opt gocron.SchedulerOption) *atomic.Int32 {
	s, err := gocron.NewScheduler(opt)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Shutdown()) })
	runs := new(atomic.Int32)
	task := func() {
		runs.Add(1)
		if j.busy.Add(1) > 1 {
			j.overlaps.Add(1)
		}
		time.Sleep(j.length)
		j.busy.Add(-1)
	}
	skipped := func(_ uuid.UUID, _ string, err error) {
		require.ErrorIs(b, err, lockpool.ErrLocked)
		j.skipped.Add(1)
	}
	_, err = s.NewJob(gocron.DurationJob(period), gocron.NewTask(task), gocron.WithName("nightly report"),
		gocron.WithStartAt(gocron.WithStartDateTime(start)), gocron.WithEventListeners(gocron.AfterLockError(skipped)))
	require.NoError(b, err)
	s.Start()
	return runs
}

func TestOneOfThreeMachinesRunsAJob(t *testing.T) {
	for name, c := range map[string]struct {
		length time.Duration
		opts   []lockpool.LockOption
	}{
		"as long as the clocks are apart": {length: period / 2},
		"that is short":                   {opts: []lockpool.LockOption{lockpool.HoldAtLeast(period / 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.Timed(t, func(t *testing.T) {
				b := locktest.New(t)
				j := job{length: c.length}
				start := time.Now().Add(period)
				var runs []*atomic.Int32
				for i := range 3 {
					locker := lockgocron.NewLocker(b.Pool(), "jobs", c.opts...)
					runs = append(runs, j.schedule(b, start.Add(time.Duration(i)*period/10), gocron.WithDistributedLocker(locker)))
				}
				const periods = 6
				time.Sleep(time.Until(start) + (periods-1)*period + period*8/10)
				require.EqualValues(t, periods, runs[0].Load()+runs[1].Load()+runs[2].Load())
				require.EqualValues(t, 2*periods, j.skipped.Load())
				require.Zero(t, j.overlaps.Load())
			})
		})
	}
}

// Three machines whose clocks are 20 ms and 2 s apart run a job of each period, and one of
// them crashes while it runs the job.
func TestJobThatCallsOnceFinishesOnceForEachPeriod(t *testing.T) {
	locktest.Timed(t, func(t *testing.T) {
		const (
			period  = 5 * time.Second
			periods = 4
		)
		b := locktest.New(t)
		watch := b.Pool()
		start := time.Now().Truncate(period).Add(period)
		var starts atomic.Int32
		direct := b.Addr
		for _, late := range []time.Duration{0, 20 * time.Millisecond, 2 * time.Second} {
			b.Addr = direct
			proxy := b.Proxy()
			pool := b.PoolWithTimeout(2 * time.Second)
			s, err := gocron.NewScheduler()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Shutdown()) })
			task := func(ctx context.Context) error {
				due := time.Now().Add(-late).Round(period) // by the machine's clock
				return pool.Once(ctx, "jobs/report", due.UTC().Format(time.TimeOnly), func(ctx context.Context) error {
					if starts.Add(1) == 3 {
						crash(b, proxy)
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				})
			}
			_, err = s.NewJob(gocron.DurationJob(period), gocron.NewTask(task),
				gocron.WithStartAt(gocron.WithStartDateTime(start.Add(late))))
			require.NoError(t, err)
			s.Start()
		}
		time.Sleep(time.Until(start) + periods*period - time.Second)
		runs, err := watch.Finished(context.Background(), "jobs/report")
		require.NoError(t, err)
		var finished, due []string
		for _, run := range runs {
			finished = append(finished, run.Key)
		}
		for i := range periods {
			due = append(due, start.Add(time.Duration(i)*period).UTC().Format(time.TimeOnly))
		}
		require.Equal(t, due, finished)
		require.EqualValues(t, periods+1, starts.Load())
	})
}

// crash cuts all connections through a proxy, for good, without a word to either side.
func crash(b *locktest.Bench, proxy *zktest.Proxy) {
	require.NoError(b, proxy.HangConnections())
	proxy.HalfOpen(zktest.Selector{})
}

func TestNamesOfJobs(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	one, other := lockgocron.NewLocker(p, "billing/jobs"), lockgocron.NewLocker(p, "shipping/jobs")
	for _, name := range []string{"", "nightly", "/", "..", "a/b", "main.main.func1", "zookeeper", "Bücher\x00"} {
		lock, err := one.Lock(b.Ctx, name)
		require.NoError(t, err, name)
		_, err = one.Lock(b.Ctx, name)
		require.ErrorIs(t, err, lockpool.ErrLocked, name)
		queue, err := p.Queue(b.Ctx, "billing/jobs/"+lockpool.Escape(name))
		require.NoError(t, err)
		require.Len(t, queue.Contenders, 1, name)

		second, err := other.Lock(b.Ctx, name)
		require.NoError(t, err, "jobs of another program")
		require.NoError(t, lock.Unlock(b.Ctx))
		require.NoError(t, second.Unlock(b.Ctx))
		require.ErrorIs(t, lock.Unlock(b.Ctx), lockpool.ErrNotHeld)
	}
	_, err := lockgocron.NewLocker(p, "").Lock(b.Ctx, "nightly")
	require.NoError(t, err, "a prefix is not required")
}

func TestLockerObeysContexts(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	locker := lockgocron.NewLocker(p, "jobs", lockpool.Plain())
	ended, cancel := context.WithCancel(b.Ctx)
	cancel()
	lock, err := locker.Lock(ended, "nightly")
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, lock)

	lock, err = locker.Lock(b.Ctx, "nightly")
	require.NoError(t, err)
	_, err = p.TryLock(b.Ctx, "jobs/nightly")
	require.ErrorIs(t, err, lockpool.ErrKindMismatch, "the options are passed on")
	_ = lock.Unlock(ended) // as gocron does when the scheduler shuts down
	again, err := p.Lock(b.Ctx, "jobs/nightly", lockpool.Plain())
	require.NoError(t, err)
	require.NoError(t, again.Unlock(b.Ctx))
}

func TestOnlyTheLeaderRunsJobs(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		var j job
		var machines [3]struct {
			*lockgocron.Elector
			runs   *atomic.Int32
			resign context.CancelFunc
			proxy  *zktest.Proxy
			result chan error
		}
		leader := func() (found int) {
			found = -1
			for i, m := range machines {
				if m.IsLeader(b.Ctx) == nil {
					require.Equal(t, -1, found, "there are two leaders")
					found = i
				}
			}
			return found
		}
		runs := func(i int) int32 { return machines[i].runs.Load() }

		direct := b.Addr
		for i := range machines {
			m := &machines[i]
			b.Addr = direct
			m.proxy = b.Proxy()
			m.Elector = lockgocron.NewElector(b.PoolWithTimeout(time.Second), "jobs/leader")
			require.Error(t, m.IsLeader(b.Ctx))
			ctx, cancel := context.WithCancel(b.Ctx)
			t.Cleanup(cancel)
			m.resign, m.result = cancel, make(chan error, 1)
			m.runs = j.schedule(b, time.Now().Add(period), gocron.WithDistributedElector(m))
			go func() { m.result <- m.Run(ctx) }() // ends with ctx
		}

		b.Until(func() bool { return leader() >= 0 }, "there is a leader")
		first := leader()
		b.Until(func() bool { return runs(first) >= 2 }, "the leader runs the job")
		require.EqualValues(t, runs(first), runs(0)+runs(1)+runs(2), "only the leader does")

		machines[first].resign()
		require.ErrorIs(t, <-machines[first].result, context.Canceled)
		require.Error(t, machines[first].IsLeader(b.Ctx))
		b.Until(func() bool { return leader() >= 0 }, "there is another leader")
		second := leader()
		require.NotEqual(t, first, second)
		b.Until(func() bool { return runs(second) >= 2 }, "the second leader runs the job")

		crash(b, machines[second].proxy)
		b.Until(func() bool { return leader() != second && leader() >= 0 }, "there is a third leader")
		third := leader()
		require.NotEqual(t, first, third)
		before := runs(second)
		b.Until(func() bool { return runs(third) >= 2 }, "the third leader runs the job")
		require.Equal(t, before, runs(second))

		require.NoError(t, machines[second].proxy.AcceptConnections())
		machines[third].resign()
		b.Until(func() bool { return leader() == second }, "the second leader stands again")
	})
}
