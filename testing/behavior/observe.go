package behavior

// This file has the tests of observers.

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

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
