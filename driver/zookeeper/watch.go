package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// watch is one watch at the server, for all waiters of the session. It is in
// Session.watches until it fires, also when everyone who waited has given up:
// the client can not take it back, and the next waiter finds it there.
type watch struct {
	*driver.Watch
	began time.Time
	paths []string      // of the nodes of one contender
	raw   []byte        // what is in the first, set before armed is closed
	stat  *zk.Stat      // and its Stat
	armed chan struct{} // closed when the server has answered; then err is set
	err   error
}

// ofPlain returns the watch on the node of a lock without a queue, whose name may
// be that of another one by now. joined says that others had asked for it before.
func (s *Session) plainWatch(w *watch, node driver.Node, joined bool) *driver.Watch {
	switch {
	case w.Fired() == 0 && w.err == nil && s.matchesPlain(w.paths[0], node, w.raw, w.stat):
		return w.Watch
	case w.Fired() == driver.Interrupted, w.Fired() == driver.Changed:
		return w.Watch
	}
	if w.err != nil {
		s.markUncertain(w.paths[0], node)
		return w.Watch
	}
	if joined && w.Fired() != 0 && (w.stat == nil || !s.matchesPlain(w.paths[0], node, w.raw, w.stat)) {
		// What it was asked for, before node was made perhaps, is gone: look again.
		again := driver.NewWatch()
		again.Fire(driver.Interrupted)
		return again
	}
	s.forgetPlain(w.paths[0], node)
	if w.Fired() != 0 {
		return w.Watch
	}
	gone := driver.NewWatch()
	gone.Fire(driver.Missing)
	return gone
}

// isArmed reports whether the server has agreed to watch.
func (w *watch) isArmed() bool {
	select {
	case <-w.armed:
		return w.err == nil
	default:
		return false
	}
}

// Watch implements driver.Session.
func (s *Session) Watch(ctx context.Context, queue string, nodes ...driver.Node) ([]*driver.Watch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	armed, asked := make([]*watch, len(nodes)), time.Now()
	for i, node := range nodes {
		if armed[i] = s.watch(s.paths(queue, node)...); armed[i] == nil {
			return nil, s.Err()
		}
	}
	watches := make([]*driver.Watch, len(nodes))
	for i, w := range armed {
		select {
		case <-w.armed:
			if watches[i] = w.Watch; nodes[i].Kind == driver.Plain {
				watches[i] = s.plainWatch(w, nodes[i], w.began.Before(asked))
			}
			if w.err != nil {
				return nil, w.err
			}
		case <-s.alive.Done():
			return nil, s.Err()
		case <-ctx.Done():
			return nil, s.noAnswerError(ctx)
		}
	}
	return watches, nil
}

// watch returns the watch on the paths, which may be asked for at the server
// just now, or nil if the session is over.
func (s *Session) watch(paths ...string) *watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watchLocked(paths...)
}

func (s *Session) watchLocked(paths ...string) *watch {
	w := s.watches[paths[0]]
	if w == nil && !s.isOver() {
		w = &watch{Watch: driver.NewWatch(), began: time.Now(), paths: paths, armed: make(chan struct{})}
		for _, path := range paths {
			s.watches[path] = w
		}
		s.calls.Add(1)
		go s.arm(w) // ends with its requests
	}
	return w
}

// arm asks the server to watch, with getData: on a node that does not exist it
// fails, where exists would leave a watch for ever on a name that never comes
// back. That it sets a watch is the link's doing, and the client knows nothing
// of it; it passes all events to Session.event, in order.
func (s *Session) arm(w *watch) {
	defer s.calls.Done()
	defer close(w.armed)
	for i, path := range w.paths {
		data, stat, err := s.conn.Get(path)
		if err == nil {
			if i == 0 {
				w.Created, w.raw, w.stat = stat.Czxid, data, stat
				_, w.Data = parsePlainData(data)
				w.Revoked = string(w.Data) == revokeRequest
			}
			continue
		}
		s.forget(w)
		switch {
		case isUnsure(err):
			_ = s.pauseBeforeRetry() // a pause, because whoever waits asks again at once
			w.Fire(driver.Interrupted)
		case errors.Is(err, zk.ErrNoNode):
			w.Fire(driver.Missing)
		default:
			w.err = explainError(err, "watching", "READ", path)
		}
		return
	}
}

// isWatched reports whether there is a watch on path, or is to be one.
func (s *Session) isWatched(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[path] != nil
}

func (s *Session) forget(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range w.paths {
		if s.watches[path] == w {
			delete(s.watches, path)
		}
	}
}

// fire is called for the server's event about path. Names are never used again
// (but see ofPlain), so an event about one is true for whoever watches it,
// whenever they began.
func (s *Session) fire(path string, e driver.Event) {
	s.mu.Lock()
	w := s.watches[path]
	if e == driver.Deleted {
		delete(s.plains, path) // by whomever: events come before the reply to what makes the next one
	}
	s.mu.Unlock()
	if w != nil {
		s.forget(w)
		w.Fire(e)
	}
}

// interrupt fires all watches when the connection breaks. The server forgets
// them with the connection, so everyone looks again.
func (s *Session) interrupt() {
	s.mu.Lock()
	watches := s.watches
	s.watches = map[string]*watch{}
	s.mu.Unlock()
	for _, w := range watches {
		w.Fire(driver.Interrupted)
	}
}
