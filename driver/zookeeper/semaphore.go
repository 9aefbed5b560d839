package zookeeper

// This file has the limits of semaphores, and keeps semaphores and queues of one name
// apart.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// The limit set for a semaphore is stored in a separate node: four bytes, big-endian, as in
// Curator's SharedCount, so that Curator can use the node. A limit stated by a lease is in
// the lease's name (limitOf).

func encodeLimit(limit int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(limit)) }

func decodeLimit(data []byte) (limit int, ok bool) {
	if len(data) != 4 {
		return 0, false
	}
	return int(int32(binary.BigEndian.Uint32(data))), true
}

// checkNoSemaphore returns an error if a semaphore is in use in the directory of a queue,
// or has been since node was created there. It lists the guards first: a contender not yet
// seen there has no lease either. Past permits count because their token may be larger than
// node's.
func (s *session) checkNoSemaphore(ctx context.Context, dir string, node driver.Node) error {
	for _, part := range []string{driver.Guards, driver.Leases} {
		nodes, err := s.contenders(ctx, dir+"/"+part)
		if err != nil {
			return err
		}
		if len(nodes) > 0 {
			return fmt.Errorf("%w: a semaphore with %d contenders in %s/%s", driver.ErrKind, len(nodes), dir, part)
		}
	}
	var stats [2]zk.Stat
	for i, path := range []string{dir + "/" + driver.Leases, dir + "/" + node.Name} {
		q, err := s.exists(ctx, path)
		switch {
		case errors.Is(err, zk.ErrNoNode): // no permits, or no node any more
			return nil
		case err != nil:
			return explainError(err, "looking at "+path, "READ", path)
		}
		stats[i] = q.stat
	}
	if leases, own := stats[0], stats[1]; leases.Pzxid > own.Czxid {
		return fmt.Errorf("%w: a semaphore's permits were acquired or released in %s while the lock was requested", driver.ErrKind, dir)
	}
	return nil
}

// listSemaphore lists the directory of a semaphore. It returns an error if a queue
// uses the directory.
func (s *session) listSemaphore(ctx context.Context, dir string) (children []string, err error) {
	l, err := s.list(ctx, dir)
	switch {
	case err != nil:
		return nil, err
	case len(l.contenders()) > 0:
		return nil, fmt.Errorf("%w: %s", driver.ErrKind, describeUse(dir, l.children()))
	}
	return l.children(), s.checkForeignContenders(ctx, dir, l.children(), nil)
}

// Limit implements driver.Limiter.
func (s *session) Limit(ctx context.Context, name string, given int) (int, *driver.Watch, error) {
	children, err := s.listSemaphore(ctx, s.path(name))
	switch {
	case err != nil:
		return 0, nil, err
	case slices.Contains(children, driver.Limit):
		return s.readLimit(ctx, name, given)
	case given == 0:
		return 0, nil, fmt.Errorf("%w: none was given, and none is set: pass one, or set it with SetLimit", driver.ErrLimit)
	}
	return given, nil, nil
}

// readLimit is Limit for a semaphore whose limit is set.
func (s *session) readLimit(ctx context.Context, name string, given int) (int, *driver.Watch, error) {
	watches, err := s.Watch(ctx, name, driver.Node{Name: driver.Limit})
	if err != nil {
		return 0, nil, err
	}
	w := watches[0]
	limit, ok := decodeLimit(w.Data)
	switch {
	case w.Fired() != 0: // before the read; the caller will call Limit again
		return given, w, nil
	case !ok:
		return 0, nil, fmt.Errorf("%w: %s does not hold the four bytes of a number: set it with SetLimit, or remove it", driver.ErrLimit, s.path(name, driver.Limit))
	case given != 0:
		limit = min(limit, given)
	}
	return limit, w, nil
}

// SetLimit implements driver.Limiter.
func (s *session) SetLimit(ctx context.Context, name string, limit int) error {
	_, err := runInSlot(ctx, s, func() (struct{}, error) { return struct{}{}, s.setLimit(ctx, s.path(name), limit) }, nil)
	return err
}

func (s *session) setLimit(ctx context.Context, dir string, limit int) (err error) {
	var made []string
	defer func() {
		if err != nil {
			s.removeContainers(made)
		}
	}()
	if _, err := s.listSemaphore(ctx, dir); err != nil {
		return err
	}
	path, data := dir+"/"+driver.Limit, encodeLimit(limit)
	for tries := 0; ; tries++ {
		if err := s.pauseBeforeRecreating(ctx, tries, nil); err != nil {
			return err
		}
		err := s.insist(context.Background(), func() error { return s.requests.Set(path, data, -1) })
		if err == nil {
			return nil
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return explainError(err, "setting the limit", "WRITE", path)
		}
		err = s.insist(context.Background(), func() error { return s.requests.Create(path, data, 0, s.cfg.ACL) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, zk.ErrNodeExists): // created by another client, or by us when the reply was lost
		case errors.Is(err, zk.ErrNoNode):
			if err := s.createContainers(ctx, dir, &made); err != nil {
				return err
			}
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			return plainLockError(dir)
		default:
			return explainError(err, "creating "+path, "CREATE", dir)
		}
	}
}
