package lockpool

import (
	"context"
	"time"

	"github.com/petermattis/goid"
)

// isSlow is called when a wait has lasted for as long as WithLongWait says.
func (t *trail) isSlow() {
	if !t.pool.begin() {
		return
	}
	defer t.pool.work.Done()
	t.mu.Lock()
	w := t.behind
	t.mu.Unlock()
	t.pool.telemetry.logger.Warn("lockpool: a lock is waited for long", "lock", t.name, "kind", t.req.kind().String(),
		"waited", time.Since(t.began).Round(time.Millisecond), "behind", w.Behind.String(), "whose", readOwner(w.Data).String())
}

// suspect warns of a wait that looks like one for oneself: the context carries a
// holder that has the lock, but on another goroutine, where it does not count.
func (p *Pool) suspect(ctx context.Context, name string) {
	c, _ := ctx.Value(carrierKey{p}).(*heldContext)
	if c == nil || c.goroutine == goid.Get() || !p.holds(c.hold.session, name) {
		return
	}
	p.telemetry.logger.Warn("lockpool: a goroutine waits for a lock that the holder in its context has on another goroutine; "+
		"if that one waits for this one, both wait for ever", "lock", name)
}

// holds reports whether the session holds the lock.
func (p *Pool) holds(s *Session, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		for h := range m.holds {
			if h.session == s && h.name == name {
				return true
			}
		}
	}
	return false
}
