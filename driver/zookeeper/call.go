package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// grace is how much longer than its context a call may wait for a reply that is
// already under way. On a healthy server it is enough to clean up before the
// call returns; it is all that a caller loses on a sick one.
const grace = 10 * time.Millisecond

// run runs op in a goroutine of its own, because the client's calls take no
// context, and waits until op returns, ctx ends or the session is over. A call
// that is given up ends in the background; undo, if not nil, then takes back
// what op achieved after all.
func run[T any](ctx context.Context, s *Session, op func() (T, error), undo func(T)) (T, error) {
	c := &call[T]{done: make(chan struct{})}
	if !s.begin() {
		return c.result, s.Err()
	}
	go func() { // ends with op, which ends with the session if nothing else
		defer s.calls.Done()
		defer close(c.done)
		result, err := op()
		switch {
		case c.settled.CompareAndSwap(false, true):
			c.result, c.err = result, err
		case err != nil:
			c.err = err
		case undo != nil:
			undo(result)
		}
	}()
	var gaveUp error
	select {
	case <-c.done:
		return c.result, c.err
	case <-s.alive.Done():
		gaveUp = s.Err()
	case <-ctx.Done():
		gaveUp = s.noAnswerError(ctx)
	}
	// What can be undone is undone from here on, the rest may still succeed.
	abandoned := undo != nil && c.settled.CompareAndSwap(false, true)
	select {
	case <-c.done:
	case <-time.After(grace):
		if !abandoned && !c.settled.CompareAndSwap(false, true) {
			<-c.done // it has just returned
		} else {
			abandoned = true
		}
	}
	if !abandoned {
		return c.result, c.err
	}
	var none T
	select {
	case <-c.done:
		if c.err != nil && s.alive.Err() == nil {
			return none, c.err // there was an answer, or why there is none is known
		}
	default:
	}
	return none, gaveUp
}

// call is one op of run.
type call[T any] struct {
	settled atomic.Bool   // by the first of: op has returned, the caller gave up
	done    chan struct{} // closed when the goroutine of op is done
	result  T             // to be read after done
	err     error
}

// noAnswer is the error of a call whose context ended while it waited for the
// server.
func (s *Session) noAnswerError(ctx context.Context) error {
	return fmt.Errorf("no answer from %s: %w", s.Info().Peer, ctx.Err())
}

// begin counts a call in, unless the session is over. bury waits for all that
// were counted in before.
func (s *Session) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOver() {
		return false
	}
	s.calls.Add(1)
	return true
}

// room waits until fewer than maxCalls calls are under way and returns a
// function that gives the place back when the call is done.
func (s *Session) acquireCallSlot(ctx context.Context) (func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-s.alive.Done():
		return nil, s.Err()
	case <-ctx.Done():
		return nil, s.noAnswerError(ctx)
	}
}

// refusals are the errors that a server gives before it changes anything.
var refusals = []error{
	zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
	zk.ErrInvalidACL, zk.ErrAuthFailed, zk.ErrBadArguments, zk.ErrInvalidPath, zk.ErrInvalidFlags,
}

// refused reports whether the request that failed with err was certainly not
// carried out.
func isRefused(err error) bool {
	return slices.Contains(refusals, err) || isUnimplemented(err) || isThrottled(err)
}

// unsure reports whether err is no answer, so that the request may or may not
// have been carried out. The client says so in many ways: the connection broke
// while it waited for the reply, or while it wrote, with whatever error that
// gave; the reply could not be read; it was being closed. So all counts as that
// but what is known to be an answer. ErrNoServer and ErrSessionExpired, seen
// when the session is over, are treated alike: the pause before trying again
// finds out.
func isUnsure(err error) bool { return err != nil && !isAnswer(err) }

func isAnswer(err error) bool { return isRefused(err) || strings.HasPrefix(err.Error(), unknownCodePrefix) }

// unknownCode is how the client begins the error for a code of the server that
// it does not know.
const unknownCodePrefix = "unknown error: "

func isUnimplemented(err error) bool { return err != nil && err.Error() == unknownCodePrefix+"-6" }
func isThrottled(err error) bool     { return err != nil && err.Error() == unknownCodePrefix+"-127" }

// tooLong reports whether the link has kept a listing from the client.
func isTooLong(err error) bool {
	return err != nil && err.Error() == unknownCodePrefix+strconv.Itoa(codeTooLong)
}

// tooLongCode is none of the server's.
const codeTooLong = -100_000

// again pauses before a request is repeated, and returns an error if it must
// not be because the session is over. The pause is short: the client itself
// holds requests back until it is connected.
func (s *Session) pauseBeforeRetry() error {
	select {
	case <-s.alive.Done():
		return s.Err()
	case <-time.After(minBackoff):
		return nil
	}
}

// explain turns the client's error into one that says what was done where, and
// which right was missing.
func explainError(err error, op, right, path string) error {
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%w: %s needs the right %s on %s", driver.ErrNoPermission, op, right, path)
	case errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("%w: the server refuses the ACL configured for new nodes (%s on %s)", driver.ErrNoPermission, op, path)
	case isThrottled(err):
		return fmt.Errorf("%s on %s: the server is overloaded and refuses requests (throttled); try again later", op, path)
	}
	return fmt.Errorf("%s on %s: %w", op, path, err)
}
