package etcd

import (
	"context"
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

// ask sends a request, again until it is answered. f must do no harm when it is carried out
// several times, also late.
func (s *session) ask(ctx context.Context, f func(ctx context.Context, conn *connection) error) error {
	_, err := s.try(ctx, f)
	return err
}

// try is ask. It reports whether an attempt was not answered, and so has perhaps been
// carried out, or may be yet.
func (s *session) try(ctx context.Context, f func(ctx context.Context, conn *connection) error) (maybe bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	request, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.alive, cancel)
	defer stop()
	for {
		conn, err := s.connected(ctx)
		if err != nil {
			return maybe, err
		}
		err = f(request, conn)
		switch {
		case s.isOver():
			return maybe, s.Err()
		case err == nil:
			return maybe, nil
		case isConclusive(err):
			return maybe, s.answered(err)
		}
		maybe = true
		if ctx.Err() != nil {
			return maybe, s.noAnswer(ctx)
		}
		if needsNewConnection(err) {
			conn.fail(err)
		}
		pause(request, retryPause)
	}
}

// answered returns the error of a call that a server has answered with err.
func (s *session) answered(err error) error {
	if isLeaseGone(err) {
		s.lose(errRevoked)
		return s.Err()
	}
	return s.describe(err)
}

// fence is the version of the session's key that what creates something requires. A request
// that was not answered may be carried out much later, when the call that sent it has
// ended. A write of the session's key that was answered prevents that.
type fence struct {
	mu      sync.Mutex
	version int64
}

func (f *fence) now() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

func (f *fence) raise(version int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = max(f.version, version)
}

// change is a transaction that is carried out at most once.
type change struct {
	session *session
	creates string // a key of the session, which must not exist; its creation is the first operation
	value   []byte
	on      []clientv3.Cmp
	ops     []clientv3.Op
	other   []clientv3.Op // if on does not hold

	// happened tells from an answer to look whether it has been carried out.
	look     []clientv3.Op
	happened func([]*answer) bool
}

// answer is that to an operation.
type answer struct {
	revision int64
	kvs      []*mvccpb.KeyValue
	deleted  int64
}

func answers(got *clientv3.TxnResponse, skip int) (all []*answer) {
	for _, r := range got.Responses[skip:] {
		a := &answer{revision: got.Header.Revision, deleted: r.GetResponseDeleteRange().GetDeleted()}
		a.kvs = r.GetResponseRange().GetKvs()
		all = append(all, a)
	}
	return all
}

// commit carries out the change, and reports whether its condition held. If it was carried
// out, but the answer was lost, the answers are nil. After an error, late tells whether the
// change has perhaps been made, or may be until the fence is raised.
func (c change) commit(ctx context.Context) (done bool, got []*answer, late bool, err error) {
	s := c.session
	key := s.sessionKey()
	on := c.on
	if c.creates != "" {
		on = append([]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(c.creates), "=", 0)}, on...)
		s.keys.add(c.creates, 1)
		defer func() {
			if !done && !late {
				s.keys.add(c.creates, -1)
			}
		}()
	}
	unsettled := false
	_, err = s.try(ctx, func(ctx context.Context, conn *connection) error {
		if unsettled { // nothing that was sent before can be carried out after this
			settled, err := s.raiseFence(ctx, conn, c.look...)
			if err != nil {
				return err
			}
			if unsettled = false; c.happened(settled) {
				done = true
				return nil
			}
		}
		for {
			version, ops := s.fence.now(), c.ops
			if c.creates != "" { // with the lease of that version, or of a later one
				ops = append([]clientv3.Op{clientv3.OpPut(c.creates, string(c.value), clientv3.WithLease(s.lease.current()))}, ops...)
			}
			answer, err := conn.kv.Txn(ctx).If(append([]clientv3.Cmp{clientv3.Compare(clientv3.Version(key), "=", version)}, on...)...).
				Then(ops...).Else(append([]clientv3.Op{clientv3.OpGet(key)}, c.other...)...).Commit()
			if err != nil {
				unsettled = unsettled || !isConclusive(err) || isFull(err)
				return err
			}
			if done = answer.Succeeded; done {
				got = answers(answer, 0)
				return nil
			}
			own := answer.Responses[0].GetResponseRange().Kvs
			if len(own) == 0 {
				s.lose(errRevoked)
				return s.Err()
			}
			if own[0].Version == version {
				got = answers(answer, 1)
				return nil
			}
			s.fence.raise(own[0].Version)
		}
	})
	return done, got, unsettled && err != nil, err
}

// raiseFence makes sure that nothing that was sent before is carried out anymore, and then
// does ops.
func (s *session) raiseFence(ctx context.Context, conn *connection, ops ...clientv3.Op) ([]*answer, error) {
	key := s.sessionKey()
	got, err := conn.kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), ">", 0)).
		Then(append([]clientv3.Op{clientv3.OpPut(key, "", clientv3.WithIgnoreLease()), clientv3.OpGet(key)}, ops...)...).Commit()
	switch {
	case err != nil:
		return nil, err
	case !got.Succeeded:
		s.lose(errRevoked)
		return nil, s.Err()
	}
	s.fence.raise(got.Responses[1].GetResponseRange().Kvs[0].Version)
	return answers(got, 2), nil
}

// settle makes sure that nothing that was sent before is carried out anymore, and then does
// op. A full database refuses the former, but then refuses what was sent before as well.
func (s *session) settle(ctx context.Context, conn *connection, op clientv3.Op) (*answer, error) {
	got, err := s.raiseFence(ctx, conn, op)
	if isFull(err) {
		var done *clientv3.TxnResponse
		if done, err = conn.kv.Txn(ctx).Then(op).Commit(); err == nil {
			got = answers(done, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

// undo sends a request that removes a node, again until it is answered or the session is
// over, and waits for that until the context ends.
func (s *session) undo(ctx context.Context, f func(ctx context.Context, conn *connection) error) {
	done := make(chan struct{})
	if !s.task(func() { // ends with the session
		defer close(done)
		s.noteRefusal(s.ask(context.Background(), f))
	}) {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// noteRefusal notes that a node could not be removed for want of a right.
func (s *session) noteRefusal(err error) {
	if errors.Is(err, driver.ErrNoPermission) {
		s.markUnremovable()
	}
}
