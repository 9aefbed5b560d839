package zookeeper

// This file has Join: creating the nodes of a contender, finding them after a lost reply,
// and telling from one listing what is before them.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// Join implements driver.Session.
func (s *session) Join(ctx context.Context, queue string, r driver.Request) (driver.Joined, error) {
	j, err := s.tryJoin(ctx, queue, r)
	if n := j.Node.Seq; err == nil && (n < 0 || n >= math.MaxInt32) { // at the end of the server's counter
		_ = s.Leave(ctx, queue, j.Node) // continues in the background
		return driver.Joined{}, fmt.Errorf("%w: own number is %d; to reset the numbers, remove the node of the lock %q while it has no holder and no waiter",
			driver.ErrSequenceExhausted, n, queue)
	}
	return j, err
}

func (s *session) tryJoin(ctx context.Context, queue string, r driver.Request) (driver.Joined, error) {
	dir, endings := s.path(queue), s.cfg.Layout.naming().endings(r.Kind, r.Permits, r.Limit)
	if err := ctx.Err(); err != nil {
		return driver.Joined{}, err
	}
	if !s.begin() {
		return driver.Joined{}, s.Err()
	}
	a := s.beginJoin(dir, endings, r.Data)
	answered := s.await(ctx, a.create.done) && (a.listing == nil || s.await(ctx, a.listing.done()))
	if answered && a.complete() {
		defer s.calls.done()
		return s.endJoin(ctx, dir, a) // waits for no further answer
	}
	if !answered && s.requests.cancel(a.create) {
		defer s.calls.done()
		if a.listing != nil {
			s.requests.cancel(a.listing.request)
		}
		return driver.Joined{}, s.gaveUp(ctx)
	}
	return runBegun(ctx, s, func() (driver.Joined, error) {
		return s.join(ctx, dir, endings, r.Data, a)
	}, func(j driver.Joined) {
		_ = s.remove(dir, j.Node) // fails only when the session is over
	})
}

// join creates a contender's nodes, and the queue if necessary, and returns when they
// certainly exist or cannot be created. The first attempt has begun.
func (s *session) join(ctx context.Context, dir string, endings []string, data []byte, first *joinAttempt) (j driver.Joined, err error) {
	var made []string
	defer func() {
		if err != nil {
			s.removeContainers(made)
		}
	}()
	a := first
	for tries := 1; ; tries++ {
		j, err := s.endJoin(ctx, dir, a)
		for errors.Is(err, zk.ErrNoNode) && a.directories < depth(dir) && ctx.Err() == nil {
			a = s.beginJoinOfNew(dir, a.directories+1, endings, data)
			j, err = s.endJoin(ctx, dir, a)
		}
		last := err
		switch {
		case err == nil:
			return j, nil
		case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists), err == errNotCreated: // others remove and create directories
			err = nil
		case a.directories > 0 && isAnswer(a.create.err):
			err = s.createContainers(ctx, dir, &made) // one by one: an error says what was refused
		}
		if err == nil {
			err = s.pauseBeforeRecreating(ctx, tries, last)
		}
		if err != nil {
			return driver.Joined{}, err
		}
		a = s.beginJoin(dir, endings, data)
	}
}

// joinAttempt is one attempt to create a contender's nodes.
type joinAttempt struct {
	guid    string
	nodes   int
	create  *request
	listing *listing // nil if the number of the node is expected to tell what is before the node

	directories int // also created: the queue's, and its parents

	// Set when the create was answered: the contender, and whether it is certainly alone.
	node  driver.Node // zero without a contender's name
	alone bool
}

// beginJoin sends the create and a listing of the queue. Both are sent together and the
// server answers in order, so that joining costs one round trip. (The listing may be shared
// with others. A listing with the node is newer than the node; without, the queue is listed
// again.) A queue that is expected to be empty, or not to exist, is listed only if the number
// of the node shows that another client has joined.
func (s *session) beginJoin(dir string, endings []string, data []byte) *joinAttempt {
	a := &joinAttempt{guid: s.newGUID(), nodes: len(endings)}
	watched := s.watchOnQueue(dir)
	a.create = s.createContender(dir, a.guid, endings, data)
	a.create.noted = func(q *request) { s.noteCreated(a, dir, q, watched) }
	requests := []*request{a.create}
	if !s.fastpaths.expects(dir, watched) && !s.directories.expectsNew(dir) {
		var list *request
		if a.listing, list = s.beginListing(dir); list != nil {
			requests = append(requests, list)
		}
	}
	s.requests.start(requests...)
	return a
}

// newGUID returns a GUID that no other node has: the random one of the session, with a number
// added.
func (s *session) newGUID() string {
	guid := s.guid
	number := binary.BigEndian.Uint64(guid[8:]) + s.guids.Add(1)
	binary.BigEndian.PutUint64(guid[8:], number)
	return guid.String()
}

// noteCreated is called when the create has been answered.
func (s *session) noteCreated(a *joinAttempt, dir string, q *request, watched *watch) {
	if q.err != nil {
		return
	}
	if node, ok := contenderAt(q.paths); ok {
		a.node = node
		a.alone = s.fastpaths.created(dir, node, watched)
	}
}

// needsListing reports whether the queue must be listed to know what is before the node,
// because the number does not tell.
func (a *joinAttempt) needsListing(node driver.Node) bool {
	return a.listing != nil || !a.alone && !isFirst(node)
}

// isFirst reports whether a node is the first child ever of the directory.
func isFirst(node driver.Node) bool { return node.Seq == 0 }

// complete reports whether an answered attempt has succeeded, and shows the queue without
// another request.
func (a *joinAttempt) complete() bool {
	switch {
	case a.node == (driver.Node{}):
		return false
	case a.listing == nil:
		return !a.needsListing(a.node)
	}
	return driver.Place(a.listing.contenders(), a.node) >= 0 && a.listing.isComplete()
}

// endJoin waits until an attempt has been answered, and determines its outcome.
//
// The error is ErrNoNode if there is no queue, or no parent of the first directory to be
// created; ErrNodeExists if this directory exists; and errNotCreated if the reply was lost
// and the nodes do not exist.
func (s *session) endJoin(ctx context.Context, dir string, a *joinAttempt) (driver.Joined, error) {
	<-a.create.done
	node, err := s.createdContender(a)
	if a.listing != nil {
		<-a.listing.done()
	}
	if answer := err; err != nil && !isRefused(err) { // also after a "system error"
		node, err = s.findCreated(dir, a.guid, a.nodes)
		if err == errNotCreated && isAnswer(answer) {
			err = answer
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists), err == errNotCreated, errors.Is(err, driver.ErrSessionLost):
		return driver.Joined{}, err
	case errors.Is(err, zk.ErrNoChildrenForEphemerals):
		return driver.Joined{}, plainLockError(dir)
	default:
		return driver.Joined{}, explainError(err, "creating a node", "CREATE", dir)
	}
	s.warnSequence(dir, node)
	s.directories.noteQueue(dir, isFirst(node))
	if !a.needsListing(node) {
		s.noteJoined(dir, node, true, false)
		return driver.Joined{Node: node, Queue: []driver.Node{node}}, nil
	}
	queue, shared, err := s.queueContaining(ctx, dir, node, a.listing)
	if err != nil {
		_ = s.remove(dir, node) // the listing's error says why
		return driver.Joined{}, err
	}
	s.noteJoined(dir, node, driver.Place(queue, node) == 0, shared) // the node may already be gone
	return driver.Joined{Node: node, Queue: queue}, nil
}

// createContender creates all the nodes of a contender, or none of them. The directories,
// if any, are created first in the same transaction.
func (s *session) createContender(dir, guid string, endings []string, data []byte, directories ...any) *request {
	const flags = zk.FlagEphemeral | zk.FlagSequence
	if len(endings) == 1 && len(directories) == 0 {
		return createRequest(beginOfPath(dir, guid, endings[0]), data, flags, s.cfg.ACL)
	}
	ops := directories
	for i, ending := range endings {
		if i > 0 && strings.HasSuffix(ending, znode.PermitEnding) {
			data = nil // included in the first lease
		}
		ops = append(ops, &zk.CreateRequest{Path: beginOfPath(dir, guid, ending), Data: data, Flags: flags, Acl: s.cfg.ACL})
	}
	return multiRequest(ops...)
}

// createdContender returns the contender whose nodes were created.
func (s *session) createdContender(a *joinAttempt) (driver.Node, error) {
	q := a.create
	if a.node != (driver.Node{}) || q.err != nil {
		return a.node, q.err
	}
	for _, path := range q.paths {
		_ = s.removeOne(path, false)
	}
	return driver.Node{}, fmt.Errorf("the server created %s in answer to sequential creates", strings.Join(q.paths, " and "))
}

// contenderAt returns the contender with the nodes at the paths. ok is false if the nodes are
// not those of one contender.
func contenderAt(paths []string) (node driver.Node, ok bool) {
	if len(paths) == 1 {
		return znode.Parse(lastPart(paths[0]))
	}
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = lastPart(path)
	}
	if nodes := znode.Contenders(names); len(nodes) == 1 {
		return nodes[0], true
	}
	return driver.Node{}, false
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

var errNotCreated = errors.New("not created")

// findCreated determines the outcome of a create whose reply was lost. It returns when the
// outcome is known, when the session and so the nodes are gone, or when the server refuses to
// tell. If some of the contender's nodes are gone, it removes the others.
func (s *session) findCreated(dir, guid string, nodes int) (driver.Node, error) {
	for n, unclear := 0, 0; ; n++ {
		if err := s.pause(context.Background(), n); err != nil {
			return driver.Node{}, err
		}
		found, err := s.findOnce(dir, guid)
		switch {
		case err == nil && len(found) == 1 && len(nodeNames(found[0])) == nodes:
			s.requests.acquit()
			return found[0], nil
		case err == nil:
			return driver.Node{}, s.removeParts(dir, found)
		case err == errReplaced:
			s.end(err)
			return driver.Node{}, err
		case !isFinal(err, &unclear):
			continue
		}
		s.reapLater(func() bool {
			found, err := s.findOnce(dir, guid)
			for _, node := range found {
				_ = s.remove(dir, node) // fails only if the node goes with the session
			}
			return err == nil
		})
		return driver.Node{}, s.explainListError(err, "looking for a node whose creation was not confirmed", dir)
	}
}

// removeParts removes the remaining nodes of a contender. It returns errNotCreated on
// success.
func (s *session) removeParts(dir string, parts []driver.Node) error {
	for _, node := range parts {
		if err := s.remove(dir, node); err != nil && err != driver.ErrRemoved {
			return err
		}
	}
	return errNotCreated
}

// findOnce looks once for the nodes in dir created with the GUID, after the create is
// decided.
func (s *session) findOnce(dir, guid string) ([]driver.Node, error) {
	err := s.decideWrites()
	var own []string
	if err == nil {
		l := s.listOnce(dir)
		err = l.err()
		for _, name := range l.children() {
			if znode.HasGUID(name, guid) {
				own = append(own, name)
			}
		}
	}
	found := znode.Contenders(own)
	if errors.Is(err, zk.ErrNoNode) || err == nil && len(found) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	q := existsRequest(dir + "/" + found[0].Name)
	switch err := s.requests.do(q); {
	case err != nil && !errors.Is(err, zk.ErrNoNode):
		return nil, err
	case err == nil && q.stat.EphemeralOwner != s.id():
		return nil, errReplaced // the client has sent the create for another session after all
	}
	return found, nil
}

// reapLater removes in the background a node which cannot be found now, and would block
// other contenders. find removes the node and reports true, or reports false if the outcome
// is not known yet.
func (s *session) reapLater(find func() bool) {
	s.markUnremovable()
	if s.begin() {
		go s.reap(find) // ends when find knows, or with the session
	}
}

func (s *session) reap(find func() bool) {
	defer s.calls.done()
	for s.sleep(reapPause) && !find() {
	}
}

// reapPause is long, because the listing may be long.
const reapPause = time.Second

// queueContaining returns the queue as it was after node was created: from l if l contains
// the node, and otherwise from a new listing. Creators of another kind of lock under the
// name also check after the creation, so at least one of the two sees the other. shared
// reports that a semaphore uses the directory, where contenders may appear without using a
// number of the queue.
func (s *session) queueContaining(ctx context.Context, dir string, node driver.Node, l *listing) (queue []driver.Node, shared bool, err error) {
	if l == nil || driver.Place(l.contenders(), node) < 0 {
		if l, err = s.list(ctx, dir); err != nil {
			return nil, false, err
		}
	}
	if shared = isSemaphore(l.children()); shared {
		err = s.checkNoSemaphore(ctx, dir, node)
	}
	if err == nil {
		err = s.checkForeignContenders(ctx, dir, l.children(), l.contenders())
	}
	return l.contenders(), shared, err
}

// checkForeignContenders returns an error if a child of dir outside queue looks like a
// contender of an unknown client: neither would wait for the other. A contender differs
// from a lock below dir with such a name by being ephemeral, and from a plain lock by the
// data.
func (s *session) checkForeignContenders(ctx context.Context, dir string, children []string, queue []driver.Node) error {
	if countOthers(children, queue) == 0 {
		return nil
	}
	var reads []read
	foreign := ""
	for _, name := range children {
		if path := dir + "/" + name; looksSequential(name) && !s.numbered.has(path) {
			reads = append(reads, s.readForeign(path, func() { foreign = path }))
		}
	}
	if err := s.readAll(ctx, reads...); err != nil || foreign == "" {
		return err
	}
	return fmt.Errorf("%w: %s is ephemeral and has a number, like a contender of a client that lockpool does not know: use another name, or stop that client",
		driver.ErrKind, foreign)
}

// countOthers counts the children outside the queue.
func countOthers(children []string, queue []driver.Node) int {
	others := len(children)
	for _, node := range queue {
		others -= nodeCount(node)
	}
	return others
}

// readForeign is a read of the node at path, named like a sequential node. It calls found if the
// node is ephemeral and not a plain lock of ours. The data of other nodes may be long.
func (s *session) readForeign(path string, found func()) read {
	return readOf(existsRequest, path, func(q *request) ([]read, error) {
		switch {
		case q.err == nil && znode.IsPlain(&q.stat):
			return []read{readForeignData(path, found)}, nil
		case q.err == nil:
			s.numbered.add(path)
		case q.err != zk.ErrNoNode:
			return nil, explainError(q.err, "looking at "+path, "READ", path)
		}
		return nil, nil
	})
}

func readForeignData(path string, found func()) read {
	return readOf(getRequest, path, func(q *request) ([]read, error) {
		owner, _ := znode.CutPlainData(q.data)
		switch {
		case q.err == zk.ErrNoAuth, q.err == nil && owner == "" && string(q.data) != znode.RevokeRequest:
			found()
		case q.err != nil && q.err != zk.ErrNoNode:
			return nil, explainError(q.err, "looking at "+path, "READ", path)
		}
		return nil, nil
	})
}
