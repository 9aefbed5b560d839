package memory

// This file has the limits of semaphores.

import (
	"context"
	"fmt"

	"github.com/lockpool/lockpool/driver"
)

// Limit implements driver.Limiter.
func (s *session) Limit(ctx context.Context, name string, given int) (limit int, watch *driver.Watch, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, nil, err
	}
	defer s.mu.Unlock()
	if err := s.checkKind(name+"/"+driver.Guards, false); err != nil {
		return 0, nil, err
	}
	e := s.limits[name]
	switch {
	case e == nil && given == 0:
		return 0, nil, fmt.Errorf("%w: none was given, and none is set: pass one, or set it with SetLimit", driver.ErrLimit)
	case e == nil:
		return given, nil, nil
	case given == 0:
		given = e.limit
	}
	return min(given, e.limit), e.watch(s), nil
}

// SetLimit implements driver.Limiter.
func (s *session) SetLimit(ctx context.Context, name string, limit int) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if err := s.checkKind(name+"/"+driver.Guards, false); err != nil {
		return err
	}
	e := s.limits[name]
	if e == nil {
		s.order++
		e = &entry{created: s.order}
		s.limits[name] = e
		s.changed(name)
	}
	e.limit = limit
	s.fire(&e.watchers, driver.Changed, nil)
	return nil
}
