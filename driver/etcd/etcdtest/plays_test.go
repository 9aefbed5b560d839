package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// play is a way to use a lock. A rival waits behind it, or holds the lock first.
type play struct {
	name  string
	warm  int  // how often the lock is used before
	rival bool // the rival holds the lock first
	act   func(*stage)
	way   way               // nil for a lock with a queue
	opts  []lockpool.Option // of both pools
}

// way acquires a kind of lock named a, exclusively.
type way func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error)

func withOptions(opts ...lockpool.LockOption) way {
	return func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
		lock := p.Lock
		if try {
			lock = p.TryLock
		}
		l, err := lock(ctx, "a", opts...)
		return l, err
	}
}

func allPermits(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
	if try {
		return p.Semaphore("a", 2).Acquire(ctx, 2, lockpool.WaitAtMost(0))
	}
	return p.Semaphore("a", 2).Acquire(ctx, 2)
}

func reading(ctx context.Context, p *lockpool.Pool, _ bool) (*lockpool.Lock, error) {
	return p.Lock(ctx, "a", lockpool.Shared())
}

var (
	plain     = withOptions(lockpool.Plain())
	revocable = withOptions(lockpool.Revocable())
	soon      = []lockpool.Option{lockpool.WithDeadlockCheck(30 * time.Millisecond)}
)

var plays = []play{
	{name: "first", act: (*stage).useOnce},
	{name: "again", warm: 1, act: (*stage).useAndLook},
	{name: "wait", warm: 1, rival: true, act: (*stage).waitAndUse},
	{name: "wait at the service", warm: 1, rival: true, act: (*stage).waitAndUse, opts: []lockpool.Option{lockpool.WithLocalTurns(0)}},
	{name: "queue", warm: 1, rival: true, act: (*stage).queue, opts: []lockpool.Option{lockpool.WithLocalTurns(0)}},
	{name: "local queue", warm: 1, rival: true, act: (*stage).queue},
	{name: "try", warm: 1, rival: true, act: (*stage).try},
	{name: "cancel", warm: 1, rival: true, act: (*stage).giveUp},
	{name: "cancel a join", warm: 1, act: (*stage).giveUpAtOnce},
	{name: "read", warm: 1, act: (*stage).readOnce},
	{name: "wait to read", warm: 1, rival: true, act: (*stage).waitAndRead},
	{name: "share", warm: 1, act: (*stage).share},
	{name: "permits", warm: 1, act: (*stage).useAndLook, way: allPermits},
	{name: "permits wait", warm: 1, rival: true, act: (*stage).waitAndUse, way: allPermits},
	{name: "permits try", warm: 1, rival: true, act: (*stage).try, way: allPermits},
	{name: "permits cancel", warm: 1, rival: true, act: (*stage).giveUp, way: allPermits},
	{name: "permits limit", warm: 1, act: (*stage).setLimit, way: allPermits},
	{name: "plain", warm: 1, act: (*stage).useAndLook, way: plain},
	{name: "plain wait", warm: 1, rival: true, act: (*stage).waitAndUse, way: plain},
	{name: "plain try", warm: 1, rival: true, act: (*stage).try, way: plain},
	{name: "plain cancel", warm: 1, rival: true, act: (*stage).giveUp, way: plain},
	{name: "lock all", warm: 1, act: (*stage).lockAll},
	{name: "revoke", warm: 1, act: (*stage).useUntilRevoked, way: revocable},
	{name: "revoke rival", warm: 1, rival: true, act: (*stage).revokeRival, way: revocable},
	{name: "break rival", warm: 1, rival: true, act: (*stage).breakRival},
	{name: "once", warm: 1, act: (*stage).finishARun},
	{name: "once done", warm: 1, act: (*stage).seeARun},
	{name: "elect", warm: 1, act: (*stage).lead},
	{name: "observe", warm: 1, rival: true, act: (*stage).observe},
	{name: "nested", warm: 1, act: (*stage).nest},
	{name: "deadlock", warm: 1, act: (*stage).deadlock, opts: soon},
	{name: "hold at least", warm: 1, act: (*stage).useOnce, way: withOptions(lockpool.HoldAtLeast(50 * time.Millisecond))},
}

// use holds the lock, lets the rival queue behind it, and unlocks.
func (s *stage) use(l *lockpool.Lock, do func()) {
	require.Equal(s, int32(1), s.inside.Add(1), "two holders")
	ctx := l.Context(s.ctx)
	leave := sync.OnceFunc(func() { s.inside.Add(-1) })
	go func() { // ends with the lock
		<-ctx.Done()
		leave()
	}()
	behind := make(chan error, 1)
	go func() { // ends with s.ctx
		g, err := s.way(s.ctx, s.others, false)
		if err == nil {
			// Somebody who ends a session or removes a node gives no guarantee. Otherwise the
			// context of a lock ends before the lock is released.
			if n := s.inside.Load(); n != 0 && ctx.Err() == nil && !s.losing {
				err = errors.New("two holders")
			}
			err = errors.Join(err, g.Unlock(s.ctx))
		}
		if s.losing && errors.Is(err, lockpool.ErrRevoked) { // it held the lock by then, and was asked
			err = nil
		}
		behind <- err
	}()
	do()
	leave()
	s.check(l.Unlock(s.ctx))
	require.NoError(s, <-behind)
}

func (s *stage) useOnce() {
	l, err := s.way(s.ctx, s.pool, false)
	if s.check(err) {
		s.use(l, func() {})
	}
}

func (s *stage) useAndLook() {
	l, err := s.way(s.ctx, s.pool, false)
	if s.check(err) {
		s.use(l, func() {
			if token, err := l.Token(s.ctx); s.check(err) {
				require.Positive(s, token)
			}
			s.check(l.Verify(s.ctx))
		})
	}
}

func (s *stage) readOnce() {
	l, err := s.pool.Lock(s.ctx, "a", lockpool.Shared())
	if s.check(err) {
		s.use(l, func() {})
	}
}

// begin starts a call that has to wait, and returns when it waits or when the fault has
// happened.
func (s *stage) begin(ctx context.Context, way way) func() (*lockpool.Lock, error) {
	var l *lockpool.Lock
	var err error
	done := make(chan struct{})
	before := s.pool.Stats().Waiting
	go func() { // ends with ctx
		defer close(done)
		l, err = way(ctx, s.pool, false)
	}()
	s.until(func() bool {
		select {
		case <-done:
			return true
		default:
			return s.pool.Stats().Waiting > before || s.fired.Load()
		}
	}, "the call waits, or the fault has happened")
	return func() (*lockpool.Lock, error) { <-done; return l, err }
}

func (s *stage) waitAndUse() {
	end := s.begin(s.ctx, s.way)
	s.free(s.first)
	l, err := end()
	if s.check(err) {
		s.use(l, func() {})
	}
}

func (s *stage) waitAndRead() {
	end := s.begin(s.ctx, reading)
	s.free(s.first)
	l, err := end()
	if s.check(err) {
		s.use(l, func() {})
	}
}

// queue has three calls wait.
func (s *stage) queue() {
	turn := func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
		l, err := s.way(ctx, p, try)
		if err != nil {
			return nil, err
		}
		if s.inside.Add(1) != 1 && !s.losing {
			err = errors.New("two holders")
		}
		time.Sleep(time.Millisecond)
		s.inside.Add(-1)
		return nil, errors.Join(err, l.Unlock(s.ctx))
	}
	var ends []func() (*lockpool.Lock, error)
	for range 3 {
		ends = append(ends, s.begin(s.ctx, turn))
	}
	s.free(s.first)
	for _, end := range ends {
		_, err := end()
		s.check(err)
	}
}

func (s *stage) try() {
	_, err := s.way(s.ctx, s.pool, true)
	s.check(err, lockpool.ErrLocked)
	s.free(s.first)
}

func (s *stage) giveUp() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	end := s.begin(ctx, s.way)
	cancel()
	_, err := end()
	s.check(err, context.Canceled)
	s.free(s.first)
}

// giveUpAtOnce ends the context when the request that creates the node is on its way.
func (s *stage) giveUpAtOnce() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.giveUpNow.Store(&cancel)
	l, err := s.way(ctx, s.pool, false)
	if err != nil {
		s.check(err, context.Canceled)
		return
	}
	s.use(l, func() {})
}

// share downgrades an exclusive lock.
func (s *stage) share() {
	h, err := s.pool.Handle(s.ctx)
	require.NoError(s, err)
	defer h.Close(s.ctx)
	write, err := h.Lock(s.ctx, "a")
	if !s.check(err) {
		return
	}
	read, err := h.Lock(s.ctx, "a", lockpool.Shared())
	if s.check(err) {
		s.use(read, func() { s.check(write.Unlock(s.ctx)) })
	}
}

func (s *stage) setLimit() {
	sem := s.pool.Semaphore("limited", 0)
	err := sem.SetLimit(s.ctx, 2)
	if !s.losing || err == nil { // a session that ended has set it, or not
		require.NoError(s, err)
		p, err := sem.Acquire(s.ctx, 2)
		if s.check(err) {
			if !s.losing {
				_, err = s.others.Semaphore("limited", 0).Acquire(s.ctx, 1, lockpool.WaitAtMost(0))
				require.ErrorIs(s, err, lockpool.ErrLocked)
			}
			s.check(p.Unlock(s.ctx))
		}
	}
}

func (s *stage) lockAll() {
	m, err := s.pool.LockAll(s.ctx, []string{"b", "a"})
	if s.check(err) {
		if !s.losing {
			_, err = s.others.TryLock(s.ctx, "b")
			require.ErrorIs(s, err, lockpool.ErrLocked)
		}
		s.check(m.Unlock(s.ctx))
	}
}

func (s *stage) useUntilRevoked() {
	l, err := s.way(s.ctx, s.pool, false)
	if s.check(err) {
		s.use(l, func() {
			require.NoError(s, s.others.Revoke(s.ctx, "a"))
			ended := l.Context(s.ctx)
			<-ended.Done()
			if cause := context.Cause(ended); cause != lockpool.ErrRevoked {
				require.True(s, s.losing && errors.Is(cause, lockpool.ErrLockLost), "%v", cause)
			}
		})
	}
}

func (s *stage) revokeRival() {
	revoked := s.first.Revoked()
	if s.check(s.pool.Revoke(s.ctx, "a")) {
		<-revoked
	}
	s.free(s.first)
}

func (s *stage) breakRival() {
	q, err := s.pool.Queue(s.ctx, "a")
	broken := false
	if s.check(err) {
		err = s.pool.Break(s.ctx, "a", q.Contenders[0].Node)
		// A session that was ended has perhaps done it, and the next one finds no node.
		if s.losing && errors.Is(err, lockpool.ErrNotHeld) || s.check(err) {
			<-s.first.Lost()
			broken = true
		}
	}
	err = s.first.Unlock(s.ctx)
	if broken {
		require.ErrorIs(s, err, lockpool.ErrLockLost)
	} else if !s.losing {
		require.NoError(s, err)
	}
}

// finishARun calls Once, while the rival waits to do the same if the run does not finish.
func (s *stage) finishARun() {
	behind := make(chan error, 1)
	taken, began := false, false
	takeUp := func() {
		behind <- s.others.Once(s.ctx, "a", "key", func(context.Context) error { taken = true; return nil })
	}
	err := s.pool.Once(s.ctx, "a", "key", func(ctx context.Context) error {
		require.False(s, began, "it ran twice in one call")
		began = true
		go takeUp() // ends with s.ctx
		s.until(func() bool { return s.others.Stats().Waiting > 0 || ctx.Err() != nil || s.losing }, "the rival waits")
		return nil
	})
	if !began {
		go takeUp() // as above
	}
	rival := <-behind
	if err == nil {
		require.ErrorIs(s, rival, lockpool.ErrDone)
	} else {
		s.check(err)
		require.NotContains(s, err.Error(), "not known")
		require.NoError(s, rival)
	}
	require.Equal(s, err != nil, taken)
	runs, err := s.others.Finished(s.ctx, "a")
	require.NoError(s, err)
	require.Len(s, runs, 1)
}

func (s *stage) seeARun() {
	require.NoError(s, s.others.Once(s.ctx, "a", "key", func(context.Context) error { return nil }))
	s.check(s.pool.Once(s.ctx, "a", "key", func(context.Context) error { return errors.New("it ran") }), lockpool.ErrDone)
	runs, err := s.pool.Finished(s.ctx, "a")
	if s.check(err) {
		require.Len(s, runs, 1)
	}
}

func (s *stage) lead() {
	led := 0
	err := s.pool.Elect(s.ctx, "a", func(ctx context.Context) error {
		led++
		require.Equal(s, int32(1), s.inside.Add(1), "two leaders")
		s.inside.Add(-1)
		l, err := s.others.TryLock(s.ctx, "a")
		switch {
		case err == nil && s.losing:
			return l.Unlock(s.ctx)
		case !s.losing && !errors.Is(err, lockpool.ErrLocked):
			return fmt.Errorf("the rival: %w", err)
		}
		return nil
	})
	s.check(err)
	require.Positive(s, led)
}

// observe sees that the rival holds the lock, and that nobody does when it has unlocked.
func (s *stage) observe() {
	held := true
	for q, err := range s.pool.Observe(s.ctx, "a") {
		switch {
		case errors.Is(err, lockpool.ErrUnavailable): // the state follows
		case err != nil:
			s.check(err)
		case held:
			require.Len(s, q.Contenders, 1)
			require.True(s, q.Contenders[0].Holds)
			s.free(s.first)
			held = false
		case len(q.Contenders) == 0:
			return
		}
	}
	require.FailNow(s, "the loop has ended")
}

// nest takes a lock for which it has to wait while it holds another one.
func (s *stage) nest() {
	h, err := s.pool.Handle(s.ctx)
	require.NoError(s, err)
	defer h.Close(s.ctx)
	b, err := s.others.Lock(s.ctx, "b")
	require.NoError(s, err)
	l, err := h.Lock(s.ctx, "a")
	if !s.check(err) {
		require.NoError(s, b.Unlock(s.ctx))
		return
	}
	s.use(l, func() {
		end := s.begin(s.ctx, func(ctx context.Context, _ *lockpool.Pool, _ bool) (*lockpool.Lock, error) {
			l, err := h.Lock(ctx, "b")
			return l, err
		})
		require.NoError(s, b.Unlock(s.ctx))
		l, err := end()
		if s.check(err) {
			s.check(l.Unlock(s.ctx))
		}
	})
}

// deadlock has a handle of each pool hold a lock, and ask for the other's.
func (s *stage) deadlock() {
	mine, err := s.pool.Handle(s.ctx)
	require.NoError(s, err)
	defer mine.Close(s.ctx)
	theirs, err := s.others.Handle(s.ctx)
	require.NoError(s, err)
	defer theirs.Close(s.ctx)
	_, err = theirs.Lock(s.ctx, "b")
	require.NoError(s, err)
	if _, err = mine.Lock(s.ctx, "a"); !s.check(err) {
		return
	}
	told := make(chan bool, 2)
	ends := make(chan error, 2)
	ask := func(h *lockpool.Handle, name string) { // ends with s.ctx
		_, err := h.Lock(s.ctx, name)
		deadlock := errors.Is(err, lockpool.ErrDeadlock)
		told <- deadlock
		if deadlock {
			err = nil
		}
		err = errors.Join(err, h.Close(s.ctx))
		ends <- err
	}
	go ask(theirs, "a") // both end with s.ctx
	go ask(mine, "b")
	for range 2 {
		if err := <-ends; err != nil && !(s.losing && errors.Is(err, lockpool.ErrLockLost)) {
			require.NoError(s, err)
		}
	}
	if one, two := <-told, <-told; !s.losing {
		require.True(s, one != two, "one of them is told")
	}
}
