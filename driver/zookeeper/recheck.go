package zookeeper

// This file checks, from time to time, that watched nodes still exist.

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// A watch may never fire: the server sends no event about a node no longer readable by the
// watcher (DataTree.setACL notifies no watcher). To guard against this and any other lost
// event, nodes watched for long are checked from time to time: with one listing per queue
// for all waiters, or one by one if the queue is long and the session watches few nodes
// there. A listing per waiter in a queue of n would be n² names in each round.

// recheckInterval is the mean time between two rounds of checks.
var recheckInterval = 30 * time.Second

// recheckPause keeps the rate of requests low if many queues are watched.
const recheckPause = 20 * time.Millisecond

// recheckWatches checks the watched nodes until the session is over.
func (s *session) recheckWatches() {
	defer s.calls.done()
	for s.sleep(recheckInterval/2 + rand.N(recheckInterval)) {
		if s.expiry.isIdle() { // no watch is awaited
			continue
		}
		for target, watches := range s.watchesToRecheck() {
			if !s.sleep(recheckPause) {
				return
			}
			s.recheck(target, watches)
		}
	}
}

// recheckTarget is what is checked together: the contenders in a directory, or a node
// itself, or a watched directory (follow.go). A path may be both of the first (fastpath.go).
type recheckTarget struct {
	path string
	self bool
}

// watchesToRecheck returns the watches older than half a round: watches on contenders by
// queue, and others by node.
func (s *session) watchesToRecheck() map[recheckTarget][]*watch {
	due := map[recheckTarget][]*watch{}
	for path, w := range s.watches.beganBefore(s.expiry.now() - recheckInterval/2) {
		if s.fastpaths.uses(path, w) { // the contenders of the queue say more than the watch does
			continue
		}
		target := recheckTarget{path, true}
		if dir, name, _ := cutLast(path); znode.IsContender(name) {
			target = recheckTarget{dir, false}
		}
		due[target] = append(due[target], w)
	}
	return due
}

// beganBefore returns the armed watches that began before the time, by their first path.
func (ws *watches) beganBefore(latest time.Duration) map[string]*watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	old := map[string]*watch{}
	for path, w := range ws.byPath {
		if path == w.paths[0] && w.isArmed() && w.began <= latest {
			old[path] = w
		}
	}
	return old
}

// recheck fires the watches on nodes that are gone. The watches were set before the request
// is sent, and an event precedes the reply to any later request; so a watch that has not
// fired by the reply has missed its event. (After a broken connection, all have fired.)
func (s *session) recheck(target recheckTarget, watches []*watch) {
	isGone, err := s.checkTarget(target, watches)
	hidden := errors.Is(err, driver.ErrNoPermission) || errors.Is(err, zk.ErrNoAuth)
	for _, w := range watches {
		switch {
		case hidden: // the waiters' own requests will show the error
			s.fireWatch(w, driver.Interrupted)
		case err == nil && s.watches.at(w.paths[0]) == w && isGone(w):
			s.fireWatch(w, driver.Unnoticed)
			s.cfg.Logger.Warn("lockpool: the removal of a node, or a change of an observed queue, went unnoticed and was found by looking again; "+
				"unless an ACL was changed, this is a bug: please report it", "path", w.paths[0], "session", s.Info().ID)
		}
	}
}

// checkTarget sends the requests for a target. isGone reports, according to the answers,
// whether the node watched by w is gone.
func (s *session) checkTarget(target recheckTarget, watches []*watch) (isGone func(w *watch) bool, err error) {
	if dir, ok := directoryOf(target.path); ok {
		return s.checkDirectory(dir)
	}
	if target.self {
		q, err := s.get(s.alive, target.path)
		if errors.Is(err, zk.ErrNoNode) {
			return func(*watch) bool { return true }, nil
		}
		return func(w *watch) bool { return q.stat.Czxid != w.stat.Czxid || q.stat.Version != w.stat.Version }, err
	}
	var paths []string
	for _, w := range watches {
		paths = append(paths, w.paths...)
	}
	var exists func(path string) bool
	if int64(len(paths))*minAnswer < s.listings.length(target.path) {
		exists, err = s.findEach(paths)
	} else {
		exists, err = s.findAll(target.path)
	}
	return func(w *watch) bool {
		return slices.ContainsFunc(w.paths, func(path string) bool { return !exists(path) })
	}, err
}

// findAll lists a directory. exists reports whether the node at path is there.
func (s *session) findAll(dir string) (exists func(path string) bool, err error) {
	l, err := s.list(s.alive, dir)
	if err != nil {
		return nil, err
	}
	children := slices.Sorted(slices.Values(l.children())) // a copy: others also read the listing
	return func(path string) bool {
		_, name, _ := cutLast(path)
		_, found := slices.BinarySearch(children, name)
		return found
	}, nil
}

// findEach looks for each of the nodes at the paths. exists reports whether the node was
// found.
func (s *session) findEach(paths []string) (exists func(path string) bool, err error) {
	missing := map[string]bool{}
	reads := make([]read, len(paths))
	for i, path := range paths {
		reads[i] = readOf(existsRequest, path, func(q *request) ([]read, error) {
			if errors.Is(q.err, zk.ErrNoNode) {
				missing[path] = true
				return nil, nil
			}
			return nil, q.err
		})
	}
	err = s.readAll(s.alive, reads...)
	return func(path string) bool { return !missing[path] }, err
}
