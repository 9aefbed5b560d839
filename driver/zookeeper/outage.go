package zookeeper

// This file logs outages: times without a connection to any server.

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// outage is a time when the sessions of a connector try in vain to connect. The beginning
// is logged once, after reportDelay; if logged, so is the end.
type outage struct {
	log     *slog.Logger
	servers []string

	mu       sync.Mutex
	since    time.Time // zero if there is none
	cause    error     // the last one
	reported bool
	timer    *time.Timer
	closed   bool

	news context.Context // ends when a server answers one of the sessions
	tell context.CancelFunc
}

func newOutage(cfg Config) *outage {
	o := &outage{log: cfg.Logger, servers: cfg.Servers}
	o.news, o.tell = context.WithCancel(context.Background())
	return o
}

// untilAnswered returns a context that ends with the next answer to a handshake.
func (o *outage) untilAnswered() context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.news
}

// answered records that a server has answered a handshake.
func (o *outage) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tell()
	o.news, o.tell = context.WithCancel(context.Background())
}

// reportDelay is the length of an outage before the first message.
const reportDelay = 800 * time.Millisecond

// begin records that there is no connection, and why, unless known already.
func (o *outage) begin(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() && !o.closed {
		o.since, o.cause = time.Now(), cause
		o.timer = time.AfterFunc(reportDelay, o.report)
	}
}

// attemptFailed records why an attempt to connect has failed.
func (o *outage) attemptFailed(cause error) {
	o.begin(cause)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cause = cause
}

func (o *outage) report() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || time.Since(o.since) < reportDelay { // the timer was of an earlier outage
		return
	}
	o.reported = true
	o.log.Warn("lockpool: no connection to ZooKeeper", "servers", o.servers, "cause", o.cause)
}

// end records that there is a connection.
func (o *outage) end(server target) {
	o.answered()
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

// close stops the reports.
func (o *outage) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timer != nil {
		o.timer.Stop()
	}
	o.since, o.closed = time.Time{}, true
}
