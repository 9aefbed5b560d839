package plays

// This file has the plays of calls waiting for each other.

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
)

// Ask asks for a lock of some kind with a handle. What the handle gets is released when the
// handle is closed.
type Ask func(ctx context.Context, h *lockpool.Handle, name string) error

func asking(opts ...lockpool.LockOption) Ask {
	return func(ctx context.Context, h *lockpool.Handle, name string) error {
		_, err := h.Lock(ctx, name, opts...)
		return err
	}
}

// Exclusively and the others are asks.
var (
	Exclusively = asking()
	Plainly     = asking(lockpool.Plain())
	ToRead      = asking(lockpool.Shared())
)

// WithAll asks for two locks, the second under an unshared name.
func WithAll(ctx context.Context, h *lockpool.Handle, name string) error {
	_, err := h.LockAll(ctx, []string{name, name + "-too"})
	return err
}

// Permits asks for n permits of limit.
func Permits(n, limit int) Ask {
	return func(ctx context.Context, h *lockpool.Handle, name string) error {
		_, err := h.Semaphore(name, limit).Acquire(ctx, n)
		return err
	}
}

// Party is a handle with some locks, waiting for another one.
type Party struct {
	*lockpool.Handle
	Done chan struct{} // closed when the call has returned
	Err  error
}

// WaitFor starts to wait for a lock.
func (p *Party) WaitFor(ctx context.Context, get Ask, name string) {
	p.Done = make(chan struct{})
	go func() { // ends with ctx
		defer close(p.Done)
		p.Err = get(ctx, p.Handle, name)
	}()
}

// soon makes calls look for deadlocks early, so that a play on a real server takes little
// time.
var soon = []lockpool.Option{lockpool.WithDeadlockCheck(30 * time.Millisecond), lockpool.WithLogger(slog.New(slog.DiscardHandler))}

// deadlock returns the act where a handle of the tested pool holds the lock a, a handle of
// the rival holds b, and each asks for the other's. rivalLast says who asks last.
func deadlock(a, b Ask, rivalLast bool) func(*Stage) {
	return func(s *Stage) { s.deadlock(s.Others, a, b, a, b, rivalLast) }
}

// deadlockOfReaders is about two readers, each asking to write what the other reads.
func (s *Stage) deadlockOfReaders() {
	s.deadlock(s.Others, ToRead, ToRead, Exclusively, Exclusively, false)
}

// localDeadlock is about two handles of the tested pool.
func (s *Stage) localDeadlock() {
	s.deadlock(s.Pool, Exclusively, Exclusively, Exclusively, Exclusively, false)
}

// deadlock lets a handle of the tested pool hold a, one of another pool, or of the same one,
// hold b, and each ask for the other's lock.
func (s *Stage) deadlock(other *lockpool.Pool, holdA, holdB, askA, askB Ask, otherLast bool) {
	mine, theirs := &Party{Handle: s.handle(s.Pool)}, &Party{Handle: s.handle(other)}
	defer func() { s.check(mine.Close(s.Ctx)) }()
	if !s.check(holdA(s.Ctx, mine.Handle, "a")) {
		return
	}
	if err := holdB(s.Ctx, theirs.Handle, "b"); other == s.Pool {
		defer func() { s.check(theirs.Close(s.Ctx)) }()
		if !s.check(err) {
			return
		}
	} else {
		defer theirs.Close(s.Ctx)
		require.NoError(s, err)
	}
	waits, cancel := context.WithCancel(s.Ctx)
	defer cancel()
	ask := func(p *Party, get Ask, name string) {
		before := s.Pool.Stats().Waiting + s.Others.Stats().Waiting
		p.WaitFor(waits, get, name)
		s.until(func() bool {
			return Closed(p.Done) || s.Pool.Stats().Waiting+s.Others.Stats().Waiting > before || s.fired()
		}, "the call waits, or the fault has happened")
	}
	if otherLast {
		ask(mine, askB, "b")
		ask(theirs, askA, "a")
	} else {
		ask(theirs, askA, "a")
		ask(mine, askB, "b")
	}
	s.end(mine, theirs, other == s.Pool, waits, cancel)
}

// end waits until both parties have ended. The party that ends first lets the other one go on.
func (s *Stage) end(mine, theirs *Party, local bool, waits context.Context, cancel func()) {
	told := 0
	for range 2 {
		ended := mine
		select {
		case <-mine.Done:
			mine.Done = nil // do not look at mine again
		case <-theirs.Done:
			ended, theirs.Done = theirs, nil
		}
		var deadlock *lockpool.DeadlockError
		switch {
		case errors.As(ended.Err, &deadlock):
			told++
			require.ErrorIs(s, ended.Err, lockpool.ErrDeadlock)
			require.Len(s, deadlock.Cycle, 2, "%v", ended.Err)
		case waits.Err() != nil:
			s.check(ended.Err, context.Canceled)
		case ended == mine || local:
			s.check(ended.Err)
		default:
			require.NoError(s, ended.Err)
		}
		if !s.check(ended.Close(s.Ctx)) && local && s.Effect == Denied {
			cancel() // refused nodes go with the session, and the session lasts while the other handle holds something
		}
	}
	if s.Effect == Unseen {
		require.Positive(s, told)
	}
	require.LessOrEqual(s, told, 1)
}
