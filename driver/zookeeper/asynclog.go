package zookeeper

// This file passes log records to the user's handler without blocking the caller.

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// asyncHandler is the slog.Handler of everything in this package. It passes records to the
// user's handler on a separate goroutine, in order. The user's handler may be slow, and
// records come from places that must not block: the client's reading goroutine, and code
// holding a mutex.
type asyncHandler struct {
	to slog.Handler

	mu      sync.Mutex
	records []pendingRecord
	dropped int           // records dropped for want of room
	written chan struct{} // closed when all records are written; nil if nothing is being written
}

type pendingRecord struct {
	ctx    context.Context
	record slog.Record
}

// maxPendingRecords is how many records wait for a slow handler.
const maxPendingRecords = 1000

// Enabled implements slog.Handler. The user's handler is asked later.
func (h *asyncHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *asyncHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := maxPendingRecords
	if r.Level < slog.LevelInfo { // the client's own messages
		limit /= 2
	}
	if len(h.records) >= limit {
		h.dropped++
		return nil
	}
	h.records = append(h.records, pendingRecord{ctx, r.Clone()})
	if h.written == nil {
		h.written = make(chan struct{})
		go h.write() // ends when all is written
	}
	return nil
}

func (h *asyncHandler) write() {
	for {
		h.mu.Lock()
		records, dropped := h.records, h.dropped
		h.records, h.dropped = nil, 0
		if len(records) == 0 && dropped == 0 {
			close(h.written)
			h.written = nil
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		if dropped > 0 { // after the records that had room
			r := slog.NewRecord(time.Now(), slog.LevelWarn, "lockpool: log records were dropped because the handler is slow", 0)
			r.Add("records", dropped)
			records = append(records, pendingRecord{context.Background(), r})
		}
		for _, p := range records {
			if h.to.Enabled(p.ctx, p.record.Level) {
				_ = h.to.Handle(p.ctx, p.record) // there is nowhere to report an error
			}
		}
	}
}

// flush waits until all records are written or the timeout has passed.
func (h *asyncHandler) flush(timeout time.Duration) {
	h.mu.Lock()
	written := h.written
	h.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(timeout):
	}
}

// WithAttrs implements slog.Handler.
func (h *asyncHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &asyncHandler{to: h.to.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *asyncHandler) WithGroup(name string) slog.Handler {
	return &asyncHandler{to: h.to.WithGroup(name)}
}
