package etcd

// This file tests the order of events that servers send in another order.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockpool/lockpool/driver"
)

// reader answers reads of keys at a revision.
type reader struct {
	clientv3.KV
	at   int64
	read func(key string) []*mvccpb.KeyValue
}

func (r reader) Txn(context.Context) clientv3.Txn { return &readTxn{of: r} }

type readTxn struct {
	clientv3.Txn
	of  reader
	ops []clientv3.Op
}

func (x *readTxn) Then(ops ...clientv3.Op) clientv3.Txn { x.ops = ops; return x }

func (x *readTxn) Commit() (*clientv3.TxnResponse, error) {
	got := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: x.of.at}}
	for _, op := range x.ops {
		found := &pb.RangeResponse{Kvs: x.of.read(string(op.KeyBytes()))}
		got.Responses = append(got.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: found}})
	}
	return (*clientv3.TxnResponse)(got), nil
}

// watching returns watches of keys, and a function to add one that was read at a revision, or
// will be if read is 0.
func watching(kv clientv3.KV) (ws *watches, add func(queue string, node driver.Node, read int64) *watched) {
	ws = newWatches(&connection{kv: kv, ctx: context.Background()})
	return ws, func(queue string, node driver.Node, read int64) *watched {
		w := &watched{watchedNode: watchedNode{queue, node}, key: node.Name, read: read, watch: driver.NewWatch(), ready: make(chan struct{})}
		ws.byNode[w.watchedNode] = w
		return w
	}
}

// The removal of a former node does not stand for the removal of the next node with the key, and
// a watch that begins while an event is told is not older than the event.
func TestEventsWaitForEarlierRemovals(t *testing.T) {
	t.Parallel()
	var ws *watches
	var begins *watched
	ws, add := watching(reader{at: 12, read: func(string) []*mvccpb.KeyValue {
		require.False(t, ws.keysRead(nil, []*watched{begins}, []*mvccpb.KeyValue{nil}, 11))
		return nil
	}})
	before, own := add("q", driver.Node{Name: "a", Seq: 5}, 6), add("q", driver.Node{Name: "b", Seq: 9}, 10)
	begins = add("q", driver.Node{Name: "c", Seq: 3}, 0)
	ws.add(event{before, driver.Deleted, 12, nil})
	ws.add(event{own, driver.Deleted, 8, nil})
	require.NoError(t, ws.tellAll())
	require.Zero(t, before.watch.Fired())
	ws.add(event{own, driver.Deleted, 11, nil})
	require.NoError(t, ws.tellAll())
	require.Equal(t, driver.Deleted, own.watch.Fired())
	require.Equal(t, driver.Deleted, before.watch.Fired())
}

// A lease is removed after the limit has changed, and the event of the change is late.
func TestRemovalsOfLeasesWaitForTheLimit(t *testing.T) {
	t.Parallel()
	ws, add := watching(reader{at: 12, read: func(string) []*mvccpb.KeyValue { return []*mvccpb.KeyValue{{ModRevision: 11}} }})
	lease, limit := add("s/leases", driver.Node{Name: "a", Seq: 5}, 6), add("s", driver.Node{Name: driver.Limit}, 10)
	ws.add(event{lease, driver.Deleted, 12, nil})
	require.NoError(t, ws.tellAll())
	require.Equal(t, driver.Deleted, lease.watch.Fired())
	require.Equal(t, driver.Changed, limit.watch.Fired())
}
