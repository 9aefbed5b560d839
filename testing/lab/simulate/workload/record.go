package workload

// This file has the record of a run: calls, holds, faults, and the ends of sessions and
// nodes.

import (
	"fmt"
	"strings"
	"time"
)

// Record is everything that happened in a campaign, as read by the checks.
type Record struct {
	Limits
	Begin, End Instant   // of the time when locks should be granted
	Pauses     []Span    // of clients
	Jumps      []Jump    // of clients
	Hidden     []Span    // times when a client's clocks do not show a stop of the machine
	Faults     []Span    // with the fault's description in place of a process
	Single     []Span    // the times of faults of one process alone, with the process's name
	Pending    []Span    // the times when faults of requests may hit one
	Healed     []Instant // when all faults had been healed
	Crashes    []string  // clients ended by themselves
	Leaked     []string  // nodes of contenders, and anything else left at the end
	Unused     []string  // names of locks never used again, with containers left at the end
	Hung       []string  // clients that did not end when told to
	Rescues    []string  // nodes whose removal went unnoticed at first, although no ACL was changed
	Ends       []SessionEnd
	Removals   []Removal
	Broken     []Removal // of nodes by other sessions, for any reason
	Displaced  []Span    // waiters who had no place in the queue when nodes had been removed for some time
	Notes      []string  // for the summary
	PassesOn   []string  // clients with local handoff: a waiter there has no place at the service
	Keeps      []string  // clients that keep locks after the last unlock
	KeptTurns  int       // turns of kept locks
	AskedBack  int       // kept locks that others wanted

	calls      []*call
	holds      []*hold
	lateTimers []Span // of clients
	outlived   []Span // when contexts of entries had not ended, although the entries were unlocked
}

// Span is a time when something happened to a process.
type Span struct {
	Process    string
	Begin, End Instant
}

// Jump is a stop of a machine whose clock does not count the stop. A lease proved by
// answers from before the stop can end too late by the length of the stop.
type Jump struct {
	Span // until no lease rests on such an answer any longer
	By   time.Duration
}

// SessionEnd is the end of a session at the servers.
type SessionEnd struct {
	At     Instant
	Orders []int64 // order numbers of the nodes whose locks others can be granted from then on
	Closed bool    // by the client
	Forced bool    // by a fault, so no clock can show the end
}

// Removal is the removal of a contender's node by others than its owner.
type Removal struct {
	At    Instant
	Lock  string
	Order int64 // the node's order number; 0 if the holder's token has another one
}

// NewRemoval returns the removal of the node at a path below the root of all locks. zxid is
// from the creation of the node.
func NewRemoval(at Instant, path string, zxid int64) Removal {
	name, _, _ := strings.Cut(path, "/")
	switch kindOf(name) {
	case ReadWrite: // after a downgrade, the token is an earlier node's
		zxid = 0
	case Plain: // a delete on the way may remove the next holder's node instead
		zxid = 0
	}
	return Removal{at, name, zxid}
}

// unanswered is the error of a call whose client was killed.
const unanswered = "unanswered"

// call is a call of lockpool.
type call struct {
	process    string
	worker     int
	op, lock   string
	limit      time.Duration
	begin, end Instant
	err        string
	portion
	revocable bool
	releases  *hold // nil for calls other than the releasing one

	grants  *hold   // nil if the call was not granted a lock
	rests   bool    // the lock may stay taken after Unlock
	period  int64   // of a run; of a break, the order number of the contender
	victim  int64   // how often in succession the caller was the victim of a deadlock
	started Instant // when the function of a run started
}

// portion is how many of a lock's permits a holder has. An exclusive holder has
// all of them.
type portion struct{ permits, of int }

// many is the number of permits of a read-write lock, of which a reader has one.
const many = 1 << 20

func (p portion) exclusive() bool { return p.permits == p.of }

func (p portion) String() string {
	switch {
	case p.exclusive():
		return "exclusive"
	case p.of == many:
		return "reader"
	}
	return fmt.Sprintf("%d of %d permits", p.permits, p.of)
}

// hold is the time when a client believed it held a lock. A downgrade ends a hold, and
// begins another one of the same grant.
type hold struct {
	process    string
	worker     int
	lock       string
	token      int64   // 0 if unknown to the client
	reentries  []int64 // the tokens of further entries
	requested  Instant // when the client began to wait
	begin, end Instant
	lost       bool
	portion
	again     bool  // the holder had lost the lock before, without Unlock
	restOf    *hold // the exclusive hold ended by a downgrade, if this is the rest
	revocable bool
	revokedAt Instant // when the holder noticed a revocation request

	contextEnd Instant // when the context of the first entry ended, if exclusive
}

// order is the order number of the node of a token: the token's lower bits are the holder's
// turn with the node.
func (h *hold) order() int64 { return orderOf(h.token) }

func orderOf(token int64) int64 {
	const turnBits = 10
	return token >> turnBits
}

// downgraded reports whether h is the rest of an exclusive hold.
func (h *hold) downgraded() bool { return h.restOf != nil }

func (h *hold) String() string {
	return fmt.Sprintf("%s, goroutine %d, token %#x, %s", h.process, h.worker, h.token, h.portion)
}
