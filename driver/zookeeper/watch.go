package zookeeper

// This file has the watches of a session on nodes, and the server's events about them.

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// watches are a session's watches before they fire: one at the server for each node, shared
// by all waiters. A watch stays after all waiters have given up, because a server's watch
// cannot be taken back; the next waiter finds the watch here.
type watches struct {
	mu     sync.Mutex
	byPath map[string]*watch
}

// watch is one watch at the server, on all nodes of one contender, or on the children of a
// directory (follow.go).
type watch struct {
	driver.Watch
	began  time.Duration // by expiry.now
	paths  []string
	raw    []byte                 // the data of the first node
	stat   *zk.Stat               // likewise; nil for a missing directory
	listed *look                  // of a directory; nil if the listing failed
	arming atomic.Pointer[arming] // nil when the server watches; then the fields above are set

	own     bool // the node is of this session; used only by the reading goroutine
	leaving bool // the session removes the node; guarded by watches.mu
}

// arming is what a watch has until the server watches.
type arming struct {
	reads  []*request    // by path
	unread atomic.Int32  // how many of them have not been answered
	done   chan struct{} // closed when the server has answered; then err is set
	err    error
}

// newWatch returns a watch to be armed.
func (s *session) newWatch(paths ...string) *watch {
	w := &watch{began: s.expiry.now(), paths: paths}
	w.arming.Store(&arming{done: make(chan struct{})})
	return w
}

// armed is called when the server watches.
func (w *watch) armed() { close(w.arming.Swap(nil).done) }

// unarmed is called when the server does not watch; err is for the waiters.
func (w *watch) unarmed(err error) {
	a := w.arming.Load()
	a.err = err
	close(a.done)
}

// isArmed reports whether the server watches, or has watched.
func (w *watch) isArmed() bool { return w.arming.Load() == nil }

// awaitAnswer waits until the server has answered. It reports false if ctx or the session
// has ended before.
func (s *session) awaitAnswer(ctx context.Context, w *watch) bool {
	a := w.arming.Load()
	return a == nil || s.await(ctx, a.done)
}

// failure returns why the server does not watch, after awaitAnswer.
func (w *watch) failure() error {
	if a := w.arming.Load(); a != nil {
		return a.err
	}
	return nil
}

// isLate reports whether the node was gone before the watch.
func (w *watch) isLate() bool { return w.Fired() == driver.Missing && w.stat == nil }

// at returns the watch on path, or nil.
func (ws *watches) at(path string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.byPath[path]
}

// remove removes a watch when it fires.
func (ws *watches) remove(w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.forget(w)
}

// forget is remove, called with mu held.
func (ws *watches) forget(w *watch) {
	for _, path := range w.paths {
		if ws.byPath[path] == w {
			delete(ws.byPath, path)
		}
	}
}

// interrupt fires all watches when the connection breaks. The server forgets the watches with
// the connection.
func (ws *watches) interrupt() {
	ws.mu.Lock()
	all := ws.byPath
	ws.byPath = map[string]*watch{}
	ws.mu.Unlock()
	for _, w := range all {
		w.Fire(driver.Interrupted)
	}
}

// leaving notes that the session is about to remove a node, and returns the watch on the
// node, or nil.
func (ws *watches) leaving(path string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byPath[path]
	if w != nil {
		w.leaving = true
	}
	return w
}

// isLeaving reports whether the session removes the node.
func (ws *watches) isLeaving(w *watch) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.leaving
}

// fire is called for a server's event about path. Names of contenders are never used again
// (names of plain locks are: see plainWatch), so an event is true for every waiter,
// whenever its wait began.
//
// If a node of this session is gone, the session itself may have ended, with all nodes: the
// events about them come one after the other, and perhaps not all. So the event says no
// more than Missing, and if the session is removing the node, the answer to the removal
// says more.
func (s *session) fire(path string, e driver.Event) {
	if e == driver.Deleted {
		s.plainNodes.forgetPath(path) // whichever client deleted the node: the event precedes the reply to the next create
	}
	w := s.watches.at(path)
	switch {
	case w == nil:
	case e != driver.Deleted || !w.own && w.isArmed(): // before that, an event is a replaced watch's
		s.fireWatch(w, e)
	case !s.watches.isLeaving(w):
		s.fireWatch(w, driver.Missing)
	}
}

func (s *session) fireWatch(w *watch, e driver.Event) {
	s.watches.remove(w)
	w.Fire(e)
}

// noteLeft is called when the session's request to remove a watched node has been answered.
func (s *session) noteLeft(w *watch, err error) {
	if err != nil {
		s.fireWatch(w, driver.Interrupted)
		return
	}
	s.fireWatch(w, driver.Deleted) // the session lives, and has removed the node
}

// Watch implements driver.Session.
func (s *session) Watch(ctx context.Context, queue string, nodes ...driver.Node) ([]*driver.Watch, error) {
	waits := len(nodes) > 1 // the last node is the waiter's own, as a rule
	a, err := s.armWatches(ctx, queue, nodes, waits && s.late.isLikely() && s.listings.length(s.path(queue)) == minAnswer)
	if a.ahead != nil {
		defer s.requests.cancel(a.ahead.request) // nothing if answered
	}
	if err != nil {
		return nil, err
	}
	watches := make([]*driver.Watch, len(nodes))
	for i, w := range a.watches {
		if watches[i] = &w.Watch; nodes[i].Kind == driver.Plain {
			watches[i] = s.plainWatch(w, nodes[i], !a.made[i])
		}
		if err := w.failure(); err != nil {
			return nil, err
		}
	}
	late := waits && a.watches[0].isLate()
	if waits {
		s.late.note(late)
	}
	if l := a.ahead; l != nil && late && s.await(ctx, l.done()) {
		if seen, err := s.listed(ctx, s.path(queue), l); err == nil { // else the waiter's own listing says why
			watches[0] = firedWatch(driver.Missing)
			watches[0].Queue = seen
		}
	}
	return watches, nil
}

// lateness counts how often the watch of a waiter has come too late recently: the awaited
// contender had left. Then the listing that the waiter needs next goes out with the reads, if
// the queue is short.
type lateness struct{ times atomic.Int32 }

const mostLate = 3

func (l *lateness) isLikely() bool { return l.times.Load() > mostLate/2 }

func (l *lateness) note(late bool) {
	switch n := l.times.Load(); {
	case late && n < mostLate:
		l.times.CompareAndSwap(n, n+1)
	case !late && n > 0:
		l.times.CompareAndSwap(n, n-1)
	}
}

// armed is what armWatches has begun.
type armed struct {
	watches []*watch
	made    []bool   // which watches are new
	ahead   *listing // nil if none was wanted; sent after the reads, as a rule
}

// armWatches waits until the server has answered about a watch on each node.
func (s *session) armWatches(ctx context.Context, queue string, nodes []driver.Node, list bool) (armed, error) {
	if err := ctx.Err(); err != nil {
		return armed{}, err
	}
	a := armed{watches: make([]*watch, len(nodes)), made: make([]bool, len(nodes))}
	var requests []*request
	for i, node := range nodes {
		if a.watches[i], a.made[i] = s.watch(s.paths(queue, node)...); a.made[i] {
			requests = append(requests, s.reads(a.watches[i])...)
		}
	}
	if list {
		var q *request
		if a.ahead, q = s.beginListing(s.path(queue)); q != nil {
			requests = append(requests, q)
		}
	}
	s.requests.start(requests...)
	for _, w := range a.watches {
		if w == nil || !s.awaitAnswer(ctx, w) {
			return a, s.gaveUp(ctx)
		}
	}
	return a, nil
}

// watch returns the watch on the paths, perhaps not armed yet, or nil if the session is
// over. If made is true, the watch is new, and the caller must arm the watch.
func (s *session) watch(paths ...string) (w *watch, made bool) {
	var partial []*watch // of waiters who have seen the contender without one of the nodes
	defer func() {
		for _, w := range partial {
			w.Fire(driver.Interrupted)
		}
	}()
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	if w = s.watches.byPath[paths[0]]; w != nil && len(w.paths) >= len(paths) {
		return w, false
	}
	if !s.begin() {
		return nil, false
	}
	defer s.calls.done()
	w = s.newWatch(paths...)
	for _, path := range paths {
		if old := s.watches.byPath[path]; old != nil {
			s.watches.forget(old)
			partial = append(partial, old)
		}
		s.watches.byPath[path] = w
	}
	return w, true
}

// reads returns the requests to arm a watch on nodes. They set the watch with getData: on a
// missing node getData fails, while exists would leave a watch forever on a name never used
// again. The client does not know of the watches. It would keep a channel for each until the
// node changes, and set all of them again after a reconnect; nothing here needs either.
func (s *session) reads(w *watch) []*request {
	a := w.arming.Load()
	a.unread.Store(int32(len(w.paths)))
	for _, path := range w.paths {
		q := getRequest(path)
		q.watch()
		q.noted = func(q *request) { s.noteRead(w, q) }
		a.reads = append(a.reads, q)
	}
	return a.reads
}

// noteRead is called when one of a watch's reads has been answered.
func (s *session) noteRead(w *watch, q *request) {
	if q.err == nil && q.stat.EphemeralOwner == s.id() {
		w.own = true
	}
	a := w.arming.Load()
	if a.unread.Add(-1) > 0 {
		return
	}
	for i, q := range a.reads {
		if q.err != nil {
			s.noteUnwatched(w, q.err)
			return
		}
		if i == 0 {
			stat := q.stat // a copy, because the watch outlives the request
			w.Created, w.raw, w.stat = stat.Czxid, q.data, &stat
			_, w.Data = znode.CutPlainData(q.data)
			_, w.Revoked = znode.CutRevocation(q.data)
		}
	}
	w.armed()
}

// noteUnwatched is called when a request to arm a watch has failed.
func (s *session) noteUnwatched(w *watch, err error) {
	s.watches.remove(w)
	event := driver.Interrupted
	switch {
	case isUnsure(err): // the waiters ask again
		err = nil
	case errors.Is(err, zk.ErrNoNode):
		event, err = driver.Missing, nil
	default:
		err = s.explainListError(err, "watching", strings.TrimSuffix(w.paths[0], "/"))
	}
	w.Fire(event)
	w.unarmed(err)
}

// plainWatch returns the watch on the node of a plain lock; another holder's node may have
// the same name by now. shared means that w was there before the present call.
func (s *session) plainWatch(w *watch, node driver.Node, shared bool) *driver.Watch {
	path := w.paths[0]
	matches := w.stat != nil && s.matchesPlain(path, node, w.raw, w.stat)
	fired, failed := w.Fired(), w.failure() != nil
	switch {
	case fired == 0 && !failed && matches:
		return &w.Watch
	case failed:
		s.plainNodes.markUncertain(path, node)
		return &w.Watch
	case fired == driver.Interrupted, fired == driver.Changed:
		return &w.Watch
	case shared && fired != 0 && !matches:
		// The node watched by w is gone; node may be a later one.
		return firedWatch(driver.Interrupted)
	}
	s.plainNodes.forget(path, node)
	if fired != 0 {
		return &w.Watch
	}
	return firedWatch(driver.Missing)
}

func firedWatch(e driver.Event) *driver.Watch {
	w := driver.NewWatch()
	w.Fire(e)
	return w
}
