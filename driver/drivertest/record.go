package drivertest

// This file has the laws of records of finished runs.

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/testing/plays"
)

// key returns a key without a record.
func (r *run) key() string { return strings.ReplaceAll(r.name(), "/", "-") }

// newRecord returns a record under a new name, forgotten when the test ends.
func (r *run) newRecord(rec driver.Recorder) driver.Record {
	name := r.key()
	r.Cleanup(func() { _ = rec.Forget(r.ctx, name) })
	return driver.Record{Name: name, Key: "key", Data: []byte(r.key()), Keep: time.Hour}
}

func recordFinish(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	rec, its := offered[driver.Recorder](r, s), offered[driver.Recorder](r, other)
	want := r.newRecord(its)
	_, found, err := rec.Record(r.ctx, want.Name, want.Key)
	require.NoError(r, err)
	require.False(r, found)

	node := r.join(s, queue)
	w := r.watchOne(s, node)
	require.NoError(r, rec.Finish(r.ctx, queue, node.Node, want))
	require.Equal(r, []driver.Node{node.Node}, r.list(other, queue), "the node stays")
	got, found, err := its.Record(r.ctx, want.Name, want.Key)
	require.NoError(r, err)
	require.True(r, found)
	require.Equal(r, string(want.Data), string(got.Data))
	require.Greater(r, got.Created, w.Created)
	require.False(r, got.Finished.IsZero())

	again := want
	again.Data = []byte("another")
	require.ErrorIs(r, rec.Finish(r.ctx, queue, node.Node, again), driver.ErrRecorded)
	require.Equal(r, []driver.Node{node.Node}, r.list(other, queue), "the node stays")
	r.leave(s, node)
	require.ErrorIs(r, rec.Finish(r.ctx, queue, node.Node, again), driver.ErrRemoved)
	again.Key = "gone"
	require.ErrorIs(r, rec.Finish(r.ctx, queue, node.Node, again), driver.ErrRemoved)
	_, found, err = its.Record(r.ctx, again.Name, again.Key)
	require.NoError(r, err)
	require.False(r, found, "there is no such record")
}

// recordOneStep looks for the record as soon as the node is gone, removed by the owner, or
// by another session at the moment when the run is recorded.
func recordOneStep(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	rec, its := offered[driver.Recorder](r, s), offered[driver.Recorder](r, other)
	want := r.newRecord(its)
	b, breaks := other.(driver.Breaker)
	for i := range 20 {
		want.Key, want.Data = fmt.Sprint("key", i), []byte(r.key())
		node := r.join(s, queue)
		w := r.watchOne(other, node)
		var finished, gone error
		var all sync.WaitGroup
		if i%2 == 1 && breaks {
			all.Go(func() { finished = rec.Finish(r.ctx, queue, node.Node, want) })
			all.Go(func() { gone = b.Break(r.ctx, queue, node.Node) })
		} else {
			all.Go(func() {
				finished = rec.Finish(r.ctx, queue, node.Node, want)
				gone = s.Leave(r.ctx, queue, node.Node)
			})
		}
		require.NoError(r, r.first([]*driver.Watch{w}), "the node was removed")
		_, found, err := its.Record(r.ctx, want.Name, want.Key)
		all.Wait()
		require.NoError(r, err)
		require.Equal(r, finished == nil, found, "the node is gone, and the run was recorded: %v", finished)
		require.NoError(r, gone)
		if finished != nil {
			require.ErrorIs(r, finished, driver.ErrRemoved)
		}
	}
}

func recordTogether(r *run) {
	sessions := r.connectAll(3)
	want := r.newRecord(offered[driver.Recorder](r, sessions[0]))
	for i := range 5 {
		want.Key = fmt.Sprint("key", i)
		var mu sync.Mutex
		var recorded string
		plays.Together(r, 9, func(j int) error {
			s, own := sessions[j%3], want
			own.Data = fmt.Append(nil, want.Key, " by ", j)
			queue := fmt.Sprint(r.prefix, "/run", i, "/", j)
			joined, err := s.Join(r.ctx, queue, driver.Request{Kind: driver.Exclusive})
			if err != nil {
				return err
			}
			err = s.(driver.Recorder).Finish(r.ctx, queue, joined.Node, own)
			if left := s.Leave(r.ctx, queue, joined.Node); left != nil || errors.Is(err, driver.ErrRecorded) {
				return left
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if recorded != "" {
				return fmt.Errorf("recorded %s and %s", recorded, own.Data)
			}
			recorded = string(own.Data)
			return nil
		})
		require.NoError(r, sessions[1].Ping(r.ctx))
		got, found, err := sessions[1].(driver.Recorder).Record(r.ctx, want.Name, want.Key)
		require.NoError(r, err)
		require.True(r, found)
		require.Equal(r, recorded, string(got.Data))
	}
}

func recordSettle(r *run) {
	s, other, queue := r.connect(), r.connect(), r.name()
	rec, its := offered[driver.Recorder](r, s), offered[driver.Recorder](r, other)
	want := r.newRecord(its)
	node := r.join(s, queue)
	recorded, err := its.Settle(r.ctx, queue, node.Node, want)
	require.NoError(r, err)
	require.False(r, recorded)
	require.Empty(r, r.list(other, queue), "the node is gone")
	require.ErrorIs(r, rec.Finish(r.ctx, queue, node.Node, want), driver.ErrRemoved, "it cannot succeed anymore")
	node = r.join(s, queue)
	require.NoError(r, rec.Finish(r.ctx, queue, node.Node, want))
	recorded, err = its.Settle(r.ctx, queue, node.Node, want)
	require.NoError(r, err)
	require.True(r, recorded)
	want.Data = []byte("another")
	recorded, err = its.Settle(r.ctx, queue, node.Node, want)
	require.NoError(r, err)
	require.False(r, recorded, "it is another's")
}

// records creates records with the keys.
func (r *run) records(s driver.Session, name string, keys ...string) {
	r.Helper()
	r.recordsFor(s, time.Hour, name, keys...)
}

// recordsFor creates records to be kept for the time keep.
func (r *run) recordsFor(s driver.Session, keep time.Duration, name string, keys ...string) {
	r.Helper()
	queue := r.name()
	node := r.join(s, queue)
	for _, key := range keys {
		require.NoError(r, s.(driver.Recorder).Finish(r.ctx, queue, node.Node, driver.Record{Name: name, Key: key, Data: []byte(r.key()), Keep: keep}))
	}
	r.leave(s, node)
}

// keys returns the keys of the records of the name.
func (r *run) keys(s driver.Session, name string) (keys []string) {
	r.Helper()
	found, err := s.(driver.Recorder).Records(r.ctx, name)
	require.NoError(r, err)
	for i, record := range found {
		require.Equal(r, name, record.Name)
		require.NotEmpty(r, record.Data)
		if i > 0 {
			require.Greater(r, record.Created, found[i-1].Created)
		}
		keys = append(keys, record.Key)
	}
	return keys
}

func recordList(r *run) {
	s, other := r.connect(), r.connect()
	rec := offered[driver.Recorder](r, s)
	name, another := r.newRecord(rec).Name, r.newRecord(rec).Name
	r.records(s, name, "c", "a", "d", "b")
	r.records(s, another, "a")
	require.Equal(r, []string{"c", "a", "d", "b"}, r.keys(other, name), "the oldest first")
	require.NoError(r, rec.Forget(r.ctx, name, "a", "none", "b"))
	require.Equal(r, []string{"c", "d"}, r.keys(other, name))
	r.records(s, name, "a")
	require.Equal(r, []string{"c", "d", "a"}, r.keys(other, name))
	require.NoError(r, rec.Forget(r.ctx, name))
	require.Empty(r, r.keys(other, name))
	require.Equal(r, []string{"a"}, r.keys(other, another), "of another name")
	require.NoError(r, s.Close(r.ctx))
	require.Equal(r, []string{"a"}, r.keys(other, another), "records do not end with a session")
}

func recordOld(r *run) {
	s, other := r.connect(), r.connect()
	rec := offered[driver.Recorder](r, s)
	keep := 16 * time.Second
	if !r.bubble {
		keep = 2 * time.Second
	}
	// Names used again, and one used once.
	name, once, later := r.newRecord(rec).Name, r.newRecord(rec).Name, r.newRecord(rec)
	begun := time.Now()
	r.recordsFor(s, keep, name, "a")
	r.recordsFor(s, keep, once, "a")
	r.records(s, name, "kept")
	longest := r.newRecord(rec).Name
	r.recordsFor(s, math.MaxInt64, longest, "kept")
	clear := func() {
		r.Helper()
		later.Key = r.key()
		r.recordsFor(other, keep, later.Name, later.Key)
		if c, ok := other.(driver.Clearer); ok {
			later.Keep = keep
			require.NoError(r, c.ClearRecords(r.ctx, later))
		}
	}
	time.Sleep(keep / 2)
	clear()
	found := append(r.keys(s, name), r.keys(s, once)...)
	if time.Since(begun) < keep {
		require.Equal(r, []string{"a", "kept", "a"}, found, "none is older than %v", keep)
	}
	for len(found) > 1 {
		require.NoError(r, r.ctx.Err(), "records stay: %v", found)
		time.Sleep(keep / 16)
		clear()
		found = append(r.keys(s, name), r.keys(s, once)...)
	}
	took := time.Since(begun)
	require.Equal(r, []string{"kept"}, found)
	require.Equal(r, []string{"kept"}, r.keys(s, longest))
	require.GreaterOrEqual(r, took, keep, "a record was removed early")
	if r.bubble {
		require.LessOrEqual(r, took, 3*keep/2, "records were removed late")
	}
	_, again, err := rec.Record(r.ctx, name, "a")
	require.NoError(r, err)
	require.False(r, again)
	r.recordsFor(s, keep, name, "a")
	require.Equal(r, []string{"kept", "a"}, r.keys(other, name), "the key runs again")
}

func recordLosesReplies(r *run) {
	r.need("LoseReply", r.LoseReply != nil)
	s, other, queue := r.connect(), r.connect(), r.name()
	rec, its := offered[driver.Recorder](r, s), offered[driver.Recorder](r, other)
	want := r.newRecord(its)
	for i := range 5 {
		want.Key, want.Data = fmt.Sprint("key", i), []byte(r.key())
		node := r.join(s, queue)
		r.LoseReply(s)
		err := rec.Finish(r.ctx, queue, node.Node, want)
		if errors.Is(err, driver.ErrUndecided) {
			recorded, settled := its.Settle(r.ctx, queue, node.Node, want)
			require.NoError(r, settled)
			if recorded {
				err = nil
			}
		}
		require.NoError(r, other.Ping(r.ctx))
		_, found, looked := its.Record(r.ctx, want.Name, want.Key)
		require.NoError(r, looked)
		require.Equal(r, err == nil, found, "%v", err)
		if err != nil {
			require.NotErrorIs(r, err, driver.ErrRemoved)
			require.NotErrorIs(r, err, driver.ErrRecorded)
		}
		_ = s.Leave(r.ctx, queue, node.Node)
		require.Empty(r, r.list(other, queue))
	}
}
