package zookeeper

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// journal is the slog.Handler of everything here. It hands records to the user's
// handler on a goroutine of its own, in order. That handler may be slow, and what
// is logged comes from where nobody can wait: the goroutine on which the client
// reads, and under locks.
type asyncHandler struct {
	to slog.Handler

	mu      sync.Mutex
	records []pendingRecord
	dropped    int           // entries for which there was no room
	written chan struct{} // closed when all are; nil if nothing is being written
}

type pendingRecord struct {
	ctx    context.Context
	record slog.Record
}

// mostEntries is how many entries wait for a handler that is slow.
const maxPendingRecords = 1000

// Enabled implements slog.Handler. The user's handler is asked later.
func (j *asyncHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (j *asyncHandler) Handle(ctx context.Context, r slog.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	room := maxPendingRecords
	if r.Level < slog.LevelInfo { // the client's chatter
		room /= 2
	}
	if len(j.records) >= room {
		j.dropped++
		return nil
	}
	j.records = append(j.records, pendingRecord{ctx, r.Clone()})
	if j.written == nil {
		j.written = make(chan struct{})
		go j.write() // ends when all is written
	}
	return nil
}

func (j *asyncHandler) write() {
	for {
		j.mu.Lock()
		entries, lost := j.records, j.dropped
		j.records, j.dropped = nil, 0
		if len(entries) == 0 && lost == 0 {
			close(j.written)
			j.written = nil
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		if lost > 0 { // after the ones that had room
			r := slog.NewRecord(time.Now(), slog.LevelWarn, "lockpool: log records were left out, because the handler is slow", 0)
			r.Add("records", lost)
			entries = append(entries, pendingRecord{context.Background(), r})
		}
		for _, e := range entries {
			if j.to.Enabled(e.ctx, e.record.Level) {
				_ = j.to.Handle(e.ctx, e.record) // there is nobody to tell
			}
		}
	}
}

// finish waits until all is written, or the time is up.
func (j *asyncHandler) finish(patience time.Duration) {
	j.mu.Lock()
	written := j.written
	j.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
	case <-time.After(patience):
	}
}

// WithAttrs implements slog.Handler.
func (j *asyncHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &asyncHandler{to: j.to.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (j *asyncHandler) WithGroup(name string) slog.Handler { return &asyncHandler{to: j.to.WithGroup(name)} }

// outage is the time in which sessions of a connector look for a connection in
// vain. The log tells of it, once, when it has lasted for a moment, and of its
// end.
type outage struct {
	log     *slog.Logger
	servers []string

	mu    sync.Mutex
	since time.Time // zero if there is none
	cause error     // the last one
	reported  bool
	timer *time.Timer
	closed  bool // for good
}

// untold is how long an outage lasts before the log tells of it.
const reportDelay = 800 * time.Millisecond

// seen notes that there is no connection, and why.
func (o *outage) begin(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cause = cause
	if o.since.IsZero() && !o.closed {
		o.since = time.Now()
		o.timer = time.AfterFunc(reportDelay, o.report)
	}
}

func (o *outage) report() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || time.Since(o.since) < reportDelay { // this one has just begun
		return
	}
	o.reported = true
	o.log.Warn("lockpool: no connection to ZooKeeper", "servers", o.servers, "cause", o.cause)
}

// ended notes that there is a connection.
func (o *outage) end(server target) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return
	}
	o.timer.Stop()
	if o.reported {
		o.log.Info("lockpool: connected to ZooKeeper", "server", server.String(), "after", time.Since(o.since).Round(time.Millisecond))
	}
	o.since, o.reported = time.Time{}, false
}

// close ends the looking for connections.
func (o *outage) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
	o.since, o.closed = time.Time{}, true
}
