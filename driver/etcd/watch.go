package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/lockpool/lockpool/driver"
)

// watches are the watches of a connection. They share one stream, on which servers tell
// events of one key in their order. A watch begins with the member's present state, so that
// its events come at once (one that begins with an older revision is served every 100 ms):
// the key is read by the same member at the same time, and again if what was read is older
// than the watch.
//
// Events of different keys come in any order. So before an event is told, the other nodes
// of its queue that the session watches are read from the same member, at a revision that
// is not older, and those that are gone are told first.
type watches struct {
	conn *connection

	send   sync.Mutex // held while a request is sent
	stream pb.Watch_WatchClient

	mu      sync.Mutex
	opening bool
	ended   bool
	nextID  int64
	byID    map[int64]*watched
	byNode  map[watchedNode]*watched
	events  []event // to be told

	tell    chan struct{} // filled when there are events
	running sync.WaitGroup
}

// watchedNode is what is watched. Node is zero for what is below a queue's name.
type watchedNode struct {
	queue string
	node  driver.Node
}

type watched struct {
	watchedNode
	id    int64
	key   string
	own   *Session // if it is a node of the session that watches it
	watch *driver.Watch

	created chan struct{} // closed when the server has said at which revision it begins, or has refused
	begins  int64
	refused error

	ready chan struct{} // closed when its key has been read
	read  int64         // the revision of that; 0 before
}

type event struct {
	of       *watched
	what     driver.Event
	revision int64
}

var errBroken = errors.New("the connection broke")

func newWatches(conn *connection) *watches {
	return &watches{conn: conn, byID: map[int64]*watched{}, byNode: map[watchedNode]*watched{}, tell: make(chan struct{}, 1)}
}

// open opens the stream, if it is not open.
func (ws *watches) open() error {
	ws.send.Lock()
	defer ws.send.Unlock()
	if ws.stream != nil {
		return nil
	}
	stream, err := ws.conn.watching.Watch(clientv3.WithRequireLeader(ws.conn.ctx))
	if err != nil {
		return err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.ended {
		return errBroken
	}
	ws.stream = stream
	ws.running.Go(func() { ws.receive(stream) })
	ws.running.Go(ws.tellEvents)
	return nil
}

// stop waits for the goroutines of the watches. The connection has ended.
func (ws *watches) stop() {
	ws.interrupt()
	ws.running.Wait()
}

// interrupt fires all watches: the connection has ended, or is not used any longer.
func (ws *watches) interrupt() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.ended = true
	for _, w := range ws.byNode {
		w.watch.Fire(driver.Interrupted)
	}
	clear(ws.byID)
	clear(ws.byNode)
	ws.events = nil
}

// receive takes what the server sends until the connection ends.
func (ws *watches) receive(stream pb.Watch_WatchClient) {
	for {
		got, err := stream.Recv()
		if err != nil {
			ws.conn.fail(err)
			return
		}
		ws.mu.Lock()
		w := ws.byID[got.WatchId]
		switch {
		case w == nil:
		case got.Created, got.Canceled:
			if w.begins == 0 && w.refused == nil {
				if w.begins = got.Header.Revision; got.Canceled {
					w.refused = refusal(got.CancelReason)
				}
				close(w.created)
			} else if got.Canceled { // not by us
				ws.conn.fail(errors.New(got.CancelReason))
			}
		default:
			for _, e := range got.Events {
				if w.node == (driver.Node{}) && !isBelow(w.key, e.Kv) {
					continue
				}
				what := driver.Changed
				if e.Type == mvccpb.Event_DELETE {
					what = driver.Deleted
				}
				ws.add(event{w, what, e.Kv.ModRevision})
			}
		}
		ws.mu.Unlock()
	}
}

// refusal is the error of a watch that a server has refused.
func refusal(reason string) error {
	if strings.Contains(reason, "permission denied") {
		return rpctypes.ErrGRPCPermissionDenied
	}
	return errors.New(reason)
}

// isBelow reports whether a key is that of a contender in a queue, or in those of the
// semaphore of that name, or its limit.
func isBelow(prefix string, kv *mvccpb.KeyValue) bool {
	rest := strings.TrimPrefix(string(kv.Key), prefix)
	part, below, nested := strings.Cut(rest, "/")
	return !nested || (part == driver.Guards || part == driver.Leases) && !strings.Contains(below, "/")
}

// add adds an event to those that are told. It is called with mu held.
func (ws *watches) add(e event) {
	ws.events = append(ws.events, e)
	select {
	case ws.tell <- struct{}{}:
	default:
	}
}

// left is called when a node that the session has created was removed by it at a revision,
// or is gone otherwise if that is 0.
func (ws *watches) left(key string, created, at int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.byNode {
		if w.key == key && createdAt(w.node) == created {
			if what := driver.Missing; at > 0 {
				ws.add(event{w, driver.Deleted + ownLeft, at})
			} else {
				ws.add(event{w, what, 0})
			}
		}
	}
}

// ownLeft distinguishes the removal of an own node by Leave from the event of its key.
const ownLeft = 100

// watch watches nodes.
func (ws *watches) watch(ctx context.Context, s *Session, queue string, nodes []driver.Node) ([]*driver.Watch, error) {
	if err := ws.open(); err != nil {
		return nil, err
	}
	all := make([]*watched, len(nodes))
	var added []*watched
	ws.mu.Lock()
	if ws.ended {
		ws.mu.Unlock()
		return nil, errBroken
	}
	for i, node := range nodes {
		n := watchedNode{queue, node}
		w := ws.byNode[n]
		if w == nil {
			ws.nextID++
			w = &watched{watchedNode: n, id: ws.nextID, key: s.key(queue, node), watch: driver.NewWatch(), created: make(chan struct{}), ready: make(chan struct{})}
			ws.byID[w.id], ws.byNode[n] = w, w
			added = append(added, w)
		}
		all[i] = w
	}
	ws.mu.Unlock()
	if err := ws.begin(ctx, s, added); err != nil {
		return nil, err
	}
	watches := make([]*driver.Watch, len(all))
	for i, w := range all {
		select {
		case <-w.ready:
		case <-ws.conn.ctx.Done():
			return nil, errBroken
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if w.refused != nil {
			return nil, w.refused
		}
		watches[i] = w.watch
	}
	return watches, nil
}

// begin begins watches, and reads what is watched. Others may wait for them, so it does not
// stop when ctx ends, but then nobody waits for it.
func (ws *watches) begin(ctx context.Context, s *Session, added []*watched) error {
	if len(added) == 0 {
		return nil
	}
	done := make(chan error, 1)
	ws.mu.Lock()
	if ws.ended {
		ws.mu.Unlock()
		return errBroken
	}
	ws.running.Go(func() { done <- ws.beginAll(s, added) })
	ws.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (ws *watches) beginAll(s *Session, added []*watched) (err error) {
	defer func() {
		if err != nil {
			ws.mu.Lock()
			for _, w := range added {
				ws.forget(w)
				w.refused = err
				w.watch.Fire(driver.Interrupted)
				close(w.ready)
			}
			ws.mu.Unlock()
		}
	}()
	for _, w := range added {
		if err := ws.request(w); err != nil {
			return err
		}
	}
	ctx := ws.conn.ctx
	for chunk := range slices.Chunk(added, mostChecked) {
		kvs, revision, err := ws.readKeys(ctx, chunk)
		if err != nil {
			return err
		}
		for {
			begins := int64(0)
			for _, w := range chunk {
				select {
				case <-w.created:
				case <-ctx.Done():
					return errBroken
				}
				if w.refused != nil {
					return w.refused
				}
				begins = max(begins, w.begins)
			}
			if revision >= begins {
				break
			}
			if kvs, revision, err = ws.readKeys(ctx, chunk); err != nil {
				return err
			}
		}
		ws.mu.Lock()
		for i, w := range chunk {
			ws.settle(s, w, kvs[i], revision)
		}
		ws.mu.Unlock()
	}
	return nil
}

// request asks the server for a watch.
func (ws *watches) request(w *watched) error {
	create := &pb.WatchCreateRequest{Key: []byte(w.key), WatchId: w.id}
	if w.node == (driver.Node{}) {
		create.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(w.key))
	}
	ws.send.Lock()
	defer ws.send.Unlock()
	return ws.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// readKeys reads keys as the member has them, which asks no other.
func (ws *watches) readKeys(ctx context.Context, of []*watched) (kvs []*mvccpb.KeyValue, revision int64, err error) {
	ops := make([]clientv3.Op, len(of))
	for i, w := range of {
		ops[i] = clientv3.OpGet(w.key, clientv3.WithSerializable())
	}
	got, err := ws.conn.kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, 0, err
	}
	for _, a := range answers(got, 0) {
		kvs = append(kvs, only(a.kvs))
	}
	return kvs, got.Header.Revision, nil
}

// settle sets what a watch knows of its key, as it was at a revision. It is called with mu
// held.
func (ws *watches) settle(s *Session, w *watched, kv *mvccpb.KeyValue, revision int64) {
	w.read = revision
	switch {
	case w.node == (driver.Node{}):
	case w.node.Name == driver.Limit && kv != nil, isNode(kv, w.node):
		v := decodeValue(kv)
		w.watch.Created, w.watch.Data, w.watch.Revoked = kv.CreateRevision, v.data, v.mark&markRevoked != 0
		if kv.Lease == int64(s.id) {
			w.own = s
		}
	default:
		w.watch.Fire(driver.Missing)
		ws.forget(w)
	}
	close(w.ready)
	select { // there may be events
	case ws.tell <- struct{}{}:
	default:
	}
}

// forget ends a watch. It is called with mu held.
func (ws *watches) forget(w *watched) {
	if ws.byID[w.id] != w {
		return
	}
	delete(ws.byID, w.id)
	delete(ws.byNode, w.watchedNode)
	if !ws.ended {
		ws.running.Go(func() {
			ws.send.Lock()
			defer ws.send.Unlock()
			_ = ws.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: w.id}}})
		})
	}
}

// tellEvents fires watches until the connection ends.
func (ws *watches) tellEvents() {
	for {
		select {
		case <-ws.conn.ctx.Done():
			return
		case <-ws.tell:
		}
		if err := ws.tellAll(); err != nil {
			ws.conn.fail(err)
			return
		}
	}
}

// tellAll fires the watches of which there are events, and before them those of the same
// queues whose nodes were gone when these happened.
func (ws *watches) tellAll() error {
	ws.mu.Lock()
	events := ws.events
	ws.events = nil
	var told []event
	since := map[string]int64{} // the newest event of each queue
	for _, e := range events {
		switch {
		case ws.byID[e.of.id] != e.of: // it has fired
		case e.of.read == 0: // not before it has been read
			ws.events = append(ws.events, e)
		case e.revision > e.of.read || e.what == driver.Missing:
			if e.what == driver.Deleted && e.of.own != nil {
				if ws.ownGone(&e) {
					continue
				}
			}
			told = append(told, e)
			since[e.of.queue] = max(since[e.of.queue], e.revision)
		}
	}
	happened := map[*watched]bool{}
	for _, e := range told {
		happened[e.of] = true
	}
	var others []*watched
	newest := int64(0)
	if len(told) > 0 {
		for w := range maps.Values(ws.byNode) {
			if since[w.queue] > 0 && w.read > 0 && !happened[w] && w.node != (driver.Node{}) && w.node.Name != driver.Limit {
				others = append(others, w)
			}
		}
		for _, at := range since {
			newest = max(newest, at)
		}
	}
	ws.mu.Unlock()
	for chunk := range slices.Chunk(others, mostChecked) {
		for {
			kvs, revision, err := ws.readKeys(ws.conn.ctx, chunk)
			if err != nil {
				return err
			}
			if revision < newest { // an event is told before it is visible to reads
				time.Sleep(time.Millisecond)
				continue
			}
			ws.mu.Lock()
			for i, w := range chunk {
				if kvs[i] == nil || kvs[i].CreateRevision != createdAt(w.node) {
					ws.fire(w, driver.Missing)
				}
			}
			ws.mu.Unlock()
			break
		}
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, e := range told {
		if e.what > ownLeft {
			e.what -= ownLeft
		}
		ws.fire(e.of, e.what)
	}
	return nil
}

// ownGone is called for the removal of a node of the session. It changes the event to
// Missing unless the session is removing it, and reports whether Leave is to tell it. It is
// called with mu held.
func (ws *watches) ownGone(e *event) bool {
	s := e.of.own
	if s.own.isLeaving(e.of.key) {
		return true
	}
	e.what = driver.Missing
	return false
}

// fire fires a watch. It is called with mu held.
func (ws *watches) fire(w *watched, what driver.Event) {
	if ws.byID[w.id] == w {
		w.watch.Fire(what)
		ws.forget(w)
	}
}

// ownNodes are the keys that the session is removing.
type ownNodes struct {
	mu   sync.Mutex
	keys map[string]int
}

func (o *ownNodes) leaving(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys == nil {
		o.keys = map[string]int{}
	}
	o.keys[key]++
}

func (o *ownNodes) isLeaving(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys[key] > 0
}

// left ends the removal of a node, which the session has removed at a revision unless that
// is 0.
func (o *ownNodes) left(s *Session, key string, created, at int64) {
	s.mu.Lock()
	conn := s.current
	s.mu.Unlock()
	if conn != nil {
		conn.watches.left(key, created, at)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.keys[key]--; o.keys[key] == 0 {
		delete(o.keys, key)
	}
}

// Watch implements driver.Session.
func (s *Session) Watch(ctx context.Context, queue string, nodes ...driver.Node) (found []*driver.Watch, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) (err error) {
		found, err = conn.watches.watch(ctx, s, queue, nodes)
		return err
	})
	return found, err
}
