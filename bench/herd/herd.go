package main

import (
	"context"
	"sync"
)

// herd is who waits for a lock that wakes everybody. It is no part of that lock:
// it only tells a holder when the stampede is over.
type herd struct {
	mu     sync.Mutex
	back   sync.Cond
	behind map[string]int // how often somebody has begun to wait behind this holder
}

func newHerd() *herd {
	h := &herd{behind: map[string]int{}}
	h.back.L = &h.mu
	return h
}

// waits says that one more watches, and knows who holds the lock.
func (h *herd) waits(holder string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behind[holder]++
	h.back.Broadcast()
}

// assembled returns when n wait behind the holder.
func (h *herd) assembled(ctx context.Context, holder string, n int) error {
	defer context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.back.Broadcast()
	})()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.behind[holder] < n && ctx.Err() == nil {
		h.back.Wait()
	}
	return ctx.Err()
}
