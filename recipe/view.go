package recipe

import (
	"slices"
	"sync"

	"github.com/lockpool/lockpool/driver"
)

// Views are what a session knows of the queues in which it waits. The zero value is
// ready for use.
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

// close forgets the view when nobody uses it: without waiters, nothing tells what
// happens in the queue.
func (vs *Views) close(queue string, v *View) {
	if vs == nil {
		return
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if v.users--; v.users == 0 {
		delete(vs.byQueue, queue)
	}
}

// View is what a session knows of a queue in which it waits: the newest listing,
// without the contenders that its watches have seen leave since. All its waiters share
// it, so a queue with n waiters of one session costs one listing in memory and none for
// a hand-over.
//
// A View may contain contenders that are gone, but it lacks none that may be before a
// waiter of the session: a waiter brings a listing that it is in, and whoever joins
// later is behind it.
type View struct {
	users int // guarded by Views.mu

	mu    sync.Mutex
	queue []driver.Node            // never changed in place, because slices of it are in use
	own   map[driver.Node]struct{} // of the session's waiters, and of those who were granted the lock
}

func newView() *View { return &View{own: map[driver.Node]struct{}{}} }

// join adds a waiter's node.
func (v *View) join(self driver.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.own[self] = struct{}{}
}

// listed takes in a listing. If another waiter has brought a newer one meanwhile, those
// who joined after this one do not find themselves in the view, and list again.
func (v *View) listed(queue []driver.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.queue = queue
}

// gone removes a contender that has left for certain.
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

// blocking returns the contenders that block self, as far as is known, in the order of
// the queue. known is false if the view does not contain self.
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
