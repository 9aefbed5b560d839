package behavior

// This file has the tests of observers.

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/testing/plays"
)

var observeTests = []test{
	{"Election", observeFollowsAnElection, follower},
	{"HeadOfTheQueue", observeYieldsTheHead, follower},
	{"EachKind", observeEachKind, []string{"Follower", "PlainLocker", "Limiter"}},
	{"Ends", observeEnds, follower},
	{"Silence", observerIsToldOfSilence, follower},
	{"TellsTheNewestState", observersAgree, follower},
}

// observe follows a lock.
func (b *bench) observe(p *lockpool.Pool, name string) *plays.Observer {
	return plays.Observe(b.ctx, b.TB, p, name)
}

func (b *bench) named(owner string) *lockpool.Pool { return b.pool(lockpool.WithOwner(owner)) }

func observeFollowsAnElection(b *bench) {
	p, a := b.pool(), b.name("deep/below/a")
	o := b.observe(p, a)
	o.Sees("")
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
	o.Sees("x")
	stopY := elect(b.named("y"))
	o.Sees("x|y")
	stopZ := elect(b.named("z"))
	b.queued(a, 3)
	stopX()
	o.Sees("y|z")
	stopZ()
	o.Sees("y")
	stopY()
	o.Sees("")

	// Another observer starts with the present state.
	l := b.lock(b.named("w"), a)
	o.Sees("w")
	other := b.observe(b.pool(), a)
	other.Sees("w")
	b.unlock(l)
	o.Sees("")
	other.Sees("")
	o.Cancel()
	require.ErrorIs(b, o.Ended(), context.Canceled)
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
			if !b.bubble && errors.Is(err, lockpool.ErrUnavailable) {
				continue // a look may take longer than its patience
			}
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
	o.Sees("")
	read := b.read(x, a)
	o.ComesToSee("x")
	also := b.read(y, a)
	o.ComesToSee("xy")
	write := b.enqueue(b.named("z"), a, 3)
	o.ComesToSee("xy|z")
	b.unlock(read)
	o.ComesToSee("y|z")
	b.unlock(also)
	o.ComesToSee("z")
	b.unlock(write.granted())
	o.ComesToSee("")

	c := b.name("c")
	o = b.observe(b.pool(), c)
	o.Sees("")
	for range 2 {
		l := b.lock(x, c, lockpool.Plain())
		o.ComesToSee("x")
		b.unlock(l)
		o.ComesToSee("")
	}

	s := b.name("s")
	o = b.observe(b.pool(), s)
	o.Sees("")
	one := b.acquire(x.Semaphore(s, 3), 1)
	o.ComesToSee("x")
	two := b.acquire(y.Semaphore(s, 3), 2)
	o.ComesToSee("xy")
	b.unlock(one)
	b.unlock(two)
	o.ComesToSee("")
}

// An observer is told of the silence of the service, though nothing changes and no session
// is lost, and of the state after the silence.
func observerIsToldOfSilence(b *bench) {
	if b.options.Pause == nil {
		b.Skip("it needs Options.Pause")
	}
	p, a := b.named("x"), b.name("a")
	b.lock(p, a)
	o := b.observe(p, a)
	for range 2 {
		o.Sees("x")
		time.Sleep(10 * time.Second)
		o.SeesNothing() // the service answers
		began, resume := time.Now(), b.options.Pause(b)
		require.ErrorIs(b, o.Next().Err, lockpool.ErrUnavailable)
		require.Less(b, time.Since(began), 3*time.Second)
		resume()
	}
	o.Sees("x")
	o.Cancel()
	require.ErrorIs(b, o.Ended(), context.Canceled)
}

func observeEnds(b *bench) {
	for what, end := range b.ends() {
		p, a := b.pool(), b.name("a")
		o := b.observe(p, a)
		o.Sees("")
		require.NoError(b, end(p), what)
		require.ErrorIs(b, o.Ended(), lockpool.ErrPoolClosed)
		require.ErrorIs(b, b.observe(p, a).Ended(), lockpool.ErrPoolClosed)
	}
	p := b.pool()
	require.ErrorIs(b, b.observe(p, "/a").Ended(), lockpool.ErrInvalidName)
	require.Zero(b, p.Stats().OpenSessions)

	// Shutdown waits for the loops.
	l, o := b.lock(p, b.name("held")), b.observe(p, b.name("a"))
	o.Sees("")
	down := do(b, p.Shutdown)
	require.ErrorIs(b, o.Ended(), lockpool.ErrPoolClosed)
	b.unlock(l)
	require.NoError(b, down.returned())
}

// Each observer sees the last state of the lock, after any number of changes.
func observersAgree(b *bench) {
	a := b.name("a")
	observers := []*plays.Observer{b.observe(b.pool(), a), b.observe(b.pool(), a)}
	pools := b.pools(3)
	plays.Together(b, 9, func(i int) error {
		for range 5 {
			if err := pools[i%3].Do(b.ctx, a, nothing); err != nil {
				return err
			}
		}
		return nil
	})
	last := b.lock(b.named("last"), a)
	for _, o := range observers {
		o.ComesToSee("last")
	}
	b.unlock(last)
	for _, o := range observers {
		o.Sees("")
	}
}
