package zookeeper

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// Data implements driver.Session.
func (s *Session) Data(ctx context.Context, queue string, node driver.Node) ([]byte, error) {
	path := s.paths(queue, node)[0]
	q, err := s.ask(ctx, func() *request { return s.requests.send(getRequest(path, false)) })
	switch {
	case err != nil:
		return nil, err
	case errors.Is(q.err, zk.ErrNoNode):
		return nil, driver.ErrRemoved
	case q.err != nil:
		return nil, explainError(q.err, "reading "+path, "READ", path)
	}
	_, data := parsePlainData(q.data)
	return data, nil
}

type inspectResult struct {
	contenders []driver.Contender
	others     []string
}

// Inspect implements driver.Session.
func (s *Session) Inspect(ctx context.Context, queue string) ([]driver.Contender, []string, error) {
	found, err := runInSlot(ctx, s, func() (inspectResult, error) { return s.inspect(ctx, s.path(queue)) })
	return found.contenders, found.others, err
}

func (s *Session) inspect(ctx context.Context, dir string) (found inspectResult, err error) {
	if err := s.catchUp(dir); err != nil {
		return found, err
	}
	l, err := s.list(dir)
	if err != nil {
		return found, err
	}
	if len(l.children()) == 0 {
		found.contenders, err = s.inspectPlain(dir)
		return found, err
	}
	for _, name := range l.children() {
		if !isContender(name) {
			found.others = append(found.others, name)
		}
	}
	slices.Sort(found.others)
	for _, node := range l.contenders() {
		if err := ctx.Err(); err != nil {
			return found, err
		}
		path := dir + "/" + node.Name
		data, stat, err := s.get(path)
		switch {
		case err == nil:
			found.contenders = append(found.contenders, newContender(node, data, stat))
		case !errors.Is(err, zk.ErrNoNode):
			return found, explainError(err, "reading "+path, "READ", path)
		}
	}
	return found, nil
}

// catchUp makes a server that lags behind catch up with what has happened so far.
func (s *Session) catchUp(path string) error {
	err := s.sync(path)
	if err != nil && !errors.Is(err, driver.ErrSessionLost) {
		return explainError(err, "catching up", "READ", path)
	}
	return err
}

// inspectPlain returns the holder of a plain lock, if there is one.
func (s *Session) inspectPlain(path string) ([]driver.Contender, error) {
	data, stat, err := s.get(path)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil, nil
	case err != nil:
		return nil, explainError(err, "reading "+path, "READ", path)
	case !isPlain(stat):
		return nil, nil
	}
	node, data := parsePlainNode(data, stat)
	return []driver.Contender{newContender(node, data, stat)}, nil
}

func newContender(node driver.Node, data []byte, stat *zk.Stat) driver.Contender {
	return driver.Contender{
		Node: node, Session: sessionID(stat.EphemeralOwner), Created: stat.Czxid,
		Joined: time.UnixMilli(stat.Ctime), Data: data,
	}
}

// Queues implements driver.Session.
func (s *Session) Queues(ctx context.Context, prefix string) ([]string, error) {
	return runInSlot(ctx, s, func() (names []string, err error) {
		if err := s.catchUp(max(s.cfg.Chroot, "/")); err != nil {
			return nil, err
		}
		for left := []string{prefix}; len(left) > 0; left = left[1:] {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			inUse, below, err := s.examine(left[0])
			if err != nil {
				return nil, err
			}
			if inUse {
				names = append(names, lockOf(left[0]))
			}
			left = append(left, below...)
		}
		slices.Sort(names)
		return slices.Compact(names), nil
	})
}

// examine reports whether a lock's directory has a contender, or the plain lock a
// holder, and returns the names below it. The empty name is the root.
func (s *Session) examine(name string) (inUse bool, below []string, err error) {
	dir, begin := s.path(name), name+"/"
	if name == "" {
		dir, begin = max(s.cfg.Chroot, "/"), ""
	}
	l, err := s.list(dir)
	if err != nil {
		return false, nil, err
	}
	if len(l.children()) == 0 && name != "" {
		holder, err := s.inspectPlain(dir)
		return len(holder) > 0, nil, err
	}
	for _, child := range l.children() {
		switch path := begin + child; {
		case isContender(child):
			inUse = name != ""
		case path != "zookeeper" || s.cfg.Chroot != "": // which is the server's own
			below = append(below, path)
		}
	}
	return inUse, below, nil
}

// lockOf returns the name of the lock whose contenders are in the queue.
func lockOf(queue string) string {
	if of, part, ok := cutLast(queue); ok && (part == driver.Guards || part == driver.Leases) {
		return of // a semaphore
	}
	return queue
}

// Break implements driver.Session.
func (s *Session) Break(ctx context.Context, queue string, node driver.Node) error {
	_, err := runInSlot(ctx, s, func() (struct{}, error) {
		for i, path := range s.paths(queue, node) {
			sent, err := s.breakOne(path, node)
			switch {
			case errors.Is(err, zk.ErrNoNode) && !sent && i == 0:
				return struct{}{}, driver.ErrRemoved
			case err != nil && !errors.Is(err, zk.ErrNoNode):
				return struct{}{}, explainError(err, "deleting "+path, "DELETE", parent(path))
			}
			s.cfg.Logger.Warn("lockpool: a contender was removed by request", "path", path, "session", s.Info().ID)
		}
		return struct{}{}, nil
	})
	return err
}

// breakOne deletes one of the nodes that node consists of. sent reports whether a
// delete without an answer may have been carried out before.
func (s *Session) breakOne(path string, node driver.Node) (sent bool, err error) {
	err = s.retryUntilAnswered(func() error {
		if node.Kind == driver.Plain { // checked at each attempt: the name may be the next holder's by now
			claims := s.claims.on(path)
			claims.delete()
			defer claims.deleted()
			if _, err := s.plainVersion(path, node); err != nil {
				return err
			}
		}
		err := s.requests.Delete(path, -1)
		sent = sent || isUnsure(err)
		return err
	})
	return sent, err
}

// plainVersion returns the version of a plain lock's node. The error is ErrNoNode if
// the node at path is a different one.
func (s *Session) plainVersion(path string, node driver.Node) (version int32, err error) {
	data, stat, err := s.requests.Get(path)
	if err != nil {
		return 0, err
	}
	if found, _ := parsePlainNode(data, stat); found != node {
		return 0, zk.ErrNoNode
	}
	return stat.Version, nil
}

// Revoke implements driver.Session.
func (s *Session) Revoke(ctx context.Context, queue string, node driver.Node) error {
	path := s.paths(queue, node)[0]
	err := s.runUntilAnswered(ctx, func() error {
		version, err := int32(-1), error(nil)
		if node.Kind == driver.Plain { // the name may be the next holder's by now
			version, err = s.plainVersion(path, node)
		}
		if err == nil {
			err = s.requests.Set(path, []byte(revokeRequest), version)
		}
		return err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion):
		return driver.ErrRemoved
	case err != nil && isAnswer(err):
		return explainError(err, "asking for the lock at "+path, "WRITE", path)
	}
	return err
}

// revokeRequest is Curator's (org.apache.curator.framework.recipes.locks.LockInternals).
const revokeRequest = "__REVOKE__"
