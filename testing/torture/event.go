//go:build linux

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// instant is a time of the machine's monotonic clock, which all processes read.
// The clocks of some clients' leases run at another rate.
type instant int64

// never is the zero instant, such as the end of what has not ended.
const never instant = 0

func now() instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return instant(t.Nano())
}

func (t instant) add(d time.Duration) instant     { return t + instant(d) }
func (t instant) since(u instant) time.Duration   { return time.Duration(t - u) }
func (t instant) within(from, until instant) bool { return from <= t && t <= until }

// event is a line that a client writes to the campaign. A client writes it before
// it does anything that other clients could observe, so the lines of a killed
// client say all that it believed.
type event struct {
	Kind   eventKind
	At     instant
	ID     int64 `json:",omitempty"` // of a call, or of an access to the register
	Hold   int64 `json:",omitempty"` // ID of the call that acquired the lock
	Worker int   `json:",omitempty"`

	Op    string        `json:",omitempty"`
	Lock  string        `json:",omitempty"`
	Limit time.Duration `json:",omitempty"` // after which the call's context ends
	Error string        `json:",omitempty"` // class of the error

	Permits   int  `json:",omitempty"` // that the call acquires; 0 if it acquires no lock
	Of        int  `json:",omitempty"` // permits that the lock has
	Revocable bool `json:",omitempty"` // the holder listens for revocation requests

	Token int64         `json:",omitempty"`
	Value int64         `json:",omitempty"`
	Lost  bool          `json:",omitempty"`
	Late  time.Duration `json:",omitempty"`
}

type eventKind string

const (
	eventCall      eventKind = "call"      // a call of lockpool begins
	eventReturn    eventKind = "return"    // it has returned; if it acquired a lock, the hold begins
	eventToken     eventKind = "token"     // the token of a hold
	eventReenter   eventKind = "reenter"   // the token of another entry into a hold
	eventDowngrade eventKind = "downgrade" // the hold goes on as a reader's
	eventRevoke    eventKind = "revoke"    // the holder has noticed a revocation request
	eventEnd       eventKind = "end"       // the client no longer believes that it holds the lock
	eventAccess    eventKind = "access"    // the register is about to be read or written
	eventAccessed  eventKind = "accessed"  // it was
	eventLate      eventKind = "late"      // a timer of the client was late
)

// answer is the campaign's reply to a client's access to the register.
type answer struct {
	ID           int64
	Accepted     bool
	Token, Value int64
}
