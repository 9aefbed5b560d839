package zookeeper

// This file decides when the listing after a create can be skipped.

import (
	"slices"
	"sync"

	"github.com/lockpool/lockpool/driver"
)

// fastpaths determines when the listing after a create can be skipped, because the number
// of the new node shows that no client joined the queue since the session's last node did.
//
// The number of a node is the count of all children ever created in the queue. If our next
// node gets the very next number, no node was created in between. So what was before our
// last node is before the new node as well. If the last node was alone and has left, the
// new node is alone: an uncontended lock is then one request to take and one to release, as
// cheap as a lock on ZooKeeper can be.
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
	run     []driver.Node // the session's last nodes, each joined directly after the one before
	next    int64         // the number after the last of them
	streak  int           // how many nodes in a row, up to the last, had the very next number
	watched *watch        // on the queue, set before the last was created; may be nil
	checked bool          // the queue was listed during the run, and no semaphore uses it
	alone   bool          // the last was alone when created
	left    bool          // the last has been removed since
}

func (f fastpath) last() driver.Node { return f.run[len(f.run)-1] }

// fastpathStreak nodes in a row make a queue worth a watch.
const fastpathStreak = 16

// maxFastpaths bounds the remembered queues, for users with a lock per order and millions
// of orders.
const maxFastpaths = 1024

// maxRun bounds the remembered nodes of a run. It allows for late callers: maxAnswers /
// minAnswer creates may be under way at a time.
const maxRun = 256

// expects reports whether the session's next create probably needs no listing, because the
// node joins directly after the last one, as w shows, and the last one was alone or the
// caller knows the queue up to known.
func (f *fastpaths) expects(dir string, w *watch, known driver.Node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.byDir[dir]
	return w != nil && last.streak > 0 && last.checked && last.watched == w &&
		(last.alone && last.left || driver.Place(last.run, known) >= 0)
}

// created records that a node was created while w watched the queue, or no watch did if w
// is nil. It is called in the order of the numbers, before any later event is seen. It
// returns the session's nodes directly before the new one, and reports whether the new one
// is alone; both only if certainly no semaphore uses the queue.
func (f *fastpaths) created(dir string, node driver.Node, w *watch) (behind []driver.Node, alone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	makeRoom(f.byDir, dir, maxFastpaths)
	last, known := f.byDir[dir]
	now := fastpath{next: node.Seq + int64(nodeCount(node)), watched: w}
	if known && node.Seq == last.next {
		now.streak = last.streak + 1
	}
	if now.streak > 0 && last.watched != nil && last.watched.Fired() == 0 {
		now.run, now.checked = last.run, last.checked
		if len(now.run) >= 2*maxRun {
			now.run = slices.Clone(now.run[maxRun:])
		}
		if last.checked {
			behind = slices.Clip(now.run[max(0, len(now.run)-maxRun):])
			alone = last.alone && last.left
			now.alone = alone
		}
		if alone {
			now.run = nil // what was before no longer matters
		}
	}
	now.run = append(now.run, node)
	f.byDir[dir] = now
	return behind, alone
}

// listed records what a listing has shown after a node was created: whether the node is
// alone, and whether a semaphore uses the directory, where contenders may then appear
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

// left records the end of a node of the session.
func (f *fastpaths) left(dir string, node driver.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, ok := f.byDir[dir]; ok && now.last() == node {
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
func (s *session) Adjoins(before, after driver.Node) bool {
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
			s.requests.start(w.arming.Load().reads...)
		}
	}
}
