package workload

import "time"

// Instant is a time of a clock that all clients read, whatever the rate of the clocks
// that their leases are measured with.
type Instant int64

// Never is the zero instant, such as the end of what has not ended.
const Never Instant = 0

// Add returns the time that is d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Since returns the time that has passed since u.
func (t Instant) Since(u Instant) time.Duration { return time.Duration(t - u) }

func (t Instant) within(from, until Instant) bool { return from <= t && t <= until }

// Event is what a client reports. A client writes it before
// it does anything that other clients could observe, so the lines of a killed
// client say all that it believed.
type Event struct {
	Kind   EventKind
	At     Instant
	ID     int64 `json:",omitempty"` // of a call, or of an access to the register
	Hold   int64 `json:",omitempty"` // ID of the call that acquired the lock, if the event is about a hold; of calls, only that which releases it
	Worker int   `json:",omitempty"`

	Op    string        `json:",omitempty"`
	Lock  string        `json:",omitempty"`
	Limit time.Duration `json:",omitempty"` // after which the call's context ends
	Error string        `json:",omitempty"` // class of the error

	Permits   int  `json:",omitempty"` // that the call acquires; 0 if it acquires no lock
	Of        int  `json:",omitempty"` // permits that the lock has
	Revocable bool `json:",omitempty"` // the holder listens for revocation requests
	Rests     bool `json:",omitempty"` // the lock may stay taken after it is unlocked

	Token int64         `json:",omitempty"`
	Value int64         `json:",omitempty"` // written or read; the period of a run; how often in succession a caller was the victim of a deadlock
	Lost  bool          `json:",omitempty"`
	Late  time.Duration `json:",omitempty"`
}

// LateTimer is the event of a client whose timer was late.
func LateTimer(at Instant, late time.Duration) Event {
	return Event{Kind: eventLate, At: at, Late: late}
}

// IsAccess reports whether the event is an access to a register, which is answered.
func (e Event) IsAccess() bool { return e.Kind == eventAccess }

// EventKind is what has happened.
type EventKind string

const (
	eventCall      EventKind = "call"      // a call of lockpool begins
	eventReturn    EventKind = "return"    // it has returned; if it acquired a lock, the hold begins
	eventToken     EventKind = "token"     // the token of a hold
	eventReenter   EventKind = "reenter"   // the token of another entry into a hold
	eventDowngrade EventKind = "downgrade" // the hold goes on as a reader's
	eventRevoke    EventKind = "revoke"    // the holder has noticed a revocation request
	eventContext   EventKind = "context"   // the context of an exclusive entry has ended
	eventOutlived  EventKind = "outlived"  // the context of an entry has not ended, although it was unlocked
	eventEnd       EventKind = "end"       // the client no longer believes that it holds the lock
	eventAccess    EventKind = "access"    // the register is about to be read or written
	eventAccessed  EventKind = "accessed"  // it was
	eventStart     EventKind = "start"     // the function of a call of Once starts
	eventLate      EventKind = "late"      // a timer of the client was late
)

// Answer is the campaign's reply to a client's access to the register.
type Answer struct {
	ID           int64
	Accepted     bool
	Token, Value int64
}
