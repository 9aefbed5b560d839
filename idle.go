package lockpool

// This file has idle locks: no handle of the pool holds the lock, and the node is still there.

import (
	"fmt"
	"time"
)

// idle is the part of the turns that tells what becomes of a lock without a holder. The lock
// rests if HoldAtLeast says so: then the next turn of a writer begins when the time has come.
// Otherwise the pool may keep the lock (keep.go), and gives a turn to the next call.
// The node of an idle lock stays, so nothing changes for the service, and for other processes.
//
// A rest is the tenancy's, not the hold's: readers may hold the lock that another reader has
// left to rest, and the lock then rests after the last one.
type idle struct {
	state     idleState
	since     time.Time   // when the last holder left
	restUntil time.Time   // before which the lock does not come free
	rest      *time.Timer // calls endRest; nil before the first rest
	kept
}

type idleState uint8

const (
	inUse idleState = iota // by a holder; also at the end
	atRest
	isKept
)

func (t *turns) beginRest() {
	t.state, t.since = atRest, time.Now()
	t.all.resting++
	wait := time.Until(t.restUntil)
	if t.rest == nil {
		t.rest = time.AfterFunc(wait, t.tenancy.endRest)
	} else {
		t.rest.Reset(wait)
	}
}

// endIdle ends the idle state, for a holder or at the end of the turns.
func (t *turns) endIdle() {
	switch t.state {
	case atRest:
		t.all.resting--
		t.rest.Stop()
	case isKept:
		t.all.keeping.idle--
	}
	t.state = inUse
}

// atRest returns how many locks rest.
func (ls *localQueues) atRest() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.resting
}

// idleSince returns since when the lock is idle, or zero if it is in use.
func (ls *localQueues) idleSince(t *turns) time.Time {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if t.state == inUse {
		return time.Time{}
	}
	return t.since
}

// endRest is called when the time of a rest has come. If no other handle has the lock, the
// pool gives the lock back.
func (t *tenancy) endRest() {
	p := t.pool
	if !p.begin() {
		return
	}
	defer p.work.Done()
	left := p.local.endRest(&t.turns)
	p.mu.Lock()
	p.noteDrained()
	p.mu.Unlock()
	t.after(canceled, left)
}

func (ls *localQueues) endRest(t *turns) leaving {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if t.state != atRest || t.hasTimeLeft() { // a reader has come, or has left again
		return stays
	}
	t.endIdle()
	t.advance()
	return t.settle()
}

// cutShort returns an error for Close if the lock comes free before its time.
func (t *tenancy) cutShort() error {
	t.pool.local.mu.Lock()
	defer t.pool.local.mu.Unlock()
	if t.turns.state != atRest {
		return nil
	}
	return cutShort(t.name, t.turns.restUntil)
}

func cutShort(name string, until time.Time) error {
	left := time.Until(until)
	if left <= 0 {
		return nil
	}
	return fmt.Errorf("lockpool: close: %q comes free %v before its time (HoldAtLeast); Shutdown waits for that", name, left.Round(time.Millisecond))
}
