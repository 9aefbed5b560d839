package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/lockpool/lockpool/driver"
)

type joinResult struct {
	node  driver.Node
	queue []driver.Node
}

// Join implements driver.Session.
func (s *Session) Join(ctx context.Context, queue string, kind driver.Kind, permits, limit int, data []byte) (driver.Node, []driver.Node, error) {
	dir, nodes := s.path(queue), s.cfg.Layout.naming().endings(kind, permits, limit)
	leave, err := s.acquireCallSlot(ctx)
	if err != nil {
		return driver.Node{}, nil, err
	}
	j, err := run(ctx, s, func() (joinResult, error) {
		defer leave()
		return s.join(ctx, dir, nodes, data)
	}, func(j joinResult) {
		_ = s.remove(dir, j.node) // fails only when the session is over
	})
	return j.node, j.queue, err
}

// join creates the node and lists the queue. Both requests go out together and
// the server answers in order, so that joining costs one round trip. (The two
// goroutines may overtake each other, and then the list is asked for again:
// speed depends on luck here, correctness does not. So it does not matter whose
// listing it is, either: one that shows the node was made after it.) A queue where we expect to
// be alone is listed only if we turn out not to be.
func (s *Session) join(ctx context.Context, dir string, nodes []string, data []byte) (j joinResult, err error) {
	var made []string
	defer func() {
		if err != nil {
			s.removeContainers(made)
		}
	}()
	for tries := 0; ; tries++ {
		if err := s.pauseBeforeRecreating(ctx, tries); err != nil {
			return joinResult{}, err
		}
		guid := uuid.NewString()
		watched, next, expected := s.expectAlone(dir)
		var l *listing
		listed := make(chan struct{})
		if expected {
			close(listed)
		} else {
			go func() { // ends with its one request
				defer close(listed)
				l = s.listing(dir)
			}()
		}
		node, err := s.create(dir, guid, nodes, data)
		<-listed
		if err != nil && !isRefused(err) { // also after a "system error"
			node, err = s.findCreated(dir, guid, len(nodes))
		}
		switch {
		case err == nil:
			s.warnSequence(dir, node)
			queue, shared := []driver.Node{node}, false
			if !expected || node.Seq != next || watched.Fired() != 0 {
				queue, shared, err = s.queueContaining(ctx, dir, node, l)
			}
			if err != nil {
				_ = s.remove(dir, node) // the listing's error says why
				return joinResult{}, err
			}
			s.noteJoined(dir, node, driver.Place(queue, node) == 0 && !shared, watched) // it may be gone already
			return joinResult{node, queue}, nil
		case errors.Is(err, zk.ErrNoNode):
			err = s.createContainers(ctx, dir, &made)
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			err = plainLockError(dir)
		case errors.Is(err, errNotCreated):
			err = nil
		case !errors.Is(err, driver.ErrSessionLost):
			err = explainError(err, "creating a node", "CREATE", dir)
		}
		if err != nil {
			return joinResult{}, err
		}
	}
}

// create makes the nodes of a contender, all or none.
func (s *Session) create(dir, guid string, nodes []string, data []byte) (driver.Node, error) {
	var requests []any
	for i, ending := range nodes {
		if i > 0 && strings.HasSuffix(ending, permitEnding) {
			data = nil // once is enough
		}
		requests = append(requests, &zk.CreateRequest{
			Path: dir + "/" + namePrefix(guid, ending), Data: data, Flags: zk.FlagEphemeral | zk.FlagSequence, Acl: s.cfg.ACL,
		})
	}
	var paths []string
	if len(requests) == 1 {
		r := requests[0].(*zk.CreateRequest)
		path, err := s.conn.Create(r.Path, r.Data, r.Flags, r.Acl)
		if err != nil {
			return driver.Node{}, err
		}
		paths = []string{path}
	} else {
		replies, err := s.conn.Multi(requests...)
		if err != nil {
			return driver.Node{}, err
		}
		for _, r := range replies {
			paths = append(paths, r.String)
		}
	}
	children := make([]string, len(paths))
	for i, path := range paths {
		children[i] = path[strings.LastIndexByte(path, '/')+1:]
	}
	if node := contendersOf(children); len(node) == 1 {
		return node[0], nil
	}
	for _, path := range paths {
		_ = s.removeOne(path, false)
	}
	return driver.Node{}, fmt.Errorf("the server made %s of sequential creates", strings.Join(paths, " and "))
}

// lateSequence is when the end of a queue's counter is worth a warning: a
// hundred million locks before it comes.
const lateSequence = math.MaxInt32 - 100_000_000

// warnSequence tells the operator once in a session that the queue's counter
// nears its end.
func (s *Session) warnSequence(dir string, node driver.Node) {
	if node.Seq < lateSequence {
		return
	}
	s.mu.Lock()
	warned := s.warned[dir]
	s.warned[dir] = true
	s.mu.Unlock()
	if !warned {
		s.cfg.Logger.Warn("lockpool: the sequence numbers of a lock come to their end at 2147483647; before that, "+
			"remove the lock's node while nobody holds or waits, which starts them anew", "path", dir, "number", node.Seq)
	}
}

// queueWith returns the queue as it stood after node was created: what was
// listed if node is in it, else a new listing. Who makes another kind of lock of
// the name looks after its creation, too, so at least one of two sees the other.
// shared reports that a semaphore may come without using up a number here.
func (s *Session) queueContaining(ctx context.Context, dir string, node driver.Node, l *listing) (queue []driver.Node, shared bool, err error) {
	if l == nil || driver.Place(l.queue, node) < 0 {
		if l, err = s.listed(dir); err != nil {
			return nil, false, err
		}
	}
	if shared = isSemaphore(l.children); shared {
		err = s.checkNoSemaphore(ctx, dir)
	}
	if err == nil {
		err = s.checkForeignContenders(ctx, dir, l.children, l.queue)
	}
	return l.queue, shared, err
}

// noStrangers returns an error if there is a contender of a kind that is not
// understood among the children of dir, beside those of the queue: neither would
// wait for the other. It is told from a lock below that has such a name by being
// ephemeral, and from a plain lock by what it stores.
func (s *Session) checkForeignContenders(ctx context.Context, dir string, children []string, queue []driver.Node) error {
	others := len(children)
	for _, node := range queue {
		if others -= max(node.Permits, 1); node.Alias != "" {
			others--
		}
	}
	if others == 0 {
		return nil
	}
	for _, name := range children {
		path := dir + "/" + name
		if !looksSequential(name) || s.isLasting(path) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		var exists bool
		var stat *zk.Stat
		err := s.retryUntilAnswered(func() (err error) {
			exists, stat, err = s.conn.Exists(path)
			return err
		})
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return explainError(err, "looking at "+path, "READ", path)
		}
		if err != nil || !exists {
			continue
		}
		if !isPlain(stat) {
			s.noteLasting(path)
			continue
		}
		data, _, err := s.get(path)
		if errors.Is(err, driver.ErrSessionLost) {
			return err
		}
		if owner, _ := parsePlainData(data); err != nil && !errors.Is(err, zk.ErrNoNode) || err == nil && owner == "" && string(data) != revokeRequest {
			return fmt.Errorf("%w: %s/%s is ephemeral and has a number, like the contender of a client that lockpool does not know: use another name, or stop that client",
				driver.ErrKind, dir, driver.Node{Name: name})
		}
	}
	return nil
}

// maxLasting bounds what is remembered of persistent children, so that a queue
// with many locks below it that have numbers is looked through once in a session.
const maxLasting = 1 << 14

func (s *Session) isLasting(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lasting[path]
}

func (s *Session) noteLasting(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lasting) >= maxLasting {
		clear(s.lasting)
	}
	s.lasting[path] = true
}

var errNotCreated = errors.New("not created")

// find settles what became of a create whose reply was lost. The sync makes a
// server that lags behind catch up first. It returns when that is known, when
// the session is over and the node with it, or when the queue can not be listed.
// A contender of which not all the nodes are there any more is removed.
func (s *Session) findCreated(dir, guid string, nodes int) (driver.Node, error) {
	for {
		if err := s.pauseBeforeRetry(); err != nil {
			return driver.Node{}, err
		}
		found, err := s.findOnce(dir, guid)
		switch {
		case err == nil && len(found) == 1 && len(nodeNames(found[0])) == nodes:
			return found[0], nil
		case err == nil:
			for _, node := range found { // a part of it
				if err := s.remove(dir, node); err != nil && err != driver.ErrRemoved {
					return driver.Node{}, err
				}
			}
			return driver.Node{}, errNotCreated
		case err == errReplaced:
			s.end(err)
			return driver.Node{}, err
		case !errors.Is(err, zk.ErrNoAuth) && !isTooLong(err):
			continue
		}
		s.reapLater(func() bool {
			found, err := s.findOnce(dir, guid)
			for _, node := range found {
				_ = s.remove(dir, node) // fails only when it goes with the session
			}
			return err == nil
		})
		return driver.Node{}, s.explainListing(err, "looking for a node whose creation was not confirmed", dir)
	}
}

// reapLater sees to a node that can not be found now, and must not be left to
// block others: look removes it, or returns false.
func (s *Session) reapLater(look func() bool) {
	s.markUnremovable()
	if s.begin() {
		go s.reap(look) // ends when look is done, or with the session
	}
}

// reap goes on looking for a node that may have been created, to remove it,
// until look knows.
func (s *Session) reap(look func() bool) {
	defer s.calls.Done()
	for {
		select {
		case <-s.alive.Done():
			return
		case <-time.After(reapPause):
		}
		if look() {
			return
		}
	}
}

// reapPause is long, because the listing may be.
const reapPause = time.Second

// search looks once for what in dir was made with the GUID.
func (s *Session) findOnce(dir, guid string) ([]driver.Node, error) {
	_, err := s.conn.Sync(dir)
	var own []string
	if err == nil {
		l := s.listing(dir)
		err = l.err
		for _, name := range l.children {
			if hasGUID(name, guid) {
				own = append(own, name)
			}
		}
	}
	found := contendersOf(own)
	if errors.Is(err, zk.ErrNoNode) || err == nil && len(found) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	exists, stat, err := s.conn.Exists(dir + "/" + found[0].Name)
	if err == nil && exists && stat.EphemeralOwner != s.ID() {
		return nil, errReplaced // the client has sent it for another session after all
	}
	return found, err
}

// List implements driver.Session.
func (s *Session) List(ctx context.Context, queue string) ([]driver.Node, error) {
	return runInSlot(ctx, s, func() ([]driver.Node, error) { return s.list(ctx, s.path(queue)) })
}

func (s *Session) list(ctx context.Context, dir string) ([]driver.Node, error) {
	l, err := s.listed(dir)
	if err == nil {
		err = s.checkForeignContenders(ctx, dir, l.children, l.queue)
	}
	return l.queue, err
}

func (s *Session) childrenOf(dir string) ([]string, error) {
	l, err := s.listed(dir)
	return l.children, err
}

// listed lists a directory that may not exist. The listing is never nil.
func (s *Session) listed(dir string) (l *listing, err error) {
	err = s.retryUntilAnswered(func() error {
		l = s.listing(dir)
		return l.err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return l, nil
	}
	if err != nil && !errors.Is(err, driver.ErrSessionLost) {
		err = s.explainListing(err, "listing", dir)
	}
	return l, err
}

// explainListing is explain for a listing of dir.
func (s *Session) explainListing(err error, op, dir string) error {
	if isTooLong(err) {
		return fmt.Errorf("the listing of %s is longer than max_packet=%d bytes: too many nodes in it, or raise max_packet", dir, s.cfg.MaxPacket)
	}
	return explainError(err, op, "READ", dir)
}

// Leave implements driver.Session.
func (s *Session) Leave(ctx context.Context, queue string, node driver.Node) error {
	_, err := run(ctx, s, func() (struct{}, error) {
		if node.Kind == driver.Plain {
			return struct{}{}, s.removePlain(s.path(queue), node)
		}
		err := s.remove(s.path(queue), node)
		if err == nil {
			s.noteLeft(s.path(queue), node)
		}
		return struct{}{}, err
	}, nil)
	return err
}

// remove deletes a contender of ours until it is certainly gone. If the server
// refuses, the error says so and it goes with the session. The error is ErrRemoved
// if a part of it was gone before.
func (s *Session) remove(dir string, node driver.Node) error {
	all, ours := nodeNames(node), true
	if len(all) > 1 {
		var requests []any
		for _, name := range all {
			requests = append(requests, &zk.DeleteRequest{Path: dir + "/" + name, Version: -1})
		}
		_, err := s.conn.Multi(requests...)
		if err == nil {
			return nil
		}
		// Perhaps it has happened, or one of them was gone: see to each.
		ours = isRefused(err)
	}
	var removed error
	for _, name := range all {
		err := s.removeOne(dir+"/"+name, ours)
		if err != nil && err != driver.ErrRemoved {
			return err
		}
		removed = cmp.Or(removed, err)
	}
	return removed
}

// removeOne deletes a node. ours says that it has not been tried before: then a
// node that is not there was removed by somebody else, and the error is
// ErrRemoved.
func (s *Session) removeOne(path string, ours bool) error {
	for {
		err := s.conn.Delete(path, -1)
		switch {
		case errors.Is(err, zk.ErrNoNode) && ours:
			return driver.ErrRemoved
		case err == nil, errors.Is(err, zk.ErrNoNode):
			return nil
		case errors.Is(err, zk.ErrNoAuth):
			s.markUnremovable()
			return explainError(err, "deleting "+path, "DELETE", parent(path))
		}
		ours = ours && isAnswer(err)
		// Unsure, or an answer that may be another next time (throttled).
		if err := s.pauseBeforeRetry(); err != nil {
			return err
		}
	}
}

// Share implements driver.Session. Changing the data of the old node before it
// goes is what makes its watchers look again: the deletion alone would grant
// them the lock.
func (s *Session) Downgrade(queue string, node driver.Node, data []byte) (driver.Node, error) {
	if !s.begin() {
		return driver.Node{}, s.Err()
	}
	defer s.calls.Done()
	read := s.cfg.Layout.naming().downgraded(node)
	dir, from, to := s.path(queue), s.path(queue, node.Name), s.path(queue, read.Name)
	for version := int32(0); ; {
		requests := []any{
			&zk.SetDataRequest{Path: from, Data: data, Version: version},
			&zk.CreateRequest{Path: to, Data: data, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral},
			&zk.DeleteRequest{Path: from, Version: -1},
		}
		if read.Alias != node.Alias {
			requests = append(requests,
				&zk.CreateRequest{Path: dir + "/" + read.Alias, Data: data, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral},
				&zk.DeleteRequest{Path: dir + "/" + node.Alias, Version: -1})
		}
		_, err := s.conn.Multi(requests...)
		if errors.Is(err, zk.ErrBadVersion) { // somebody has asked for the lock, see Revoke: keep that
			var stat *zk.Stat
			if data, stat, err = s.conn.Get(from); err == nil {
				version = stat.Version
				continue
			}
		}
		if errors.Is(err, zk.ErrNoNode) { // gone, or it has happened and the reply was lost
			var there bool
			if there, _, err = s.conn.Exists(to); err == nil && !there {
				return driver.Node{}, driver.ErrRemoved
			}
		}
		switch {
		case err == nil:
			return read, nil
		case errors.Is(err, zk.ErrNoAuth):
			return driver.Node{}, fmt.Errorf("%w: sharing %s needs the rights CREATE and DELETE on %s, and WRITE on the node", driver.ErrNoPermission, from, dir)
		case isRefused(err) && !isThrottled(err):
			return driver.Node{}, explainError(err, "sharing "+from, "CREATE", dir)
		}
		if err := s.pauseBeforeRetry(); err != nil {
			return driver.Node{}, err
		}
	}
}

// Ping implements driver.Session.
func (s *Session) Ping(ctx context.Context) error {
	return s.runUntilAnswered(ctx, func() error {
		_, err := send(s.conn, func() (any, error) { return nil, s.prove(true) })
		return err
	})
}

// Stands implements driver.Session, with a transaction that asserts that the
// node exists: only a majority can agree to that, where a server that is cut
// off from them still answers reads.
func (s *Session) Verify(ctx context.Context, queue string, node driver.Node) error {
	paths := s.paths(queue, node)
	var checks []any
	for _, path := range paths {
		checks = append(checks, &zk.CheckVersionRequest{Path: path, Version: -1})
	}
	err := s.runUntilAnswered(ctx, func() error {
		if _, err := s.conn.Multi(checks...); err != nil || node.Kind != driver.Plain {
			return err
		}
		data, stat, err := s.conn.Get(paths[0]) // whose is it?
		if err != nil {
			return err
		}
		if !s.matchesPlain(paths[0], node, data, stat) {
			return zk.ErrNoNode
		}
		return nil
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		s.forgetPlain(paths[0], node)
		return driver.ErrRemoved
	case err != nil && isAnswer(err):
		s.markUncertain(paths[0], node)
		return explainError(err, "checking "+paths[0], "READ", paths[0])
	}
	return err
}

// ask repeats a request that changes nothing until it is answered.
func (s *Session) runUntilAnswered(ctx context.Context, request func() error) error {
	_, err := runInSlot(ctx, s, func() (struct{}, error) { return struct{}{}, s.retryUntilAnswered(request) })
	return err
}

// path returns the path of a queue, or of a node in it.
func (s *Session) path(parts ...string) string {
	return s.cfg.Chroot + "/" + strings.Join(parts, "/")
}

// paths returns those of the nodes that a contender consists of.
func (s *Session) paths(queue string, node driver.Node) (paths []string) {
	if node.Kind == driver.Plain {
		return []string{s.path(queue)}
	}
	for _, name := range nodeNames(node) {
		paths = append(paths, s.path(queue, name))
	}
	return paths
}
