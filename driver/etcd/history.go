package etcd

// This file has the history of contenders, which the servers keep until the next compaction.

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/lockpool/lockpool/driver"
)

// Revision is a revision of the database with the changes of contenders.
type Revision struct {
	Number  int64 // 0 if Changes has all contenders, after a compaction
	Changes []Change
	Ended   []string // the sessions that have ended, and with a session its contenders
}

// Change is a contender that joined a queue or changed or, if Left, has left the queue.
type Change struct {
	driver.Contender
	Queue string
	Left  bool
}

// History calls each with the revisions from the last compaction until now, until each returns
// false. History opens a session, whose own key marks the end.
func (c *Connector) History(ctx context.Context, each func(Revision) (more bool)) error {
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watches
	defer context.AfterFunc(conn.ctx, cancel)()
	compacted := int64(0)
	for more := true; more && err == nil; {
		if compacted > 0 {
			more, err = s.present(ctx, conn, compacted, each)
		}
		if more && err == nil {
			more, compacted, err = s.since(ctx, conn, compacted+1, each)
		}
		if is(err, rpctypes.ErrGRPCCompacted) { // by a later compaction
			compacted, err = 0, nil
		}
	}
	if err != nil {
		err = s.describe(conn.why(err))
	}
	return err
}

// present calls each with the contenders at a revision.
func (s *session) present(ctx context.Context, conn *connection, revision int64, each func(Revision) bool) (more bool, err error) {
	got, err := conn.kv.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err != nil {
		return true, err
	}
	var all Revision
	for _, kv := range got.Kvs {
		all.take(s, kv, false)
	}
	return each(all), nil
}

// since calls each with the revisions from one on. If the servers have compacted the database
// after this revision, since returns the revision of the compaction.
func (s *session) since(ctx context.Context, conn *connection, revision int64, each func(Revision) bool) (more bool, compacted int64, err error) {
	stream, err := conn.watching.Watch(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return false, 0, err
	}
	create := &pb.WatchCreateRequest{Key: []byte(s.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(s.prefix)), StartRevision: revision, PrevKv: true}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return false, 0, err
	}
	for {
		got, err := stream.Recv()
		switch {
		case err != nil:
			return false, 0, err
		case got.CompactRevision > 0:
			return true, got.CompactRevision, nil
		case got.Canceled:
			return false, 0, errors.New(got.CancelReason)
		}
		for events := got.Events; len(events) > 0; {
			r := Revision{Number: events[0].Kv.ModRevision}
			for ; len(events) > 0 && events[0].Kv.ModRevision == r.Number; events = events[1:] {
				e := events[0]
				if string(e.Kv.Key) == s.sessionKey() {
					return false, 0, nil
				}
				if e.Type == clientv3.EventTypeDelete {
					r.take(s, e.PrevKv, true)
				} else {
					r.take(s, e.Kv, false)
				}
			}
			if !each(r) {
				return false, 0, nil
			}
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
