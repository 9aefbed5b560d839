package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// drained is what it took to empty a queue, for each who waited in it.
type drained struct {
	lock     string
	waiters  int
	wakeups  float64
	requests float64
	turns    []int // who had the lock, in order
}

// drain lets n wait behind a holder, and counts from its release until all of
// them have had the lock.
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
	h := newHerd()
	for range n + 1 {
		c, err := k.open(ctx, place{s.Addr(), fmt.Sprintf("/%s-%d", k.short, n), maxReply(n), h})
		if err != nil {
			return drained{}, err
		}
		contenders = append(contenders, c)
	}
	holder := contenders[0]
	if err := holder.lock(ctx); err != nil {
		return drained{}, err
	}

	// Not every lock hears of the context while it waits, but all end when they
	// are closed.
	stop := context.AfterFunc(ctx, func() { _ = closeAll() })
	q := &queue{s: s, n: n, hold: hold, atOnce: atOnce}
	var waiting sync.WaitGroup
	for i, c := range contenders[1:] {
		waiting.Go(func() { // ends with its turn, or ctx
			if err := q.turn(ctx, i, c); err != nil {
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
		lock: k.name, waiters: n, turns: q.turns,
		requests: float64(received) / float64(n),
		wakeups:  float64(sent-received) / float64(n), // each request has one answer
	}, nil
}

// maxReply is enough for the listing of a queue of n. The clients have a buffer
// of that size for each session.
func maxReply(n int) int { return 16<<10 + 100*n }

// queue is who waits for one lock.
type queue struct {
	s      *server
	n      int
	hold   time.Duration
	atOnce bool

	mu    sync.Mutex // held by who has the lock: so nobody ever waits for it
	turns []int
}

// release lets the first one go when all the others wait, and returns what was
// counted before.
func (q *queue) release(ctx context.Context, holder contender) (before counts, err error) {
	if err := q.s.watched(ctx, q.n); err != nil {
		return before, err
	}
	if before, err = q.s.steady(ctx); err != nil {
		return before, err
	}
	return before, holder.unlock(ctx)
}

// turn is the life of a waiter.
func (q *queue) turn(ctx context.Context, who int, c contender) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	if !q.mu.TryLock() {
		return errors.New("two hold the lock at once")
	}
	q.turns = append(q.turns, who)
	err := q.work(ctx, c, q.n-len(q.turns))
	q.mu.Unlock()
	if err != nil {
		return err
	}
	return c.unlock(ctx)
}

// work is what a holder does while others wait.
func (q *queue) work(ctx context.Context, c contender, others int) error {
	if q.hold > 0 {
		select {
		case <-time.After(q.hold):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if c, ok := c.(stampeding); ok && !q.atOnce {
		return c.settled(ctx, others)
	}
	return nil
}
