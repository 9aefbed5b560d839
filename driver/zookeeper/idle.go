package zookeeper

// This file has idle sessions, which cost the servers little.

import (
	"math"
	"slices"
	"time"
)

// While nothing is held or awaited on the session, there is nothing to end in time. An idle
// session sends a sync 0.28 T after the last one was answered, so that the two are x and y,
// and no write. The lease, without the write, ends T after the newest handshake or sync, and
// only says that the session is given up: another session serves the next caller faster.
//
// The first request of the next caller ends the idleness, and begins a doubt as after a jump
// of the clock. So nothing is granted until a write begun by then has been answered: usually
// the creation of the caller's node, which is z, with two syncs as x and y. As soon as
// possible, two more proofs (one, if the creation can be y) make the last sync x. Until then
// the lease is at least 0.25 T, less twice the time of an answer; from 0.4 T after the creation
// on, the lease is as of any session. While answers take longer than T/50, the session does
// not become idle: the lease would be too short.
//
// A stop of the machine that the system does not report would make x older than the clock
// says. So an idle session compares the clocks at each sync, and at the end of the idleness.
// After a jump no earlier proof counts as x, and a session then used without an x ends.

// The states of lease.use.
const (
	inUse  = iota
	asking // becoming idle, unless the session is used
	idle
)

const (
	// A session becomes idle when unused for T/idlePart, and only if a proof is answered
	// within T/quickPart.
	idlePart  = 3
	quickPart = 50
)

// isIdle reports whether nothing depends on the session.
func (e *expiry) isIdle() bool { return e.lease.use.Load() == idle }

// endIdle is called by use.
func (s *session) endIdle() {
	e := &s.expiry
	e.lease.endIdle(e.clock.Read())
	for _, changed := range []chan struct{}{e.leaseChanged, e.proofWanted, e.idleEnded} {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	s.requests.expectAnswer()
}

// rest makes the session idle if no request but proofs has been sent for some time, and
// nothing depends on the session. The session becomes idle only before a proof, whose answer
// has the server given more time for the next one.
func (e *expiry) rest() {
	unused := e.unused.Load()
	if unused == nil || e.lease.use.Load() == idle {
		return
	}
	e.lease.use.Store(asking)
	now := e.now()
	if e.used.Swap(false) {
		e.usedAt = now
	}
	if (*unused)() {
		e.lease.beginIdle(now - e.usedAt)
	}
	e.lease.use.CompareAndSwap(asking, inUse)
}

// IdleIf implements driver.Idler.
func (s *session) IdleIf(unused func() bool) { s.expiry.unused.Store(&unused) }

// beginIdle makes a session idle that has not been used for some time, unless the session has
// been used since use was set to asking, or the servers are slow.
func (l *lease) beginIdle(unused time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if unused >= l.timeout/idlePart && l.settled == nil && !l.isSlow() && l.use.CompareAndSwap(asking, idle) {
		l.update()
	}
}

// idleOnSlowServers reports whether an idle session must no longer be idle.
func (l *lease) idleOnSlowServers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.use.Load() == idle && l.isSlow()
}

func (l *lease) isSlow() bool {
	return slices.ContainsFunc(l.proofs, func(p proof) bool { return p.end-p.begin > l.timeout/quickPart })
}

// endIdle ends idleness.
func (l *lease) endIdle(now, skew time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compare(now, skew)
	if l.use.Swap(inUse) == idle {
		l.majorityAt, l.unproved = now, true // true when the doubt is settled
		if n := len(l.proofs); n > 0 {
			l.idleProof = l.proofs[n-1].begin
		}
		l.doubt(now, now+l.timeout/proofsPerTimeout)
		l.update()
	}
}

// catchUp returns when the next proof, as y or as z, has a younger x, if one from before the
// end of the idleness can be.
func (l *lease) catchUp() time.Duration {
	at := time.Duration(math.MaxInt64)
	for i, x := range l.proofs {
		if x.begin <= l.activeAt || x.begin > l.idleProof {
			continue
		}
		yBegin := x.end + l.timeout*apart/100
		if y := slices.IndexFunc(l.proofs[i:], func(y proof) bool { return y.begin >= yBegin }); y >= 0 {
			return l.proofs[i+y].end + l.timeout*late/100
		}
		at = min(at, yBegin)
	}
	return at
}
