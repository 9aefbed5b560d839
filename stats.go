package lockpool

import "time"

// Stats describes a pool at one moment. The names are those of sql.DBStats
// where there is one.
type Stats struct {
	MaxSessions  int // sessions with the service, at the most
	OpenSessions int // sessions open now

	MaxHandles int // handles, at the most
	InUse      int // handles given out now

	Held    int // locks held now
	Waiting int // calls that wait for a lock now

	WaitCount    int64         // how often a handle had to be waited for
	WaitDuration time.Duration // how long, in all
}

// Stats returns the pool's figures. It asks no server.
func (p *Pool) Stats() Stats {
	seats := p.slots.Stat()
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{
		MaxSessions:  p.cfg.maxSessions,
		OpenSessions: len(p.sessions),
		MaxHandles:   p.cfg.maxHandles,
		InUse:        int(p.inUse.Load()), // puddle counts seats that are being destroyed
		Held:         p.held,
		Waiting:      int(p.waiting.Load()),
		WaitCount:    seats.EmptyAcquireCount(),
		WaitDuration: seats.EmptyAcquireWaitTime(),
	}
}
