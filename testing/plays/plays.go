package plays

// This file has the plays, and what they do.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// Play is a way to use a lock. A rival waits behind, or holds the lock first.
type Play struct {
	Name  string
	Warm  int  // how often the lock is used before
	Rival bool // the rival holds the lock first
	Act   func(*Stage)
	Way   Way               // nil for a lock with a queue
	Opts  []lockpool.Option // of both pools
	Long  bool              // in real time
}

// Way acquires a kind of lock named a, exclusively.
type Way func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error)

// Locking is the way to lock with options.
func Locking(opts ...lockpool.LockOption) Way {
	return func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
		if try {
			return p.TryLock(ctx, "a", opts...)
		}
		return p.Lock(ctx, "a", opts...)
	}
}

// AllPermits is the way to acquire all permits of a semaphore.
func AllPermits(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
	if try {
		return p.Semaphore("a", 2).Acquire(ctx, 2, lockpool.WaitAtMost(0))
	}
	return p.Semaphore("a", 2).Acquire(ctx, 2)
}

// Plain and the others are ways.
var (
	Plain     = Locking(lockpool.Plain())
	reading   = Locking(lockpool.Shared())
	revocable = Locking(lockpool.Revocable())

	atService = []lockpool.Option{lockpool.WithLocalTurns(0)}
	keeping   = []lockpool.Option{lockpool.WithKeptLocks(0, 5*time.Second)} // or else a lock may be kept at the end
)

// All are the plays, the same on each service.
var All = []Play{
	{Name: "first", Act: (*Stage).UseOnce},
	{Name: "again", Warm: 1, Act: (*Stage).UseOnce},
	{Name: "often", Warm: 20, Act: (*Stage).UseOnce},
	{Name: "wait", Warm: 1, Rival: true, Act: (*Stage).WaitAndUse},
	{Name: "local wait", Warm: 1, Rival: true, Act: func(s *Stage) { s.passOn(Locking(), true) }},
	{Name: "local wait to read", Warm: 1, Rival: true, Act: func(s *Stage) { s.passOn(reading, false) }},
	{Name: "try", Warm: 1, Rival: true, Act: (*Stage).try},
	{Name: "cancel", Warm: 1, Rival: true, Act: (*Stage).giveUp},
	{Name: "cancel a join", Warm: 1, Act: (*Stage).giveUpAtOnce},
	{Name: "queue", Warm: 20, Rival: true, Act: (*Stage).queue, Opts: atService},
	{Name: "look", Warm: 1, Act: (*Stage).UseAndLook},
	{Name: "read", Warm: 1, Act: func(s *Stage) { s.useBy(reading) }},
	{Name: "wait to read", Warm: 1, Rival: true, Act: func(s *Stage) { s.waitAndUse(reading) }},
	{Name: "share", Warm: 1, Act: (*Stage).Share},
	{Name: "lock all", Warm: 1, Act: (*Stage).lockAll},
	{Name: "permits", Warm: 1, Act: (*Stage).UseAndLook, Way: AllPermits},
	{Name: "permits first", Act: (*Stage).UseOnce, Way: AllPermits},
	{Name: "permits wait", Warm: 1, Rival: true, Act: (*Stage).WaitAndUse, Way: AllPermits},
	{Name: "permits try", Warm: 1, Rival: true, Act: (*Stage).try, Way: AllPermits},
	{Name: "permits cancel", Warm: 1, Rival: true, Act: (*Stage).giveUp, Way: AllPermits},
	{Name: "permits limit", Act: (*Stage).setLimit},
	{Name: "plain", Warm: 1, Act: (*Stage).UseAndLook, Way: Plain},
	{Name: "plain wait", Warm: 1, Rival: true, Act: (*Stage).WaitAndUse, Way: Plain},
	{Name: "plain try", Warm: 1, Rival: true, Act: (*Stage).try, Way: Plain},
	{Name: "plain cancel", Warm: 1, Rival: true, Act: (*Stage).giveUp, Way: Plain},
	{Name: "revoke", Warm: 1, Act: (*Stage).useUntilRevoked, Way: revocable},
	{Name: "revoke waiting", Warm: 1, Rival: true, Act: (*Stage).waitUntilRevoked, Way: revocable},
	{Name: "revoke rival", Warm: 1, Rival: true, Act: (*Stage).revokeRival},
	{Name: "break rival", Warm: 1, Rival: true, Act: (*Stage).breakRival},
	{Name: "elect", Warm: 1, Act: (*Stage).lead},
	{Name: "observe", Warm: 1, Rival: true, Act: (*Stage).observe},
	{Name: "observe nobody", Act: (*Stage).observeNobody},
	{Name: "observe permits", Warm: 1, Rival: true, Act: (*Stage).observe, Way: AllPermits},
	{Name: "observe plain", Warm: 1, Rival: true, Act: (*Stage).observe, Way: Plain},
	{Name: "once", Warm: 1, Act: (*Stage).FinishARun},
	{Name: "once wait", Warm: 1, Act: (*Stage).waitForARun},
	{Name: "once done", Warm: 1, Act: (*Stage).seeARun},
	{Name: "once within", Warm: 1, Act: (*Stage).finishARunWithin},
	{Name: "nested", Warm: 1, Act: (*Stage).nest},
	{Name: "deadlock", Warm: 1, Act: deadlock(Exclusively, Exclusively, false), Opts: soon},
	{Name: "deadlock of permits", Warm: 1, Act: deadlock(Permits(2, 2), Permits(2, 2), false), Opts: soon, Way: AllPermits, Long: true},
	{Name: "deadlock of a plain lock", Warm: 1, Act: deadlock(Plainly, Exclusively, true), Opts: soon, Way: Plain, Long: true},
	{Name: "deadlock for a plain lock", Warm: 1, Act: deadlock(Exclusively, Plainly, false), Opts: soon},
	{Name: "deadlock of readers", Warm: 1, Act: (*Stage).deadlockOfReaders, Opts: soon, Long: true},
	{Name: "deadlock of two at once", Warm: 1, Act: deadlock(WithAll, Exclusively, false), Opts: soon, Long: true},
	{Name: "local deadlock", Warm: 1, Act: (*Stage).localDeadlock, Opts: soon},
	{Name: "hold at least", Warm: 1, Act: (*Stage).UseOnce, Way: Locking(lockpool.HoldAtLeast(50 * time.Millisecond))},
	{Name: "keep", Warm: 1, Act: (*Stage).keep, Opts: keeping},
	{Name: "keep to read", Warm: 1, Act: (*Stage).keepToRead, Opts: keeping},
	{Name: "try what is kept", Warm: 1, Act: (*Stage).tryKept, Opts: keeping},
}

func (s *Stage) useBy(way Way) {
	l, err := way(s.Ctx, s.Pool, false)
	if s.check(err) {
		s.use(l, func() {})
	}
}

// UseOnce acquires and releases the lock.
func (s *Stage) UseOnce() { s.useBy(s.way) }

// UseAndLook also asks for the token and verifies the lock.
func (s *Stage) UseAndLook() {
	l, err := s.way(s.Ctx, s.Pool, false)
	if s.check(err) {
		s.use(l, func() {
			if token, err := l.Token(s.Ctx); s.check(err) {
				require.Positive(s, token)
			}
			s.check(l.Verify(s.Ctx))
		})
	}
}

// UseFor holds the lock for some time.
func (s *Stage) UseFor(d time.Duration) {
	l, err := s.way(s.Ctx, s.Pool, false)
	if s.check(err) {
		s.use(l, func() {
			select {
			case <-time.After(d):
			case <-l.Lost():
				require.Equal(s, Losing, s.Effect, "%v", context.Cause(l.Context(s.Ctx)))
			}
		})
	}
}

func (s *Stage) waitAndUse(way Way) {
	end := s.begin(s.Ctx, way)
	s.free(s.first)
	l, err := end()
	if s.check(err) {
		s.use(l, func() {})
	}
}

// WaitAndUse waits for the rival.
func (s *Stage) WaitAndUse() { s.waitAndUse(s.way) }

// turn is a way to acquire a lock, alone or beside others, to ask for the token, if wanted,
// and to release the lock.
func (s *Stage) turn(way Way, alone, token bool) Way {
	return func(ctx context.Context, p *lockpool.Pool, try bool) (*lockpool.Lock, error) {
		l, err := way(ctx, p, try)
		if err != nil {
			return nil, err
		}
		within := l.Context(s.Ctx)
		if n := s.inside.Add(1); n != 1 && alone && s.Effect != Losing {
			err = fmt.Errorf("%d holders", n)
		}
		time.Sleep(time.Millisecond)
		s.inside.Add(-1)
		if token && within.Err() == nil {
			_, tokenErr := l.Token(s.Ctx)
			err = errors.Join(err, tokenErr)
		}
		return nil, errors.Join(err, l.Unlock(s.Ctx))
	}
}

// queue lets three waiters of one session share what they know of the queue. The lock was
// used often before, so the last one joins without a listing.
func (s *Stage) queue() {
	turn := s.turn(s.way, true, false)
	s.allEnd(s.begin(s.Ctx, turn), s.begin(s.Ctx, turn), s.begin(s.Ctx, turn))
}

// allEnd lets calls waiting for the rival have the lock.
func (s *Stage) allEnd(ends ...func() (*lockpool.Lock, error)) {
	s.free(s.first)
	for _, end := range ends {
		_, err := end()
		s.check(err)
	}
}

// passOn has several calls of the pool wait for the rival: one at the service, and the
// others in memory, one of them giving up.
func (s *Stage) passOn(way Way, alone bool) {
	ctx, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	turn := s.turn(way, alone, true)
	ends := []func() (*lockpool.Lock, error){s.begin(s.Ctx, turn), s.begin(s.Ctx, turn), s.begin(s.Ctx, turn)}
	givesUp := s.begin(ctx, turn)
	ends = append(ends, s.begin(s.Ctx, turn))
	cancel()
	if _, err := givesUp(); err != nil {
		s.check(err, context.Canceled)
	}
	s.allEnd(ends...)
}

func (s *Stage) try() {
	_, err := s.way(s.Ctx, s.Pool, true)
	s.check(err, lockpool.ErrLocked)
	s.free(s.first)
}

func (s *Stage) giveUp() {
	ctx, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	end := s.begin(ctx, s.way)
	cancel()
	_, err := end()
	s.check(err, context.Canceled)
	s.free(s.first)
}

// giveUpAtOnce ends the context when the create of the node is under way.
func (s *Stage) giveUpAtOnce() {
	ctx, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	s.AtNext(cancel)
	l, err := s.way(ctx, s.Pool, false)
	if err != nil {
		s.check(err, context.Canceled)
		return
	}
	s.use(l, func() {})
}

// Share downgrades an exclusive lock.
func (s *Stage) Share() {
	h := s.handle(s.Pool)
	defer h.Close(s.Ctx)
	write, err := h.Lock(s.Ctx, "a")
	if !s.check(err) {
		return
	}
	read, err := h.Lock(s.Ctx, "a", lockpool.Shared())
	if s.check(err) {
		s.use(read, func() { s.check(write.Unlock(s.Ctx)) })
	}
}

func (s *Stage) setLimit() {
	sem := s.Pool.Semaphore("limited", 0)
	err := sem.SetLimit(s.Ctx, 2)
	if s.Effect != Unseen && err != nil { // the limit is set, or not
		return
	}
	require.NoError(s, err)
	permits, err := sem.Acquire(s.Ctx, 2)
	if s.check(err) {
		if s.Effect != Losing {
			_, err = s.Others.Semaphore("limited", 0).Acquire(s.Ctx, 1, lockpool.WaitAtMost(0))
			require.ErrorIs(s, err, lockpool.ErrLocked)
		}
		s.check(permits.Unlock(s.Ctx))
	}
}

func (s *Stage) lockAll() {
	all, err := s.Pool.LockAll(s.Ctx, []string{"b", "a"})
	if s.check(err) {
		if s.Effect != Losing {
			_, err = s.Others.TryLock(s.Ctx, "b")
			require.ErrorIs(s, err, lockpool.ErrLocked)
		}
		s.check(all.Unlock(s.Ctx))
	}
}

// observe sees the rival hold the lock, and no holder when the rival has unlocked.
func (s *Stage) observe() {
	held := true
	for q, err := range s.Pool.Observe(s.Ctx, "a") {
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
	if held {
		s.free(s.first)
	}
	require.Equal(s, Denied, s.Effect, "the loop has ended")
}

// observeNobody sees the rival come, to a lock without a directory.
func (s *Stage) observeNobody() {
	for q, err := range s.Pool.Observe(s.Ctx, "a") {
		switch {
		case errors.Is(err, lockpool.ErrUnavailable):
		case err != nil:
			s.check(err)
		case len(q.Contenders) > 0:
			s.free(s.first)
			return
		case s.first == nil:
			s.first = s.take(s.Others)
		}
	}
	if s.first != nil {
		s.free(s.first)
	}
	require.Equal(s, Denied, s.Effect, "the loop has ended")
}

func (s *Stage) useUntilRevoked() {
	l, err := s.way(s.Ctx, s.Pool, false)
	if s.check(err) {
		s.use(l, func() {
			require.NoError(s, s.Others.Revoke(s.Ctx, "a"))
			ended := l.Context(s.Ctx)
			<-ended.Done()
			if cause := context.Cause(ended); cause != lockpool.ErrRevoked {
				require.True(s, s.Effect != Unseen && errors.Is(cause, lockpool.ErrLockLost), "%v", cause)
			}
		})
	}
}

func (s *Stage) waitUntilRevoked() {
	end := s.begin(s.Ctx, s.way)
	ended := make(chan error)
	go func() { // ends with the wait
		_, err := end()
		ended <- err
	}()
	for {
		select {
		case err := <-ended:
			s.check(err, lockpool.ErrRevoked)
			s.free(s.first)
			return
		default: // the waiter may queue again because of a fault
		}
		q, err := s.Others.Queue(s.Ctx, "a")
		require.NoError(s, err)
		if len(q.Contenders) == 2 {
			require.NoError(s, s.Others.Revoke(s.Ctx, "a", q.Contenders[1].Node))
		}
		time.Sleep(time.Millisecond) // or virtual time would stand still
	}
}

func (s *Stage) revokeRival() {
	revoked := s.first.Revoked()
	if s.check(s.Pool.Revoke(s.Ctx, "a")) {
		<-revoked
	}
	s.free(s.first)
}

func (s *Stage) breakRival() {
	q, err := s.Pool.Queue(s.Ctx, "a")
	broken := false
	if s.check(err) {
		err = s.Pool.Break(s.Ctx, "a", q.Contenders[0].Node)
		// An ended session has perhaps done the removal, and the next one finds no node.
		if s.Effect == Losing && errors.Is(err, lockpool.ErrNotHeld) || s.check(err) {
			<-s.first.Lost()
			broken = true
		}
	}
	err = s.first.Unlock(s.Ctx)
	if broken {
		require.ErrorIs(s, err, lockpool.ErrLockLost)
	} else if s.Effect == Unseen {
		require.NoError(s, err)
	}
}

// FinishARun calls Once, while the rival waits to do the same if the run does not finish.
func (s *Stage) FinishARun() {
	behind := make(chan error, 1)
	taken, began := false, false
	takeUp := func() { // ends with s.Ctx
		behind <- s.Others.Once(s.Ctx, "a", "key", func(context.Context) error { taken = true; return nil })
	}
	err := s.Pool.Once(s.Ctx, "a", "key", func(ctx context.Context) error {
		require.False(s, began, "it ran twice in one call")
		began = true
		go takeUp()
		s.until(func() bool { return s.Others.Stats().Waiting > 0 || ctx.Err() != nil || s.Effect == Losing }, "the rival waits")
		return nil
	})
	if !began {
		go takeUp()
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
	runs, err := s.Others.Finished(s.Ctx, "a")
	require.NoError(s, err)
	require.Equal(s, "key", runs[len(runs)-1].Key)
}

// waitForARun waits while the rival finishes the run.
func (s *Stage) waitForARun() {
	var end func() (*lockpool.Lock, error)
	require.NoError(s, s.Others.Once(s.Ctx, "a", "key", func(context.Context) error {
		end = s.begin(s.Ctx, func(ctx context.Context, p *lockpool.Pool, _ bool) (*lockpool.Lock, error) {
			return nil, p.Once(ctx, "a", "key", func(context.Context) error { return errors.New("it ran") })
		})
		return nil
	}))
	_, err := end()
	s.check(err, lockpool.ErrDone)
}

// seeARun asks for a run that the rival has finished.
func (s *Stage) seeARun() {
	require.NoError(s, s.Others.Once(s.Ctx, "a", "key", func(context.Context) error { return nil }))
	s.check(s.Pool.Once(s.Ctx, "a", "key", func(context.Context) error { return errors.New("it ran") }), lockpool.ErrDone)
	runs, err := s.Pool.Finished(s.Ctx, "a")
	if s.check(err) {
		require.Len(s, runs, 1)
	}
}

// finishARunWithin calls Once under the lock of the run, and keeps the lock. There is a
// record of another run.
func (s *Stage) finishARunWithin() {
	require.NoError(s, s.Others.Once(s.Ctx, "a", "other", func(context.Context) error { return nil }))
	l, err := s.Pool.Lock(s.Ctx, LockOfRun("a", "key"))
	if !s.check(err) {
		return
	}
	ctx := l.Context(s.Ctx)
	err = s.Pool.Once(ctx, "a", "key", func(context.Context) error { return nil })
	finished := err == nil
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) { // else the lock was lost before
		s.check(err)
	}
	s.check(l.Unlock(s.Ctx))
	runs, err := s.Others.Finished(s.Ctx, "a")
	require.NoError(s, err)
	require.Equal(s, finished, len(runs) == 2)
}

func (s *Stage) lead() {
	led := 0
	err := s.Pool.Elect(s.Ctx, "a", func(ctx context.Context) error {
		led++
		require.Equal(s, int32(1), s.inside.Add(1), "two leaders")
		s.inside.Add(-1)
		l, err := s.Others.TryLock(s.Ctx, "a")
		if err == nil {
			require.True(s, s.Effect == Losing || ctx.Err() != nil && s.Allows(context.Cause(ctx)), "the leader is not told a loss")
			return l.Unlock(s.Ctx)
		}
		if s.Effect != Losing && !errors.Is(err, lockpool.ErrLocked) {
			return fmt.Errorf("the rival: %w", err)
		}
		return nil
	})
	if s.check(err) {
		require.Positive(s, led)
	}
}

// nest waits for a lock while holding another one.
func (s *Stage) nest() {
	h := s.handle(s.Pool)
	defer h.Close(s.Ctx)
	b, err := s.Others.Lock(s.Ctx, "b")
	require.NoError(s, err)
	l, err := h.Lock(s.Ctx, "a")
	if !s.check(err) {
		s.free(b)
		return
	}
	s.use(l, func() {
		end := s.begin(s.Ctx, func(ctx context.Context, _ *lockpool.Pool, _ bool) (*lockpool.Lock, error) {
			return h.Lock(ctx, "b")
		})
		s.free(b)
		l, err := end()
		if s.check(err) {
			s.check(l.Unlock(s.Ctx))
		}
	})
}

// keep takes a kept lock again, and leaves the unused lock to the rival.
func (s *Stage) keep() {
	first := s.tokenOf(s.Pool, Locking())
	second := s.tokenOf(s.Pool, Locking())
	require.True(s, s.Fired != nil || s.Pool.Stats().KeptTurns == 1)
	require.Greater(s, s.tokenOf(s.Others, Locking()), max(first, second))
	require.True(s, second > first || second == 0)
}

// tokenOf takes the lock and returns the token, or 0 if a fault has kept the pool from
// telling the token.
func (s *Stage) tokenOf(p *lockpool.Pool, way Way) (token int64) {
	l, err := way(s.Ctx, p, false)
	if err == nil {
		token, err = l.Token(s.Ctx)
		err = errors.Join(err, l.Unlock(s.Ctx))
	}
	s.check(err)
	return token
}

// keepToRead shares a kept lock with the rival, who then waits for the lock in use.
func (s *Stage) keepToRead() {
	s.tokenOf(s.Pool, reading)
	s.tokenOf(s.Others, reading)
	s.useBy(reading)
}

// tryKept tries a lock that the rival keeps.
func (s *Stage) tryKept() {
	s.free(s.take(s.Others))
	s.free(s.take(s.Others))
	require.Equal(s, 1, s.Others.Stats().Kept)
	began := time.Now()
	l, err := s.way(s.Ctx, s.Pool, true)
	if errors.Is(err, lockpool.ErrLocked) && (s.fired() || time.Since(began) >= 100*time.Millisecond) { // the answer came too late
		return
	}
	if s.check(err) {
		s.use(l, func() {})
	}
}
