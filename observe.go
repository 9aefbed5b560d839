package lockpool

// This file has observers of locks.

import (
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/waitgraph"
	"github.com/lockpool/lockpool/recipe"
)

const (
	// observeInterval is the shortest time between two looks of an observer.
	observeInterval = 100 * time.Millisecond

	// observePatience is how long an observer waits for the service before saying that the
	// holder is no longer known.
	observePatience = time.Second

	// observeQuiet is how long an observer is content without a sign of the service.
	observeQuiet = 1500 * time.Millisecond
)

// Observe follows who holds the named lock, and who comes next. The sequence yields the
// state at once, and again after each change, until ctx ends or the caller leaves the loop:
//
//	for q, err := range pool.Observe(ctx, "leader") {
//		...
//	}
//
// Each value is what the nodes say: what [Pool.Queue] returns without the waiters after the
// first one, and without the reports of other pools (Callers, and the call of the present turn). A
// free lock has no contenders. Handles that pass the lock on in memory (see [WithLocalTurns])
// are one contender. Foreign is as it was at the last change of the others. The service
// tells of changes; Observe does not poll.
//
// There are at most 10 values in a second: changes in between are merged, and the newest
// state always follows. States are seen in their order, but not every one of them: a holder
// for only a moment may be missed.
//
// If the service does not answer for a second, the state is not known any longer. (While
// nothing changes, two more seconds may pass before anything is asked: the session's own
// requests show a living service, or with a timeout longer than 15 s, one request of the
// observer every 1.5 s.) Observe then yields an error that wraps ErrUnavailable, once, and
// the state when known again. The same happens with other passing errors. The last error is
// followed by nothing: the error of ctx, ErrPoolClosed, ErrInvalidName, ErrNoPermission, or
// an error of a service that cannot be used.
//
// An observer has no goroutine and no handle. During the wait, the service watches the
// nodes of the holders and of the next one, or the lock's directory if there is none; all
// observers of a lock in a session share the watches. After the loop they remain until they
// fire, or the session ends.
func (p *Pool) Observe(ctx context.Context, name string) iter.Seq2[Queue, error] {
	refuseNil(ctx)
	return func(yield func(Queue, error) bool) {
		o := observer{pool: p, name: name}
		o.run(ctx, yield)
	}
}

// observer is one loop over Observe.
type observer struct {
	pool *Pool
	name string

	session *session // of the last look, and therefore up to date
	doubt   bool     // whether the service still answers
	watches []*driver.Watch
	looked  time.Time
	last    []Contender
	known   bool // last has been yielded, and no error since
	failed  bool // an error has been yielded, and no state since
}

func (o *observer) run(ctx context.Context, yield func(Queue, error) bool) {
	pauses := backoff{}
	for {
		q, err := o.look(ctx)
		switch {
		case err != nil:
			final := ctx.Err() != nil || isFinal(err)
			if (final || !o.failed) && !yield(Queue{Name: o.name}, lockError(opObserve, o.name, err)) || final {
				return
			}
			o.failed, o.known = true, false
			o.pause(ctx, pauses.next())
			continue
		case !o.known || !sameContenders(q.Contenders, o.last):
			o.known, o.failed, o.last = true, false, q.Contenders
			pauses = backoff{}
			if !yield(q, nil) {
				return
			}
		}
		o.await(ctx)
		o.pause(ctx, time.Until(o.looked.Add(observeInterval)))
	}
}

// look returns the present state, and sets the watches.
func (o *observer) look(ctx context.Context) (Queue, error) {
	q := Queue{Name: o.name}
	if err := o.pool.checkName(o.name); err != nil {
		return q, err
	}
	patient, cancel := ctx, context.CancelFunc(func() {})
	if !o.failed {
		patient, cancel = context.WithTimeout(ctx, observePatience)
	}
	defer cancel()
	err := o.pool.withSessionUntil(o.pool.accepting, patient, nil, o.session, func(ctx context.Context, s *session) error {
		follower, err := driver.Offer[driver.Follower](s.Session)
		if err != nil {
			return err
		}
		if s != o.session || o.doubt {
			if err := s.Ping(ctx); err != nil { // the server may be behind what was seen last
				return err
			}
			o.session, o.doubt = s, false
		}
		o.watches = o.watches[:0]
		found, foreign, err := lookAt(o.name, func(queue string, head headOf) ([]driver.Contender, []string, error) {
			f, err := follower.Follow(ctx, queue, head)
			o.watches = append(o.watches, f.Watches...)
			return f.Contenders, f.Others, err
		})
		q.Foreign, q.Contenders = foreign, o.describe(withoutRest(found))
		return err
	})
	o.looked = time.Now()
	if err != nil && patient.Err() != nil && ctx.Err() == nil && o.pool.accepting.Err() == nil {
		err = fmt.Errorf("%w: no answer for %v, so the holder may have changed", ErrUnavailable, observePatience)
	}
	return q, err
}

// await waits until the state may have changed, or the service may have fallen silent: no
// watch tells of silence. A prolonged lease is a sign of the service, without a request of
// the observer, and more often than every observeQuiet if the session timeout is 15 s or
// less. Without a sign, the observer asks.
func (o *observer) await(ctx context.Context) {
	const tick, jitter = observeQuiet / 6, 10 * time.Millisecond
	fired, stop := driver.First(o.watches...)
	defer stop()
	o.session.calls.Add(1)
	defer o.session.calls.Add(-1)
	_ = o.session.Alive(canceled) // ends idleness
	lease, since := o.session.Lease(), time.Now()
	quiet := observeQuiet
	if lease == math.MaxInt64 { // asking costs nothing: the service is in this process
		quiet = 0
	}
	for begun := false; !begun || time.Since(since) < quiet; begun = true {
		select {
		case <-fired:
		case <-o.session.Done():
		case <-o.pool.accepting.Done():
		case <-ctx.Done():
		case <-time.After(tick):
			passed := time.Since(since)
			if left := o.session.Lease(); left-jitter > lease-passed {
				lease, since = left, time.Now()
			}
			continue
		}
		return
	}
	o.doubt = true
}

func (o *observer) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-o.pool.accepting.Done():
	case <-ctx.Done():
	}
}

// describe describes contenders. What they said about themselves when they were first
// seen is kept: a request to give up the lock overwrites what another client's node says.
func (o *observer) describe(found []*waitgraph.Contender) []Contender {
	described := describe(found, inMemory{}, o.pool.turnsOf(o.name))
	for i := range described {
		c := &described[i]
		for _, known := range o.last {
			if known.Node == c.Node && known.Session == c.Session {
				c.Origin = known.Origin
			}
		}
	}
	return described
}

func sameContenders(a, b []Contender) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		x.Granted, y.Granted = time.Time{}, time.Time{} // becomes known later, without a change
		x.Unused, y.Unused = time.Time{}, time.Time{}   // no event tells
		if x != y {
			return false
		}
	}
	return true
}

// withoutRest removes the waiters after the first one.
func withoutRest(found []*waitgraph.Contender) (head []*waitgraph.Contender) {
	waiting := false
	for _, c := range found {
		if !c.Waits || !waiting {
			head = append(head, c)
		}
		waiting = waiting || c.Waits
	}
	return head
}

// untilFirstWaiter is the head of a queue up to the first waiter.
func untilFirstWaiter(queue []driver.Node) (n int, complete bool) {
	first := recipe.FirstWaiter(queue)
	return min(first+1, len(queue)), first < len(queue)
}

// onlyFirst is the head of a semaphore's guards: the first one alone may add leases.
func onlyFirst(guards []driver.Node) (n int, complete bool) {
	return min(1, len(guards)), len(guards) > 0
}

// everybody is the head of a semaphore's leases.
func everybody(leases []driver.Node) (n int, complete bool) { return len(leases), false }
