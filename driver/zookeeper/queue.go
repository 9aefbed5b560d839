package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/lockpool/lockpool/driver"
)

// maxRemakes bounds how often a queue that vanishes again is made again: a
// container that ZooKeeper removes between two of our requests, or a person
// who deletes it.
const maxRemakes = 10

type joined struct {
	node  driver.Node
	queue []driver.Node
}

// Join implements driver.Session.
func (s *Session) Join(ctx context.Context, queue string, kind driver.Kind, data []byte) (driver.Node, []driver.Node, error) {
	leave, err := s.room(ctx)
	if err != nil {
		return driver.Node{}, nil, err
	}
	j, err := run(ctx, s, func() (joined, error) {
		defer leave()
		return s.join(ctx, s.path(queue), kind, data)
	}, func(j joined) {
		_ = s.remove(s.path(queue, j.node.Name)) // fails only when the session is over
	})
	return j.node, j.queue, err
}

// join creates the node and lists the queue. Both requests go out together and
// the server answers in order, so that joining costs one round trip. (The two
// goroutines may overtake each other, and then the list is asked for again:
// speed depends on luck here, correctness does not.) A queue where we expect to
// be alone is listed only if we turn out not to be.
func (s *Session) join(ctx context.Context, dir string, kind driver.Kind, data []byte) (joined, error) {
	guid := uuid.NewString()
	for range maxRemakes {
		watched, next, expected := s.expectSolo(dir)
		var children []string
		listed := make(chan struct{})
		if expected {
			close(listed)
		} else {
			go func() { // ends with its one request
				defer close(listed)
				children, _, _ = s.conn.Children(dir)
			}()
		}
		path, err := s.conn.Create(dir+"/"+prefix(guid, kind), data, zk.FlagEphemeral|zk.FlagSequence, s.cfg.ACL)
		<-listed
		if err != nil && !refused(err) { // also after a "system error"
			path, err = s.find(dir, guid)
		}
		switch {
		case err == nil:
			node, ok := parseNode(path[strings.LastIndexByte(path, '/')+1:])
			if !ok {
				_ = s.remove(path)
				return joined{}, fmt.Errorf("the server made %s of a sequential create", path)
			}
			s.warnSequence(dir, node)
			queue := []driver.Node{node}
			if !expected || node.Seq != next || watched.Fired() != 0 {
				queue, err = s.queueWith(dir, node, children)
			}
			if err != nil {
				_ = s.remove(path) // the listing's error says why
				return joined{}, err
			}
			s.noteSolo(dir, node, slices.Index(queue, node) == 0, watched) // it may be gone already
			return joined{node, queue}, nil
		case errors.Is(err, zk.ErrNoNode):
			err = s.makeQueue(dir)
		case errors.Is(err, errNotCreated):
			err = nil
		case !errors.Is(err, driver.ErrSessionLost):
			err = explain(err, "creating a node", "CREATE", dir)
		}
		if err != nil {
			return joined{}, err
		}
		if ctx.Err() != nil {
			return joined{}, ctx.Err()
		}
	}
	return joined{}, fmt.Errorf("no node in %s after %d tries: each time it vanished or the connection broke", dir, maxRemakes)
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
// listed if node is in it, else a new listing.
func (s *Session) queueWith(dir string, node driver.Node, children []string) ([]driver.Node, error) {
	if queue := sorted(children); slices.Contains(queue, node) {
		return queue, nil
	}
	return s.list(dir)
}

var errNotCreated = errors.New("not created")

// find settles what became of a create whose reply was lost. The sync makes a
// server that lags behind catch up first. It returns when that is known, when
// the session is over and the node with it, or when the queue can not be listed.
func (s *Session) find(dir, guid string) (path string, err error) {
	_ = s.wasTooLong(dir) // that of an earlier listing
	for {
		if err := s.again(); err != nil {
			return "", err
		}
		path, err := s.search(dir, guid)
		switch {
		case err == nil && path == "", errors.Is(err, zk.ErrNoNode):
			return "", errNotCreated
		case err == nil:
			return path, nil
		case err == errReplaced:
			s.end(err)
			return "", err
		case !errors.Is(err, zk.ErrNoAuth):
			if err = s.wasTooLong(dir); err == nil {
				continue
			}
		}
		// A node that can not be found now must not be left to block the queue.
		s.getsStuck()
		if s.begin() {
			go s.reap(dir, guid) // ends with the node, or the session
		}
		return "", explain(err, "looking for a node whose creation was not confirmed", "READ", dir)
	}
}

// reap goes on looking for a node that may have been created, and removes it.
func (s *Session) reap(dir, guid string) {
	defer s.calls.Done()
	for {
		select {
		case <-s.living.Done():
			return
		case <-time.After(reapPause):
		}
		path, err := s.search(dir, guid)
		if err == nil || errors.Is(err, zk.ErrNoNode) {
			if path != "" {
				_ = s.remove(path) // fails only when it goes with the session
			}
			return
		}
	}
}

// reapPause is long, because the listing may break the connection each time.
const reapPause = time.Second

// search looks once for the node in dir whose name has the GUID. The path is
// empty if there is none.
func (s *Session) search(dir, guid string) (path string, err error) {
	if _, err := s.conn.Sync(dir); err != nil {
		return "", err
	}
	children, _, err := s.conn.Children(dir)
	i := slices.IndexFunc(children, func(name string) bool { return strings.HasPrefix(name, protected+guid+"-") })
	if err != nil || i < 0 {
		return "", err
	}
	path = dir + "/" + children[i]
	exists, stat, err := s.conn.Exists(path)
	switch {
	case err != nil || !exists:
		return "", err
	case stat.EphemeralOwner != s.ID():
		return "", errReplaced // the client has sent it for another session after all
	}
	return path, nil
}

// makeQueue creates dir, and its parents where they are missing, as containers,
// which the server removes when they have been left empty.
func (s *Session) makeQueue(dir string) error {
	for range maxRemakes {
		err := s.createParent(dir)
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case errors.Is(err, zk.ErrNoNode) && parent(dir) != "/":
			err = s.makeQueue(dir[:strings.LastIndexByte(dir, '/')])
		case unimplemented(err):
			s.mu.Lock()
			s.noContainers = true // ZooKeeper before 3.5.1
			s.mu.Unlock()
			err = nil
		case unsure(err):
			err = s.again()
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			err = fmt.Errorf("%s can not be made: its parent is an ephemeral node of somebody", dir)
		default:
			err = explain(err, "creating "+dir, "CREATE", parent(dir))
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("the parents of %s vanished %d times while making it", dir, maxRemakes)
}

func parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

func (s *Session) createParent(path string) (err error) {
	s.mu.Lock()
	plain := s.noContainers
	s.mu.Unlock()
	if plain {
		_, err = s.conn.Create(path, nil, 0, s.cfg.ACL)
	} else {
		_, err = s.conn.CreateContainer(path, nil, zk.FlagContainer, s.cfg.ACL)
	}
	return err
}

// List implements driver.Session.
func (s *Session) List(ctx context.Context, queue string) ([]driver.Node, error) {
	leave, err := s.room(ctx)
	if err != nil {
		return nil, err
	}
	return run(ctx, s, func() ([]driver.Node, error) {
		defer leave()
		return s.list(s.path(queue))
	}, nil)
}

func (s *Session) list(dir string) ([]driver.Node, error) {
	_ = s.wasTooLong(dir) // that of an earlier listing
	for {
		children, _, err := s.conn.Children(dir)
		switch {
		case err == nil, errors.Is(err, zk.ErrNoNode):
			return sorted(children), nil
		case !unsure(err):
			return nil, explain(err, "listing", "READ", dir)
		}
		if err := s.wasTooLong(dir); err != nil {
			return nil, err
		}
		if err := s.again(); err != nil {
			return nil, err
		}
	}
}

// wasTooLong returns an error if the connection broke because the listing of
// dir was longer than the client accepts. It would be so again.
func (s *Session) wasTooLong(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	length, ok := s.tooLong[dir]
	if !ok {
		return nil
	}
	delete(s.tooLong, dir)
	return fmt.Errorf("the listing of %s has %d bytes, more than max_packet=%d: too many nodes in it, or raise max_packet",
		dir, length, s.cfg.MaxPacket)
}

// Leave implements driver.Session.
func (s *Session) Leave(ctx context.Context, queue string, node driver.Node) error {
	_, err := run(ctx, s, func() (struct{}, error) {
		err := s.remove(s.path(queue, node.Name))
		if err == nil {
			s.noteLeft(s.path(queue), node)
		}
		return struct{}{}, err
	}, nil)
	return err
}

// remove deletes a node of ours until it is certainly gone. If the server
// refuses, the error says so and the node goes with the session.
func (s *Session) remove(path string) error {
	for {
		err := s.conn.Delete(path, -1)
		switch {
		case err == nil, errors.Is(err, zk.ErrNoNode):
			return nil
		case errors.Is(err, zk.ErrNoAuth):
			s.getsStuck()
			return explain(err, "deleting "+path, "DELETE", parent(path))
		}
		// Unsure, or an answer that may be another next time (throttled).
		if err := s.again(); err != nil {
			return err
		}
	}
}

// Share implements driver.Session. Changing the data of the old node before it
// goes is what makes its watchers look again: the deletion alone would grant
// them the lock.
func (s *Session) Share(queue string, node driver.Node, data []byte) (driver.Node, error) {
	if !s.begin() {
		return driver.Node{}, s.Err()
	}
	defer s.calls.Done()
	read := shared(node)
	dir, from, to := s.path(queue), s.path(queue, node.Name), s.path(queue, read.Name)
	for {
		_, err := s.conn.Multi(
			&zk.SetDataRequest{Path: from, Data: data, Version: -1},
			&zk.CreateRequest{Path: to, Data: data, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral},
			&zk.DeleteRequest{Path: from, Version: -1},
		)
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
		case refused(err) && !throttled(err):
			return driver.Node{}, explain(err, "sharing "+from, "CREATE", dir)
		}
		if err := s.again(); err != nil {
			return driver.Node{}, err
		}
	}
}

// Ping implements driver.Session.
func (s *Session) Ping(ctx context.Context) error {
	return s.ask(ctx, func() error { return s.prove(true) })
}

// Stands implements driver.Session, with a transaction that asserts that the
// node exists: only a majority can agree to that, where a server that is cut
// off from them still answers reads.
func (s *Session) Stands(ctx context.Context, queue string, node driver.Node) error {
	path := s.path(queue, node.Name)
	err := s.ask(ctx, func() error {
		_, err := s.conn.Multi(&zk.CheckVersionRequest{Path: path, Version: -1})
		return err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return driver.ErrRemoved
	case err != nil && isAnswer(err):
		return explain(err, "checking "+path, "READ", path)
	}
	return err
}

// ask repeats a request that changes nothing until it is answered.
func (s *Session) ask(ctx context.Context, request func() error) error {
	_, err := look(ctx, s, func() (struct{}, error) { return struct{}{}, s.answered(request) })
	return err
}

// path returns the path of a queue, or of a node in it.
func (s *Session) path(parts ...string) string {
	return s.cfg.Chroot + "/" + strings.Join(parts, "/")
}
