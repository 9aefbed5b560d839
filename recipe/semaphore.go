package recipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// Semaphore is one attempt to take permits. Queue is the semaphore's name.
//
// It takes two claims, one inside the other, in the layout of Curator's
// InterProcessSemaphoreV2. Who holds the exclusive lock of the guards is alone in
// adding leases, and waits with it until all of its own are within the limit. So
// permits are granted in the order of asking, and as a whole.
//
// The limit is the smallest of the one that is set, if it is, the claim's own, and
// those that the holders' leases state. So it holds for everyone who states it for
// as long as it has permits, whatever later ones state.
type Semaphore struct{ Claim }

// Acquire is [Claim.Acquire].
func (s Semaphore) Acquire(ctx context.Context) (driver.Node, error) {
	return s.take(ctx, s.guard().wait, true)
}

// Try is [Claim.Try]. It waits for others who are only on their way through the
// guard.
func (s Semaphore) Try(ctx context.Context) (driver.Node, error) {
	looks := 0
	pass := func(ctx context.Context, at standing) (bool, error) {
		limit, set, err := s.Session.Limit(ctx, s.Queue, s.Limit)
		full := false
		if err == nil && (set == nil || set.Fired() == 0) {
			full, err = s.full(ctx, limit)
		}
		if looks++; full || err == nil && looks > guardLooks {
			return busy(ctx, at)
		}
		if err != nil {
			return false, err
		}
		brief, cancel := context.WithTimeout(ctx, guardLook)
		defer cancel()
		granted, err := s.guard().wait(brief, at)
		if err != nil && brief.Err() != nil && ctx.Err() == nil {
			return false, nil // look again
		}
		return granted, err
	}
	return s.take(ctx, pass, false)
}

// full reports whether there is no room for as many permits.
func (s Semaphore) full(ctx context.Context, limit int) (bool, error) {
	leases, err := s.Session.List(ctx, s.leases(limit).Queue)
	obstacles, _ := Within(limit)(append(leases, driver.Node{Permits: s.Permits}), len(leases))
	return s.Permits > limit || len(obstacles) > 0, err
}

// Who holds the guard and is not waiting lets it go within a few round trips. If
// it does not it has crashed, or its connection is broken.
const (
	guardLook  = 50 * time.Millisecond
	guardLooks = 20
)

func (s Semaphore) guard() Claim {
	guard := s.Claim
	guard.Queue, guard.Kind, guard.Rule = s.Queue+"/"+driver.Guards, driver.Guard, Exclusive
	return guard
}

func (s Semaphore) leases(limit int) Claim {
	leases := s.Claim
	leases.Queue, leases.Kind, leases.Rule = s.Queue+"/"+driver.Leases, driver.Permit, Within(limit)
	return leases
}

func (s Semaphore) take(ctx context.Context, blocked blocked, waits bool) (driver.Node, error) {
	for {
		guard, err := s.guard().take(ctx, blocked)
		if err != nil {
			return driver.Node{}, err
		}
		node, err := s.pass(ctx, guard, waits)
		above, ok := err.(*aboveLimit)
		if !ok {
			return node, err
		}
		if err := s.await(ctx, above); err != nil {
			return driver.Node{}, err
		}
	}
}

// pass takes the permits under the guard, and lets the guard go.
func (s Semaphore) pass(ctx context.Context, guard driver.Node, waits bool) (node driver.Node, err error) {
	defer func() { // also if the observer panics
		left := s.Session.Leave(ctx, s.guard().Queue, guard) // goes on if it takes longer
		if errors.Is(left, driver.ErrNoPermission) && err == nil {
			_ = s.Session.Leave(ctx, s.leases(0).Queue, node)
			node, err = driver.Node{}, left
		}
	}()
	return s.claim(ctx, waits)
}

// aboveLimit is why no permits that are released let us in.
type aboveLimit struct {
	limit   int
	stated  driver.Node // where
	changes []*driver.Watch
}

func (a *aboveLimit) Error() string { return fmt.Sprintf("the limit is %d", a.limit) }

// await waits for another limit, without the guard: others may take the permits
// that there are.
func (s Semaphore) await(ctx context.Context, above *aboveLimit) error {
	if s.Observer != nil {
		s.Observer.Waiting(Wait{Queue: s.Queue, Behind: above.stated})
	}
	changed, forget := driver.First(above.changes)
	defer forget()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for a limit of %d, which is %d: %w", s.Permits, above.limit, ctx.Err())
	case <-s.Session.Done():
		return s.Session.Err()
	}
}

// claim takes the permits while nobody else may. When the limit that is set changes
// it starts anew, also if the leases are there already: they may be too many now.
func (s Semaphore) claim(ctx context.Context, waits bool) (driver.Node, error) {
	for {
		limit, set, err := s.Session.Limit(ctx, s.Queue, s.Limit)
		if err != nil {
			return driver.Node{}, err
		}
		unchanged, cancel := set.Before(ctx)
		node, err := s.lease(unchanged, limit, set, waits)
		cancel()
		if err == nil {
			same, err := s.isStill(ctx, set)
			if same {
				return node, nil
			}
			left := s.Session.Leave(ctx, s.leases(limit).Queue, node) // goes on if it takes longer
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

// isStill reports whether the limit is the one that was set, or if none was, that
// none is. (There is no watch on what is not there.)
func (s Semaphore) isStill(ctx context.Context, set *driver.Watch) (bool, error) {
	if set != nil {
		return set.Fired() == 0, nil
	}
	watches, err := s.Session.Watch(ctx, s.Queue, setLimit)
	return err == nil && watches[0].Fired() == driver.Missing, err
}

// setLimit is the node of a limit that is set.
var setLimit = driver.Node{Name: driver.Limit}

// lease takes the permits under a limit.
func (s Semaphore) lease(ctx context.Context, limit int, set *driver.Watch, waits bool) (driver.Node, error) {
	leases := s.leases(limit)
	if !waits {
		full, err := s.full(ctx, limit)
		if err == nil && full {
			err = fmt.Errorf("%w: fewer than %d permits are free", ErrBusy, s.Permits)
		}
		if err != nil {
			return driver.Node{}, err
		}
		return leases.Try(ctx)
	}
	if s.Permits > limit { // it may be raised
		above := &aboveLimit{limit: limit, stated: setLimit}
		if set != nil {
			above.changes = append(above.changes, set)
		}
		return driver.Node{}, above
	}
	return leases.take(ctx, func(ctx context.Context, at standing) (bool, error) {
		lower := slices.DeleteFunc(slices.Clone(at.obstacles), func(n driver.Node) bool { return n.Limit == 0 || n.Limit >= s.Permits })
		if len(lower) == 0 {
			return leases.wait(ctx, at)
		}
		changes, err := s.Session.Watch(ctx, leases.Queue, lower...)
		if err != nil {
			return false, err
		}
		return false, &aboveLimit{lower[0].Limit, lower[0], changes}
	})
}
