package zookeeper

import (
	"bytes"
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

// unmixed returns an error if a semaphore is in use in the directory of a queue.
// The guards come first: who is not seen there yet has no lease either.
func (s *Session) unmixed(dir string) error {
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

// noQueue lists the directory of a semaphore. It returns an error if it is that
// of a queue in use.
func (s *Session) noQueue(dir string) (children []string, err error) {
	children, err = s.childrenOf(dir)
	if err == nil && len(sorted(slices.Clone(children))) > 0 {
		err = fmt.Errorf("%w: %s", driver.ErrKind, describe(dir, children))
	}
	return children, err
}

type limited struct {
	limit int
	watch *driver.Watch
}

// Limit implements driver.Session.
func (s *Session) Limit(ctx context.Context, name string, fixed int) (int, *driver.Watch, error) {
	l, err := look(ctx, s, func() (limited, error) {
		dir := s.path(name)
		children, err := s.noQueue(dir)
		l, leases := limited{limit: fixed}, dir+"/"+driver.Leases
		switch {
		case err != nil:
			return l, err
		case slices.Contains(children, driver.Limit):
			if l, err = s.limitThatWasSet(ctx, name, fixed); err != nil {
				return l, err
			}
			return l, s.agree(leases, nil)
		case fixed == 0:
			return l, fmt.Errorf("%w: none was given, and none is set", driver.ErrLimit)
		}
		return l, s.agree(leases, encodeLimit(fixed))
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

// agree makes the node of the leases say the limit, or nothing if one is set. It
// is an error if those who have leases said another.
func (s *Session) agree(leases string, said []byte) error {
	for range maxRemakes {
		data, stat, err := s.get(leases)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			if err := s.makeNode(leases, said); err != nil {
				return err
			}
			continue
		case err != nil:
			return explain(err, "reading the limit", "READ", leases)
		case bytes.Equal(data, said):
			return nil
		}
		switch other, ok := decodeLimit(data); {
		case ok && stat.NumChildren > 0:
			return saidOther(other)
		case !ok && len(data) > 0: // somebody's own affair
			return nil
		}
		err = s.answered(func() error {
			_, err := s.conn.Set(leases, said, stat.Version)
			return err
		})
		if err != nil && !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) {
			return explain(err, "stating the limit", "WRITE", leases)
		}
	}
	return fmt.Errorf("%s changed %d times while stating the limit", leases, maxRemakes)
}

func saidOther(limit int) error {
	return fmt.Errorf("%w: those who have permits now say %d", driver.ErrLimit, limit)
}

// SetLimit implements driver.Session.
func (s *Session) SetLimit(ctx context.Context, name string, limit int) error {
	_, err := look(ctx, s, func() (struct{}, error) { return struct{}{}, s.setLimit(s.path(name), limit) })
	return err
}

func (s *Session) setLimit(dir string, limit int) error {
	if _, err := s.noQueue(dir); err != nil {
		return err
	}
	leases := dir + "/" + driver.Leases
	said, stat, err := s.get(leases)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return explain(err, "reading the limit", "READ", leases)
	}
	if other, ok := decodeLimit(said); ok && other != limit && stat.NumChildren > 0 {
		return saidOther(other)
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
