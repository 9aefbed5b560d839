package zookeeper

import (
	"github.com/lockpool/lockpool/driver"
)

// solo is what a session knows of a queue in which it was alone the last time.
//
// The number of a node is the count of all children ever created in the queue.
// So if our next node gets the very next number, nobody has joined in between,
// and if nobody but us was there before, nobody is there now: the node is at the
// head, and the listing would only say so. An uncontended lock is then one
// request to take and one to give back, as cheap as a lock on ZooKeeper can be.
//
// The count begins anew if the queue is removed and made again, as the server
// does with empty containers. A watch on the queue's own node tells of that: its
// event comes before the reply to any create that follows. It must have been
// set before the earlier of the two creates was sent.
//
// The watch costs a request, and the client can not take it back: it goes when
// the server removes the queue. So it is set only for a queue that we have had
// to ourselves for a while.
type fastpath struct {
	seq     int32  // of our last node, which was at the head when it was created
	next    int32  // the number after it
	streak  int    // how many nodes in a row had the very next number, up to it
	left    bool   // it has been removed since
	watched *watch // on the queue, set before that node was created; may be nil
}

// soloStreak is how many numbers in a row make a queue worth a watch.
const fastpathStreak = 16

// maxSolos bounds what is remembered, for users with a lock per order and
// millions of orders.
const maxFastpaths = 1024

// expectSolo returns the watch on the queue, if there is one, and the number
// that the next node must get for us to be alone, if that can be told.
func (s *Session) expectAlone(dir string) (watched *watch, next int32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if watched = s.watches[dir]; watched == nil || !watched.isArmed() {
		return nil, 0, false
	}
	last := s.fastpaths[dir]
	return watched, last.next, last.streak > 0 && last.left && last.watched == watched
}

// noteSolo records the outcome of a join. watched is what expectSolo returned
// before it.
func (s *Session) noteJoined(dir string, node driver.Node, alone bool, watched *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.fastpaths[dir]
	if !alone {
		delete(s.fastpaths, dir)
		return
	}
	if !known && len(s.fastpaths) >= maxFastpaths {
		for other := range s.fastpaths { // any
			delete(s.fastpaths, other)
			break
		}
	}
	streak := 0
	if known && node.Seq == last.next {
		streak = last.streak + 1
	}
	s.fastpaths[dir] = fastpath{seq: node.Seq, next: node.Seq + int32(len(nodeNames(node))), streak: streak, watched: watched}
	if watched == nil && streak >= fastpathStreak && !s.noContainers && !s.cfg.Layout.naming().persistent {
		s.watchLocked(dir)
	}
}

// noteLeft records that a node of ours is gone.
func (s *Session) noteLeft(dir string, node driver.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.fastpaths[dir]; ok && last.seq == node.Seq {
		last.left = true
		s.fastpaths[dir] = last
	}
}
