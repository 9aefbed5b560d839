package zookeeper

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// A record is a persistent node at CHROOT/.done/NAME/KEY. It is not in the directory of
// the lock, because go-zookeeper's Lock fails on children that it cannot parse.
//
// The directory of a name is a container like that of a queue, and goes some time after
// its last record. Its data says when old records were removed. Every removal first
// writes that data, and then depends on the version that it has written. So no removal
// that began earlier, perhaps on a session that was cut off meanwhile, can remove a
// record that is created later: its version is outdated.

func (s *Session) recordsOf(name string) string { return s.path(driver.Records, name) }

func (s *Session) recordPath(r driver.Record) string { return s.path(driver.Records, r.Name, r.Key) }

// Finish implements driver.Recorder.
func (s *Session) Finish(ctx context.Context, queue string, node driver.Node, r driver.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.begin() {
		return s.Err()
	}
	defer s.calls.done()
	f := &finish{Session: s, queue: s.path(queue), node: node, record: r}
	err := f.run(ctx)
	if err == nil {
		return nil
	}
	if len(f.made) > 0 && s.begin() {
		go func() { // ends when the servers have answered, or with the session
			defer s.calls.done()
			s.removeContainers(f.made)
		}()
	}
	if f.undecided {
		err = fmt.Errorf("%w: %w", driver.ErrUndecided, err)
	}
	return err
}

// finish is one call of Finish.
type finish struct {
	*Session
	queue  string // its path
	node   driver.Node
	record driver.Record

	undecided bool     // a transaction that was sent may be carried out, or was
	made      []string // directories that were created one by one
}

// run sends the transaction until it is carried out, or cannot be. It ends with ctx and
// with the session.
func (f *finish) run(ctx context.Context) error {
	dir := f.recordsOf(f.record.Name)
	directories := 0 // that the transaction creates: that of the record, and its parents
	for {
		q := f.transaction(directories)
		if !f.send(ctx, q) {
			return f.gaveUp(ctx)
		}
		nodes := len(nodeNames(f.node)) // the first parts of the transaction
		switch err := q.err; {
		case err == nil:
			return nil
		case !isRefused(err) && q.packet != nil: // it was never sent, because the session is over
			return f.gaveUp(ctx)
		case !isRefused(err): // also after a "system error"
			f.undecided = true
			recorded := false
			if err = f.pause(ctx); err == nil {
				recorded, err = f.isRecorded(ctx, f.record)
			}
			if err != nil || recorded {
				return err
			}
			f.undecided = false
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
		case directories > 0: // one by one, so that an error says what was refused
			if f.made, err = f.createDirectories(ctx, dir); err != nil {
				return err
			}
			directories = 0
		default:
			return explainError(err, "recording a run", "CREATE", dir)
		}
		if err := f.pause(ctx); err != nil {
			return err
		}
	}
}

// createDirectories creates dir and its parents, and returns the containers that it may have
// created.
func (f *finish) createDirectories(ctx context.Context, dir string) ([]string, error) {
	return run(ctx, f.Session, func() (made []string, err error) {
		if err = f.createContainers(ctx, dir, &made); err != nil {
			f.removeContainers(made)
			made = nil
		}
		return made, err
	}, nil)
}

// transaction returns the request: the node comes first, because if it is gone nothing
// else matters, then n directories, and the record.
func (f *finish) transaction(n int) *request {
	var ops []any
	for _, name := range nodeNames(f.node) {
		ops = append(ops, &zk.CheckVersionRequest{Path: f.queue + "/" + name, Version: -1})
	}
	ops = append(ops, f.directoryCreates(f.recordsOf(f.record.Name), n)...)
	ops = append(ops, &zk.CreateRequest{Path: f.recordPath(f.record), Data: f.record.Data, Acl: f.cfg.ACL})
	return multiRequest(ops...)
}

// send sends the transaction. It reports false if ctx ends or the session is over before
// it is answered, and records whether it was sent by then.
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

// isRecorded reports whether the record exists, once all transactions of the session that
// were sent before are decided.
func (s *Session) isRecorded(ctx context.Context, r driver.Record) (bool, error) {
	path := s.recordPath(r)
	for {
		q, err := s.ask(ctx, func() *request { return s.requests.send(changeNothing()) }) // as settle does
		if err == nil && (q.err == nil || q.err == zk.ErrNoAuth) {
			q, err = s.ask(ctx, func() *request { return s.requests.send(getRequest(path, false)) })
		}
		switch {
		case err != nil:
			return false, err
		case q.op != opGetData: // no answer yet
		case q.err == nil:
			return bytes.Equal(q.data, r.Data), nil
		case q.err == zk.ErrNoNode:
			return false, nil
		case q.err == zk.ErrNoAuth:
			return false, explainError(q.err, "looking for a record whose creation was not confirmed", "READ", path)
		}
		if err := s.pause(ctx); err != nil {
			return false, err
		}
	}
}

// Settle implements driver.Recorder.
func (s *Session) Settle(ctx context.Context, queue string, node driver.Node, r driver.Record) (bool, error) {
	for _, path := range s.paths(queue, node) {
		q, err := s.askUntilServed(ctx, func() *request { return deleteRequest(path, -1) })
		if err == nil && q.err != nil && q.err != zk.ErrNoNode {
			err = explainError(q.err, "deleting "+path, "DELETE", parent(path))
		}
		if err != nil {
			return false, err
		}
	}
	return s.isRecorded(ctx, r)
}

// askUntilServed is ask for a request that can be repeated, also while the server refuses
// it because it is overloaded.
func (s *Session) askUntilServed(ctx context.Context, newRequest func() *request) (*request, error) {
	for {
		q, err := s.ask(ctx, func() *request { return s.requests.send(newRequest()) })
		if err != nil || q.err != errThrottled {
			return q, err
		}
		if err := s.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// Record implements driver.Recorder.
func (s *Session) Record(ctx context.Context, name, key string) (r driver.Record, found bool, err error) {
	err = s.readAll(ctx, s.readRecord(name, key, func(read driver.Record) { r, found = read, true }))
	return r, found, err
}

func (s *Session) readRecord(name, key string, found func(driver.Record)) read {
	r := driver.Record{Name: name, Key: key}
	return s.readNode(s.recordPath(r), func(q *request) {
		r.Data, r.Created, r.Finished = q.data, q.stat.Czxid, time.UnixMilli(q.stat.Ctime)
		found(r)
	})
}

// Records implements driver.Recorder.
func (s *Session) Records(ctx context.Context, name string) ([]driver.Record, error) {
	if err := s.catchUp(ctx, max(s.cfg.Chroot, "/")); err != nil {
		return nil, err
	}
	return s.listRecords(ctx, name)
}

func (s *Session) listRecords(ctx context.Context, name string) (found []driver.Record, err error) {
	err = s.readAll(ctx, s.readChildren(s.recordsOf(name), func(l *listing) (more []read) {
		for _, key := range l.children() {
			more = append(more, s.readRecord(name, key, func(r driver.Record) { found = append(found, r) }))
		}
		return more
	}))
	slices.SortFunc(found, func(a, b driver.Record) int { return cmp.Compare(a.Created, b.Created) })
	return found, err
}

// Forget implements driver.Recorder.
func (s *Session) Forget(ctx context.Context, name string, keys ...string) error {
	if err := s.catchUp(ctx, max(s.cfg.Chroot, "/")); err != nil {
		return err
	}
	for {
		dir, err := s.readRecordDir(ctx, name)
		if err != nil || dir == nil {
			return err
		}
		left := keys
		err = s.claimRecords(ctx, dir, dir.data)
		if err == nil && len(keys) == 0 {
			var all []driver.Record
			all, err = s.listRecords(ctx, name)
			for _, r := range all {
				left = append(left, r.Key)
			}
		}
		if err == nil {
			err = s.removeRecords(ctx, dir, left)
		}
		if err != errClaimed {
			return err
		}
	}
}

// ForgetOld implements driver.Recorder.
func (s *Session) ForgetOld(ctx context.Context, r driver.Record, keep time.Duration) error {
	var now time.Time
	var dir *recordDir
	err := s.readAll(ctx,
		s.readRecord(r.Name, r.Key, func(read driver.Record) { now = read.Finished }),
		s.readRecordDirInto(r.Name, &dir))
	if err != nil || dir == nil || now.Sub(dir.forgotten) < keep/4 { // also if the record is gone
		return err
	}
	err = s.claimRecords(ctx, dir, []byte(now.UTC().Format(time.RFC3339)))
	if err == errClaimed { // by one who sees to it
		return nil
	}
	if err != nil {
		return err
	}
	all, err := s.listRecords(ctx, r.Name)
	var old []string
	for _, r := range all {
		if now.Sub(r.Finished) > keep {
			old = append(old, r.Key)
		}
	}
	if err == nil {
		err = s.removeRecords(ctx, dir, old)
	}
	if err == errClaimed {
		return nil
	}
	return err
}

// recordDir is the directory of the records of a name.
type recordDir struct {
	path      string
	data      []byte
	version   int32
	forgotten time.Time // when old records were last removed
}

func (s *Session) readRecordDir(ctx context.Context, name string) (dir *recordDir, err error) {
	err = s.readAll(ctx, s.readRecordDirInto(name, &dir))
	return dir, err
}

func (s *Session) readRecordDirInto(name string, dir **recordDir) read {
	path := s.recordsOf(name)
	return s.readNode(path, func(q *request) {
		d := &recordDir{path: path, data: q.data, version: q.stat.Version}
		var err error
		if d.forgotten, err = time.Parse(time.RFC3339, string(q.data)); err != nil { // there was nothing to remove yet
			d.forgotten = time.UnixMilli(q.stat.Ctime)
		}
		*dir = d
	})
}

// errClaimed means that another caller has begun to remove records since.
var errClaimed = errors.New("another client removes records")

// claimRecords gives the directory new data, and dir its new version, so that every
// earlier removal of records ends.
func (s *Session) claimRecords(ctx context.Context, dir *recordDir, data []byte) error {
	q, err := s.askUntilServed(ctx, func() *request { return setRequest(dir.path, data, dir.version) })
	switch {
	case err != nil:
		return err
	case q.err == zk.ErrBadVersion, q.err == zk.ErrNoNode: // or ours, whose answer was lost
		return errClaimed
	case q.err != nil:
		return explainError(q.err, "removing records", "WRITE", dir.path)
	}
	dir.version = q.stat.Version
	return nil
}

// removeRecords removes records, several at a time, as long as nobody else has claimed
// that.
func (s *Session) removeRecords(ctx context.Context, dir *recordDir, keys []string) error {
	const atATime, most = 100, maxSend / 2
	for len(keys) > 0 {
		ops, size := []any{&zk.CheckVersionRequest{Path: dir.path, Version: dir.version}}, 0
		for _, key := range keys[:min(len(keys), atATime)] {
			path := dir.path + "/" + key
			if size += len(path) + 32; size > most && len(ops) > 1 {
				break
			}
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: -1})
		}
		q, err := s.askUntilServed(ctx, func() *request { return multiRequest(ops...) })
		switch {
		case err != nil:
			return err
		case q.err == nil:
			keys = keys[len(ops)-1:]
		case q.failed == 0 && (q.err == zk.ErrBadVersion || q.err == zk.ErrNoNode):
			return errClaimed
		case q.failed > 0 && (q.err == zk.ErrNoNode || q.err == zk.ErrNotEmpty): // gone, or none of ours
			keys = slices.Delete(slices.Clone(keys), q.failed-1, q.failed)
		default:
			return explainError(q.err, "removing records", "DELETE", dir.path)
		}
	}
	return nil
}
