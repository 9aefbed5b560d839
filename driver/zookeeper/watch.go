package zookeeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// watches are the watches of a session that have not fired: one at the server for
// each node, shared by all waiters. A watch stays after its waiters have given
// up, because the client cannot take it back; the next waiter finds it here.
type watches struct {
	mu     sync.Mutex
	byPath map[string]*watch
}

// watch is one watch at the server, on all nodes of one contender.
type watch struct {
	*driver.Watch
	began time.Time
	paths []string
	raw   []byte        // the data of the first node, set before armed is closed
	stat  *zk.Stat      // likewise
	armed chan struct{} // closed when the server has answered; then err is set
	err   error
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

// at returns the watch on path, or nil.
func (ws *watches) at(path string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.byPath[path]
}

// has reports whether there is a watch on path, or one is being set.
func (ws *watches) has(path string) bool { return ws.at(path) != nil }

// remove removes a watch that has fired, or is about to.
func (ws *watches) remove(w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, path := range w.paths {
		if ws.byPath[path] == w {
			delete(ws.byPath, path)
		}
	}
}

// interrupt fires all watches when the connection breaks. The server forgets
// them with the connection, so all waiters list their queues again.
func (ws *watches) interrupt() {
	ws.mu.Lock()
	all := ws.byPath
	ws.byPath = map[string]*watch{}
	ws.mu.Unlock()
	for _, w := range all {
		w.Fire(driver.Interrupted)
	}
}

// fire is called for a server's event about path. Names of contenders are never used
// again (those of plain locks are: see plainWatch), so an event is true for every
// waiter, whenever its wait began.
func (s *Session) fire(path string, e driver.Event) {
	if e == driver.Deleted {
		s.plainNodes.forgetPath(path) // whichever client deleted the node: the event precedes the reply to the next create
	}
	if w := s.watches.at(path); w != nil {
		s.watches.remove(w)
		w.Fire(e)
	}
}

// Watch implements driver.Session.
func (s *Session) Watch(ctx context.Context, queue string, nodes ...driver.Node) ([]*driver.Watch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	pending, shared := make([]*watch, len(nodes)), make([]bool, len(nodes))
	for i, node := range nodes {
		if pending[i], shared[i] = s.watch(s.paths(queue, node)...); pending[i] == nil {
			return nil, s.Err()
		}
	}
	watches := make([]*driver.Watch, len(nodes))
	for i, w := range pending {
		select {
		case <-w.armed:
			if watches[i] = w.Watch; nodes[i].Kind == driver.Plain {
				watches[i] = s.plainWatch(w, nodes[i], shared[i])
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

// watch returns the watch on the paths, which may not be armed yet, or nil if the
// session is over. shared means that the watch was there before.
func (s *Session) watch(paths ...string) (w *watch, shared bool) {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	w = s.watches.byPath[paths[0]]
	shared = w != nil
	if !shared && s.begin() {
		w = &watch{Watch: driver.NewWatch(), began: time.Now(), paths: paths, armed: make(chan struct{})}
		for _, path := range paths {
			s.watches.byPath[path] = w
		}
		go s.arm(w) // ends with its requests
	}
	return w, shared
}

// arm asks the server to watch, with getData: on a node that does not exist getData
// fails, while exists would leave a watch forever on a name that is never used again.
// The link makes the read set a watch, so the client knows nothing about the watch; it
// passes all events to Session.event, in order.
func (s *Session) arm(w *watch) {
	defer s.calls.done()
	defer close(w.armed)
	for i, path := range w.paths {
		data, stat, err := s.requests.Get(path)
		if err == nil {
			if i == 0 {
				w.Created, w.raw, w.stat = stat.Czxid, data, stat
				_, w.Data = parsePlainData(data)
				w.Revoked = string(w.Data) == revokeRequest
			}
			continue
		}
		s.watches.remove(w)
		switch {
		case isUnsure(err):
			_ = s.pauseBeforeRetry() // because the waiters ask again at once
			w.Fire(driver.Interrupted)
		case errors.Is(err, zk.ErrNoNode):
			w.Fire(driver.Missing)
		default:
			w.err = explainError(err, "watching", "READ", path)
		}
		return
	}
}

// plainWatch returns the watch on the node of a plain lock, whose name another holder's
// node may have by now. shared means that w was there before the call that asks for it.
func (s *Session) plainWatch(w *watch, node driver.Node, shared bool) *driver.Watch {
	path := w.paths[0]
	matches := w.stat != nil && s.matchesPlain(path, node, w.raw, w.stat)
	fired := w.Fired()
	switch {
	case fired == 0 && w.err == nil && matches:
		return w.Watch
	case fired == driver.Interrupted, fired == driver.Changed:
		return w.Watch
	case w.err != nil:
		s.plainNodes.markUncertain(path, node)
		return w.Watch
	case shared && fired != 0 && !matches:
		// The node that w was set on is gone; node may be a later one.
		return firedWatch(driver.Interrupted)
	}
	s.plainNodes.forget(path, node)
	if fired != 0 {
		return w.Watch
	}
	return firedWatch(driver.Missing)
}

func firedWatch(e driver.Event) *driver.Watch {
	w := driver.NewWatch()
	w.Fire(e)
	return w
}
