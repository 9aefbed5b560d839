package zookeeper

// This file lists directories, with one listing for all who ask at the same time.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
	"github.com/lockpool/lockpool/internal/znode"
)

// listings are a session's listings of directories in progress: one per directory at a
// time. All callers asking meanwhile share the next listing; separate listings of a queue
// with n waiters would be n² names.
type listings struct {
	mu      sync.Mutex
	latest  map[string]*listing // by path of the directory, while in progress
	lengths map[string]int64    // of long answers
}

// maxLengths bounds the remembered lengths.
const maxLengths = 1024

// listing is one listing of a directory.
type listing struct {
	request *request
	sent    bool     // may lack changes required by later callers; guarded by listings.mu
	next    *listing // to be sent after this one; likewise

	sorting sync.Once
	queue   []driver.Node
}

// done is closed when the listing has been answered.
func (l *listing) done() <-chan struct{} { return l.request.done }

// children returns the children of the directory. All callers share them and must not
// change them.
func (l *listing) children() []string { return l.request.children }

// contenders returns the contenders among the children, likewise. The first caller sorts
// them, not the goroutine reading the connection.
func (l *listing) contenders() []driver.Node {
	l.sorting.Do(func() { l.queue = slices.Clip(znode.Contenders(l.children())) }) // an append must not write to memory read by others
	return l.queue
}

func (l *listing) err() error { return l.request.err }

// isComplete reports whether the listing was answered, and shows contenders alone.
func (l *listing) isComplete() bool {
	return l.err() == nil && countOthers(l.children(), l.contenders()) == 0
}

// beginListing returns a listing of the directory at the moment of the call, or later. The
// caller must start the request, if there is one; there is none if another caller has begun
// the listing, or if the listing will follow another on the way. A caller that does not
// wait for the end of the listing cancels the request.
func (s *session) beginListing(dir string) (*listing, *request) {
	ls := &s.listings
	ls.mu.Lock()
	defer ls.mu.Unlock()
	previous := ls.latest[dir]
	if previous != nil && !previous.sent {
		previous.request.callers.Add(1)
		return previous, nil
	}
	l := &listing{request: childrenRequest(dir, ls.lengthLocked(dir))}
	l.request.noted = func(*request) { s.noteListed(dir, l) }
	ls.latest[dir] = l
	if previous != nil {
		previous.next = l
		return l, nil
	}
	l.sent = true
	return l, l.request
}

// noteListed is called when a listing has been answered, or will not be.
func (s *session) noteListed(dir string, l *listing) {
	length := int64(0)
	for _, name := range l.children() {
		length += 4 + int64(len(name))
	}
	if l.err() == errTooLong {
		length = int64(s.cfg.MaxPacket)
	}
	if next := s.listings.end(dir, l, length); next != nil {
		s.requests.start(next.request)
	}
}

// end ends a listing whose answer had the length. It returns the next listing, if any, to
// be started by the caller.
func (ls *listings) end(dir string, l *listing, length int64) (next *listing) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.latest[dir] == l {
		delete(ls.latest, dir)
	}
	switch {
	case isUnsure(l.err()):
	case length <= minAnswer:
		delete(ls.lengths, dir)
	default:
		makeRoom(ls.lengths, dir, maxLengths)
		ls.lengths[dir] = min(length, maxAnswers)
	}
	switch next = l.next; {
	case next == nil:
	case next.request.callers.Load() == 0: // they have given up
		delete(ls.latest, dir)
		return nil
	default:
		next.sent = true
	}
	return next
}

// length returns how many bytes of answers a listing counts for, judging by the last one.
func (l *listings) length(dir string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lengthLocked(dir)
}

func (l *listings) lengthLocked(dir string) int64 { return max(l.lengths[dir], minAnswer) }

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

// startListing is beginListing for a caller with nothing else to start.
func (s *session) startListing(dir string) *listing {
	l, q := s.beginListing(dir)
	if q != nil {
		s.requests.start(q)
	}
	return l
}

// listOnce lists a directory at the moment of the call, or later.
func (s *session) listOnce(dir string) *listing {
	l := s.startListing(dir)
	<-l.done()
	return l
}

// list lists a directory, which need not exist.
func (s *session) list(ctx context.Context, dir string) (l *listing, err error) {
	_, err = s.ask(ctx, func() *request {
		l = s.startListing(dir)
		return l.request
	})
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, s.explainListError(err, "listing", dir)
	}
	return l, nil
}

// explainListError is explainError for a listing of dir.
func (s *session) explainListError(err error, op, dir string) error {
	if err == errTooLong {
		return fmt.Errorf("the listing of %s is longer than max_packet=%d bytes: it has too many nodes; remove some, or raise max_packet", dir, s.cfg.MaxPacket)
	}
	return explainError(err, op, "READ", dir)
}
