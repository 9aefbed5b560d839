package zookeeper

// This file has the calls of a session: how they wait for answers, repeat requests, and are
// abandoned.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// calls counts the calls of a session that are in progress.
type calls struct {
	slots    chan struct{} // one per call in a slot (runInSlot), at most maxCalls
	mu       sync.Mutex    // held while underWay is raised
	underWay sync.WaitGroup
}

// maxCalls bounds the calls with several requests that go on when their callers give up, because
// the goroutines would pile up behind a silent server. (The requests of other calls are taken
// back when their callers give up, or are bounded by requests.)
const maxCalls = 1024

func (c *calls) done() { c.underWay.Done() }

// awaitBegins returns when every begin called before the end of the session has returned.
// From then on, waiting for underWay is safe.
func (c *calls) awaitBegins() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

// begin registers a call, unless the session is over. shutdown waits for all registered
// calls.
func (s *session) begin() bool {
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	if s.isOver() {
		return false
	}
	s.calls.underWay.Add(1)
	return true
}

// await waits until something is done. It reports false if ctx ends or the session is over
// before.
func (s *session) await(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	case <-s.alive.Done():
		return false
	}
}

// ask sends a request without effects, again until the server answers. The error is the
// answer's, or one for which isUnsure is true.
func (s *session) ask(ctx context.Context, send func() *request) (q *request, err error) {
	err = s.insist(ctx, func() error {
		q = send()
		return s.answer(ctx, q)
	})
	return q, err
}

// insist calls try again until the server has answered. The error is the answer's, or one for
// which isUnsure is true.
func (s *session) insist(ctx context.Context, try func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for n := 0; ; n++ {
		if err := try(); !isUnsure(err) {
			return err
		}
		if err := s.pause(ctx, n); err != nil {
			return err
		}
	}
}

// answer waits for the outcome of a sent request.
func (s *session) answer(ctx context.Context, q *request) error {
	if s.await(ctx, q.done) {
		return q.err
	}
	s.requests.cancel(q)
	return s.gaveUp(ctx)
}

// get reads a node.
func (s *session) get(ctx context.Context, path string) (*request, error) {
	return s.ask(ctx, func() *request { return s.requests.send(getRequest(path)) })
}

// exists looks for a node. The error is ErrNoNode if there is none.
func (s *session) exists(ctx context.Context, path string) (*request, error) {
	return s.ask(ctx, func() *request { return s.requests.send(existsRequest(path)) })
}

// pause pauses before a request is repeated which has been repeated n times. It returns an
// error if ctx ends or the session is over. The first pauses are short: requests wait until
// there is a connection.
func (s *session) pause(ctx context.Context, n int) error {
	const doublings = 4
	select {
	case <-time.After(minBackoff << min(n, doublings)):
		return nil
	case <-ctx.Done():
	case <-s.alive.Done():
	}
	return s.gaveUp(ctx)
}

// gaveUp returns the error of a call for which await reported false.
func (s *session) gaveUp(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.noAnswerError(ctx)
}

// grace is how much longer than its context a call may wait for a reply already on the way.
// With a healthy server, grace is enough to clean up before the call returns; with a sick
// server, a caller loses no more than grace.
const grace = 10 * time.Millisecond

// run runs op, which takes several requests, and waits until op returns, ctx ends or the
// session is over. An abandoned op ends in the background; undo, if not nil, then reverses
// what op has achieved.
func run[T any](ctx context.Context, s *session, op func() (T, error), undo func(T)) (T, error) {
	if !s.begin() {
		var none T
		return none, s.Err()
	}
	return runBegun(ctx, s, op, undo)
}

// runBegun is run for a call registered with begin.
func runBegun[T any](ctx context.Context, s *session, op func() (T, error), undo func(T)) (T, error) {
	c := &call[T]{done: make(chan struct{})}
	go func() { // ends with op, which ends with the session if nothing else
		defer s.calls.done()
		defer close(c.done)
		result, err := op()
		switch {
		case c.decided.CompareAndSwap(false, true):
			c.result, c.err = result, err
		case err != nil:
			c.err = err
		case undo != nil:
			undo(result)
		}
	}()
	var cause error
	select {
	case <-c.done:
		return c.result, c.err
	case <-s.alive.Done():
		cause = s.Err()
	case <-ctx.Done():
		cause = s.noAnswerError(ctx)
	}
	// From here on, an op with an undo will be undone; any other may still succeed.
	abandoned := undo != nil && c.decided.CompareAndSwap(false, true)
	select {
	case <-c.done:
	case <-time.After(grace):
		if !abandoned && !c.decided.CompareAndSwap(false, true) {
			<-c.done // op has just returned
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
			return none, c.err // says more than the cause: the server's answer, or why there is none
		}
	default:
	}
	return none, cause
}

// call is one op of run.
type call[T any] struct {
	decided atomic.Bool   // set by the first of op's return and the caller's giving up
	done    chan struct{} // closed when the goroutine of op is done
	result  T             // valid once done is closed
	err     error
}

// runInSlot is run when fewer than maxCalls of such calls are in progress.
func runInSlot[T any](ctx context.Context, s *session, op func() (T, error), undo func(T)) (none T, err error) {
	if err := ctx.Err(); err != nil {
		return none, err
	}
	select {
	case s.calls.slots <- struct{}{}:
	case <-s.alive.Done():
		return none, s.Err()
	case <-ctx.Done():
		return none, s.noAnswerError(ctx)
	}
	return run(ctx, s, func() (T, error) {
		defer func() { <-s.calls.slots }()
		return op()
	}, undo)
}

// noAnswerError returns the error of a call whose context ended before the server's answer.
func (s *session) noAnswerError(ctx context.Context) error {
	return fmt.Errorf("no answer from %s: %w", s.Info().Peer, ctx.Err())
}

// isRefused reports whether the request was certainly not carried out, given the error.
func isRefused(err error) bool { return meaningOf(err) >= refused }

// isUnsure reports whether err is not an answer, so that the request may or may not have
// been carried out: the connection broke, no other was made, or the answer cannot be
// understood or speaks of the session. pause notices the end of a session.
func isUnsure(err error) bool { return err != nil && !isAnswer(err) }

func isAnswer(err error) bool { return meaningOf(err) >= answered }

// isFinal reports whether an answer ends a call, because the server would say the same again. An
// overloaded server is asked again, and a server is asked a few times after unclear answers, which
// do not say whether the request was carried out.
func isFinal(err error, unclear *int) bool {
	const most = 3
	switch {
	case err == errThrottled || !isAnswer(err):
		return false
	case isRefused(err):
		return true
	}
	*unclear++
	return *unclear > most
}

// errTooLong is the error of a listing longer than accepted.
var errTooLong = errors.New("the listing is too long")

// explainError turns the client's error into one that names the operation, the path and
// the missing right. Other errors than those of answers are returned as they are.
func explainError(err error, op, right, path string) error {
	switch {
	case !isAnswer(err):
		return err
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%w: %s needs the right %s on %s", driver.ErrNoPermission, op, right, path)
	case errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("%w: the server refuses the ACL configured for new nodes (%s on %s)", driver.ErrNoPermission, op, path)
	case err == zk.ErrAuthFailed:
		return fmt.Errorf("%w: %s on %s: the server refuses the credentials: check Config.Digest", driver.ErrNoPermission, op, path)
	case err == errThrottled:
		return fmt.Errorf("%s on %s: the server is overloaded and refuses requests (throttled); try again later", op, path)
	case err == errQuota:
		return fmt.Errorf("%w: %s on %s would exceed a quota of ZooKeeper: raise the quota of %s or of a parent (setquota), or remove nodes there", driver.ErrNoPermission, op, path, path)
	case err == errLocalSession:
		return fmt.Errorf("%w: %s on %s: the servers have local sessions (localSessionsEnabled), which cannot hold locks: set localSessionsUpgradingEnabled=true at each server", driver.ErrNoPermission, op, path)
	case err == errReadOnly:
		return fmt.Errorf("%s on %s: the server is read-only, because it is cut off from the majority: check the other servers", op, path)
	case err == errClosedEachTime:
		return fmt.Errorf("%s on %s: the servers close the connection instead of an answer, each time: check that jute.maxbuffer is the same on all servers and longer than the request, and see the log of the server", op, path)
	}
	return fmt.Errorf("%s on %s: %w", op, path, err)
}
