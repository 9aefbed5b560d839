// Package gocron lets schedulers of gocron v2 on several machines share their jobs, with
// locks of lockpool.
//
//	import (
//		"github.com/go-co-op/gocron/v2"
//		lockgocron "github.com/lockpool/lockpool/adapters/gocron"
//	)
//
//	scheduler, err := gocron.NewScheduler(
//		gocron.WithDistributedLocker(lockgocron.NewLocker(pool, "billing/jobs", lockpool.HoldAtLeast(30*time.Second))))
//
// With [NewLocker], a machine begins a job only when it has got the job's lock, and holds
// the lock until the job has ended. With an [Elector], one machine runs all jobs. A machine
// that crashes loses its locks and its leadership when its session expires.
//
// # What gocron cannot carry
//
// A Locker is told the name of a job, but neither the period of the run nor the outcome. A
// lock does not remember that a job ran: if the job takes less time than the machines'
// clocks are apart, the next machine finds the lock free, and runs the job again for the
// same period. So give [NewLocker] [lockpool.HoldAtLeast], with a time longer than the
// clocks are apart, and shorter than the shortest period. A failed run, or a run on a
// crashed machine, is not made up for. With an Elector, both can happen when the leader
// changes.
//
// A job cannot be told that its lock or leadership was lost: gocron's context for a job
// does not end with either, and gocron ignores the error of Unlock. The job goes on,
// perhaps beside the next holder's. (The pool logs and counts the loss.)
//
// A job to be finished once for each period, or to be stopped when the lock is lost, takes
// a lock itself, without Locker and Elector. In the job's function, call
// [lockpool.Pool.Once] with the period as the key, and work with the context from Once:
//
//	gocron.NewTask(func(ctx context.Context) error {
//		due := time.Now().Round(time.Hour) // of UTC; the scheduler may be a little early or late
//		err := pool.Once(ctx, "billing/report", due.UTC().Format(time.RFC3339), report)
//		if errors.Is(err, lockpool.ErrDone) {
//			return nil // another machine has done it
//		}
//		return err
//	})
package gocron

import (
	"context"
	"errors"
	"path"
	"sync/atomic"

	"github.com/go-co-op/gocron/v2"

	"github.com/lockpool/lockpool"
)

// NewLocker returns a locker for [gocron.WithDistributedLocker] and
// [gocron.WithDistributedJobLocker]. The lock of a job is prefix/NAME, where NAME is the
// job's name after [lockpool.Escape]. Give each job a name, with [gocron.WithName]: the
// default is the name of the job's function, such as main.main.func1, and programs with the
// same prefix might share such a name.
//
// A locker does not wait: while another machine runs the job, Lock returns
// [lockpool.ErrLocked], and gocron skips the run. [gocron.AfterLockError] reports this
// and all other errors.
func NewLocker(pool *lockpool.Pool, prefix string, opts ...lockpool.LockOption) gocron.Locker {
	return &locker{pool, prefix, opts}
}

type locker struct {
	pool   *lockpool.Pool
	prefix string
	opts   []lockpool.LockOption
}

// Lock implements [gocron.Locker].
func (l *locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := l.pool.TryLock(ctx, path.Join(l.prefix, lockpool.Escape(job)), l.opts...)
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// Elector is a candidate for the leadership of a group of schedulers. It implements
// [gocron.Elector].
type Elector struct {
	pool *lockpool.Pool
	name string
	opts []lockpool.LockOption
	term atomic.Pointer[context.Context] // of the last leadership
}

var _ gocron.Elector = (*Elector)(nil)

// errNotLeader is what IsLeader returns.
var errNotLeader = errors.New("lockpool: not the leader")

// NewElector returns an elector for [gocron.WithDistributedElector]. The leader holds the
// lock name. The elector is not a candidate before [Elector.Run] is called.
func NewElector(pool *lockpool.Pool, name string, opts ...lockpool.LockOption) *Elector {
	return &Elector{pool: pool, name: name, opts: opts}
}

// Run lets the elector be a candidate, and from time to time the leader, until ctx ends:
// see [lockpool.Pool.Elect]. Shut the scheduler down first, so that no job is running
// when the next leader begins.
func (e *Elector) Run(ctx context.Context) error {
	return e.pool.Elect(ctx, e.name, func(term context.Context) error {
		e.term.Store(&term)
		<-term.Done()
		return term.Err()
	}, e.opts...)
}

// IsLeader implements [gocron.Elector]: nil while the elector is the leader.
func (e *Elector) IsLeader(context.Context) error {
	if term := e.term.Load(); term != nil && (*term).Err() == nil {
		return nil
	}
	return errNotLeader
}
