package zookeeper

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// listings are the listings of directories that a session has in progress: one per
// directory at a time. All callers that ask for one meanwhile share the next one; if
// each had its own, the listings of a queue with n waiters would be n² names.
type listings struct {
	mu      sync.Mutex
	latest  map[string]*listing // by path of the directory, while it is in progress
	lengths map[string]int64    // of long answers
}

// maxLengths bounds the lengths that are remembered.
const maxLengths = 1024

// listing is one listing of a directory.
type listing struct {
	sent bool          // guarded by listings.mu
	done chan struct{} // closed when the fields below are set

	children []string      // shared by all callers; must not be changed
	queue    []driver.Node // the contenders among them, likewise
	err      error
}

// begin returns a listing that will show the directory as it is now, or later. If own
// is true, the caller must request it, after previous is done, and call finish.
func (l *listings) begin(dir string) (latest, previous *listing, answer int64, own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	previous = l.latest[dir]
	if previous != nil && !previous.sent {
		return previous, nil, 0, false
	}
	latest = &listing{done: make(chan struct{})}
	l.latest[dir] = latest
	return latest, previous, max(l.lengths[dir], minAnswer), true
}

// markSent marks a listing that may lack changes that later callers must see.
func (l *listings) markSent(of *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.sent = true
}

func (l *listings) finish(dir string, of *listing, maxPacket int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.latest[dir] == of {
		delete(l.latest, dir)
	}
	l.noteLength(dir, of, maxPacket)
}

// noteLength remembers how long an answer was, if it counts for more than
// minAnswer. It is called with l.mu held.
func (l *listings) noteLength(dir string, of *listing, maxPacket int) {
	length := int64(0)
	for _, name := range of.children {
		length += 4 + int64(len(name))
	}
	if isTooLong(of.err) {
		length = int64(maxPacket)
	}
	switch {
	case isUnsure(of.err):
	case length <= minAnswer:
		delete(l.lengths, dir)
	default:
		makeRoom(l.lengths, dir, maxLengths)
		l.lengths[dir] = min(length, maxAnswers)
	}
}

// makeRoom deletes any entry of m if another one, for key, would be one too many.
func makeRoom[V any](m map[string]V, key string, limit int) {
	if _, known := m[key]; known || len(m) < limit {
		return
	}
	for other := range m {
		delete(m, other)
		return
	}
}

// listOnce lists a directory as it is now, or later.
func (s *Session) listOnce(dir string) *listing {
	l, previous, answer, own := s.listings.begin(dir)
	if !own {
		<-l.done // closed by the goroutine that called begin first
		return l
	}
	defer close(l.done)
	if previous != nil {
		<-previous.done
	}
	l.children, l.err = s.requests.Children(dir, answer, func() { s.listings.markSent(l) })
	l.queue = slices.Clip(contendersOf(l.children)) // an append must not write to memory that others read
	s.listings.finish(dir, l, s.cfg.MaxPacket)
	return l
}

// list lists a directory, which need not exist. The listing is never nil.
func (s *Session) list(dir string) (l *listing, err error) {
	err = s.retryUntilAnswered(func() error {
		l = s.listOnce(dir)
		return l.err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return l, nil
	}
	if err != nil && !errors.Is(err, driver.ErrSessionLost) {
		err = s.explainListError(err, "listing", dir)
	}
	return l, err
}

// explainListError is explainError for a listing of dir.
func (s *Session) explainListError(err error, op, dir string) error {
	if isTooLong(err) {
		return fmt.Errorf("the listing of %s is longer than max_packet=%d bytes: it has too many nodes; remove some, or raise max_packet", dir, s.cfg.MaxPacket)
	}
	return explainError(err, op, "READ", dir)
}
