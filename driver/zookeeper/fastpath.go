package zookeeper

import (
	"slices"
	"sync"

	"github.com/lockpool/lockpool/driver"
)

// fastpaths determines when the listing after a create can be skipped, because the number
// of the new node shows that nobody joined the queue since the session's last node did.
//
// The number of a node is the count of all children ever created in the queue. If our
// next node gets the very next number, no node was created in between. So whoever knows
// what was before our last node knows what is before the new one. If the last node was
// alone and has left, the new one is alone: an uncontended lock is then one request to
// take and one to release, as cheap as a lock on ZooKeeper can be.
//
// The count starts over if the queue is removed and created again, as the server
// does with empty containers. A watch on the queue's own node detects that: its
// event arrives before the reply to any create that follows. It must have been
// set before the earlier of the two creates was sent.
//
// The watch costs a request, and the client cannot take it back: it lasts until the
// server removes the queue. It is therefore set only for a queue that nobody else has
// joined for a while.
type fastpaths struct {
	mu    sync.Mutex
	byDir map[string]fastpath
}

// fastpath is what is known about a queue that the session has joined.
type fastpath struct {
	run     []driver.Node // the session's last nodes, each of which joined directly after the one before
	next    int64         // the number after the last of them
	streak  int           // how many nodes in a row, up to the last, had the very next number
	watched *watch        // on the queue, set before the last was created; may be nil
	checked bool          // the queue was listed during the run, and no semaphore uses it
	alone   bool          // the last was alone when it was created
	left    bool          // the last has been removed since
}

func (f fastpath) last() driver.Node { return f.run[len(f.run)-1] }

// fastpathStreak is the number of nodes in a row that makes a queue worth a watch.
const fastpathStreak = 16

// maxFastpaths bounds the queues that are remembered, for users with a lock per
// order and millions of orders.
const maxFastpaths = 1024

// maxRun bounds the nodes of a run that are remembered. It allows for callers that are
// late: maxAnswers / minAnswer creates may be under way at a time.
const maxRun = 256

// expects reports whether it is likely that no listing is needed after the session's next
// create, because the node joins directly after the last one, w shows that it did, and
// the last one was alone or the caller knows the queue up to known.
func (f *fastpaths) expects(dir string, w *watch, known driver.Node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.byDir[dir]
	return w != nil && last.streak > 0 && last.checked && last.watched == w &&
		(last.alone && last.left || driver.Place(last.run, known) >= 0)
}

// created records that a node was created while w watched the queue, or no watch did if w
// is nil. It is called in the order of the numbers, before any later event is seen. It
// returns the session's nodes directly before the new one, and reports whether the new
// one is alone; both only if it is known that no semaphore uses the queue.
func (f *fastpaths) created(dir string, node driver.Node, w *watch) (behind []driver.Node, alone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	makeRoom(f.byDir, dir, maxFastpaths)
	last, known := f.byDir[dir]
	now := fastpath{run: []driver.Node{node}, next: node.Seq + int64(nodeCount(node)), watched: w}
	if known && node.Seq == last.next {
		now.streak = last.streak + 1
	}
	if now.streak > 0 && last.watched != nil && last.watched.Fired() == 0 {
		now.run, now.checked = append(last.run, node), last.checked
		if len(now.run) > 2*maxRun {
			now.run = slices.Clone(now.run[maxRun:])
		}
		if last.checked {
			behind = slices.Clip(now.run[max(0, len(now.run)-1-maxRun) : len(now.run)-1])
			alone = last.alone && last.left
			now.alone = alone
		}
		if alone { // nobody needs to know what was before
			now.run = []driver.Node{node}
		}
	}
	f.byDir[dir] = now
	return behind, alone
}

// listed records what a listing has shown after a node was created: whether the node is
// alone, and whether a semaphore uses the directory, in which contenders may then appear
// without using a number of the queue. It reports whether the queue is worth a watch.
func (f *fastpaths) listed(dir string, node driver.Node, alone, shared bool) (worthWatch bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, known := f.byDir[dir]
	switch {
	case !known || driver.Place(now.run, node) < 0:
		return false
	case shared:
		delete(f.byDir, dir)
		return false
	}
	now.checked = true
	now.alone = now.alone || alone && node == now.last()
	f.byDir[dir] = now
	return now.watched == nil && now.streak >= fastpathStreak
}

// left records that a node of the session is gone.
func (f *fastpaths) left(dir string, node driver.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, ok := f.byDir[dir]; ok && now.last() == node {
		now.left = true
		f.byDir[dir] = now
	}
}

// uses reports whether w is the watch on the queue's own node that a fast path
// relies on.
func (f *fastpaths) uses(dir string, w *watch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byDir[dir].watched == w
}

// watchOnQueue returns the watch on a queue's own node, or nil if there is none.
func (s *session) watchOnQueue(dir string) *watch {
	if w := s.watches.at(dir); w != nil && w.isArmed() {
		return w
	}
	return nil
}

// noteJoined records what the listing after a join has shown.
func (s *session) noteJoined(dir string, node driver.Node, alone, shared bool) {
	if s.fastpaths.listed(dir, node, alone, shared) && s.usesContainers(dir) {
		if w, own := s.watch(dir); own {
			s.requests.start(w.reads...)
		}
	}
}
