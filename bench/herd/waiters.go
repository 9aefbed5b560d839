package main

import (
	"context"
	"sync"
)

// waiters counts the waiters of a lock whose release wakes all of them. It is not
// part of the lock: it only tells a holder when the herd has settled again.
type waiters struct {
	mu      sync.Mutex
	changed sync.Cond
	behind  map[string]int // waits begun, by the holder that they are behind
}

func newWaiters() *waiters {
	w := &waiters{behind: map[string]int{}}
	w.changed.L = &w.mu
	return w
}

// add counts a waiter that has set its watch and knows the holder.
func (w *waiters) add(holder string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.behind[holder]++
	w.changed.Broadcast()
}

// await returns when n waiters are behind the holder.
func (w *waiters) await(ctx context.Context, holder string, n int) error {
	defer context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changed.Broadcast()
	})()
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.behind[holder] < n && ctx.Err() == nil {
		w.changed.Wait()
	}
	return ctx.Err()
}
