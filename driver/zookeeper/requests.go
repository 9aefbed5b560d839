package zookeeper

import (
	"context"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/semaphore"
)

// requests sends a session's requests to its server. All answers, including those to
// the proofs of the lease, arrive one after the other on one connection. So requests
// bounds what can be pending ahead of a proof, in bytes of expected answers. Because
// small answers also cost the server work, each counts for at least minAnswer. Only the
// proofs themselves bypass the bound.
type requests struct {
	client  *zk.Conn            // for proofs, and for closing the session
	budget  *semaphore.Weighted // bytes of answers; first come, first served
	dialing context.Context     // of the session: ends when nothing more can be sent
}

const (
	// maxAnswers is what a network of 2 MB/s carries in an eighth of a second. A
	// request whose answer is expected to be longer is sent alone.
	maxAnswers = 256 << 10
	// minAnswer allows 64 requests at a time. A server that is busy with others
	// answers as many in an eighth of a second, and one with a round trip of 50 ms
	// is sent 1,200 in a second.
	minAnswer = 4 << 10
)

func newRequests(client *zk.Conn, dialing context.Context) *requests {
	return &requests{client, semaphore.NewWeighted(maxAnswers), dialing}
}

// acquire waits for room for an answer. If the session ends first, the error is the
// client's error for a request that it abandons.
func (r *requests) acquire(answer int64) error {
	if r.budget.Acquire(r.dialing, answer) != nil {
		return zk.ErrConnectionClosed
	}
	return nil
}

func (r *requests) release(answer int64) { r.budget.Release(answer) }

// send sends a request with a short answer.
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

// Children sends a request whose answer is expected to have the given length. It calls
// sent when the request is on its way, or never will be.
func (r *requests) Children(path string, answer int64, sent func()) ([]string, error) {
	err := r.acquire(answer)
	sent()
	if err != nil {
		return nil, err
	}
	defer r.release(answer)
	children, _, err := r.client.Children(path)
	return children, err
}

// settle returns nil when every write that the session has sent before is decided, also
// those on earlier connections whose replies were lost: reads show what came of them. It
// is a write, because a leader that has lost its followers answers the syncs of its own
// clients while their writes hang (CommitProcessor.matchSyncs), and may commit those
// later.
func (s *Session) settle() error { return changeNothing(s.requests.Multi) }

// sync makes a server that lags behind catch up with what has happened so far.
func (s *Session) sync(path string) error {
	return s.retryUntilAnswered(func() error {
		_, err := s.requests.Sync(path)
		return err
	})
}

// get reads a node.
func (s *Session) get(path string) (data []byte, stat *zk.Stat, err error) {
	err = s.retryUntilAnswered(func() (err error) {
		data, stat, err = s.requests.Get(path)
		return err
	})
	return data, stat, err
}

// exists looks for a node.
func (s *Session) exists(path string) (exists bool, stat *zk.Stat, err error) {
	err = s.retryUntilAnswered(func() (err error) {
		exists, stat, err = s.requests.Exists(path)
		return err
	})
	return exists, stat, err
}
