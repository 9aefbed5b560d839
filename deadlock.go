package lockpool

// This file has the public side of deadlocks: the option and the error.

import (
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockpool/lockpool/internal/nodedata"
)

// WithDeadlockCheck sets how long a call of a handle with other locks waits before looking
// for a deadlock: a cycle of handles, in any processes, each of which waits for what the
// next one holds. The default is 500 ms; with 0 the pool's calls do not look, and their
// waits for plain locks cannot be seen.
//
// If there is a cycle, one call on the cycle fails with [ErrDeadlock]: of the calls whose
// handles hold what others on the cycle wait for, the one that asked last, usually within a
// second after the cycle closed; within one pool, mostly at once. A call of the pool that
// tries again, with the same locks held and for the same one, is as old as at the first try,
// so no such call is the victim for ever.
//
// A look lists the queues of what the handle holds, and reads on only if handles with other
// locks wait there. The call looks again when the queues have changed, at most once a
// second, and asks nothing until then. Looks change nothing, but a call with other locks
// that waits for a plain lock has a node to show the wait.
//
// A holder is a handle: calls wait for the same holder's locks only if they use one
// [Handle], or the context of what they hold ([Lock.Context], [Pool.Do]) on its goroutine.
// Two calls of Pool.Lock with an unrelated context are two holders, and a goroutine blocked
// by itself in this way is not found.
//
// A handle that waits for anything but a lock is not part of a cycle, nor is a contender of
// another client. The node of a waiter names the locks of the waiter's handle, as many of
// the newest as fit into 8 KiB, about eighty, or a quarter of them in a wait for permits.
func WithDeadlockCheck(after time.Duration) Option {
	return func(c *config) error {
		if after < 0 {
			return fmt.Errorf("WithDeadlockCheck(%v): negative", after)
		}
		c.checkAfter = after
		return nil
	}
}

// DeadlockError is the error of a call that waited, in the end, for itself, and wraps
// [ErrDeadlock].
type DeadlockError struct {
	// Cycle has the call itself first. Each call waits for what the next one holds or, if the
	// next one has no Holds, for its place in the queue; the last call waits for the first.
	Cycle []Party
}

// Error tells the whole cycle.
func (e *DeadlockError) Error() string {
	var b strings.Builder
	b.WriteString(ErrDeadlock.Error())
	for i, call := range e.Cycle {
		who := nodedata.Origin(call.Origin)
		if i == 0 {
			fmt.Fprintf(&b, ": this call (%s)", who)
		} else {
			fmt.Fprintf(&b, "; %s", who)
		}
		for _, held := range call.Holds {
			fmt.Fprintf(&b, " holds %q and", held.Lock)
		}
		fmt.Fprintf(&b, " waits for %q", call.Wait.Lock)
		if call.Wait.At != "" {
			fmt.Fprintf(&b, " in %s", call.Wait.At)
		}
	}
	return b.String()
}

func (e *DeadlockError) Unwrap() error { return ErrDeadlock }

// spans returns the spans of the calls on the cycle.
func (e *DeadlockError) spans() (spans []trace.SpanContext) {
	for _, other := range e.Cycle[1:] {
		spans = append(spans, nodedata.Origin(other.Origin).SpanContext())
	}
	return spans
}
