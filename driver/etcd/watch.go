package etcd

// This file has watches, and the order of their events.

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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

// watches are the watches of a connection. They share one stream. Servers send the events
// of one key in order. A watch begins with the member's present state, so that events come
// at once (servers serve watches from an older revision every 100 ms). The same member
// reads the key at the same time, and again if the value read is older than the watch, or
// than an event of another key that is told meanwhile.
//
// Events of different keys come in any order. So before an event is told, the same member
// reads the other watched nodes of the queue, at a revision not older. If one of the nodes
// is gone, the node's event is awaited and told in order.
//
// Keys are used again, so the server keeps watching a key whose node is gone: a client
// queuing again finds the same neighbors and needs no new watch. An idle watch ends when
// the next node of its key is gone, and after two rounds of proofs of the lease.
type watches struct {
	conn *connection

	send   sync.Mutex // held while a request is sent
	stream pb.Watch_WatchClient

	mu     sync.Mutex
	ended  bool
	nextID int64
	asked  []*watched // without an answer, which come in this order
	byID   map[int64]*watched
	byNode map[watchedNode]*watched
	idle   map[string]*watched // by key: watches whose node is gone
	events []event             // to be told

	telling int64 // the newest revision of events told or about to be

	tell    chan struct{} // filled when there are events
	running sync.WaitGroup
}

// watchedNode is a node to watch. A zero node stands for all keys below the queue's name.
type watchedNode struct {
	queue string
	node  driver.Node
}

// isContender reports whether n is neither a queue nor the limit of a semaphore.
func (n watchedNode) isContender() bool {
	return n.node != (driver.Node{}) && n.node.Name != driver.Limit
}

type watched struct {
	watchedNode
	id    int64
	key   string
	own   *session // the watching session, if the node is its own
	left  bool     // the session has removed the node
	watch *driver.Watch

	created chan struct{} // closed when the server has said at which revision the watch begins, or has refused
	begins  int64
	refused error
	last    int64 // revision of the last event received
	swept   bool  // idle in the last round of proofs

	ready chan struct{} // closed when the key has been read
	read  int64         // the revision of the read; 0 before
	value []byte        // as read
}

type event struct {
	of       *watched
	what     driver.Event
	revision int64
	value    []byte // of a change
}

var errBroken = errors.New("the connection broke")

func newWatches(conn *connection) *watches {
	return &watches{conn: conn, byID: map[int64]*watched{}, byNode: map[watchedNode]*watched{}, idle: map[string]*watched{}, tell: make(chan struct{}, 1)}
}

// open opens the stream, if not open.
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
	ws.running.Go(func() { ws.receive(stream) }) // ends with the connection
	ws.running.Go(ws.tellEvents)                 // ends with the connection
	return nil
}

// stop waits for the goroutines of the watches. The connection has ended.
func (ws *watches) stop() {
	ws.interrupt()
	ws.running.Wait()
}

// interrupt fires all watches: the connection has ended or is no longer used.
func (ws *watches) interrupt() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.ended = true
	for _, w := range ws.byNode {
		w.watch.Fire(driver.Interrupted)
	}
	clear(ws.byID)
	clear(ws.byNode)
	clear(ws.idle)
	ws.events = nil
}

// receive reads events until the connection ends.
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
		case got.Created && len(ws.asked) > 0: // a refused watch has no ID since etcd 3.5
			w, ws.asked = ws.asked[0], ws.asked[1:]
			w.begins = got.Header.Revision
			switch {
			case got.Canceled && strings.Contains(got.CancelReason, "permission denied"):
				if w.refused == nil { // else beginAll has returned
					w.refused = rpctypes.ErrGRPCPermissionDenied
				}
			case got.Canceled: // for want of a valid token
				ws.conn.fail(errors.New(got.CancelReason))
			}
			close(w.created)
		case w == nil:
		case got.Canceled: // not by us
			ws.conn.fail(errors.New(got.CancelReason))
		default:
			for _, e := range got.Events {
				w.last = e.Kv.ModRevision
				what, removed := driver.Changed, e.Type == clientv3.EventTypeDelete
				if removed && w.node != (driver.Node{}) { // a queue changes when a contender leaves
					what = driver.Deleted
				}
				switch {
				case ws.lives(w):
					if w.node != (driver.Node{}) || isBelow(w.key, e.Kv) {
						ws.add(event{w, what, e.Kv.ModRevision, e.Kv.Value})
					}
				case removed:
					ws.cancel(w)
				}
			}
		}
		ws.mu.Unlock()
	}
}

// isBelow reports whether a key belongs to a contender in a queue, to a contender of the
// semaphore of the same name, or to the semaphore's limit.
func isBelow(prefix string, kv *mvccpb.KeyValue) bool {
	rest := strings.TrimPrefix(string(kv.Key), prefix)
	part, below, nested := strings.Cut(rest, "/")
	return !nested || (part == driver.Guards || part == driver.Leases) && !strings.Contains(below, "/")
}

// add adds an event to tell. mu is held.
func (ws *watches) add(e event) {
	ws.events = append(ws.events, e)
	ws.again()
}

// again makes tellEvents look at the events once more.
func (ws *watches) again() {
	select {
	case ws.tell <- struct{}{}:
	default:
	}
}

// changed fires the watch on a node of the session that the session has changed: the event may
// come later than the answer.
func (ws *watches) changed(n watchedNode, value []byte) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byNode[n]; w != nil && w.own != nil && !bytes.Equal(w.value, value) {
		w.watch.Fire(driver.Changed)
		ws.forget(w)
	}
}

// limitSeen fires the watch on the limit of a semaphore if a server has answered, to another
// request, that the limit was put after the watch had read the limit: the event may come later
// than the answer. outdated reports whether the watch has fired.
func (ws *watches) limitSeen(name string, limit *mvccpb.KeyValue) (outdated bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byNode[watchedNode{name, driver.Node{Name: driver.Limit}}]
	if outdated = limit != nil && w != nil && w.read > 0 && w.read < limit.ModRevision; outdated {
		w.watch.Fire(driver.Changed)
		ws.forget(w)
	}
	return outdated
}

// left is called when Leave has removed a node of the session.
func (ws *watches) left(n watchedNode) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byNode[n]; w != nil {
		w.left = true
	}
}

// watch watches nodes.
func (ws *watches) watch(ctx context.Context, s *session, queue string, nodes []driver.Node) ([]*driver.Watch, error) {
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
			w = &watched{watchedNode: n, key: s.key(queue, node), watch: driver.NewWatch(), ready: make(chan struct{})}
			if idle := ws.idle[w.key]; idle != nil { // the read must not be older than untold events
				delete(ws.idle, w.key)
				w.id, w.created, w.begins, w.last = idle.id, idle.created, max(idle.begins, idle.last), idle.last
			} else {
				ws.nextID++
				w.id, w.created = ws.nextID, make(chan struct{})
			}
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

// begin begins watches and reads their keys. Other calls may wait for the watches, so the work
// goes on when ctx ends.
func (ws *watches) begin(ctx context.Context, s *session, added []*watched) error {
	if len(added) == 0 {
		return nil
	}
	done := make(chan error, 1)
	ws.mu.Lock()
	if ws.ended {
		ws.mu.Unlock()
		return errBroken
	}
	ws.running.Go(func() { done <- ws.beginAll(s, added) }) // ends with the connection at the latest
	ws.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (ws *watches) beginAll(s *session, added []*watched) (err error) {
	defer func() {
		if err != nil {
			ws.mu.Lock()
			for _, w := range added {
				if w.read == 0 {
					ws.forget(w)
					w.refused = err
					w.watch.Fire(driver.Interrupted)
					close(w.ready)
				}
			}
			ws.mu.Unlock()
		}
	}()
	if err := ws.open(); err != nil {
		return err
	}
	for _, w := range added {
		if w.begins > 0 { // an idle watch
			continue
		}
		if err := ws.request(w); err != nil {
			return err
		}
	}
	ctx := ws.conn.ctx
	for chunk := range slices.Chunk(added, mostChecked) {
		for begun := false; !begun; {
			kvs, revision, err := ws.readKeys(ctx, chunk)
			if err != nil {
				return err
			}
			for _, w := range chunk {
				select {
				case <-w.created:
				case <-ctx.Done():
					return errBroken
				}
				if w.refused != nil {
					return w.refused
				}
			}
			begun = ws.keysRead(s, chunk, kvs, revision)
		}
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
	ws.mu.Lock()
	ws.asked = append(ws.asked, w)
	ws.mu.Unlock()
	return ws.stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// readKeys reads keys as the member has them, without asking other members.
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
		kvs = append(kvs, only(a))
	}
	return kvs, got.Header.Revision, nil
}

// keysRead tells watches their keys as read at a revision, and reports false if the revision is
// older than one of the watches, or than an event told or about to be.
func (ws *watches) keysRead(s *session, of []*watched, kvs []*mvccpb.KeyValue, revision int64) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if slices.ContainsFunc(of, func(w *watched) bool { return revision < max(w.begins, ws.telling) }) {
		return false
	}
	for i, w := range of {
		ws.keyRead(s, w, kvs[i], revision)
	}
	return true
}

// keyRead tells a watch the key as read at a revision. mu is held.
func (ws *watches) keyRead(s *session, w *watched, kv *mvccpb.KeyValue, revision int64) {
	w.read = revision
	if kv != nil {
		w.value = kv.Value
	}
	switch {
	case w.node == (driver.Node{}):
	case w.node.Name == driver.Limit && kv != nil, isNode(kv, w.node):
		v := decodeValue(kv)
		w.watch.Created, w.watch.Data, w.watch.Revoked = kv.CreateRevision, v.data, v.mark&markRevoked != 0
		if sessionOf(kv.Lease) == s.id {
			w.own = s
		}
	default:
		w.watch.Fire(driver.Missing)
		ws.forget(w)
	}
	close(w.ready)
	ws.again() // there may be events
}

// lives reports whether a watch can still fire. mu is held.
func (ws *watches) lives(w *watched) bool { return ws.byNode[w.watchedNode] == w }

// mostIdle bounds the number of idle watches, for users who wait for many locks once.
const mostIdle = 1 << 10

// forget ends a watch for the session. mu is held.
func (ws *watches) forget(w *watched) {
	if !ws.lives(w) {
		return
	}
	delete(ws.byNode, w.watchedNode)
	if w.isContender() && w.read > 0 && ws.idle[w.key] == nil && len(ws.idle) < mostIdle {
		ws.idle[w.key] = w
		return
	}
	ws.cancel(w)
}

// sweep ends watches idle since the last round of proofs.
func (ws *watches) sweep() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.idle {
		if w.swept {
			ws.cancel(w)
		}
		w.swept = true
	}
}

// cancel ends a watch at the server. mu is held.
func (ws *watches) cancel(w *watched) {
	delete(ws.byID, w.id)
	if ws.idle[w.key] == w {
		delete(ws.idle, w.key)
	}
	if !ws.ended {
		ws.running.Go(func() { // ends when the request is sent, or with the connection
			ws.send.Lock()
			defer ws.send.Unlock()
			if ws.stream == nil { // open has failed
				return
			}
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

// tellAll fires watches with events, in the order of revisions. An event waits until all
// earlier removals are known.
func (ws *watches) tellAll() error {
	ws.mu.Lock()
	newest, others := ws.due()
	ws.mu.Unlock()
	if newest == 0 {
		return nil
	}
	gone, err := ws.check(others, newest)
	if err != nil {
		return err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	slices.SortStableFunc(ws.events, func(a, b event) int { return cmp.Compare(a.revision, b.revision) })
	for _, w := range gone {
		at := slices.IndexFunc(ws.events, func(e event) bool { return e.of == w && e.what == driver.Deleted && e.revision > w.read })
		if at < 0 && ws.lives(w) {
			return nil // until the event comes
		}
	}
	until := newest // all removals are known up to this revision
	ws.events = slices.DeleteFunc(ws.events, func(e event) bool {
		switch {
		case !ws.lives(e.of) || e.of.read >= e.revision: // the watch has fired, or the key was read later
			return true
		case e.of.read == 0, e.revision > until:
			return false
		case e.what == driver.Changed && e.of.node != (driver.Node{}) && bytes.Equal(e.value, e.of.value):
			return true // only the lease changed
		case e.what == driver.Deleted && e.of.own != nil && !e.of.left:
			if e.of.own.keys.isLeaving(e.of.key) { // Leave will know who removed the node
				until = 0
				return false
			}
			e.what = driver.Missing
		}
		e.of.watch.Fire(e.what)
		ws.forget(e.of)
		return true
	})
	return nil
}

// check reads nodes at a revision not older than newest, and returns those that are gone. The
// watches on changed limits fire.
func (ws *watches) check(others []*watched, newest int64) (gone []*watched, err error) {
	for chunk := range slices.Chunk(others, mostChecked) {
		kvs, revision, err := ws.readKeys(ws.conn.ctx, chunk)
		for ; err == nil && revision < newest; kvs, revision, err = ws.readKeys(ws.conn.ctx, chunk) {
			time.Sleep(time.Millisecond) // an event is sent before visible to reads
		}
		if err != nil {
			return nil, err
		}
		for i, w := range chunk {
			switch {
			case w.node.Name == driver.Limit:
				ws.limitSeen(w.queue, kvs[i])
			case kvs[i] == nil || kvs[i].CreateRevision != createdAt(w.node):
				gone = append(gone, w)
			}
		}
	}
	return gone, nil
}

// due returns the newest revision of an event to be told, or 0, and the watched nodes of the
// same queues without an event of removal, among them the limits of permits. mu is held.
func (ws *watches) due() (newest int64, others []*watched) {
	queues, removed := map[string]bool{}, map[*watched]bool{}
	for _, e := range ws.events {
		if !ws.lives(e.of) || e.of.read == 0 || e.of.read >= e.revision {
			continue
		}
		if e.what == driver.Deleted {
			removed[e.of] = true
		}
		newest = max(newest, e.revision)
		queues[e.of.queue] = true
	}
	if newest == 0 {
		return 0, nil
	}
	ws.telling = max(ws.telling, newest)
	for _, w := range ws.byNode {
		queue := w.queue
		if w.node.Name == driver.Limit {
			queue += "/" + driver.Leases
		}
		if queues[queue] && w.read > 0 && !removed[w] && w.node != (driver.Node{}) {
			others = append(others, w)
		}
	}
	return newest, others
}

// Watch implements driver.Session.
func (s *session) Watch(ctx context.Context, queue string, nodes ...driver.Node) (found []*driver.Watch, err error) {
	err = s.ask(ctx, func(ctx context.Context, conn *connection) (err error) {
		found, err = conn.watches.watch(ctx, s, queue, nodes)
		return err
	})
	return found, err
}
