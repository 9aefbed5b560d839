package lockpool

// This file has elections.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// The pauses of Elect between two attempts.
const (
	electPause    = 100 * time.Millisecond // after the first failure
	maxElectPause = 10 * time.Second
)

// Elect stands for election: Elect calls lead under the named lock, again and again, until
// ctx ends or lead wants to lead no longer. All candidates for the same name, on any
// machine, lead one at a time, in the order in which they asked (with [Plain], in any
// order).
//
// The context of lead is like the context of [Pool.Do]'s function, and ends with the
// leadership, because the lock is lost, is revoked (see [Revocable]), or ctx ends; and,
// unlike in Do, when [Pool.Shutdown] begins. lead must then return. Elect waits for lead,
// and only then unlocks or stands again, so one call of Elect never leads twice at a time.
// [LockFromContext] finds the lock, for the fencing token.
//
// When lead returns nil before the context ends, Elect unlocks and returns nil, or the error
// of an unlock that the service has not confirmed. In all other cases Elect stands again,
// behind the waiting candidates:
//
//   - If lead returns an error, Elect unlocks, so that another candidate leads, and logs
//     the error.
//   - If the lock was lost, or if the service refuses a request for a passing reason, Elect
//     logs the fact.
//   - If the lock was revoked, Elect stands again at once. After the other cases Elect
//     pauses first: for 100 ms after the first one, twice as long after each further one,
//     up to 10 s, and shortened at random by up to half. After a term of at least 10 s the
//     pauses start over.
//
// If ctx ends, the error wraps ctx's error and, from a term or the pause after one, lead's
// error if different, and ErrLockLost if the lock was lost before lead returned. The error
// wraps ErrNotAcquired if lead was never called, and only then. Elect also returns errors
// beyond another attempt: ErrPoolClosed, ErrInvalidName, ErrKindMismatch, ErrNoPermission,
// ErrDeadlock, ErrSequenceExhausted or a refused option from the request for the lock, and, before
// the first session, a permanent refusal by the servers. If lead panics, Elect unlocks, and the panic
// goes on.
//
// An election has one leader, and candidates wait as long as they stand: the options Shared
// and WaitAtMost are refused. [Pool.Observe] follows an election.
func (p *Pool) Elect(ctx context.Context, name string, lead func(ctx context.Context) error, opts ...LockOption) error {
	if lead == nil {
		return errNilLead
	}
	req := request{op: opElect}
	if err := req.with(opts); err != nil {
		return notAcquired(opElect, name, err)
	}
	ctx, cancel := bound(ctx, p.accepting)
	defer cancel(nil)
	pauses, led := backoff{}, false
	for {
		t, err := p.stand(ctx, name, &req, lead)
		switch final := isFinal(err) || errors.Is(err, ctx.Err()); { // the latter says who leads
		case t.resigned && !errors.Is(err, ErrLockLost):
			return err
		case !t.led && final && led:
			return apart(err) // lead was called in a term before
		case !t.led && final:
			return err
		}
		switch led = led || t.led; {
		case ctx.Err() != nil:
			return electError(name, led, t.explainEnd(ctx, p, err))
		case t.wasRevoked(err):
			t.log(ctx, p, name, err, 0)
			continue
		}
		if t.lasted >= maxElectPause {
			pauses = backoff{}
		}
		pause := pauses.next()
		t.log(ctx, p, name, err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return electError(name, led, t.explainEnd(ctx, p, err))
		}
	}
}

var errNilLead = errors.New("lockpool: Elect: the function is nil")

// term is what came of standing for election once.
type term struct {
	led      bool
	resigned bool          // lead returned nil before the context ended
	err      error         // of lead
	ended    error         // why lead's context had ended when lead returned, or nil
	lasted   time.Duration // how long lead ran
}

// stand waits for the lock and leads once. err is from the wait or the release.
func (p *Pool) stand(ctx context.Context, name string, req *request, lead func(context.Context) error) (t term, err error) {
	lock, err := p.enter(ctx, name, req, new(Lock))
	if err != nil {
		return t, err
	}
	err = do(ctx, func(ctx context.Context) error {
		began := time.Now()
		t.led = true
		t.err = lead(ctx)
		t.ended, t.lasted = context.Cause(ctx), time.Since(began)
		t.resigned = t.err == nil && t.ended == nil
		if t.failed() {
			lock.hold.telemetry.Failed(t.err)
		}
		return nil
	}, []*Lock{lock})
	return t, err
}

// failed reports whether lead returned an error other than the error of lead's context.
func (t term) failed() bool {
	return t.err != nil && (t.ended == nil || !errors.Is(t.err, context.Canceled) && !errors.Is(t.err, context.DeadlineExceeded))
}

// wasRevoked reports whether the candidate was asked to make way, as a leader or as a
// waiter.
func (t term) wasRevoked(err error) bool {
	if t.led {
		return t.ended == ErrRevoked && !t.failed()
	}
	return errors.Is(err, ErrRevoked)
}

// electError returns err as an error of Elect, with or without a call of lead.
func electError(name string, led bool, err error) error {
	if led {
		return lockError(opElect, name, err)
	}
	return notAcquired(opElect, name, err)
}

// explainEnd returns the error of Elect after ctx has ended. err is what stand has returned.
func (t term) explainEnd(ctx context.Context, p *Pool, err error) error {
	end := p.withCause(ctx, p.carriedHandle(ctx), ctx.Err())
	if t.failed() {
		end = fmt.Errorf("%w: %w", end, apart(t.err))
	}
	if t.led && errors.Is(err, ErrLockLost) {
		end = fmt.Errorf("%w: %w", end, err)
	}
	return end
}

// log logs why Elect stands again. err is what stand has returned.
func (t term) log(ctx context.Context, p *Pool, name string, err error, pause time.Duration) {
	switch {
	case t.failed():
		p.telemetry.LogElection(ctx, name, "the leader failed", t.err, t.lasted, pause)
	case err != nil && !t.led && !errors.Is(err, ErrRevoked):
		p.telemetry.LogElection(ctx, name, "the lock cannot be had", err, 0, pause)
	case err != nil && t.led && !errors.Is(err, ErrLockLost): // a loss is logged as for any lock
		p.telemetry.LogElection(ctx, name, "the leader could not resign", err, t.lasted, pause)
	}
}

// finalErrors are beyond another attempt.
var finalErrors = []error{
	ErrPoolClosed, ErrHandleClosed, ErrInvalidName, ErrKindMismatch, ErrNoPermission,
	ErrSequenceExhausted, ErrUpgrade, ErrDeadlock, ErrConcurrentUse, driver.ErrPermanent,
	errors.ErrUnsupported,
}

func isFinal(err error) bool {
	return slices.ContainsFunc(finalErrors, func(final error) bool { return errors.Is(err, final) })
}

// backoff are the pauses between failing attempts.
type backoff struct{ last time.Duration }

// next returns the next pause: twice as long as the last one, but shortened at random by up
// to half, so that candidates who failed together do not try again together.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, electPause), maxElectPause)
	return b.last - rand.N(b.last/2)
}
