package recipe

// This file has the claim on permits of a semaphore.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// Semaphore is one attempt to acquire permits. Queue is the semaphore's name.
//
// It takes two claims, one inside the other, in the layout of Curator's
// InterProcessSemaphoreV2. Only the holder of the exclusive lock of the guards adds leases,
// and waits with this lock held until all of the holder's own leases are within the limit.
// Permits are therefore granted in the order of the requests, and all of a request or none.
//
// The limit is the smallest of the set limit, if any, the claim's own, and the limits
// stated by the holders' leases. So a limit stated by a holder applies for as long as the
// holder has permits, even if later contenders state larger ones.
type Semaphore struct{ Claim }

// Acquire is [Claim.Acquire].
func (s *Semaphore) Acquire(ctx context.Context) (driver.Node, error) {
	return s.acquire(ctx, s.guard().wait, true)
}

// A contender holding the guard without waiting releases the guard within a few round
// trips, unless crashed or without a connection. So Try waits for such a contender for at
// most maxGuardPolls times guardPoll.
const (
	guardPoll     = 50 * time.Millisecond
	maxGuardPolls = 20
)

// Try is [Claim.Try]. It waits for contenders briefly holding the guard.
func (s *Semaphore) Try(ctx context.Context) (driver.Node, error) {
	polls := 0
	blocked := func(ctx context.Context, x *state) (step, error) {
		limit, set, err := s.limitNow(ctx)
		full := false
		if err == nil && (set == nil || set.Fired() == 0) {
			full, err = s.isFull(ctx, limit)
		}
		if polls++; full || err == nil && polls > maxGuardPolls {
			x.awaited = []driver.Node{x.head} // the other guards wait for the first
			return s.failBusy(ctx, x)
		}
		if err != nil {
			return 0, err
		}
		poll, cancel := context.WithTimeout(ctx, guardPoll)
		defer cancel()
		next, err := s.guard().wait(poll, x)
		if err != nil && poll.Err() != nil && ctx.Err() == nil {
			return lists, nil
		}
		return next, err
	}
	return s.acquire(ctx, blocked, false)
}

// isFull reports whether fewer permits are free than the claim requests.
func (s *Semaphore) isFull(ctx context.Context, limit int) (bool, error) {
	leases, err := s.Session.List(ctx, s.leases(limit).Queue)
	obstacles := Within(limit)(append(slices.Clip(leases), driver.Node{Permits: s.Permits}), len(leases))
	return s.Permits > limit || len(obstacles) > 0, err
}

// limitNow returns the limit, set or stated by the claim, and the watch on the set limit.
func (s *Semaphore) limitNow(ctx context.Context) (limit int, set *driver.Watch, err error) {
	limits, err := driver.Offer[driver.Limiter](s.Session)
	if err != nil {
		return 0, nil, err
	}
	return limits.Limit(ctx, s.Queue, s.Limit)
}

func (s *Semaphore) guard() *Claim {
	guard := s.Claim
	guard.Queue, guard.Kind, guard.Rule = s.Queue+"/"+driver.Guards, driver.Guard, Exclusive
	return &guard
}

func (s *Semaphore) leases(limit int) *Claim {
	leases := s.Claim
	leases.Queue, leases.Kind, leases.Rule = s.Queue+"/"+driver.Leases, driver.Permit, Within(limit)
	return &leases
}

// acquire acquires the permits. If the limit is too low for them, acquire waits for the
// limit to change and queues again.
func (s *Semaphore) acquire(ctx context.Context, blocked onBlocked, waits bool) (driver.Node, error) {
	if _, err := driver.Offer[driver.Limiter](s.Session); err != nil {
		return driver.Node{}, err
	}
	for {
		guard, err := s.guard().acquire(ctx, blocked)
		if err != nil {
			return driver.Node{}, err
		}
		node, err := s.acquireUnderGuard(ctx, guard, waits)
		above, ok := err.(*aboveLimitError)
		if !ok {
			return node, err
		}
		if err := s.awaitLimit(ctx, above); err != nil {
			return driver.Node{}, err
		}
	}
}

// acquireUnderGuard acquires the permits and releases the guard.
func (s *Semaphore) acquireUnderGuard(ctx context.Context, guard driver.Node, waits bool) (node driver.Node, err error) {
	defer func() { // even if the observer panics
		left := s.Session.Leave(ctx, s.guard().Queue, guard) // continues in the background
		if errors.Is(left, driver.ErrNoPermission) && err == nil {
			_ = s.Session.Leave(ctx, s.leases(0).Queue, node)
			node, err = driver.Node{}, left
		}
	}()
	return s.acquireWithinLimit(ctx, waits)
}

// aboveLimitError reports that more permits are requested than the limit allows, so
// that no release can help.
type aboveLimitError struct {
	limit   int
	stated  driver.Node // the node stating the limit
	changes []*driver.Watch
}

func (e *aboveLimitError) Error() string { return fmt.Sprintf("the limit is %d", e.limit) }

// awaitLimit waits for the limit to change, without the guard: other contenders may take
// the free permits.
func (s *Semaphore) awaitLimit(ctx context.Context, above *aboveLimitError) error {
	if s.Observer != nil {
		s.Observer.Waiting(Wait{Queue: s.Queue, Behind: above.stated})
	}
	changed, stop := driver.First(above.changes...)
	defer stop()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return Busy(fmt.Errorf("waiting for a limit of at least %d, which is now %d: %w", s.Permits, above.limit, ctx.Err()))
	case <-s.Session.Done():
		return s.Session.Err()
	}
}

// acquireWithinLimit acquires the permits while the guard keeps others out. When the set
// limit changes, acquireWithinLimit starts over, even if the leases exist already: there
// may be too many of them now.
func (s *Semaphore) acquireWithinLimit(ctx context.Context, waits bool) (driver.Node, error) {
	for {
		limit, set, err := s.limitNow(ctx)
		if err != nil {
			return driver.Node{}, err
		}
		unchanged, cancel := set.Before(ctx)
		node, err := s.addLeases(unchanged, limit, set, waits)
		cancel()
		if err == nil {
			same, err := s.limitUnchanged(ctx, set)
			if same {
				return node, nil
			}
			left := s.Session.Leave(ctx, s.leases(limit).Queue, node) // continues in the background
			if err != nil {
				return driver.Node{}, err
			}
			if errors.Is(left, driver.ErrNoPermission) {
				return driver.Node{}, left
			}
		} else if set == nil || set.Fired() == 0 || ctx.Err() != nil || errors.Is(err, driver.ErrNoPermission) {
			return driver.Node{}, err
		}
		if err := ctx.Err(); err != nil {
			return driver.Node{}, err
		}
	}
}

// limitUnchanged reports whether the set limit is still the same or, if none was set, still
// none is. (A missing node cannot be watched.)
func (s *Semaphore) limitUnchanged(ctx context.Context, set *driver.Watch) (bool, error) {
	if set != nil {
		return set.Fired() == 0, nil
	}
	watches, err := s.Session.Watch(ctx, s.Queue, limitNode)
	return err == nil && watches[0].Fired() == driver.Missing, err
}

// limitNode is the node of the set limit.
var limitNode = driver.Node{Name: driver.Limit}

// addLeases acquires the permits under a limit. set is the watch on the set limit, or nil.
func (s *Semaphore) addLeases(ctx context.Context, limit int, set *driver.Watch, waits bool) (driver.Node, error) {
	leases := s.leases(limit)
	if !waits {
		full, err := s.isFull(ctx, limit)
		if err == nil && full {
			err = fmt.Errorf("%w: fewer than %d permits are free", ErrBusy, s.Permits)
		}
		if err != nil {
			return driver.Node{}, err
		}
		return leases.Try(ctx)
	}
	if s.Permits > limit { // the limit may be raised
		above := &aboveLimitError{limit: limit, stated: limitNode}
		if set != nil {
			above.changes = append(above.changes, set)
		}
		return driver.Node{}, above
	}
	return leases.acquire(ctx, func(ctx context.Context, x *state) (step, error) {
		tooLow := slices.DeleteFunc(slices.Clone(x.awaited), func(n driver.Node) bool { return n.Limit == 0 || n.Limit >= s.Permits })
		if len(tooLow) == 0 {
			return leases.wait(ctx, x)
		}
		changes, err := s.Session.Watch(ctx, leases.Queue, tooLow...)
		if err != nil {
			return 0, err
		}
		return 0, &aboveLimitError{tooLow[0].Limit, tooLow[0], changes}
	})
}
