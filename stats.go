package lockpool

// This file has the figures of a pool.

import "time"

// Stats describes a pool at one moment. The names are those of sql.DBStats where there
// is one.
type Stats struct {
	MaxSessions  int // maximum number of sessions with the service
	OpenSessions int // open sessions

	MaxHandles int // maximum number of handles
	InUse      int // handles in use

	Held    int // locks that are held
	Resting int // locks that were unlocked and are not free yet (see HoldAtLeast)
	Waiting int // calls that wait for a lock

	Kept      int   // locks that are kept and unused (see WithKeptLocks)
	KeptTurns int64 // turns of kept locks, without a request; they are among the LocalTurns
	AskedBack int64 // kept locks that other contenders wanted

	LocalTurns int64 // turns that handles of the pool began without a request (see WithLocalTurns)

	WaitCount    int64         // calls that waited for a handle, not for a lock
	WaitDuration time.Duration // the total time that they waited
}

// Stats returns the pool's figures. It sends no request.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.local.mu.Lock()
	defer p.local.mu.Unlock()
	k := &p.local.keeping
	return Stats{
		MaxSessions:  p.cfg.maxSessions,
		OpenSessions: len(p.sessions),
		MaxHandles:   p.cfg.maxHandles,
		InUse:        int(p.inUse.Load()),
		Held:         p.held,
		Resting:      p.local.resting,
		Kept:         k.idle,
		KeptTurns:    k.taken,
		AskedBack:    k.asked,
		Waiting:      int(p.waiting.Load()),
		LocalTurns:   p.local.passedOn.Load(),
		WaitCount:    p.slotWaits.count.Load(),
		WaitDuration: time.Duration(p.slotWaits.time.Load()),
	}
}
