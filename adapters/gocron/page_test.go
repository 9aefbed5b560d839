package gocron_test

// This file tests the examples of docs/adapters.md.

import (
	"context"
	"errors"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	lockgocron "github.com/lockpool/lockpool/adapters/gocron"
	"github.com/lockpool/lockpool/testing/locktest"
)

// The next two functions are on the page docs/adapters.md.

func newScheduler(pool *lockpool.Pool) (gocron.Scheduler, error) {
	// The locks are billing/jobs/NAME OF THE JOB. 30 s are longer than the machines' clocks are
	// apart, and shorter than the period of any job.
	locker := lockgocron.NewLocker(pool, "billing/jobs", lockpool.HoldAtLeast(30*time.Second))
	return gocron.NewScheduler(gocron.WithDistributedLocker(locker))
}

func addReindex(scheduler gocron.Scheduler, pool *lockpool.Pool) error {
	_, err := scheduler.NewJob(
		gocron.CronJob("TZ=UTC 0 * * * *", false),
		gocron.NewTask(func(ctx context.Context) error {
			due := time.Now().Round(time.Hour) // the scheduler may be a little early or late
			err := pool.Once(ctx, "billing/reindex", due.UTC().Format(time.RFC3339), reindex)
			if errors.Is(err, lockpool.ErrDone) {
				return nil // another machine has done it
			}
			return err
		}),
	)
	return err
}

// reindex is the job of the page. A bubble sets it.
var reindex func(context.Context) error

// byPeriod counts runs by their period.
type byPeriod struct {
	mu   sync.Mutex
	runs map[time.Time]int
}

func (p *byPeriod) ran(period time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[time.Now().Round(period)]++
}

func (p *byPeriod) requireOnce(t *testing.T, periods int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	require.InDelta(t, periods, len(p.runs), 1)
	for due, n := range p.runs {
		require.Equal(t, 1, n, "runs for %v", due)
	}
}

// The functions of the page run each job once in each period, on three machines whose clocks
// differ. (The jobs take no time, so the lock is free again when the next machine begins.)
func TestExamplesOfThePage(t *testing.T) {
	const periods = 33
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		locked, once := byPeriod{runs: map[time.Time]int{}}, byPeriod{runs: map[time.Time]int{}}
		reindex = func(context.Context) error {
			assert.WithinDuration(t, time.Now().Round(time.Hour), time.Now(), time.Minute, "the machines may not agree on the period")
			once.ran(time.Hour)
			return nil
		}
		india := time.FixedZone("IST", int((5*time.Hour + 30*time.Minute).Seconds()))
		start := time.Now().Truncate(time.Hour).Add(time.Hour)
		for _, late := range []time.Duration{0, 5 * time.Millisecond, 2 * time.Second} {
			pool := b.Pool()
			scheduler, err := newScheduler(pool)
			require.NoError(t, err)
			_, err = scheduler.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() { locked.ran(time.Minute) }),
				gocron.WithName("report"), gocron.WithStartAt(gocron.WithStartDateTime(start.Add(late))))
			require.NoError(t, err)
			scheduler.Start()
			jobs, err := gocron.NewScheduler(gocron.WithLocation(india)) // half an hour off
			require.NoError(t, err)
			require.NoError(t, addReindex(jobs, pool))
			jobs.Start()
			t.Cleanup(func() {
				require.NoError(t, scheduler.Shutdown())
				require.NoError(t, jobs.Shutdown())
			})
		}
		time.Sleep(time.Until(start) + periods*time.Minute - time.Second)
		locked.requireOnce(t, periods)
		time.Sleep(time.Until(start) + 2*time.Hour - 15*time.Second) // no lock rests
		once.requireOnce(t, 2)
	})
}

// The page has the functions of this file.
func TestPageHasTheExamples(t *testing.T) {
	locktest.Once(t)
	page, err := os.ReadFile("../../docs/adapters.md")
	require.NoError(t, err)
	tested, err := os.ReadFile("page_test.go")
	require.NoError(t, err)
	for _, name := range []string{"newScheduler", "addReindex"} {
		text := regexp.MustCompile(`(?ms)^func ` + name + `\(.*?^}$`).Find(tested)
		require.NotEmpty(t, text)
		require.Contains(t, string(page), string(text))
	}
}
