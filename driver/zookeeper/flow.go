package zookeeper

import (
	"context"
	"slices"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/semaphore"

	"github.com/lockpool/lockpool/driver"
)

// requests are what a session asks of its server. All answers come one after
// the other on one connection, and a proof of the lease is one of them. So what
// may be under way in front of a proof is bounded: by the bytes of the answers
// that are expected, and, because the server works for small ones as well, each
// counts for at least minAnswer. Only the proofs themselves go around the bound.
type requests struct {
	client  *zk.Conn
	budget    *semaphore.Weighted // for the bytes of answers; first come, first served
	dialing context.Context     // of the session: ends when nothing more can be sent
}

const (
	// maxUnderWay is what a network of 2 MB/s carries in an eighth of a second. An
	// answer that is expected to be longer is under way alone.
	maxAnswers = 256 << 10
	// minAnswer allows for 64 requests, which a server that is busy with others
	// answers in that time, too, and which one that is far away, with 50 ms to and
	// fro, is sent 1,200 times in a second.
	minAnswer = 4 << 10
)

func newRequests(client *zk.Conn, dialing context.Context) *requests {
	return &requests{client, semaphore.NewWeighted(maxAnswers), dialing}
}

// enter waits for room for an answer. When the session is done with first, the error
// is the client's for a request that it gives up.
func (r *requests) acquire(answer int64) error {
	if r.budget.Acquire(r.dialing, answer) != nil {
		return zk.ErrConnectionClosed
	}
	return nil
}

func (r *requests) release(answer int64) { r.budget.Release(answer) }

// do sends a request with a short answer.
func send[T any](r *requests, request func() (T, error)) (T, error) {
	if err := r.acquire(minAnswer); err != nil {
		var none T
		return none, err
	}
	defer r.release(minAnswer)
	return request()
}

func (r *requests) Create(path string, data []byte, flags int32, acl []zk.ACL) (string, error) {
	return send(r, func() (string, error) { return r.client.Create(path, data, flags, acl) })
}

func (r *requests) CreateContainer(path string, data []byte, flags int32, acl []zk.ACL) (string, error) {
	return send(r, func() (string, error) { return r.client.CreateContainer(path, data, flags, acl) })
}

func (r *requests) Multi(ops ...any) ([]zk.MultiResponse, error) {
	return send(r, func() ([]zk.MultiResponse, error) { return r.client.Multi(ops...) })
}

func (r *requests) Delete(path string, version int32) error {
	_, err := send(r, func() (any, error) { return nil, r.client.Delete(path, version) })
	return err
}

func (r *requests) Set(path string, data []byte, version int32) (*zk.Stat, error) {
	return send(r, func() (*zk.Stat, error) { return r.client.Set(path, data, version) })
}

func (r *requests) Sync(path string) (string, error) {
	return send(r, func() (string, error) { return r.client.Sync(path) })
}

func (r *requests) Get(path string) (data []byte, stat *zk.Stat, err error) {
	stat, err = send(r, func() (*zk.Stat, error) {
		data, stat, err = r.client.Get(path)
		return stat, err
	})
	return data, stat, err
}

func (r *requests) Exists(path string) (exists bool, stat *zk.Stat, err error) {
	stat, err = send(r, func() (*zk.Stat, error) {
		exists, stat, err = r.client.Exists(path)
		return stat, err
	})
	return exists, stat, err
}

// listing is one listing of a directory, for all who asked for it before it was
// sent, and so had better not ask for one each: the listings of a queue with n
// waiters would be n² names.
type listing struct {
	sent bool          // guarded by Session.mu
	done chan struct{} // closed when what follows is set

	children []string      // shared by all who asked, like the queue
	queue    []driver.Node // the contenders among them
	err      error
}

// listing lists a directory as it is now, or later. Whoever asks while a listing
// of it is under way shares the next one with all who do.
func (s *Session) listing(dir string) *listing {
	s.mu.Lock()
	before := s.listings[dir]
	if before != nil && !before.sent {
		s.mu.Unlock()
		<-before.done // by the goroutine that made it, see below
		return before
	}
	l := &listing{done: make(chan struct{})}
	s.listings[dir] = l
	answer := max(s.lengths[dir], minAnswer)
	s.mu.Unlock()
	defer close(l.done)
	if before != nil {
		<-before.done
	}
	entered := s.conn.acquire(answer)
	s.mu.Lock()
	l.sent = true
	s.mu.Unlock()
	if l.err = entered; l.err == nil {
		l.children, _, l.err = s.conn.client.Children(dir)
		s.conn.release(answer)
		l.queue = slices.Clip(contendersOf(l.children)) // nobody appends to what all read
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listings[dir] == l {
		delete(s.listings, dir)
	}
	s.noteLength(dir, l)
	return l
}

// noteLength remembers how long the answer to a listing was, if it counts for
// more than others. It is called with s.mu held.
func (s *Session) noteLength(dir string, l *listing) {
	length := int64(0)
	for _, name := range l.children {
		length += 4 + int64(len(name))
	}
	if isTooLong(l.err) {
		length = int64(s.cfg.MaxPacket)
	}
	switch {
	case isUnsure(l.err):
	case length <= minAnswer:
		delete(s.lengths, dir)
	default:
		for other := range s.lengths {
			if len(s.lengths) < maxFastpaths {
				break
			}
			delete(s.lengths, other) // any
		}
		s.lengths[dir] = min(length, maxAnswers)
	}
}
