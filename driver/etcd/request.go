package etcd

// This file has requests sent until a server answers, and changes made once.

import (
	"context"
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

// ask calls f until a server has answered. The request of f must do no harm if servers carry
// out the request several times, or late.
func (s *session) ask(ctx context.Context, f func(ctx context.Context, conn *connection) error) error {
	_, err := s.try(ctx, f)
	return err
}

// try is ask, and reports whether an attempt got no answer: servers may have carried out
// the attempt, or may still do so.
func (s *session) try(ctx context.Context, f func(ctx context.Context, conn *connection) error) (maybe bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.awaken()
	request, cancel := context.WithCancel(s.alive) // gRPC asks contexts for values: user code, which may panic
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
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

// answered returns the error of a call, given a server's answer err.
func (s *session) answered(err error) error {
	if isLeaseGone(err) {
		s.lose(errRevoked)
		return s.Err()
	}
	return s.describe(err)
}

// fence is the version of the session's key. Every creating request requires the version. A
// request without an answer may be carried out much later, when the call has ended; an
// answered write of the session's key prevents this.
type fence struct {
	mu        sync.Mutex
	version   int64
	abandoned int // repeatable changes without an answer
	prevented int // how many of them are certainly not carried out any longer
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

// abandon counts a change that may be carried out until the fence is raised.
func (f *fence) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.abandoned++
}

// toPrevent returns how many changes were abandoned, and whether one of them may still be
// carried out.
func (f *fence) toPrevent() (abandoned int, any bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.abandoned, f.prevented < f.abandoned
}

// prevent notes that the first changes abandoned are not carried out any longer.
func (f *fence) prevent(abandoned int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prevented = max(f.prevented, abandoned)
}

// change is a transaction, carried out at most once.
type change struct {
	session *session
	creates string // a key of the session, not existing yet; the creation is the first operation
	value   []byte
	on      []clientv3.Cmp
	ops     []clientv3.Op
	other   []clientv3.Op // if on does not hold

	// happened tells from the answer to look whether servers have carried out the change.
	look     []clientv3.Op
	happened func([]answer) bool
}

// repeatable returns a change that may be carried out several times during the call. Without
// an answer, the change is sent again.
func repeatable(s *session, ops []clientv3.Op) change {
	return change{session: s, ops: ops, happened: func([]answer) bool { return false }}
}

// answer is the answer to one operation: the keys read, if any.
type answer []*mvccpb.KeyValue

func answers(got *clientv3.TxnResponse, skip int) (all []answer) {
	for _, r := range got.Responses[skip:] {
		all = append(all, r.GetResponseRange().GetKvs())
	}
	return all
}

// commit carries out the change and reports whether the condition held. The answers are nil
// if the change was made and the answer was lost. After an error, late reports that the change
// may have been made, or may still be made until the fence is raised.
func (c change) commit(ctx context.Context) (done bool, got []answer, late bool, err error) {
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
	unknown := false // whether the outcome of an attempt is
	_, err = s.try(ctx, func(ctx context.Context, conn *connection) error {
		if _, late := s.fence.toPrevent(); unknown || late { // afterward no earlier request can be carried out
			looked, err := s.raiseFence(ctx, conn, c.look...)
			if err != nil {
				return err
			}
			done, unknown = unknown && c.happened(looked), false
			if done {
				return nil
			}
		}
		for {
			version, ops := s.fence.now(), c.ops
			if c.creates != "" { // with the lease of this version, or of a later one
				ops = append([]clientv3.Op{clientv3.OpPut(c.creates, string(c.value), clientv3.WithLease(s.lease.current()))}, ops...)
			}
			answer, err := conn.kv.Txn(ctx).If(append([]clientv3.Cmp{clientv3.Compare(clientv3.Version(key), "=", version)}, on...)...).
				Then(ops...).Else(append([]clientv3.Op{clientv3.OpGet(key)}, c.other...)...).Commit()
			if err != nil {
				unknown = unknown || !isConclusive(err) || isFull(err)
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
	return done, got, unknown && err != nil, err
}

// commitRepeatable carries out a repeatable change. After an error, servers do not carry out
// the change once a later call of the session has changed anything, nor when a server has
// answered since.
func (s *session) commitRepeatable(ctx context.Context, ops ...clientv3.Op) error {
	_, _, late, err := repeatable(s, ops).commit(ctx)
	if late {
		s.fence.abandon()
		s.undo(ctx, func(ctx context.Context, conn *connection) error {
			_, err := s.raiseFence(ctx, conn)
			return err
		})
	}
	return err
}

// raiseFence prevents servers from carrying out any request sent before, and then does ops.
func (s *session) raiseFence(ctx context.Context, conn *connection, ops ...clientv3.Op) ([]answer, error) {
	key := s.sessionKey()
	abandoned, _ := s.fence.toPrevent()
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
	s.fence.prevent(abandoned)
	return answers(got, 2), nil
}

// afterFence raises the fence and then does op. A full database refuses to raise the fence,
// but then refuses every request sent before as well.
func (s *session) afterFence(ctx context.Context, conn *connection, op clientv3.Op) (answer, error) {
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

// undo sends a request to remove a node until a server answers or the session is over. The
// caller waits until then, or until ctx ends.
func (s *session) undo(ctx context.Context, f func(ctx context.Context, conn *connection) error) {
	done := make(chan struct{})
	if !s.task(func() {
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

// noteRefusal marks the session if a node could not be removed for want of a right.
func (s *session) noteRefusal(err error) {
	if errors.Is(err, driver.ErrNoPermission) {
		s.markUnremovable()
	}
}
