package zookeeper

import (
	"sync"

	"github.com/lockpool/lockpool/driver"
)

// fastpaths determines when the listing after a create can be skipped, because the new
// node is known to be alone in its queue.
//
// The number of a node is the count of all children ever created in the queue. If our
// next node gets the very next number, no node was created in between, and if ours was
// alone before, the new one is alone now: it is at the head, and the listing would show
// nothing else. An uncontended lock is then one request to take and one to release, as
// cheap as a lock on ZooKeeper can be.
//
// The count starts over if the queue is removed and created again, as the server
// does with empty containers. A watch on the queue's own node detects that: its
// event arrives before the reply to any create that follows. It must have been
// set before the earlier of the two creates was sent.
//
// The watch costs a request, and the client cannot take it back: it lasts until the
// server removes the queue. It is therefore set only for a queue that the session has
// had to itself for a while.
type fastpaths struct {
	mu    sync.Mutex
	byDir map[string]fastpath
}

// fastpath is what is known about a queue in which the session's last node was alone.
type fastpath struct {
	seq     int32  // of that node, which was at the head when it was created
	next    int32  // the number after it
	streak  int    // how many nodes in a row, up to that one, had the very next number
	left    bool   // it has been removed since
	watched *watch // on the queue, set before that node was created; may be nil
}

// fastpathStreak is the number of nodes in a row that makes a queue worth a watch.
const fastpathStreak = 16

// maxFastpaths bounds the queues that are remembered, for users with a lock per
// order and millions of orders.
const maxFastpaths = 1024

// expect returns the number that the session's next node in the queue gets if it is
// alone. It reports false if that is unknown, or if the queue was not watched by w.
func (f *fastpaths) expect(dir string, w *watch) (next int32, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.byDir[dir]
	return last.next, last.streak > 0 && last.left && last.watched == w
}

// joined records the outcome of a join during which w watched the queue, or no watch
// did if w is nil. It reports whether the queue is worth a watch.
func (f *fastpaths) joined(dir string, node driver.Node, alone bool, w *watch) (worthWatch bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !alone {
		delete(f.byDir, dir)
		return false
	}
	makeRoom(f.byDir, dir, maxFastpaths)
	streak := 0
	if last, known := f.byDir[dir]; known && node.Seq == last.next {
		streak = last.streak + 1
	}
	f.byDir[dir] = fastpath{seq: node.Seq, next: node.Seq + int32(nodeCount(node)), streak: streak, watched: w}
	return w == nil && streak >= fastpathStreak
}

// left records that a node of the session is gone.
func (f *fastpaths) left(dir string, node driver.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last, ok := f.byDir[dir]; ok && last.seq == node.Seq {
		last.left = true
		f.byDir[dir] = last
	}
}

// uses reports whether w is the watch on the queue's own node that a fast path
// relies on.
func (f *fastpaths) uses(dir string, w *watch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byDir[dir].watched == w
}

// expectAlone returns the watch on the queue, if there is one, and the number that the
// next node gets if it is alone, if that is known.
func (s *Session) expectAlone(dir string) (w *watch, next int32, ok bool) {
	if w = s.watches.at(dir); w == nil || !w.isArmed() {
		return nil, 0, false
	}
	next, ok = s.fastpaths.expect(dir, w)
	return w, next, ok
}

// noteJoined records the outcome of a join. w is the watch that expectAlone returned
// before it.
func (s *Session) noteJoined(dir string, node driver.Node, alone bool, w *watch) {
	if s.fastpaths.joined(dir, node, alone, w) && s.usesContainers() {
		if w, own := s.watch(dir); own {
			s.requests.start(w.reads...)
		}
	}
}
