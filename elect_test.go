package lockpool_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/locktest"
	"github.com/lockpool/lockpool/testing/zktest"
)

// candidate is a call of Elect in a goroutine of its own.
type candidate struct {
	*locktest.Bench
	cancel context.CancelFunc
	terms  chan *leadership // each is received when it begins
	done   chan struct{}    // closed when Elect has returned err
	err    error
}

// leadership is one call of lead, which returns what it is told.
type leadership struct {
	ctx   context.Context
	began time.Time
	end   chan error
}

// stand starts a candidate for the name a.
func stand(b *locktest.Bench, p *lockpool.Pool, opts ...lockpool.LockOption) *candidate {
	ctx, cancel := context.WithCancel(b.Ctx)
	c := &candidate{b, cancel, make(chan *leadership), make(chan struct{}), nil}
	b.Cleanup(func() {
		cancel()
		<-c.done
	})
	go func() { // ends with ctx at the latest
		defer close(c.done)
		c.err = p.Elect(ctx, "a", func(lead context.Context) error {
			term := &leadership{lead, time.Now(), make(chan error)}
			select {
			case c.terms <- term:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case err := <-term.end:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}, opts...)
	}()
	return c
}

// leads waits until the candidate leads.
func (c *candidate) leads() *leadership {
	c.Helper()
	select {
	case term := <-c.terms:
		return term
	case <-c.done:
		require.FailNow(c, "Elect has returned", "%v", c.err)
	case <-c.Ctx.Done():
		require.FailNow(c, "the candidate does not lead")
	}
	return nil
}

// returned waits until Elect has returned, and returns its error.
func (c *candidate) returned() error {
	c.Helper()
	select {
	case <-c.done:
	case <-c.Ctx.Done():
		require.FailNow(c, "Elect does not return")
	}
	return c.err
}

// over waits until the leadership has ended, and returns why.
func (l *leadership) over(b *locktest.Bench) error {
	b.Helper()
	select {
	case <-l.ctx.Done():
	case <-b.Ctx.Done():
		require.FailNow(b, "the leadership does not end")
	}
	return context.Cause(l.ctx)
}

var silent = lockpool.WithLogger(slog.New(slog.DiscardHandler))

func TestLeaderThatFailsMakesWay(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		var log locktest.Log
		first := stand(b, b.Pool(lockpool.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
		term := first.leads()
		second := stand(b, b.Pool())
		b.AwaitQueue("a", 2)
		term.end <- errors.New("the disk is full")
		next := second.leads()
		b.AwaitQueue("a", 2) // the first stands again
		require.Contains(t, log.String(), "the leader failed")
		require.Contains(t, log.String(), "the disk is full")
		next.end <- nil
		require.NoError(t, second.returned())
		first.leads().end <- nil
		require.NoError(t, first.returned())
	})
}

// A loss that lead did not know of when it returned nil is found when Elect unlocks.
func TestElectStandsAgainAfterALossThatLeadDidNotSee(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(silent)
		calls := 0
		require.NoError(t, p.Elect(b.Ctx, "a", func(ctx context.Context) error {
			if calls++; calls == 1 {
				require.NoError(t, b.Admin.Delete(b.Chroot+"/a/"+b.Children("a")[0], -1)) // not watched yet
				require.NoError(t, ctx.Err())
			}
			return nil
		}))
		require.Equal(t, 2, calls)
	})
}

// The pauses are measured.
func TestElectPausesAfterFailures(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		b.Ctx = locktest.Timeout(t, time.Hour)
		c := stand(b, b.Pool(silent))
		requirePauses := func(term *leadership, longest ...time.Duration) *leadership {
			t.Helper()
			for _, pause := range longest {
				failed := time.Now()
				term.end <- errors.New("failed")
				term = c.leads()
				took := term.began.Sub(failed)
				require.Greater(t, took, pause/2-1)
				require.LessOrEqual(t, took, pause+time.Millisecond)
			}
			return term
		}
		const first = 100 * time.Millisecond
		doubling := []time.Duration{first, 2 * first, 4 * first, 8 * first, 16 * first, 32 * first, 64 * first,
			10 * time.Second, 10 * time.Second, 10 * time.Second}
		term := requirePauses(c.leads(), doubling...)
		time.Sleep(10*time.Second - time.Millisecond) // too short a term
		term = requirePauses(term, 10*time.Second)
		time.Sleep(10 * time.Second)
		term = requirePauses(term, doubling...)
		term.end <- nil
		require.NoError(t, c.returned())
	})
}

// Candidates that fail together do not try again together.
func TestElectPausesAreRandom(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		pauses := map[time.Duration]bool{}
		for range 20 {
			c := stand(b, b.Pool(silent))
			failed := time.Now()
			c.leads().end <- errors.New("failed")
			term := c.leads()
			pauses[term.began.Sub(failed)] = true
			term.end <- nil
			require.NoError(t, c.returned())
		}
		require.Greater(t, len(pauses), 10)
	})
}

func TestElectStandsAgainWhenTheServiceRefuses(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		var log locktest.Log
		p := b.Pool(lockpool.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, p.Ping(b.Ctx))
		b.Server.(*zktest.Server).Inject(zktest.Rule{
			Match: zktest.Match{Ops: []zktest.Op{zktest.OpCreate, zktest.OpMulti}, Where: func(r zktest.Request) bool { return len(r.Paths) > 0 && r.Paths[0] != "/" }},
			Times: 3, Do: zktest.FailWith(zktest.ErrThrottled),
		})
		c := stand(b, p)
		c.leads().end <- nil
		require.NoError(t, c.returned())
		require.Contains(t, log.String(), "overloaded")
	})
}

func TestRevokedLeaderQueuesAgainAtTheEnd(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		for _, returns := range []error{nil, context.Canceled} {
			b := locktest.New(t)
			others := b.Pool()
			first := stand(b, b.Pool(), lockpool.Revocable())
			term := first.leads()
			second := stand(b, others)
			b.AwaitQueue("a", 2)
			require.NoError(t, others.Revoke(b.Ctx, "a"))
			require.ErrorIs(t, term.over(b), lockpool.ErrRevoked)
			resigned := time.Now()
			term.end <- returns
			next := second.leads()
			b.AwaitQueue("a", 2) // the first waits again
			if locktest.Embedded() {
				require.Less(t, time.Since(resigned), 40*time.Millisecond, "at once")
			}
			q, err := others.Queue(b.Ctx, "a")
			require.NoError(t, err)
			revoked := time.Now()
			require.NoError(t, others.Revoke(b.Ctx, "a", q.Contenders[1].Node))
			b.Until(func() bool {
				again, err := others.Queue(b.Ctx, "a")
				require.NoError(t, err)
				return len(again.Contenders) == 2 && again.Contenders[1].Node != q.Contenders[1].Node
			}, "the first has queued again")
			if locktest.Embedded() {
				require.Less(t, time.Since(revoked), 40*time.Millisecond, "at once")
			}
			next.end <- nil
			require.NoError(t, second.returned())
			first.leads().end <- nil
			require.NoError(t, first.returned())
		}
	})
}

func TestElectEndsWithItsContext(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		leader := stand(b, b.Pool(silent))
		term := leader.leads()
		waiter := stand(b, b.Pool())
		b.AwaitQueue("a", 2)
		waiter.cancel()
		require.ErrorIs(t, waiter.returned(), context.Canceled)
		b.AwaitQueue("a", 1)

		// Elect waits for lead, and the lock is held until then.
		ctx, cancel := context.WithCancelCause(b.Ctx)
		mayEnd, ended := make(chan struct{}), make(chan error)
		term.end <- nil
		require.NoError(t, leader.returned())
		p, leading := b.Pool(), make(chan struct{})
		go func() { // ends when mayEnd is closed
			ended <- p.Elect(ctx, "a", func(lead context.Context) error {
				close(leading)
				<-lead.Done()
				<-mayEnd
				return errors.New("while it ended")
			})
		}()
		<-leading
		cancel(errors.New("the process stops"))
		time.Sleep(100 * time.Millisecond)
		require.Len(t, b.Children("a"), 1)
		select {
		case <-ended:
			require.FailNow(t, "Elect has returned before lead")
		default:
		}
		close(mayEnd)
		err := <-ended
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "the process stops")
		require.ErrorContains(t, err, "while it ended")
		require.ErrorContains(t, err, `elect "a"`)
		b.AwaitQueue("a", 0)

		// It also ends during a pause.
		leader = stand(b, b.Pool(silent))
		for range 5 {
			leader.leads().end <- errors.New("failed")
		}
		b.AwaitQueue("a", 0)
		clock := time.Now()
		leader.cancel()
		require.ErrorIs(t, leader.returned(), context.Canceled)
		if locktest.Embedded() {
			require.Less(t, time.Since(clock), 50*time.Millisecond)
		}
	})
}

func TestElectEndsWithItsPool(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		b := locktest.New(t)
		for what, end := range map[string]func(p *lockpool.Pool) error{
			"Close":    (*lockpool.Pool).Close,
			"Shutdown": func(p *lockpool.Pool) error { return p.Shutdown(b.Ctx) },
		} {
			leads, waits, pauses := b.Pool(silent), b.Pool(), b.Pool(silent)
			pausing := stand(b, pauses)
			pausing.leads().end <- errors.New("failed")
			leader := stand(b, leads)
			term := leader.leads()
			waiter := stand(b, waits)
			b.Until(func() bool { return waits.Stats().Waiting == 1 }, "it waits")
			require.NoError(t, end(waits), what)
			require.ErrorIs(t, waiter.returned(), lockpool.ErrPoolClosed)
			require.NoError(t, end(pauses), what)
			require.ErrorIs(t, pausing.returned(), lockpool.ErrPoolClosed)
			closed := make(chan error)
			go func() { closed <- end(leads) }() // ends when the leader has resigned
			require.ErrorIs(t, term.over(b), lockpool.ErrPoolClosed, what)
			term.end <- term.ctx.Err()
			require.NoError(t, <-closed, what)
			require.ErrorIs(t, leader.returned(), lockpool.ErrPoolClosed)
			require.ErrorIs(t, leads.Elect(b.Ctx, "a", func(context.Context) error { return nil }), lockpool.ErrPoolClosed)
			b.AwaitQueue("a", 0)
		}
	})
}

func TestElectDoesNotRepeatWhatCannotSucceed(t *testing.T) {
	t.Parallel()
	b := locktest.New(t)
	p := b.Pool()
	never := func(context.Context) error {
		t.Error("it leads")
		return nil
	}
	require.ErrorContains(t, p.Elect(b.Ctx, "a", nil), "Elect: the function is nil")
	require.ErrorIs(t, p.Elect(b.Ctx, "/a", never), lockpool.ErrInvalidName)
	require.ErrorContains(t, p.Elect(b.Ctx, "a", never, lockpool.Shared()), "leave out")
	require.ErrorContains(t, p.Elect(b.Ctx, "a", never, lockpool.WaitAtMost(time.Second)), "leave out")
	require.ErrorContains(t, p.Elect(b.Ctx, "a", never, lockpool.WaitAtMost(0)), "leave out")
	require.ErrorContains(t, p.Elect(b.Ctx, "a", never, nil), "nil LockOption")
	require.Zero(t, p.Stats().OpenSessions)

	permits := b.Acquire(p.Semaphore("s", 1), 1)
	require.ErrorIs(t, p.Elect(b.Ctx, "s", never), lockpool.ErrKindMismatch)
	b.Unlock(permits)
	b.Restrict("/r", zk.PermRead)
	require.ErrorIs(t, p.Elect(b.Ctx, "r/a", never), lockpool.ErrNoPermission)
}

func TestElectEndsWithTheSequenceNumbers(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		p := b.Pool(silent)
		b.Unlock(b.Lock(p, "a"))
		require.NoError(t, b.Server.(*zktest.Server).SetSequence(b.Chroot+"/a", 2147483647))
		require.ErrorIs(t, p.Elect(b.Ctx, "a", func(context.Context) error { return nil }), lockpool.ErrSequenceExhausted)
	})
}

// Errors of lead say nothing about the election, even if they are those of a pool.
func TestElectRepeatsWhateverLeadReturns(t *testing.T) {
	locktest.Once(t)
	locktest.Bubble(t, func(t *testing.T) {
		b := locktest.New(t)
		c := stand(b, b.Pool(silent))
		for _, err := range []error{lockpool.ErrPoolClosed, lockpool.ErrInvalidName, lockpool.ErrNoPermission, lockpool.ErrRevoked, context.Canceled, context.DeadlineExceeded} {
			c.leads().end <- err
		}
		c.leads().end <- nil
		require.NoError(t, c.returned())
	})
}

// Candidates of one process, and of others, whose networks and servers fail at random.
func TestOneLeaderAtATime(t *testing.T) {
	locktest.Slow(t, func(t *testing.T) {
		own := locktest.StartServer(t)
		b := locktest.NewOn(t, own)
		rounds := 60
		if !locktest.Embedded() {
			rounds = 4
		}
		b.Ctx = locktest.Timeout(t, time.Hour)
		ctx, stop := context.WithCancel(b.Ctx)
		var all sync.WaitGroup
		defer all.Wait()
		defer stop()
		var leaders, failures atomic.Int32
		var mu sync.Mutex
		var tokens []int64
		terms := map[int]int{}
		lead := func(n int) func(context.Context) error {
			return func(ctx context.Context) error {
				if leaders.Add(1) != 1 {
					t.Error("two leaders")
				}
				defer leaders.Add(-1)
				lock, _ := lockpool.LockFromContext(ctx)
				token, err := lock.Token(ctx)
				if err != nil {
					return err
				}
				mu.Lock()
				tokens = append(tokens, token)
				terms[n]++
				mu.Unlock()
				select {
				case <-ctx.Done():
					return nil // not a resignation
				case <-time.After(rand.N(20 * time.Second)):
					failures.Add(1)
					return errors.New("failed")
				}
			}
		}
		var proxies []*zktest.Proxy
		for n := range 6 {
			if n%2 == 0 { // each pool has two candidates
				proxies = append(proxies, b.Proxy())
			}
			p := b.PoolWithTimeout(4*time.Second, silent)
			all.Go(func() { _ = p.Elect(ctx, "a", lead(n)) })
		}
		for range rounds {
			proxy := proxies[rand.N(len(proxies))]
			switch rand.N(4) {
			case 0:
				proxy.Cut(zktest.Selector{})
			case 1: // a partition
				require.NoError(t, proxy.HangConnections())
				proxy.HalfOpen(zktest.Selector{})
				time.Sleep(rand.N(10 * time.Second))
				require.NoError(t, proxy.AcceptConnections())
			case 2:
				require.NoError(t, own.Stop(b.Ctx))
				time.Sleep(rand.N(6 * time.Second))
				require.NoError(t, own.Start(b.Ctx))
			case 3:
				require.NoError(t, own.Pause())
				time.Sleep(rand.N(6 * time.Second))
				require.NoError(t, own.Resume())
			}
			time.Sleep(rand.N(6 * time.Second))
		}
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(tokens)
		}
		before := count()
		b.Until(func() bool { return count() > before }, "there is another leader when all is well again")
		mu.Lock()
		defer mu.Unlock()
		require.IsIncreasing(t, tokens)
		t.Logf("%d terms (%v), of which %d failed", len(tokens), terms, failures.Load())
		if locktest.Embedded() {
			require.Len(t, terms, 6, "every candidate has led")
		}
	})
}
