package memory

// This file has the records of finished runs.

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockpool/lockpool/driver"
)

type recordKey struct{ name, key string }

// record returns the record of the name and the key, if there is one.
func (st *Store) record(name, key string) (r driver.Record, found bool) {
	r, found = st.records[recordKey{name, key}]
	return r, found && !isOld(r)
}

func isOld(r driver.Record) bool { return time.Since(r.Finished) > r.Keep }

// removeOld removes old records whenever there are twice as many as were left the last time.
func (st *Store) removeOld() {
	if len(st.records) < st.sweepAt {
		return
	}
	maps.DeleteFunc(st.records, func(_ recordKey, r driver.Record) bool { return isOld(r) })
	st.sweepAt = 2*len(st.records) + 100
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
	s.removeOld()
	s.order++
	r.Data, r.Created, r.Finished = bytes.Clone(r.Data), s.order, time.Now()
	s.records[recordKey{r.Name, r.Key}] = r
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
	for _, r := range s.records {
		if r.Name == name && !isOld(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b driver.Record) int { return cmp.Compare(a.Created, b.Created) })
	return found, nil
}

// Forget implements driver.Recorder.
func (s *session) Forget(ctx context.Context, name string, keys ...string) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	maps.DeleteFunc(s.records, func(of recordKey, _ driver.Record) bool {
		return of.name == name && (len(keys) == 0 || slices.Contains(keys, of.key))
	})
	return nil
}
