package zookeeper

import (
	"context"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// The data of the directory of all records says where the present round of clearing goes on,
// and is empty between two rounds. When it was changed says when that was.
//
// No single clock decides that a record is old: one that is ahead would let a run begin again.
// The time of a record is the later one of the service's and of its creator's, and the time now
// is the earlier one of the service's and of our own. A clock that was ahead when a record was
// created would keep it for as long; so a record whose time is yet to come for both clocks of
// now gets another one, which is now.

// clearAtATime is how many records are read by one call, so that it takes little time whatever
// their number.
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
		if err == errOvertaken { // by one who sees to it
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

// clearShard removes the old records of a shard. It returns how many there were to look at.
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

// changeOfOld returns what is to be done with a record that was read: it is removed if it is
// old, and gets a new time if its own is yet to come.
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
