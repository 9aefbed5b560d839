package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// answered repeats a request until the server has answered it, or the session is
// over.
func (s *Session) retryUntilAnswered(request func() error) error {
	for {
		err := request()
		if !isUnsure(err) {
			return err
		}
		if err := s.pauseBeforeRetry(); err != nil {
			return err
		}
	}
}

// look runs something that asks several times, for as long as somebody waits.
func runInSlot[T any](ctx context.Context, s *Session, do func() (T, error)) (T, error) {
	leave, err := s.acquireCallSlot(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return run(ctx, s, func() (T, error) {
		defer leave()
		return do()
	}, nil)
}

type inspectResult struct {
	contenders []driver.Contender
	others     []string
}

// Data implements driver.Session.
func (s *Session) Data(ctx context.Context, queue string, node driver.Node) ([]byte, error) {
	return runInSlot(ctx, s, func() ([]byte, error) {
		path := s.paths(queue, node)[0]
		data, _, err := s.get(path)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return nil, driver.ErrRemoved
		case err != nil:
			return nil, explainError(err, "reading "+path, "READ", path)
		}
		_, data = parsePlainData(data)
		return data, nil
	})
}

// Inspect implements driver.Session.
func (s *Session) Inspect(ctx context.Context, queue string) ([]driver.Contender, []string, error) {
	found, err := runInSlot(ctx, s, func() (found inspectResult, err error) {
		dir := s.path(queue)
		if err := s.catchUp(dir); err != nil {
			return found, err
		}
		children, err := s.childrenOf(dir)
		if err == nil && len(children) == 0 {
			found.contenders, err = s.inspectPlain(dir)
		}
		for _, name := range children {
			if _, ok := parseNode(name); !ok {
				found.others = append(found.others, name)
			}
		}
		slices.Sort(found.others)
		for _, node := range contendersOf(children) {
			var data []byte
			var stat *zk.Stat
			path := dir + "/" + node.Name
			err := ctx.Err()
			if err == nil {
				data, stat, err = s.get(path)
			}
			switch {
			case err == nil:
				found.contenders = append(found.contenders, contender(node, data, stat))
			case !errors.Is(err, zk.ErrNoNode):
				return found, explainError(err, "reading "+path, "READ", path)
			}
		}
		return found, err
	})
	return found.contenders, found.others, err
}

// catchUp makes a server that lags behind know all that happened before.
func (s *Session) catchUp(path string) error {
	err := s.retryUntilAnswered(func() error {
		_, err := s.conn.Sync(path)
		return err
	})
	if err != nil && !errors.Is(err, driver.ErrSessionLost) {
		return explainError(err, "catching up", "READ", path)
	}
	return err
}

// inspectPlain returns the holder of a lock without a queue, if there is one.
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
	return []driver.Contender{contender(node, data, stat)}, nil
}

func contender(node driver.Node, data []byte, stat *zk.Stat) driver.Contender {
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
			name, dir := left[0], s.path(left[0])
			if name == "" {
				dir = max(s.cfg.Chroot, "/")
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			children, err := s.childrenOf(dir)
			if err == nil && len(children) == 0 && name != "" {
				var holder []driver.Contender
				if holder, err = s.inspectPlain(dir); len(holder) > 0 {
					names = append(names, name)
				}
			}
			if err != nil {
				return nil, err
			}
			contended := false
			for _, child := range children {
				path := child
				if name != "" {
					path = name + "/" + child
				}
				if _, ok := parseNode(child); ok {
					contended = true
				} else if path != "zookeeper" || s.cfg.Chroot != "" {
					left = append(left, path)
				}
			}
			if contended && name != "" {
				lock := name
				if of, part, ok := cutLast(name); ok && (part == driver.Guards || part == driver.Leases) {
					lock = of // a semaphore
				}
				names = append(names, lock)
			}
		}
		slices.Sort(names)
		return slices.Compact(names), nil
	})
}

// Break implements driver.Session.
func (s *Session) Break(ctx context.Context, queue string, node driver.Node) error {
	_, err := runInSlot(ctx, s, func() (struct{}, error) {
		for i, path := range s.paths(queue, node) {
			sent := false // a delete that may have been carried out
			err := s.retryUntilAnswered(func() error {
				if node.Kind == driver.Plain { // each time: the name may be that of the next one
					claims := claimsOn(path)
					claims.delete()
					defer claims.deleted()
					if _, err := s.plainVersion(path, node); err != nil {
						return err
					}
				}
				err := s.conn.Delete(path, -1)
				sent = sent || isUnsure(err)
				return err
			})
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

// identify returns the version of the node of a lock without a queue, if it is
// that one. The error is ErrNoNode if it is not.
func (s *Session) plainVersion(path string, node driver.Node) (version int32, err error) {
	data, stat, err := s.conn.Get(path)
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
	_, err := runInSlot(ctx, s, func() (struct{}, error) {
		path := s.paths(queue, node)[0]
		err := s.retryUntilAnswered(func() error {
			version, err := int32(-1), error(nil)
			if node.Kind == driver.Plain { // the name may be that of the next one
				version, err = s.plainVersion(path, node)
			}
			if err == nil {
				_, err = s.conn.Set(path, []byte(revokeRequest), version)
			}
			return err
		})
		switch {
		case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion):
			err = driver.ErrRemoved
		case err != nil && !errors.Is(err, driver.ErrSessionLost):
			err = explainError(err, "asking for the lock at "+path, "WRITE", path)
		}
		return struct{}{}, err
	})
	return err
}

// revokeRequest is Curator's (org.apache.curator.framework.recipes.locks.LockInternals).
const revokeRequest = "__REVOKE__"

// sessionID is how ZooKeeper's own tools write one.
func sessionID(id int64) string { return fmt.Sprintf("%#x", uint64(id)) }
