package zookeeper

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// A watch may never fire: the server sends no event about a node whose ACL does
// not let the watcher read it by then (DataTree.setACL tells nobody). Against
// that, and against any other event that gets lost, what has been watched for
// long is looked at again, rarely: one listing for each queue, whatever the
// number of those who wait in it.

// lookRound is about how often.
var recheckInterval = 30 * time.Second

// lookPause is between two requests, so that they are few also if much is watched.
const recheckPause = 20 * time.Millisecond

// rescue looks again until the session is over.
func (s *Session) recheckWatches() {
	defer s.calls.Done()
	for s.sleep(recheckInterval/2 + rand.N(recheckInterval)) {
		for at, watches := range s.watchesToRecheck() {
			if !s.sleep(recheckPause) {
				return
			}
			s.recheck(at, watches)
		}
	}
}

// sleep returns false if the session is over before.
func (s *Session) sleep(d time.Duration) bool {
	select {
	case <-s.alive.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// spot is where one request tells what became of nodes: the directory that they
// are in, or the node itself. Both may be watched at one path (solo.go).
type recheckTarget struct {
	path   string
	self bool
}

// watchedLong returns the watches that are older than half a round, by queue, and
// those on a node that is no contender by themselves.
func (s *Session) watchesToRecheck() map[recheckTarget][]*watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	long := map[recheckTarget][]*watch{}
	for path, w := range s.watches {
		solo := s.fastpaths[path].watched == w // what is in the queue tells more than it does
		if path != w.paths[0] || solo || !w.isArmed() || time.Since(w.began) < recheckInterval/2 {
			continue
		}
		at := recheckTarget{path, true}
		if dir, name, _ := cutLast(path); isContender(name) {
			at = recheckTarget{dir, false}
		}
		long[at] = append(long[at], w)
	}
	return long
}

func isContender(name string) bool {
	_, ok := parseNode(name)
	return ok
}

// lookAgain fires the watches on nodes that are gone. The watches were set before
// the request is sent, and an event comes before the reply to what follows it; so
// one that has not fired when the reply is there has missed its event. (When the
// connection breaks in between, they have all fired.)
func (s *Session) recheck(at recheckTarget, watches []*watch) {
	gone := func(w *watch) bool { return false }
	var err error
	if at.self {
		var stat *zk.Stat
		if _, stat, err = s.get(at.path); err == nil {
			gone = func(w *watch) bool { return stat.Czxid != w.stat.Czxid || stat.Version != w.stat.Version }
		} else if errors.Is(err, zk.ErrNoNode) {
			gone, err = func(*watch) bool { return true }, nil
		}
	} else {
		var listed []string
		if listed, err = s.childrenOf(at.path); err == nil {
			children := slices.Sorted(slices.Values(listed)) // others read the listing, too
			gone = func(w *watch) bool {
				return slices.ContainsFunc(w.paths, func(path string) bool {
					_, name, _ := cutLast(path)
					_, there := slices.BinarySearch(children, name)
					return !there
				})
			}
		}
	}
	hidden := errors.Is(err, driver.ErrNoPermission) || errors.Is(err, zk.ErrNoAuth)
	for _, w := range watches {
		switch {
		case hidden: // everyone learns the reason for themselves
			s.forget(w)
			w.Fire(driver.Interrupted)
		case err == nil && s.isPending(w) && gone(w):
			s.forget(w)
			w.Fire(driver.Unnoticed)
			s.cfg.Logger.Warn("lockpool: the end of a node went unnoticed and was found by looking again; "+
				"unless the node's ACL was changed this is a defect: please report it", "path", w.paths[0], "session", s.Info().ID)
		}
	}
}

// isWatching reports whether the watch has not fired.
func (s *Session) isPending(w *watch) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[w.paths[0]] == w
}
