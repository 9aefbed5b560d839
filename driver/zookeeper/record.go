package zookeeper

// This file has the records of completed work (Once): creating, reading and removing them.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// A record is a persistent node at CHROOT/.done/SHARD/NAME~KEY. Records are not in the
// directory of a lock, because go-zookeeper's Lock fails on children with other names. The
// shard is a number computed from name and key: so a record is found with one request, no
// directory has too many for a listing, and names used once leave no directory behind.
//
// A shard is a container like the directory of a queue, and goes some time after the last
// record. The data of a shard is empty. Every removal first writes the shard, and then
// depends on the version after this write. So no earlier removal, perhaps of a session cut
// off meanwhile, can remove a record created later: the version is outdated.
//
// The data of a record begins with how long to keep the record, and with the time by the
// creating client's clock: KEEP TIME DATA.

const (
	shards    = 256
	separator = "~" // Escape returns no text with a ~
)

func (s *session) recordsDir() string { return s.path(driver.Records) }

// shardOf returns the directory of a record.
func (s *session) shardOf(name, key string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name + separator + key))
	return s.path(driver.Records, fmt.Sprintf("%02x", h.Sum32()%shards))
}

func (s *session) recordPath(name, key string) string {
	return s.shardOf(name, key) + "/" + name + separator + key
}

func formatRecord(keep time.Duration, at time.Time, data []byte) []byte {
	return fmt.Appendf(nil, "%s %s %s", keep, at.UTC().Format(time.RFC3339), data)
}

// parseRecord reads the data of a node. ok is false if the driver has not written them.
func parseRecord(all []byte) (keep time.Duration, at time.Time, data []byte, ok bool) {
	first, rest, _ := bytes.Cut(all, []byte(" "))
	second, data, _ := bytes.Cut(rest, []byte(" "))
	keep, err := time.ParseDuration(string(first))
	if err == nil {
		at, err = time.Parse(time.RFC3339, string(second))
	}
	if err != nil {
		return 0, at, all, false
	}
	return keep, at, data, true
}

// Finish implements driver.Recorder.
func (s *session) Finish(ctx context.Context, queue string, node driver.Node, r driver.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.begin() {
		return s.Err()
	}
	defer s.calls.done()
	f := &finish{session: s, queue: s.path(queue), node: node, record: r}
	err := f.run(ctx)
	if f.undecided && err != nil {
		err = fmt.Errorf("%w: %w", driver.ErrUndecided, err)
	}
	return err
}

// finish is one call of Finish.
type finish struct {
	*session
	queue  string // path of the queue
	node   driver.Node
	record driver.Record

	undecided bool // a sent transaction may be carried out, or was
}

// run sends the transaction until carried out or impossible, or until ctx ends or the
// session is over.
func (f *finish) run(ctx context.Context) error {
	dir := f.shardOf(f.record.Name, f.record.Key)
	directories := 0 // created by the transaction: the record's, and its parents
	for n := 0; ; n++ {
		q := f.transaction(directories)
		if !f.send(ctx, q) {
			return f.gaveUp(ctx)
		}
		nodes := len(nodeNames(f.node)) // the first parts of the transaction
		switch err := q.err; {
		case err == nil:
			return nil
		case isUnsure(err) && !q.isSent(): // because the session is over
			return f.gaveUp(ctx)
		case !isRefused(err): // also after a "system error"
			f.undecided = true
			recorded, unknown := false, f.pause(ctx, n)
			if unknown == nil {
				recorded, unknown = f.isRecorded(ctx, f.record)
			}
			if unknown != nil || recorded {
				return unknown
			}
			f.undecided = false
			if isAnswer(err) {
				return explainError(err, "recording a run", "CREATE", dir)
			}
		case err == errThrottled:
		case err == zk.ErrNoNode && q.failed < nodes:
			return driver.ErrRemoved
		case err == zk.ErrNoNode && directories < depth(dir):
			directories++
			continue
		case err == zk.ErrNodeExists && q.failed == nodes+directories:
			return driver.ErrRecorded
		case err == zk.ErrNodeExists, err == zk.ErrNoNode: // others create and remove directories
			directories = 0
		case err == zk.ErrNoAuth && q.failed < nodes:
			return explainError(err, "recording a run", "READ", f.queue+"/"+f.node.Name)
		case directories > 0 && f.usesContainers(dir) && (err == zk.ErrBadArguments || err == errUnimplemented):
			f.directories.noContainers.Store(true) // ZooKeeper before 3.5.1
		default:
			refused := dir
			for range nodes + directories - q.failed {
				refused = parent(refused)
			}
			return explainError(err, "recording a run", "CREATE", refused)
		}
		if err := f.pause(ctx, n); err != nil {
			return err
		}
	}
}

// transaction returns the request: the node comes first, because without the node nothing
// else matters, then n directories, and the record.
func (f *finish) transaction(n int) *request {
	var ops []any
	for _, name := range nodeNames(f.node) {
		ops = append(ops, &zk.CheckVersionRequest{Path: f.queue + "/" + name, Version: -1})
	}
	r := f.record
	ops = append(ops, f.directoryCreates(f.shardOf(r.Name, r.Key), n)...)
	return multiRequest(append(ops, &zk.CreateRequest{
		Path: f.recordPath(r.Name, r.Key), Data: formatRecord(r.Keep, time.Now(), r.Data), Acl: f.cfg.ACL,
	})...)
}

// send sends the transaction. It reports false if ctx ends or the session is over before
// the answer, and records whether the transaction was sent by then.
func (f *finish) send(ctx context.Context, q *request) bool {
	f.requests.start(q)
	if f.await(ctx, q.done) {
		return true
	}
	if f.requests.cancel(q) {
		return false
	}
	select { // the end of the session ends the request, and perhaps with an answer
	case <-q.done:
		return true
	case <-ctx.Done():
		f.undecided = true
		return false
	}
}

// isRecorded reports whether the record exists, once all earlier transactions of the
// session are decided.
func (s *session) isRecorded(ctx context.Context, r driver.Record) (bool, error) {
	path := s.recordPath(r.Name, r.Key)
	q, err := s.askUntilServed(ctx, changeNothing)
	if err == nil {
		q, err = s.askUntilServed(ctx, func() *request { return getRequest(path) })
	}
	switch {
	case err == nil:
		_, _, data, _ := parseRecord(q.data)
		return bytes.Equal(data, r.Data), nil
	case err == zk.ErrNoNode && q.op == opGetData:
		return false, nil
	}
	return false, explainError(err, "looking for a record whose creation was not confirmed", "READ", path)
}

// Settle implements driver.Recorder.
func (s *session) Settle(ctx context.Context, queue string, node driver.Node, r driver.Record) (bool, error) {
	for _, path := range s.paths(queue, node) {
		_, err := s.askUntilServed(ctx, func() *request { return deleteRequest(path, -1) })
		if err != nil && err != zk.ErrNoNode {
			return false, explainError(err, "deleting "+path, "DELETE", parent(path))
		}
	}
	return s.isRecorded(ctx, r)
}

// askUntilServed is ask for a repeatable request, repeated also after an answer that is not
// final.
func (s *session) askUntilServed(ctx context.Context, newRequest func() *request) (*request, error) {
	for n, unclear := 0, 0; ; n++ {
		q, err := s.ask(ctx, func() *request { return s.requests.send(newRequest()) })
		if err == nil || isUnsure(err) || isFinal(err, &unclear) {
			return q, err
		}
		if err := s.pause(ctx, n); err != nil {
			return nil, err
		}
	}
}

// Record implements driver.Recorder.
func (s *session) Record(ctx context.Context, name, key string) (r driver.Record, found bool, err error) {
	err = s.readAll(ctx, s.readRecord(s.recordPath(name, key), func(read driver.Record) { r, found = read, true }))
	return r, found, err
}

func (s *session) readRecord(path string, found func(driver.Record)) read {
	var r driver.Record
	r.Name, r.Key, _ = strings.Cut(path[strings.LastIndexByte(path, '/')+1:], separator)
	return s.readNode(path, func(q *request) {
		r.Keep, _, r.Data, _ = parseRecord(q.data)
		r.Created, r.Finished = q.stat.Czxid, time.UnixMilli(q.stat.Ctime)
		found(r)
	})
}

// Records implements driver.Recorder.
func (s *session) Records(ctx context.Context, name string) (found []driver.Record, err error) {
	if err := s.catchUp(ctx, max(s.cfg.Chroot, "/")); err != nil {
		return nil, err
	}
	err = s.readAll(ctx, s.readShards(func(shard string, nodes []string) (more []read) {
		for _, node := range nodes {
			if strings.HasPrefix(node, name+separator) {
				more = append(more, s.readRecord(shard+"/"+node, func(r driver.Record) { found = append(found, r) }))
			}
		}
		return more
	}))
	slices.SortFunc(found, func(a, b driver.Record) int { return cmp.Compare(a.Created, b.Created) })
	return found, err
}

// readShards is a read of the names of all records.
func (s *session) readShards(found func(shard string, nodes []string) []read) read {
	return s.readChildren(s.recordsDir(), func(l *listing) (more []read) {
		for _, shard := range l.children() {
			path := s.path(driver.Records, shard)
			more = append(more, s.readChildren(path, func(l *listing) []read { return found(path, l.children()) }))
		}
		return more
	})
}

// Forget implements driver.Recorder.
func (s *session) Forget(ctx context.Context, name string, keys ...string) error {
	if err := s.catchUp(ctx, max(s.cfg.Chroot, "/")); err != nil {
		return err
	}
	nodes := map[string][]string{} // by shard
	for _, key := range keys {
		shard := s.shardOf(name, key)
		nodes[shard] = append(nodes[shard], name+separator+key)
	}
	if len(keys) == 0 {
		err := s.readAll(ctx, s.readShards(func(shard string, all []string) []read {
			for _, node := range all {
				if strings.HasPrefix(node, name+separator) {
					nodes[shard] = append(nodes[shard], node)
				}
			}
			return nil
		}))
		if err != nil {
			return err
		}
	}
	for shard, all := range nodes {
		err := s.changeRecords(ctx, shard, func(context.Context) (ops []any, err error) {
			for _, node := range all {
				ops = append(ops, &zk.DeleteRequest{Path: shard + "/" + node, Version: -1})
			}
			return ops, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// recordDir is the directory of all records, or a shard.
type recordDir struct {
	path    string
	data    string
	version int32
	changed time.Time
}

func (s *session) readRecordDir(path string, dir **recordDir) read {
	return s.readNode(path, func(q *request) {
		*dir = &recordDir{path: path, data: string(q.data), version: q.stat.Version, changed: time.UnixMilli(q.stat.Mtime)}
	})
}

// errOvertaken means that another caller has begun to remove records since.
var errOvertaken = errors.New("another client removes records")

// write gives the directory new data, and dir its new version.
func (s *session) write(ctx context.Context, dir *recordDir, data string) error {
	q, err := s.askUntilServed(ctx, func() *request { return setRequest(dir.path, []byte(data), dir.version) })
	switch {
	case err == zk.ErrBadVersion, err == zk.ErrNoNode: // or ours, whose answer was lost
		return errOvertaken
	case err != nil:
		return explainError(err, "removing records", "WRITE", dir.path)
	}
	dir.version = q.stat.Version
	return nil
}

// changeRecords makes the changes to records of a shard. changes is called, and returns
// them, when all changes begun before have ended.
func (s *session) changeRecords(ctx context.Context, shard string, changes func(context.Context) ([]any, error)) error {
	for {
		var dir *recordDir
		if err := s.readAll(ctx, s.readRecordDir(shard, &dir)); err != nil || dir == nil {
			return err
		}
		err := s.write(ctx, dir, "")
		var ops []any
		if err == nil {
			ops, err = changes(ctx)
		}
		if err == nil {
			err = s.transact(ctx, dir, ops)
		}
		if err != errOvertaken {
			return err
		}
	}
}

// transact makes changes, several at a time, as long as the directory has the version.
func (s *session) transact(ctx context.Context, dir *recordDir, ops []any) error {
	const atATime = 40 // whose names have at most 512 bytes
	for len(ops) > 0 {
		n := min(len(ops), atATime)
		all := append([]any{&zk.CheckVersionRequest{Path: dir.path, Version: dir.version}}, ops[:n]...)
		q, err := s.askUntilServed(ctx, func() *request { return multiRequest(all...) })
		switch {
		case err == nil:
			ops = ops[n:]
		case (err == zk.ErrBadVersion || err == zk.ErrNoNode) && q.failed == 0:
			return errOvertaken
		case (err == zk.ErrNoNode || err == zk.ErrNotEmpty) && q.failed > 0: // gone, or none of ours
			ops = slices.Delete(slices.Clone(ops), q.failed-1, q.failed)
		default:
			return explainError(err, "removing records", "DELETE", dir.path)
		}
	}
	return nil
}
