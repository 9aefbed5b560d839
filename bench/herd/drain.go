package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// drained is the result of draining one queue.
type drained struct {
	lock     string
	waiters  int
	wakeups  float64 // per waiter
	requests float64 // per waiter
	order    []int   // the waiters, in the order in which they were granted the lock
}

// drain queues n waiters behind a holder, and counts from its release until each
// of them has had the lock.
func drain(ctx context.Context, s *server, k kind, n int, hold time.Duration, atOnce bool) (_ drained, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var contenders []contender // the first is the holder
	closeAll := sync.OnceValue(func() error {
		errs := make([]error, len(contenders))
		var wg sync.WaitGroup
		for i, c := range contenders {
			wg.Go(func() { errs[i] = c.close() })
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	defer func() { err = errors.Join(err, closeAll()) }()
	conf := config{s.Addr(), fmt.Sprintf("/%s-%d", k.short, n), maxReply(n), newWaiters()}
	for range n + 1 {
		c, err := k.open(ctx, conf)
		if err != nil {
			return drained{}, err
		}
		contenders = append(contenders, c)
	}
	holder := contenders[0]
	if err := holder.lock(ctx); err != nil {
		return drained{}, err
	}

	// Not every lock observes the context while it waits, but all waits end when
	// the contenders are closed.
	stop := context.AfterFunc(ctx, func() { _ = closeAll() })
	q := &queue{s: s, n: n, hold: hold, atOnce: atOnce}
	var waiting sync.WaitGroup
	for i, c := range contenders[1:] {
		waiting.Go(func() { // ends when it has had the lock, or with ctx
			if err := q.wait(ctx, i, c); err != nil {
				fail(err)
			}
		})
	}
	before, err := q.release(ctx, holder)
	if err != nil {
		fail(err)
	}
	waiting.Wait()
	if !stop() {
		return drained{}, context.Cause(ctx)
	}
	after, err := s.steady(ctx)
	if err != nil {
		return drained{}, err
	}
	received, sent := after.received-before.received, after.sent-before.sent
	return drained{
		lock: k.name, waiters: n, order: q.order,
		requests: float64(received) / float64(n),
		wakeups:  float64(sent-received) / float64(n), // each request has one reply
	}, nil
}

// maxReply is large enough for the listing of a queue of n. The clients allocate
// a buffer of that size for each session.
func maxReply(n int) int { return 16<<10 + 100*n }

// queue is the queue of one lock.
type queue struct {
	s      *server
	n      int
	hold   time.Duration
	atOnce bool

	mu    sync.Mutex // held by the lock's holder, and so never contended
	order []int
}

// release unlocks for the first holder once all others wait, and returns the
// counts from just before.
func (q *queue) release(ctx context.Context, holder contender) (before counts, err error) {
	if err := q.s.watched(ctx, q.n); err != nil {
		return before, err
	}
	if before, err = q.s.steady(ctx); err != nil {
		return before, err
	}
	return before, holder.unlock(ctx)
}

// wait waits for the lock, holds it and unlocks it.
func (q *queue) wait(ctx context.Context, i int, c contender) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	if !q.mu.TryLock() {
		return errors.New("the lock has two holders at once")
	}
	q.order = append(q.order, i)
	err := q.work(ctx, c, q.n-len(q.order))
	q.mu.Unlock()
	if err != nil {
		return err
	}
	return c.unlock(ctx)
}

// work is what a holder does while the others wait.
func (q *queue) work(ctx context.Context, c contender, others int) error {
	if q.hold > 0 {
		select {
		case <-time.After(q.hold):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if c, ok := c.(herding); ok && !q.atOnce {
		return c.awaitOthers(ctx, others)
	}
	return nil
}
