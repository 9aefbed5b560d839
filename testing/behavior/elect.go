package behavior

// This file has the tests of elections.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

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
	a, calls := b.name("unseen"), 0
	require.NoError(b, b.pool().Elect(b.ctx, a, func(context.Context) error {
		if calls++; calls == 1 {
			b.breakHolder(a) // found by the unlock
		}
		return nil
	}))
	require.Equal(b, 2, calls)
	a = b.name("ended")
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
	p := b.pool(lockpool.WithLogger(slog.New(whenLogged{slog.DiscardHandler, "the leader failed", cancel}))) // in the pause
	c = do(b, func(context.Context) error {
		return p.Elect(ctx, a, func(lead context.Context) error {
			b.breakHolder(a)
			<-lead.Done()
			return errWork
		})
	})
	for _, want := range []error{lockpool.ErrLockLost, context.Canceled, errWork} {
		require.ErrorIs(b, c.returned(), want)
	}
}

// whenLogged calls do when a record with the text is logged.
type whenLogged struct {
	slog.Handler
	text string
	do   func()
}

func (whenLogged) Enabled(context.Context, slog.Level) bool { return true }

func (w whenLogged) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, w.text) {
		w.do()
	}
	return nil
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
		require.ErrorIs(b, pauses.Elect(b.ctx, a, plays.Never(b)), lockpool.ErrPoolClosed)
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
	require.ErrorContains(b, p.Elect(b.ctx, a, plays.Never(b), lockpool.Shared()), "leave out")
	require.ErrorContains(b, p.Elect(b.ctx, a, plays.Never(b), lockpool.WaitAtMost(time.Second)), "leave out")
	require.ErrorContains(b, p.Elect(b.ctx, a, plays.Never(b), lockpool.WaitAtMost(0)), "leave out")
	require.ErrorContains(b, p.Elect(b.ctx, a, plays.Never(b), nil), "nil LockOption")
	require.Zero(b, p.Stats().OpenSessions)
	permits := b.acquire(p.Semaphore(a, 1), 1)
	require.ErrorIs(b, p.Elect(b.ctx, a, plays.Never(b)), lockpool.ErrKindMismatch)
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
	plays.Together(b, 6, func(i int) error {
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
