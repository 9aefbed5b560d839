package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// The limit of a semaphore is four bytes, the highest first, as in Curator's
// SharedCount. One that was set is in a node of its own, which a SharedCount can
// use, too. One that all who use the semaphore state is in the node that holds
// the leases, and goes with it.

func encodeLimit(limit int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(limit)) }

func decodeLimit(data []byte) (limit int, ok bool) {
	if len(data) != 4 {
		return 0, false
	}
	return int(int32(binary.BigEndian.Uint32(data))), true
}

// isSemaphore reports whether those are the children of a semaphore.
func isSemaphore(children []string) bool {
	return slices.Contains(children, driver.Guards) && slices.Contains(children, driver.Leases)
}

// unmixed returns an error if a semaphore is in use in the directory of a queue.
func (s *Session) unmixed(dir string, children []string) error {
	if !isSemaphore(children) {
		return nil
	}
	for _, part := range []string{driver.Guards, driver.Leases} {
		nodes, err := s.list(dir + "/" + part)
		if err != nil {
			return err
		}
		if len(nodes) > 0 {
			return fmt.Errorf("%w: a semaphore with %d contenders in %s/%s", driver.ErrKind, len(nodes), dir, part)
		}
	}
	return nil
}

type limited struct {
	limit int
	watch *driver.Watch
}

// Limit implements driver.Session.
func (s *Session) Limit(ctx context.Context, name string, fixed int) (int, *driver.Watch, error) {
	l, err := look(ctx, s, func() (limited, error) {
		dir := s.path(name)
		children, err := s.childrenOf(dir)
		if err != nil {
			return limited{}, err
		}
		if n := len(sorted(children)); n > 0 {
			return limited{}, fmt.Errorf("%w: %s", driver.ErrKind, describe(dir, children))
		}
		if slices.Contains(children, driver.Limit) {
			return s.limitThatWasSet(ctx, name, fixed)
		}
		if fixed == 0 {
			return limited{}, fmt.Errorf("%w: none was given, and none is set", driver.ErrLimit)
		}
		return limited{limit: fixed}, s.agree(dir+"/"+driver.Leases, fixed)
	})
	return l.limit, l.watch, err
}

func (s *Session) limitThatWasSet(ctx context.Context, name string, fixed int) (limited, error) {
	watches, err := s.Watch(ctx, name, driver.Node{Name: driver.Limit})
	if err != nil {
		return limited{}, err
	}
	w := watches[0]
	limit, ok := decodeLimit(w.Data)
	switch {
	case w.Fired() != 0: // before it could be read; look again
		return limited{limit: fixed, watch: w}, nil
	case !ok:
		return limited{}, fmt.Errorf("%w: %s does not hold the four bytes of a number", driver.ErrLimit, s.path(name, driver.Limit))
	case fixed != 0 && fixed != limit:
		return limited{}, fmt.Errorf("%w: %d was given, but %d is set", driver.ErrLimit, fixed, limit)
	}
	return limited{limit, w}, nil
}

// agree states the limit, or finds out that those who have leases stated another.
func (s *Session) agree(leases string, limit int) error {
	data := encodeLimit(limit)
	for range maxRemakes {
		stated, stat, err := s.get(leases)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			if err := s.makeNode(leases, data); err != nil {
				return err
			}
			continue
		case err != nil:
			return explain(err, "reading the limit", "READ", leases)
		}
		other, ok := decodeLimit(stated)
		switch {
		case ok && other == limit, !ok && len(stated) > 0: // somebody's own affair
			return nil
		case ok && stat.NumChildren > 0:
			return fmt.Errorf("%w: %d was given, but who uses it says %d", driver.ErrLimit, limit, other)
		}
		err = s.answered(func() error {
			_, err := s.conn.Set(leases, data, stat.Version)
			return err
		})
		if err != nil && !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) {
			return explain(err, "stating the limit", "WRITE", leases)
		}
	}
	return fmt.Errorf("%s changed %d times while stating the limit", leases, maxRemakes)
}

// SetLimit implements driver.Session.
func (s *Session) SetLimit(ctx context.Context, name string, limit int) error {
	_, err := look(ctx, s, func() (struct{}, error) { return struct{}{}, s.setLimit(s.path(name), limit) })
	return err
}

func (s *Session) setLimit(dir string, limit int) error {
	children, err := s.childrenOf(dir)
	if err != nil {
		return err
	}
	if len(sorted(children)) > 0 {
		return fmt.Errorf("%w: %s", driver.ErrKind, describe(dir, children))
	}
	path, data := dir+"/"+driver.Limit, encodeLimit(limit)
	for range maxRemakes {
		err := s.answered(func() error {
			_, err := s.conn.Set(path, data, -1)
			return err
		})
		if !errors.Is(err, zk.ErrNoNode) {
			if err != nil {
				err = explain(err, "setting the limit", "WRITE", path)
			}
			return err
		}
		err = s.answered(func() error {
			_, err := s.conn.Create(path, data, 0, s.cfg.ACL)
			return err
		})
		switch {
		case errors.Is(err, zk.ErrNoNode):
			if err := s.makeQueue(dir); err != nil {
				return err
			}
		case errors.Is(err, zk.ErrNodeExists): // by somebody, or by us when the reply was lost
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			return underPlain(dir)
		case err != nil:
			return explain(err, "creating "+path, "CREATE", dir)
		default:
			return nil
		}
	}
	return fmt.Errorf("%s vanished %d times while setting the limit", path, maxRemakes)
}
