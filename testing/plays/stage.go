// Package plays has ways to use locks, for tests of each fault at each request, and an
// [Observer]. The plays are the same on each service. What a request is, and how a fault
// happens to a request, is up to the tests of an engine. Tests of several packages share
// what else is here.
package plays

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool"
	"github.com/lockpool/lockpool/driver"
)

// Effect is what a fault may do to a call.
type Effect int

// The effects. A service need not have all.
const (
	Unseen  Effect = iota // none but a delay
	Refused               // an error naming the refused request
	Denied                // ErrNoPermission, naming right and path
	Losing                // a held lock is lost, a waiter is granted nevertheless
)

// Stage is where a play is performed. A test sets the exported fields.
type Stage struct {
	testing.TB
	Ctx          context.Context
	Pool, Others *lockpool.Pool // the tested pool, whose requests meet the fault, and the rival's
	Effect       Effect
	Fired        func() bool          // reports whether the fault has happened; nil without a fault
	Allows       func(err error) bool // reports whether a Refused or Denied fault may be the cause; nil if there is none
	AtNext       func(do func())      // calls do when the next request is under way
	Label        string               // of the goroutines of the tested pool
	way          Way
	first        *lockpool.Lock // held by the rival
	inside       atomic.Int32
}

// Prepare uses the lock before the play begins, as the play says.
func (s *Stage) Prepare(p Play) {
	s.way = p.Way
	if s.way == nil {
		s.way = Locking()
	}
	for range p.Warm {
		s.AsSubject(func() { s.release(s.take(s.Pool)) })
	}
	if p.Rival {
		s.first = s.take(s.Others)
	}
}

// Perform performs a play. Then over is called, to end the fault. In any case the lock is
// then free, and both pools can use the lock.
func (s *Stage) Perform(p Play, over func()) {
	s.AsSubject(func() { p.Act(s) })
	over()
	s.free(s.take(s.Others))
	s.AsSubject(func() { s.release(s.take(s.Pool)) })
}

// AsSubject labels the goroutines started by do.
func (s *Stage) AsSubject(do func()) {
	pprof.Do(s.Ctx, pprof.Labels("stage", s.Label), func(context.Context) { do() })
}

// Running returns the labels of the leftover goroutines of tested pools, as far as they
// begin with the prefix.
func Running(t testing.TB, prefix string) []string {
	var profile bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	return regexp.MustCompile(fmt.Sprintf(`"stage":"%s[^"]*"`, regexp.QuoteMeta(prefix))).FindAllString(profile.String(), -1)
}

func (s *Stage) take(p *lockpool.Pool) *lockpool.Lock {
	l, err := s.way(s.Ctx, p, false)
	require.NoError(s, err)
	return l
}

// release releases a lock of the tested pool. A session short enough to be lost by a fault
// can be lost before and after the fault as well, on a busy machine.
func (s *Stage) release(l *lockpool.Lock) {
	err := l.Unlock(s.Ctx)
	lost := errors.Is(err, lockpool.ErrLockLost) || errors.Is(err, driver.ErrSessionLost)
	require.True(s, err == nil || s.Effect == Losing && lost, "%v", err)
}

func (s *Stage) free(l *lockpool.Lock) { require.NoError(s, l.Unlock(s.Ctx)) }

func (s *Stage) handle(p *lockpool.Pool) *lockpool.Handle {
	h, err := p.Handle(s.Ctx)
	require.NoError(s, err)
	return h
}

// until waits until a condition holds.
func (s *Stage) until(condition func() bool, what string, args ...any) {
	s.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if s.Ctx.Err() != nil || time.Now().After(deadline) {
			require.FailNowf(s, "the condition was never met", what, args...)
		}
	}
}

func (s *Stage) fired() bool { return s.Fired != nil && s.Fired() }

// check checks an error of the tested pool. It reports whether there is none.
func (s *Stage) check(err error, expected ...error) bool {
	s.Helper()
	if slices.ContainsFunc(expected, func(target error) bool { return errors.Is(err, target) }) {
		return false
	}
	var locking *lockpool.LockError
	switch {
	case err == nil && len(expected) == 0:
		return true
	case err == nil:
		require.FailNow(s, "no error")
	case s.Effect == Unseen || !errors.As(err, &locking):
	case s.Effect == Losing && errors.Is(err, lockpool.ErrLockLost):
		return false
	case s.Effect == Losing && errors.Is(err, driver.ErrSessionLost) && locking.Op == "unlock": // a loss leaves a release open
		return false
	case s.Effect != Losing && s.Allows(err):
		return false
	}
	require.FailNow(s, "the wrong error", "%v", err)
	return false
}

// use holds the lock, lets the rival queue behind it, and unlocks.
func (s *Stage) use(l *lockpool.Lock, do func()) {
	require.Equal(s, int32(1), s.inside.Add(1), "two holders")
	ctx := l.Context(s.Ctx)
	leave := sync.OnceFunc(func() { s.inside.Add(-1) })
	go func() { // ends with the lock
		<-ctx.Done()
		leave()
	}()
	behind := make(chan error, 1)
	go func() { // ends with s.Ctx
		l, err := s.way(s.Ctx, s.Others, false)
		if err == nil {
			// A server ending a session for no reason gives no guarantee. Otherwise the
			// context of a lock ends before the lock is released.
			if n := s.inside.Load(); n != 0 && ctx.Err() == nil && s.Effect != Losing {
				err = errors.New("two holders")
			}
			err = errors.Join(err, l.Unlock(s.Ctx))
		}
		if s.Effect == Losing && errors.Is(err, lockpool.ErrRevoked) { // held the lock by then, and was asked
			err = nil
		}
		behind <- err
	}()
	do()
	leave()
	s.check(l.Unlock(s.Ctx))
	require.NoError(s, <-behind)
}

// begin starts a waiting call, and returns when the call waits or when the fault has
// happened.
func (s *Stage) begin(ctx context.Context, way Way) func() (*lockpool.Lock, error) {
	var l *lockpool.Lock
	var err error
	done := make(chan struct{})
	before := s.Pool.Stats().Waiting
	go func() { // ends with ctx
		defer close(done)
		l, err = way(ctx, s.Pool, false)
	}()
	s.until(func() bool { return Closed(done) || s.Pool.Stats().Waiting > before || s.fired() }, "the call waits, or the fault has happened")
	return func() (*lockpool.Lock, error) { <-done; return l, err }
}

// Closed reports whether a channel is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Together calls do for 0 to n-1, in goroutines that begin at the same moment, and fails the
// test with the errors.
func Together(t testing.TB, n int, do func(i int) error) {
	t.Helper()
	errs, start := make([]error, n), make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			errs[i] = do(i)
		})
	}
	close(start)
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}
