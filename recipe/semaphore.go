package recipe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// Semaphore is one attempt to take permits. Queue is the semaphore's name.
//
// It takes two claims, one inside the other, in the layout of Curator's
// InterProcessSemaphoreV2. Who holds the exclusive lock of the guards is alone in
// adding leases, and waits with it until all of its own are within the limit. So
// permits are granted in the order of asking, and as a whole.
type Semaphore struct {
	Claim
	Limit int // what all must say, or 0 for the one that is set
}

// Acquire is [Claim.Acquire].
func (s Semaphore) Acquire(ctx context.Context) (driver.Node, error) {
	return s.take(ctx, s.guard().wait, true)
}

// Try is [Claim.Try]. It waits for others who are only on their way through the
// guard.
func (s Semaphore) Try(ctx context.Context) (driver.Node, error) {
	looks := 0
	pass := func(ctx context.Context, at standing) (bool, error) {
		limit, err := s.Limit, error(nil)
		if limit == 0 {
			limit, _, err = s.Session.Limit(ctx, s.Queue, 0)
		}
		full := false
		if err == nil {
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
	used := s.Permits
	for _, node := range leases {
		used += node.Permits
	}
	return used > limit, err
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
		node, err := s.claim(ctx, waits)
		left := s.Session.Leave(ctx, s.guard().Queue, guard) // goes on if it takes longer
		if errors.Is(left, driver.ErrNoPermission) && err == nil {
			_ = s.Session.Leave(ctx, s.leases(0).Queue, node)
			return driver.Node{}, left
		}
		above, ok := err.(*aboveLimit)
		if !ok {
			return node, err
		}
		if err := s.await(ctx, above); err != nil {
			return driver.Node{}, err
		}
	}
}

// aboveLimit is why nobody's going can let us in.
type aboveLimit struct {
	limit   int
	changed *driver.Watch
}

func (a *aboveLimit) Error() string { return fmt.Sprintf("the limit is %d", a.limit) }

// await waits for another limit, without the guard: others may take the permits
// that there are.
func (s Semaphore) await(ctx context.Context, above *aboveLimit) error {
	if s.Observer != nil {
		s.Observer.Waiting(Wait{Queue: s.Queue, Behind: driver.Node{Name: driver.Limit}, Head: driver.Node{Name: driver.Limit}})
	}
	unchanged, cancel := above.changed.Before(ctx)
	defer cancel()
	select {
	case <-unchanged.Done():
	case <-s.Session.Done():
		return s.Session.Err()
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("waiting for a limit of %d, which is %d: %w", s.Permits, above.limit, err)
	}
	return nil
}

// claim takes the permits while nobody else may. When the limit changes it starts
// anew, also if the leases are there already: they may be too many now.
func (s Semaphore) claim(ctx context.Context, waits bool) (driver.Node, error) {
	for {
		limit, changed, err := s.Session.Limit(ctx, s.Queue, s.Limit)
		if err != nil {
			return driver.Node{}, err
		}
		if changed == nil {
			return s.lease(ctx, limit, nil, waits)
		}
		if changed.Fired() == 0 {
			meanwhile, cancel := changed.Before(ctx)
			node, err := s.lease(meanwhile, limit, changed, waits)
			cancel()
			if changed.Fired() == 0 || err != nil && ctx.Err() != nil {
				return node, err
			}
			if err == nil {
				err = s.Session.Leave(ctx, s.leases(limit).Queue, node) // goes on if it takes longer
			}
			if errors.Is(err, driver.ErrNoPermission) || errors.Is(err, driver.ErrSessionLost) {
				return driver.Node{}, err
			}
		}
		if err := ctx.Err(); err != nil {
			return driver.Node{}, err
		}
	}
}

// lease takes the permits under a limit.
func (s Semaphore) lease(ctx context.Context, limit int, changed *driver.Watch, waits bool) (driver.Node, error) {
	switch {
	case waits && s.Permits <= limit:
		return s.leases(limit).Acquire(ctx)
	case waits: // it may be raised
		return driver.Node{}, &aboveLimit{limit, changed}
	}
	full, err := s.full(ctx, limit)
	if err == nil && full {
		err = fmt.Errorf("%w: fewer than %d permits are free", ErrBusy, s.Permits)
	}
	if err != nil {
		return driver.Node{}, err
	}
	return s.leases(limit).Try(ctx)
}
