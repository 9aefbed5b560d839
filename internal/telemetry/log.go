package telemetry

// This file has the log messages of a pool.

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/nodedata"
	"github.com/lockpool/lockpool/recipe"
)

// longWaits records when a long wait was last logged, by lock: of many waiters for a
// lock, only one is logged.
type longWaits struct {
	mu     sync.Mutex
	logged map[string]time.Time
}

// ShouldLogLongWait reports whether no long wait for the lock was logged within
// Config.LongWait. The caller then calls LogLongWait.
func (t *Telemetry) ShouldLogLongWait(lock string) bool {
	w := &t.longWaits
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.logged, func(_ string, at time.Time) bool { return time.Since(at) >= t.LongWait })
	if _, ok := w.logged[lock]; ok {
		return false
	}
	if w.logged == nil {
		w.logged = map[string]time.Time{}
	}
	w.logged[lock] = time.Now()
	return true
}

// LogLongWait warns of a wait. holder is the zero Node if unknown, and left is 0.
func (t *Telemetry) LogLongWait(ctx context.Context, lock Lock, waited, left time.Duration, w recipe.Wait, holder driver.Node, holderData []byte, holderAt string) {
	attrs := []any{"lock", lock.Name, "kind", lock.Kind.String(), "waited", waited.Round(time.Millisecond),
		"behind", w.Behind.String(), "behind_owner", nodedata.Parse(w.Data).String()}
	if holder.Name != "" {
		attrs = append(attrs, "holder", holder.String(), "holder_owner", nodedata.Parse(holderData).String())
		if holderAt != "" {
			attrs = append(attrs, "holder_at", holderAt)
		}
	}
	if left > 0 {
		attrs = append(attrs, "left", left.Round(time.Millisecond))
	}
	t.Logger.WarnContext(ctx, "lockpool: long wait for a lock", attrs...)
}

// LogOldRecords warns that old records of runs could not be removed.
func (t *Telemetry) LogOldRecords(ctx context.Context, lock string, err error) {
	t.Logger.WarnContext(ctx, "lockpool: old records of finished runs were not removed", "lock", lock, "error", err)
}

// LogSelfDeadlock warns of a goroutine apparently waiting for itself.
func (t *Telemetry) LogSelfDeadlock(ctx context.Context, lock string) {
	t.Logger.WarnContext(ctx, "lockpool: a goroutine waits for a lock that the holder in its context has on another goroutine; "+
		"if that one waits for this one, both wait forever", "lock", lock)
}

// LogElection warns that a candidate must stand again, after a pause, without having
// resigned. lasted is how long the candidate led.
func (t *Telemetry) LogElection(ctx context.Context, lock, what string, err error, lasted, pause time.Duration) {
	t.Logger.WarnContext(ctx, "lockpool: election: "+what, "lock", lock, "error", err,
		"led", lasted.Round(time.Millisecond), "again_in", pause.Round(time.Millisecond))
}
