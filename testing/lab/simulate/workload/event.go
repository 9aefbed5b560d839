package workload

// This file has the events reported by clients.

import "time"

// Instant is a time of one clock read by all clients, independent of the clocks of their
// leases.
type Instant int64

// Never is the zero instant, such as the end of what has not ended.
const Never Instant = 0

// Add returns the time d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Since returns the time passed since u.
func (t Instant) Since(u Instant) time.Duration { return time.Duration(t - u) }

func (t Instant) within(from, until Instant) bool { return from <= t && t <= until }

// Event is a client's report. A client writes an event before doing anything observable by
// other clients, so the lines of a killed client say everything the client believed.
type Event struct {
	Kind   EventKind
	At     Instant
	ID     int64 `json:",omitempty"` // of a call
	Hold   int64 `json:",omitempty"` // ID of the acquiring call, if the event is about a hold; of calls, only the releasing one
	Worker int   `json:",omitempty"`

	Op    string        `json:",omitempty"`
	Lock  string        `json:",omitempty"`
	Limit time.Duration `json:",omitempty"` // time until the end of the call's context
	Error string        `json:",omitempty"` // class of the error

	Permits   int  `json:",omitempty"` // to be acquired; 0 if the call acquires no lock
	Of        int  `json:",omitempty"` // permits of the lock
	Revocable bool `json:",omitempty"` // the holder listens for revocation requests
	Rests     bool `json:",omitempty"` // the lock may stay taken after Unlock

	Token int64         `json:",omitempty"`
	Value int64         `json:",omitempty"` // the period of a run; how often in succession a caller was the victim of a deadlock
	Lost  bool          `json:",omitempty"`
	Late  time.Duration `json:",omitempty"`
}

// LateTimer is the event of a client whose timer was late.
func LateTimer(at Instant, late time.Duration) Event {
	return Event{Kind: eventLate, At: at, Late: late}
}

// EventKind is what has happened.
type EventKind string

const (
	eventCall      EventKind = "call"      // a call of lockpool begins
	eventReturn    EventKind = "return"    // the call has returned; if a lock was acquired, the hold begins
	eventToken     EventKind = "token"     // the token of a hold
	eventReenter   EventKind = "reenter"   // the token of another entry into a hold
	eventDowngrade EventKind = "downgrade" // the hold goes on as a reader's
	eventRevoke    EventKind = "revoke"    // the holder has noticed a revocation request
	eventContext   EventKind = "context"   // the context of an exclusive entry has ended
	eventOutlived  EventKind = "outlived"  // the context of an entry has not ended, although unlocked
	eventEnd       EventKind = "end"       // the client no longer believes it holds the lock
	eventStart     EventKind = "start"     // the function of a call of Once starts
	eventLate      EventKind = "late"      // a timer of the client was late
)
