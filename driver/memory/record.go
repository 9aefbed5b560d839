package memory

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// records are the records of a name.
type records struct {
	byKey     map[string]driver.Record
	forgotten time.Time // when old ones were last removed
}

// record returns the record of that name and key, if there is one.
func (st *Store) record(name, key string) (r driver.Record, found bool) {
	if rs := st.records[name]; rs != nil {
		r, found = rs.byKey[key]
	}
	return r, found
}

// forget removes the records of that name for which old returns true.
func (st *Store) forget(name string, old func(driver.Record) bool) {
	if rs := st.records[name]; rs != nil {
		maps.DeleteFunc(rs.byKey, func(_ string, r driver.Record) bool { return old(r) })
		if len(rs.byKey) == 0 {
			delete(st.records, name)
		}
	}
}

// Finish implements driver.Recorder.
func (s *session) Finish(ctx context.Context, queue string, node driver.Node, r driver.Record) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if _, _, err := s.find(queue, node); err != nil {
		return err
	}
	if _, found := s.record(r.Name, r.Key); found {
		return driver.ErrRecorded
	}
	rs := s.records[r.Name]
	if rs == nil {
		rs = &records{byKey: map[string]driver.Record{}, forgotten: time.Now()} // there was nothing to remove yet
		s.records[r.Name] = rs
	}
	s.order++
	r.Data, r.Created, r.Finished = bytes.Clone(r.Data), s.order, time.Now()
	rs.byKey[r.Key] = r
	return nil // the node stays
}

// Settle implements driver.Recorder.
func (s *session) Settle(ctx context.Context, queue string, node driver.Node, r driver.Record) (recorded bool, err error) {
	if err := s.begin(ctx); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	_ = s.remove(queue, node, nil) // if it is there
	found, ok := s.record(r.Name, r.Key)
	return ok && bytes.Equal(found.Data, r.Data), nil
}

// Record implements driver.Recorder.
func (s *session) Record(ctx context.Context, name, key string) (r driver.Record, found bool, err error) {
	if err := s.begin(ctx); err != nil {
		return r, false, err
	}
	defer s.mu.Unlock()
	r, found = s.record(name, key)
	return r, found, nil
}

// Records implements driver.Recorder.
func (s *session) Records(ctx context.Context, name string) (found []driver.Record, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if rs := s.records[name]; rs != nil {
		found = slices.SortedFunc(maps.Values(rs.byKey), func(a, b driver.Record) int { return cmp.Compare(a.Created, b.Created) })
	}
	return found, nil
}

// Forget implements driver.Recorder.
func (s *session) Forget(ctx context.Context, name string, keys ...string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.forget(name, func(r driver.Record) bool { return len(keys) == 0 || slices.Contains(keys, r.Key) })
	return nil
}

// ForgetOld implements driver.Recorder.
func (s *session) ForgetOld(ctx context.Context, r driver.Record, keep time.Duration) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	r, found := s.record(r.Name, r.Key)
	rs := s.records[r.Name]
	if !found || r.Finished.Sub(rs.forgotten) < keep/4 {
		return nil
	}
	rs.forgotten = r.Finished
	s.forget(r.Name, func(old driver.Record) bool { return r.Finished.Sub(old.Finished) > keep })
	return nil
}
