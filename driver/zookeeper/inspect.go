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
func (s *Session) answered(request func() error) error {
	for {
		err := request()
		if !unsure(err) {
			return err
		}
		if err := s.again(); err != nil {
			return err
		}
	}
}

// children lists a node that may not exist.
func (s *Session) children(path string) (children []string, err error) {
	err = s.answered(func() (err error) {
		children, _, err = s.conn.Children(path)
		return err
	})
	if err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, driver.ErrSessionLost) {
		return nil, explain(err, "listing", "READ", path)
	}
	return children, nil
}

// look runs something that asks several times, for as long as somebody waits.
func look[T any](ctx context.Context, s *Session, do func() (T, error)) (T, error) {
	leave, err := s.room(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return run(ctx, s, func() (T, error) {
		defer leave()
		return do()
	}, nil)
}

type inspected struct {
	contenders []driver.Contender
	others     []string
}

// Inspect implements driver.Session.
func (s *Session) Inspect(ctx context.Context, queue string) ([]driver.Contender, []string, error) {
	found, err := look(ctx, s, func() (found inspected, err error) {
		dir := s.path(queue)
		children, err := s.children(dir)
		for _, name := range children {
			if _, ok := parseNode(name); !ok {
				found.others = append(found.others, name)
			}
		}
		slices.Sort(found.others)
		for _, node := range sorted(children) {
			var data []byte
			var stat *zk.Stat
			path := dir + "/" + node.Name
			err := ctx.Err()
			if err == nil {
				err = s.answered(func() (err error) {
					data, stat, err = s.conn.Get(path)
					return err
				})
			}
			switch {
			case err == nil:
				found.contenders = append(found.contenders, driver.Contender{
					Node: node, Session: sessionID(stat.EphemeralOwner), Created: stat.Czxid,
					Since: time.UnixMilli(stat.Ctime), Data: data,
				})
			case !errors.Is(err, zk.ErrNoNode):
				return found, explain(err, "reading "+path, "READ", path)
			}
		}
		return found, err
	})
	return found.contenders, found.others, err
}

// Queues implements driver.Session.
func (s *Session) Queues(ctx context.Context, prefix string) ([]string, error) {
	return look(ctx, s, func() (names []string, err error) {
		for left := []string{prefix}; len(left) > 0; left = left[1:] {
			name, dir := left[0], s.path(left[0])
			if name == "" {
				dir = max(s.cfg.Chroot, "/")
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			children, err := s.children(dir)
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
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, nil
	})
}

// Break implements driver.Session.
func (s *Session) Break(ctx context.Context, queue, name string) error {
	path := s.path(queue, name)
	_, err := look(ctx, s, func() (struct{}, error) {
		tries := 0
		err := s.answered(func() error {
			tries++
			return s.conn.Delete(path, -1)
		})
		switch {
		case errors.Is(err, zk.ErrNoNode) && tries == 1:
			return struct{}{}, driver.ErrRemoved
		case err != nil && !errors.Is(err, zk.ErrNoNode):
			return struct{}{}, explain(err, "deleting "+path, "DELETE", parent(path))
		}
		s.cfg.Logger.Warn("lockpool: a contender was removed by request", "path", path, "session", s.Info().ID)
		return struct{}{}, nil
	})
	return err
}

// sessionID is how ZooKeeper's own tools write one.
func sessionID(id int64) string { return fmt.Sprintf("%#x", uint64(id)) }
