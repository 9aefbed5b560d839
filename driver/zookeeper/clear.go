package zookeeper

// This file removes old records, a bounded number at a time.

import (
	"context"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// The data of the directory of all records says where the present round of clearing goes
// on, and is empty between two rounds. The time of the last change of the directory is the
// time of the last step.
//
// No single clock decides that a record is old: a fast clock would let a run begin again.
// The time of a record is the later of the service's and the creator's, and the time now is
// the earlier of the service's and this process's. A creator's fast clock would keep a
// record for too long; so a record from the future, for both clocks, is given the time now.

// clearAtATime is how many records are read by one call, so that no call takes long.
const clearAtATime = 1000

// ClearRecords implements driver.Clearer.
func (s *session) ClearRecords(ctx context.Context, r driver.Record) error {
	if at := time.Duration(s.lookedForOld.Load()); at != 0 && s.expiry.now()-at < r.Keep/16 {
		return nil
	}
	var now time.Time // by the service's clock
	var dir *recordDir
	err := s.readAll(ctx,
		s.readRecord(s.recordPath(r.Name, r.Key), func(read driver.Record) { now = read.Finished }),
		s.readRecordDir(s.recordsDir(), &dir))
	if err != nil || dir == nil || now.IsZero() {
		return err
	}
	next := dir.data
	if next == "" && now.Sub(dir.changed).Abs() < r.Keep/4 { // or longer ago, or in the future: the clock was ahead
		s.lookedForOld.Store(int64(s.expiry.now()))
		return nil
	}
	if err = s.write(ctx, dir, ""); err != nil {
		if err == errOvertaken { // by another client, now clearing
			return nil
		}
		return err
	}
	var all []string
	if err = s.readAll(ctx, s.readChildren(dir.path, func(l *listing) []read { all = slices.Clone(l.children()); return nil })); err != nil {
		return err
	}
	slices.Sort(all)
	begin, _ := slices.BinarySearch(all, next)
	for left := clearAtATime; begin < len(all) && err == nil; begin++ {
		if left <= 0 { // the next call goes on there
			return s.write(ctx, dir, all[begin])
		}
		var n int
		n, err = s.clearShard(ctx, dir.path+"/"+all[begin], now)
		left -= n
	}
	return err
}

// clearShard removes the old records of a shard. It returns the number of records seen.
func (s *session) clearShard(ctx context.Context, shard string, now time.Time) (n int, err error) {
	look := func(ctx context.Context) (ops []any, err error) {
		n = 0
		err = s.readAll(ctx, s.readChildren(shard, func(l *listing) (more []read) {
			for _, node := range l.children() {
				n++
				path := shard + "/" + node
				more = append(more, s.readNode(path, func(q *request) {
					if op := changeOfOld(path, q, now); op != nil {
						ops = append(ops, op)
					}
				}))
			}
			return more
		}))
		return ops, err
	}
	if ops, err := look(ctx); err != nil || len(ops) == 0 {
		return n, err
	}
	return n, s.changeRecords(ctx, shard, look)
}

// changeOfOld returns what is to be done with a record: old records are removed, and
// records from the future get a new time.
func changeOfOld(path string, q *request, now time.Time) any {
	keep, at, data, ok := parseRecord(q.data)
	if !ok {
		return nil
	}
	if changed := time.UnixMilli(q.stat.Mtime); changed.After(at) {
		at = changed
	}
	first, last := now, time.Now()
	if last.Before(first) {
		first, last = last, first
	}
	switch {
	case first.Sub(at) > keep:
		return &zk.DeleteRequest{Path: path, Version: -1}
	case at.Sub(last) > keep/4:
		return &zk.SetDataRequest{Path: path, Data: formatRecord(keep, time.Now(), data), Version: -1}
	}
	return nil
}
