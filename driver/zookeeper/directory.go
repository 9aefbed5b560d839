package zookeeper

// This file creates, remembers and removes the directories of queues.

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// directories is what a session knows about the nodes above queues. A directory is a
// container: the server removes a container some time after the last child is gone.
type directories struct {
	noContainers atomic.Bool // the server has no container nodes

	mu     sync.Mutex
	warned map[string]bool // by directory: of the exhaustion of sequence numbers
	joined map[string]bool // by path: queues in which the session has had a node
	found  bool            // the last queue in joined existed before
}

// numbered has the paths of numbered nodes that are not ephemeral, as hashes. A queue above many
// locks with names ending in numbers is examined once in the life of a connector.
type numbered struct {
	seed  maphash.Seed
	mu    sync.Mutex
	known map[uint64]struct{}
}

// maxNumbered is more than a listing of DefaultMaxPacket has; 3 MB.
const maxNumbered = 1 << 17

func newNumbered() *numbered {
	return &numbered{seed: maphash.MakeSeed(), known: map[uint64]struct{}{}}
}

func (n *numbered) has(path string) bool {
	hash := maphash.String(n.seed, path)
	n.mu.Lock()
	defer n.mu.Unlock()
	_, known := n.known[hash]
	return known
}

func (n *numbered) add(path string) {
	hash := maphash.String(n.seed, path)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.known) >= maxNumbered {
		clear(n.known)
	}
	n.known[hash] = struct{}{}
}

// maxJoined bounds the remembered queues, for users with a lock per order and millions of
// orders.
const maxJoined = 1 << 12

// noteQueue records that the session has a node in the queue, and whether this is the first
// node ever in the queue.
func (d *directories) noteQueue(dir string, isNew bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.joined[dir] {
		makeRoom(d.joined, dir, maxJoined)
		d.joined[dir], d.found = true, !isNew
	}
}

// expectsNew reports whether the queue is likely not to exist: the session has had no node
// in it, and the last such queue did not exist.
func (d *directories) expectsNew(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.joined[dir] && !d.found
}

// queues returns the queues in which the session has had a node.
func (d *directories) queues() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.joined))
}

// forget is called when a queue has been removed.
func (d *directories) forget(dir string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.joined, dir)
}

// firstWarning reports whether this is the first call for the directory.
func (d *directories) firstWarning(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := !d.warned[dir]
	d.warned[dir] = true
	return first
}

// lateSequence is the number at which the end of a queue's counter is worth a warning: a
// hundred million locks before the end.
const lateSequence = math.MaxInt32 - 100_000_000

// warnSequence warns the operator, once per session, that the queue's counter is
// nearing its end.
func (s *session) warnSequence(dir string, node driver.Node) {
	if node.Seq < lateSequence || !s.directories.firstWarning(dir) {
		return
	}
	s.cfg.Logger.Warn("lockpool: the sequence numbers of a lock are nearly exhausted: the last one is 2147483647; before that, "+
		"remove the lock's node while the lock has no holder and no waiter, which resets the numbers", "path", dir, "number", node.Seq)
}

// usesContainers reports whether a directory is a container: in some layouts, a directory
// shared with other clients is not.
func (s *session) usesContainers(dir string) bool {
	ours := strings.HasPrefix(dir, s.recordsDir()) || strings.Contains(dir, "/"+driver.RunPrefix)
	return !s.directories.noContainers.Load() && (ours || !s.cfg.Layout.naming().persistent)
}

// pauseBeforeRecreating pauses before the nth repetition of something undone each time: by
// the server, removing an empty container between two of our requests, or by a script that
// deletes a queue again and again. last is the last error. It returns an error if the context
// has ended or the session is over.
func (s *session) pauseBeforeRecreating(ctx context.Context, n int, last error) error {
	const longest = 50 // milliseconds; short enough to succeed in the end
	if n <= 1 {
		return ctx.Err() // creating a queue for the first time costs no pause
	}
	select {
	case <-time.After(time.Duration(min(n-1, longest)) * time.Millisecond):
	case <-ctx.Done():
	case <-s.alive.Done():
		return s.Err()
	}
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case last == errNotCreated:
		return s.noAnswerError(ctx)
	default:
		return fmt.Errorf("the directory of the lock was removed each of the %d times that it was created: %w", n, err)
	}
}

// beginJoinOfNew is beginJoin for a missing queue. The transaction also creates the last n
// directories of the path, so no other client has had a node in the queue before, and no
// server removes the queue in between.
func (s *session) beginJoinOfNew(dir string, n int, endings []string, data []byte) *joinAttempt {
	creates := s.directoryCreates(dir, n)
	a := &joinAttempt{guid: s.newGUID(), nodes: len(endings), directories: n}
	a.create = s.createContender(dir, a.guid, endings, data, creates...)
	a.create.noted = func(q *request) {
		q.paths = q.paths[min(n, len(q.paths)):] // of the contender
		s.noteCreated(a, dir, q, nil)
	}
	s.requests.start(a.create)
	return a
}

// directoryCreates returns the parts of a transaction to create the last n directories of
// the path.
func (s *session) directoryCreates(dir string, n int) []any {
	creates := make([]any, n)
	for i, path := n-1, dir; i >= 0; i, path = i-1, parent(path) {
		flags := int32(0)
		if s.usesContainers(path) {
			flags = zk.FlagContainer
		}
		creates[i] = &zk.CreateRequest{Path: path, Flags: flags, Acl: s.cfg.ACL}
	}
	return creates
}

// createContainers creates dir, and its parents where they are missing. Whatever the
// outcome, made has all paths possibly created, for removeContainers.
func (s *session) createContainers(ctx context.Context, dir string, made *[]string) error {
	var last error
	for tries := 0; ; tries++ {
		if err := s.pauseBeforeRecreating(ctx, tries, last); err != nil {
			return err
		}
		container, err := s.createContainer(dir)
		if container && (err == nil || !isRefused(err)) && !slices.Contains(*made, dir) {
			*made = append(*made, dir)
		}
		last = err
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case errors.Is(err, zk.ErrNoNode) && parent(dir) != "/":
			err = s.createContainers(ctx, parent(dir), made)
		case err == errUnimplemented:
			s.directories.noContainers.Store(true) // ZooKeeper before 3.5.1
			err = nil
		case isUnsure(err):
			last, err = errNotCreated, s.pause(ctx, tries)
		case errors.Is(err, zk.ErrNoChildrenForEphemerals):
			err = plainLockError(parent(dir))
		default:
			err = explainError(err, "creating "+dir, "CREATE", parent(dir))
		}
		if err != nil {
			return err
		}
	}
}

func (s *session) createContainer(path string) (container bool, err error) {
	flags := int32(0)
	if container = s.usesContainers(path); container {
		flags = zk.FlagContainer
	}
	return container, s.requests.Create(path, nil, flags, s.cfg.ACL)
}

// removeContainers removes the containers created for a node whose own creation failed. The
// server would keep a container without a first child forever, so removeContainers
// continues while the session is being closed, for as long as there is a connection.
func (s *session) removeContainers(made []string) {
	slices.Sort(made) // each is below the one before it
	for _, path := range slices.Backward(made) {
		err := s.removeContainer(path)
		for isUnsure(err) && !s.mustNotDial() {
			time.Sleep(minBackoff)
			err = s.removeContainer(path)
		}
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return // in use, and so are the parents
		}
	}
}

// removeContainer removes an empty container, but not the node of a plain lock, which may have
// the name instead: the create may have failed, or others may have removed the container.
func (s *session) removeContainer(path string) error {
	q, del := existsRequest(path), deleteRequest(path, 0)
	switch err := s.requests.do(q); {
	case err != nil:
		return err
	case znode.IsPlain(&q.stat):
		return zk.ErrNodeExists
	}
	del.atOnce = true
	return s.requests.do(del)
}

// path returns the path of a queue, or of a node in it.
func (s *session) path(parts ...string) string {
	return s.cfg.Chroot + "/" + strings.Join(parts, "/")
}

// paths returns the paths of the nodes of a contender.
func (s *session) paths(queue string, node driver.Node) (paths []string) {
	if node.Kind == driver.Plain {
		return []string{s.path(queue)}
	}
	for _, name := range nodeNames(node) {
		paths = append(paths, s.path(queue, name))
	}
	return paths
}

// depth is the number of directories in a path.
func depth(path string) int { return strings.Count(path, "/") }

func parent(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}
