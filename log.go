package lockpool

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/petermattis/goid"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/recipe"
)

// warned is when there was a warning of long waits, by lock. Of many that wait for
// one lock, one tells.
type warned struct {
	mu sync.Mutex
	at map[string]time.Time
}

// first reports whether there was no warning of the lock within the interval.
func (w *warned) first(name string, interval time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.at, func(_ string, at time.Time) bool { return time.Since(at) >= interval })
	if _, told := w.at[name]; told {
		return false
	}
	if w.at == nil {
		w.at = map[string]time.Time{}
	}
	w.at[name] = time.Now()
	return true
}

// isSlow is called when a wait has lasted for as long as WithLongWait says.
func (t *acquisition) warnLongWait() {
	telemetry := t.pool.telemetry
	if !telemetry.warned.first(t.name, telemetry.longWait) || !t.pool.begin() {
		return
	}
	defer t.pool.work.Done()
	t.mu.Lock()
	w, m := t.behind, t.where
	t.mu.Unlock()
	attrs := []any{"lock", t.name, "kind", t.req.kind().String(), "waited", time.Since(t.began).Round(time.Millisecond),
		"behind", w.Behind.String(), "whose", readOwner(w.Data).String()}
	if t.req.kind() != driver.Plain { // which is behind its holder
		ctx, cancel := context.WithTimeout(t.ctx, headPatience)
		defer cancel()
		queue := w.Queue
		if queue == t.name+"/"+driver.Guards {
			queue = t.name + "/" + driver.Leases
		}
		if holder, data := recipe.FindHolder(ctx, m, queue); holder.Name != "" {
			attrs = append(attrs, "holder", holder.String(), "holder_whose", readOwner(data).String())
		}
	}
	telemetry.logger.WarnContext(t.ctx, "lockpool: a lock is waited for long", attrs...)
}

// headPatience bounds how long a warning waits for who holds the lock.
const headPatience = 5 * time.Second

// suspect warns of a wait that looks like one for oneself: the context carries a
// holder that has the lock, but on another goroutine, where it does not count.
func (p *Pool) warnSelfDeadlock(ctx context.Context, name string) {
	c, _ := ctx.Value(carrierKey{p}).(*heldContext)
	if c == nil || c.goroutine == goid.Get() || !p.holds(c.hold.handle, name) {
		return
	}
	p.telemetry.logger.WarnContext(ctx, "lockpool: a goroutine waits for a lock that the holder in its context has on another goroutine; "+
		"if that one waits for this one, both wait for ever", "lock", name)
}

// holds reports whether the session holds the lock.
func (p *Pool) holds(s *Handle, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.sessions {
		for h := range m.holds {
			if h.handle == s && h.name == name {
				return true
			}
		}
	}
	return false
}
