package recipe

// This file has views: what a session knows of the queues in which it waits.

import (
	"maps"
	"slices"
	"sync"

	"github.com/lockpool/lockpool/driver"
)

// Views are what a session knows of the queues of its waiters. The zero value is ready for
// use.
type Views struct {
	mu      sync.Mutex
	byQueue map[string]*View
}

// open returns the view of a queue. The caller closes it.
func (vs *Views) open(queue string) *View {
	if vs == nil {
		return newView()
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v := vs.byQueue[queue]
	if v == nil {
		if v = newView(); vs.byQueue == nil {
			vs.byQueue = map[string]*View{}
		}
		vs.byQueue[queue] = v
	}
	v.users++
	return v
}

// Knows reports whether contenders of the session know the queue.
func (vs *Views) Knows(queue string) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v := vs.byQueue[queue]
	return v != nil && v.knows()
}

// close forgets an unused view: without waiters, nothing tells of changes in the queue.
func (vs *Views) close(queue string, v *View) {
	if vs == nil {
		return
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v.users--; v.users == 0 {
		delete(vs.byQueue, queue)
		v.reuse()
	}
}

// View is what a session knows of a queue with waiters of the session: the newest listing,
// without the contenders seen to leave since. All waiters of the session share a View, so a
// queue with n waiters of one session costs one listing in memory and none for a hand-over.
//
// A View may contain former contenders, but lacks none that may be before a contained one:
// each contained contender was in a listing, and later contenders are behind.
type View struct {
	users int // guarded by Views.mu

	mu    sync.Mutex
	queue []driver.Node            // elements are never changed, because slices are in use
	own   map[driver.Node]struct{} // of the session's waiters, and of its holders
	large bool                     // own has had so many that the memory is better given up
}

// spareViews are empty views, for the locks without waiters.
var spareViews = sync.Pool{New: func() any { return &View{own: map[driver.Node]struct{}{}} }}

func newView() *View { return spareViews.Get().(*View) }

// reuse gives away a view without users.
func (v *View) reuse() {
	if !v.large {
		clear(v.own)
		v.queue = nil
		spareViews.Put(v)
	}
}

// join adds a contender of the session. It returns the queue as far as known, or nil if the
// queue must be listed.
func (v *View) join(j driver.Joined) (queue []driver.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.own[j.Node] = struct{}{}
	v.large = v.large || len(v.own) > 8
	switch {
	case j.Queue != nil:
		v.replace(j.Queue)
	case driver.Place(v.queue, j.Node) < 0:
		return nil
	}
	return v.queue
}

// listed takes in a listing. If another waiter has brought a newer listing meanwhile,
// contenders that joined after the older one do not find themselves in the view, and list
// again.
func (v *View) listed(queue []driver.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replace(queue)
}

// replace sets the queue. When half of the session's contenders or more cannot be in the
// queue, replace forgets the former ones: joined before the last in the queue, but missing
// there. (Looking at all of them for each listing would be quadratic.)
func (v *View) replace(queue []driver.Node) {
	v.queue = queue
	if len(v.own) < 2*len(queue) {
		return
	}
	maps.DeleteFunc(v.own, func(n driver.Node, _ struct{}) bool {
		return len(queue) > 0 && n.Seq <= queue[len(queue)-1].Seq && driver.Place(queue, n) < 0
	})
}

func (v *View) knows() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.queue) > 0
}

// gone removes a contender that has certainly left.
func (v *View) gone(node driver.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.own, node)
	switch i := driver.Place(v.queue, node); {
	case i == 0:
		v.queue = v.queue[1:]
	case i > 0:
		v.queue = slices.Concat(v.queue[:i], v.queue[i+1:])
	}
}

// blocking returns the known contenders that block self, in the order of the queue. known
// is false if the view does not contain self.
func (v *View) blocking(rule Rule, self driver.Node) (obstacles []driver.Node, known bool) {
	v.mu.Lock()
	queue := v.queue
	v.mu.Unlock()
	place := driver.Place(queue, self)
	if place < 0 {
		return nil, false
	}
	return rule(queue, place), true
}

// isOwn reports whether a node is one of the session's own.
func (v *View) isOwn(node driver.Node) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, own := v.own[node]
	return own
}
