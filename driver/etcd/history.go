package etcd

// This file has the history of contenders, which the servers keep until the next compaction.

import (
	"context"
	"errors"
	"math"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/lockpool/lockpool/driver"
)

// Revision is a revision of the database with the changes of contenders.
type Revision struct {
	Number  int64
	All     bool // Changes has all contenders, since a compaction has removed what was before
	Changes []Change
	Ended   []string // the sessions that have ended, and with a session its contenders
}

// Change is a contender that joined a queue or changed or, if Left, has left the queue.
type Change struct {
	driver.Contender
	Queue string
	Left  bool
}

// History calls each with the revisions from the last compaction until now, in order. History
// opens a session, whose own key marks the end.
func (c *Connector) History(ctx context.Context, each func(Revision)) error {
	opened, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	s := opened.(*session)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg().TTL/4)
		defer cancel()
		_ = s.Close(ctx) // otherwise the lease ends
	}()
	conn, err := s.connected(ctx)
	if err != nil {
		return err
	}
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watches
	defer context.AfterFunc(conn.ctx, cancel)()
	compacted := int64(0)
	for ended := false; !ended && err == nil; {
		if compacted > 0 {
			ended, err = s.present(ctx, conn, compacted, each)
		}
		if !ended && err == nil {
			compacted, err = s.since(ctx, conn, compacted+1, each)
			ended = err == nil && compacted == 0
		}
		if is(err, rpctypes.ErrGRPCCompacted) { // by a later compaction
			compacted, err = 0, nil
		}
	}
	if caller.Err() != nil {
		return s.noAnswer(caller)
	} else if err != nil {
		return s.describe(conn.why(err))
	}
	return nil
}

// present calls each with the contenders at a revision, and reports whether History ends there.
func (s *session) present(ctx context.Context, conn *connection, revision int64, each func(Revision)) (ended bool, err error) {
	got, err := conn.kv.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err != nil {
		return false, err
	}
	all := Revision{Number: revision, All: true}
	for _, kv := range got.Kvs {
		all.take(s, kv, false)
		ended = ended || string(kv.Key) == s.sessionKey()
	}
	each(all)
	return ended, nil
}

// since calls each with the revisions from one to the end. If the servers have compacted the
// database since, since returns the revision of the compaction or a later one, and otherwise 0.
func (s *session) since(ctx context.Context, conn *connection, revision int64, each func(Revision)) (compacted int64, err error) {
	stream, err := conn.watching.Watch(clientv3.WithRequireLeader(ctx), grpc.MaxCallRecvMsgSize(math.MaxInt32)) // of a thousand revisions
	if err != nil {
		return 0, err
	}
	create := &pb.WatchCreateRequest{Key: []byte(s.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(s.prefix)), StartRevision: revision, PrevKv: true}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return 0, err
	}
	for {
		got, err := stream.Recv()
		switch {
		case err != nil:
			return 0, err
		case got.CompactRevision > 0:
			return got.CompactRevision, nil
		case strings.Contains(got.CancelReason, "permission denied"):
			return 0, rpctypes.ErrGRPCPermissionDenied
		case got.Canceled:
			return 0, errors.New(got.CancelReason)
		}
		for events := got.Events; len(events) > 0; {
			r := Revision{Number: events[0].Kv.ModRevision}
			for ; len(events) > 0 && events[0].Kv.ModRevision == r.Number; events = events[1:] {
				e := events[0]
				if string(e.Kv.Key) == s.sessionKey() {
					return 0, nil
				}
				if e.Type == clientv3.EventTypeDelete && e.PrevKv == nil { // compacted just now
					return r.Number, nil
				} else if e.Type == clientv3.EventTypeDelete {
					r.take(s, e.PrevKv, true)
				} else {
					r.take(s, e.Kv, false)
				}
			}
			each(r)
		}
	}
}

// take takes in a key that was put or, as before, deleted.
func (r *Revision) take(s *session, kv *mvccpb.KeyValue, left bool) {
	if id, ok := strings.CutPrefix(string(kv.Key), s.prefix+sessions+"/"); ok && left {
		r.Ended = append(r.Ended, id)
	} else if queue, node, ok := s.placeOf(kv); ok {
		r.Changes = append(r.Changes, Change{entry{node, kv}.contender(), queue, left})
	}
}
