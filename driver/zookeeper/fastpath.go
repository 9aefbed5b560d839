package zookeeper

// This file decides when the listing after a create can be skipped.

import (
	"sync"

	"github.com/lockpool/lockpool/driver"
)

// fastpaths determines when the listing after a create can be skipped, because the number
// of the new node shows that the node is alone in the queue. An uncontended lock is then one
// request to take and one to release, as cheap as a lock on ZooKeeper can be.
//
// The number of a node is the count of all children ever created in the queue. If the
// session's next node gets the very next number, no client created a node in between. So if
// the session's last node was alone and has left, the new node is alone.
//
// The count starts over if the queue is removed, as the server does with empty containers,
// and created again. A watch on the queue's own node detects the removal: the event arrives
// before the reply to any later create. The watch must have been set before the earlier of
// the two creates was sent.
//
// The watch costs a request, and cannot be taken back: a watch lasts until the server
// removes the queue. So a watch is set only for a queue not joined by others for a while.
type fastpaths struct {
	mu    sync.Mutex
	byDir map[string]fastpath
}

// fastpath is what is known about a queue joined by the session.
type fastpath struct {
	last    driver.Node // of the session's nodes
	streak  int         // how many nodes in a row, up to the last, had the very next number
	watched *watch      // on the queue, set before the last was created; may be nil
	alone   bool        // the last was alone when created, and no semaphore used the queue
	left    bool        // the last has been removed since
}

// fastpathStreak nodes in a row make a queue worth a watch.
const fastpathStreak = 16

// maxFastpaths bounds the remembered queues, for users with a lock per order and millions
// of orders.
const maxFastpaths = 1024

// expects reports whether the session's next create probably needs no listing.
func (f *fastpaths) expects(dir string, w *watch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.byDir[dir]
	return w != nil && last.watched == w && last.alone && last.left
}

// created records that a node was created while w watched the queue, or no watch did if w
// is nil, and reports whether the node is certainly alone. created is called in the order of
// the numbers, before any later event is seen.
func (f *fastpaths) created(dir string, node driver.Node, w *watch) (alone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	makeRoom(f.byDir, dir, maxFastpaths)
	last, known := f.byDir[dir]
	now := fastpath{last: node, watched: w}
	if known && adjoins(last.last, node) {
		now.streak = last.streak + 1
		if last.watched != nil && last.watched.Fired() == 0 {
			now.alone = last.alone && last.left
		}
	}
	f.byDir[dir] = now
	return now.alone
}

// listed records what a listing has shown after a node was created: whether the node is
// alone, and whether a semaphore uses the directory, where contenders may then appear
// without using a number of the queue. It reports whether the queue is worth a watch.
func (f *fastpaths) listed(dir string, node driver.Node, alone, shared bool) (worthWatch bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, known := f.byDir[dir]
	switch {
	case !known || now.last != node:
		return false
	case shared:
		delete(f.byDir, dir)
		return false
	}
	now.alone = now.alone || alone
	f.byDir[dir] = now
	return now.watched == nil && now.streak >= fastpathStreak
}

// left records the end of a node of the session.
func (f *fastpaths) left(dir string, node driver.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, ok := f.byDir[dir]; ok && now.last == node {
		now.left = true
		f.byDir[dir] = now
	}
}

// uses reports whether a fast path relies on w, a watch on the queue's own node.
func (f *fastpaths) uses(dir string, w *watch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byDir[dir].watched == w
}

// Adjoins implements driver.Counter.
func (s *session) Adjoins(before, after driver.Node) bool { return adjoins(before, after) }

func adjoins(before, after driver.Node) bool {
	return after.Seq == before.Seq+int64(nodeCount(before))
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
			s.requests.start(s.reads(w)...)
		}
	}
}
