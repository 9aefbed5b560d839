package zktest_test

// This file has a raw client of ZooKeeper's protocol with a separate codec. The client
// exposes what other clients hide: handshakes, xids, zxids, and the place of an event among
// the replies. Methods read packets in the goroutine of the test.

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockpool/lockpool/testing/zktest"
)

// opError is the type of a failed operation in the reply to a multi.
const opError zktest.Op = -1

// The special xids.
const (
	xidEvent      int32 = -1
	xidPing       int32 = -2
	xidAuth       int32 = -4
	xidSetWatches int32 = -8
)

// The flags of creates.
const (
	persistent int32 = iota
	ephemeral
	sequential
	ephemeralSequential
	container
	ttl
	ttlSequential
)

// The types of watches in removeWatches and checkWatches.
const (
	childWatch int32 = iota + 1
	dataWatch
	anyWatch
)

// The modes of addWatch.
const (
	modePersistent int32 = iota
	modeRecursive
)

// The permissions.
const (
	permRead int32 = 1 << iota
	permWrite
	permCreate
	permDelete
	permAdmin
	permAll = permRead | permWrite | permCreate | permDelete | permAdmin
)

const (
	anyVersion int32 = -1

	// null stands for a null string. It is not valid UTF-8, and so equals no other string.
	null = "\xffnull"

	ioTimeout    = time.Minute           // of one read or write
	longTimeout  = 30 * time.Second      // of a session meant not to expire
	pollInterval = 20 * time.Millisecond // of poll
)

var world = []acl{{permAll, "world", "anyone"}}

// acl is an entry of an access control list.
type acl struct {
	Perms      int32
	Scheme, ID string
}

// event is a watch event. The header and the state are constant, and checked in decoding.
type event struct {
	Type zktest.EventType
	Path string
}

// result is a reply, or the result of one operation in the reply to a multi. Fields not
// returned by the operation are zero.
type result struct {
	Op    zktest.Op // of the request; in a multi, from the reply, opError on failure
	Xid   int32
	Zxid  int64
	Err   zktest.Code
	Path  string
	Stat  zktest.Stat
	Data  []byte // nil if null
	Names []string
	ACL   []acl // for whoAmI without permissions
	Count int32
	Ops   []result

	Events []event // between the previous packet and this reply
}

// codes returns the error codes of the operations of a multi.
func codes(r result) (all []zktest.Code) {
	for _, op := range r.Ops {
		all = append(all, op.Err)
	}
	return all
}

// request is a packet before framing, or an operation of a multi.
type request struct {
	Op   zktest.Op
	Xid  int32 // 0 for the client's next one
	Body []byte
}

func (r request) withXid(xid int32) request {
	r.Xid = xid
	return r
}

func (r request) frame() []byte {
	return frame(append(encoder{}.int(r.Xid).int(int32(r.Op)), r.Body...))
}

func createRequest(op zktest.Op, path string, data []byte, acls []acl, flags int32) request {
	return request{Op: op, Body: encoder{}.string(path).buffer(data).acls(acls).int(flags)}
}

// create creates a node with the given ACL or, by default, world.
func create(path string, data []byte, flags int32, acls ...acl) request {
	if len(acls) == 0 {
		acls = world
	}
	return createRequest(zktest.OpCreate, path, data, acls, flags)
}

func create2(path string, data []byte, flags int32) request {
	return createRequest(zktest.OpCreate2, path, data, world, flags)
}

func createContainer(path string, flags int32) request {
	return createRequest(zktest.OpCreateContainer, path, nil, world, flags)
}

func createTTL(path string, flags int32, d time.Duration) request {
	r := createRequest(zktest.OpCreateTTL, path, nil, world, flags)
	r.Body = encoder(r.Body).long(d.Milliseconds())
	return r
}

func remove(path string, version int32) request {
	return request{Op: zktest.OpDelete, Body: encoder{}.string(path).int(version)}
}

// readRequest is a read of a node, perhaps setting a watch.
func readRequest(op zktest.Op, path string, watch bool) request {
	return request{Op: op, Body: encoder{}.string(path).bool(watch)}
}

func exists(path string, watch bool) request  { return readRequest(zktest.OpExists, path, watch) }
func getData(path string, watch bool) request { return readRequest(zktest.OpGetData, path, watch) }
func getChildren(path string, watch bool) request {
	return readRequest(zktest.OpGetChildren, path, watch)
}
func getChildren2(path string, watch bool) request {
	return readRequest(zktest.OpGetChildren2, path, watch)
}

func setData(path string, data []byte, version int32) request {
	return request{Op: zktest.OpSetData, Body: encoder{}.string(path).buffer(data).int(version)}
}

// pathRequest is an operation with only a path.
func pathRequest(op zktest.Op, path string) request {
	return request{Op: op, Body: encoder{}.string(path)}
}

func getACL(path string) request          { return pathRequest(zktest.OpGetACL, path) }
func syncPath(path string) request        { return pathRequest(zktest.OpSync, path) }
func getEphemerals(prefix string) request { return pathRequest(zktest.OpGetEphemerals, prefix) }
func getAllChildrenNumber(path string) request {
	return pathRequest(zktest.OpGetAllChildrenNumber, path)
}

func setACL(path string, version int32, acls ...acl) request {
	return request{Op: zktest.OpSetACL, Body: encoder{}.string(path).acls(acls).int(version)}
}

func checkVersion(path string, version int32) request {
	return request{Op: zktest.OpCheck, Body: encoder{}.string(path).int(version)}
}

func multi(ops ...request) request     { return multiOf(zktest.OpMulti, ops) }
func multiRead(ops ...request) request { return multiOf(zktest.OpMultiRead, ops) }

func multiOf(op zktest.Op, ops []request) request {
	var e encoder
	for _, r := range ops {
		e = append(e.int(int32(r.Op)).bool(false).int(-1), r.Body...)
	}
	return request{Op: op, Body: e.int(-1).bool(true).int(-1)}
}

func ping() request         { return request{Op: zktest.OpPing, Xid: xidPing} }
func whoAmI() request       { return request{Op: zktest.OpWhoAmI} }
func closeSession() request { return request{Op: zktest.OpCloseSession} }

func auth(scheme, credential string) request {
	return request{Op: zktest.OpAuth, Body: encoder{}.int(0).string(scheme).buffer([]byte(credential))}
}

// setWatches sends the lists data, exist and child.
func setWatches(zxid int64, lists ...[]string) request {
	return request{Op: zktest.OpSetWatches, Body: encoder{}.long(zxid).lists(lists)}
}

// watchRequest is an operation with a path and a kind of watch.
func watchRequest(op zktest.Op, path string, kind int32) request {
	return request{Op: op, Body: encoder{}.string(path).int(kind)}
}

func addWatch(path string, mode int32) request { return watchRequest(zktest.OpAddWatch, path, mode) }
func checkWatches(path string, kind int32) request {
	return watchRequest(zktest.OpCheckWatches, path, kind)
}
func removeWatches(path string, kind int32) request {
	return watchRequest(zktest.OpRemoveWatches, path, kind)
}

// handshake is the first packet of a client.
type handshake struct {
	LastZxid int64
	Timeout  time.Duration // sent in milliseconds
	Session  int64
	Password []byte
	ReadOnly bool
	Short    bool // 44 bytes: without ReadOnly
}

// welcome is the first packet of a server.
type welcome struct {
	Size     int // of the packet
	Protocol int32
	Timeout  time.Duration
	Session  int64
	Password []byte
	ReadOnly byte // unless the handshake was Short
}

// client is one connection.
type client struct {
	t          testing.TB
	conn       net.Conn
	welcome    welcome // zero before the handshake
	events     []event // all, in the order of arrival
	unreported int     // the number of events not yet in the Events of a reply
	xid        int32   // the latest one sent
	zxid       int64   // the latest one received
	pending    []request
}

// dial returns a connection without a handshake.
func dial(t testing.TB, addr string) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, ioTimeout)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t: t, conn: conn}
}

// connect returns a connection after the handshake, with a session granted or refused.
func connect(t testing.TB, addr string, h handshake) *client {
	t.Helper()
	c := greet(t, addr, h)
	c.receiveWelcome(h)
	return c
}

// greet returns a connection with a handshake sent, whose reply nobody has read.
func greet(t testing.TB, addr string, h handshake) *client {
	t.Helper()
	c := dial(t, addr)
	c.write(h.frame())
	return c
}

// receiveWelcome reads the reply to a handshake.
func (c *client) receiveWelcome(h handshake) {
	c.t.Helper()
	packet, err := c.packet()
	require.NoError(c.t, err, "waiting for the reply to the handshake")
	d := decoder{t: c.t, rest: packet}
	c.welcome = welcome{
		Size:     len(packet),
		Protocol: d.int(),
		Timeout:  time.Duration(d.int()) * time.Millisecond,
		Session:  d.long(),
		Password: d.buffer(),
	}
	if !h.Short {
		c.welcome.ReadOnly = d.take(1)[0]
	}
	d.end()
}

// open returns a connection with a new session.
func open(t testing.TB, addr string, timeout time.Duration) *client {
	t.Helper()
	c := connect(t, addr, newSession(timeout))
	require.NotZero(t, c.welcome.Session)
	return c
}

func newSession(timeout time.Duration) handshake {
	return handshake{Timeout: timeout, Password: make([]byte, 16)}
}

// credentials returns a handshake to reattach to the client's session.
func (c *client) credentials() handshake {
	return handshake{Timeout: c.welcome.Timeout, Session: c.welcome.Session, Password: c.welcome.Password}
}

// reattach returns another connection of the client's session.
func (c *client) reattach() *client {
	c.t.Helper()
	next := connect(c.t, c.conn.RemoteAddr().String(), c.credentials())
	require.Equal(c.t, c.welcome.Session, next.welcome.Session, "the session has ended")
	next.zxid = c.zxid
	return next
}

// cut closes the connection without closing the session.
func (c *client) cut() {
	c.t.Helper()
	require.NoError(c.t, c.conn.Close())
}

func (h handshake) frame() []byte {
	e := encoder{}.int(0).long(h.LastZxid).int(int32(h.Timeout.Milliseconds())).long(h.Session).buffer(h.Password)
	if !h.Short {
		e = e.bool(h.ReadOnly)
	}
	return frame(e)
}

func frame(payload []byte) []byte { return encoder{}.buffer(payload) }

// write sends bytes as they are.
func (c *client) write(b []byte) {
	c.t.Helper()
	require.NoError(c.t, c.conn.SetWriteDeadline(time.Now().Add(ioTimeout)))
	_, err := c.conn.Write(b)
	require.NoError(c.t, err)
}

// send sends requests in a single write and does not wait for the replies.
func (c *client) send(reqs ...request) {
	c.t.Helper()
	var b []byte
	for _, r := range reqs {
		if r.Xid == 0 {
			c.xid++
			r.Xid = c.xid
		}
		c.pending = append(c.pending, r)
		b = append(b, r.frame()...)
	}
	c.write(b)
}

// do sends a request and returns the reply.
func (c *client) do(r request) result {
	c.t.Helper()
	return c.pipeline(r)[0]
}

// pipeline sends requests in a single write and returns the replies, checked to arrive in
// the same order.
func (c *client) pipeline(reqs ...request) []result {
	c.t.Helper()
	c.send(reqs...)
	sent := slices.Clone(c.pending[len(c.pending)-len(reqs):])
	results := make([]result, len(sent))
	for i, r := range sent {
		results[i] = c.reply()
		require.Equal(c.t, r.Xid, results[i].Xid, "the xid of reply %d", i)
	}
	return results
}

// reply returns the next reply, with the events before it.
func (c *client) reply() result {
	c.t.Helper()
	r, err := c.tryReply()
	require.NoError(c.t, err, "waiting for a reply")
	return r
}

// tryReply is like reply, but returns errEnd if the connection ends.
func (c *client) tryReply() (result, error) {
	c.t.Helper()
	for {
		packet, err := c.packet()
		if err != nil {
			return result{}, err
		}
		d := decoder{t: c.t, rest: packet}
		if d.isEvent() {
			c.addEvent(d.event())
			continue
		}
		return c.decode(d), nil
	}
}

// event returns the next packet, required to be an event.
func (c *client) event() event {
	c.t.Helper()
	packet, err := c.packet()
	require.NoError(c.t, err, "waiting for an event")
	d := decoder{t: c.t, rest: packet}
	require.True(c.t, d.isEvent(), "got a reply instead of an event")
	c.addEvent(d.event())
	c.unreported = 0
	return c.events[len(c.events)-1]
}

func (c *client) addEvent(e event) {
	c.events = append(c.events, e)
	c.unreported++
}

// decode decodes a reply to one of the pending requests.
func (c *client) decode(d decoder) result {
	c.t.Helper()
	r := result{Xid: d.int(), Zxid: d.long(), Err: zktest.Code(d.int())}
	i := slices.IndexFunc(c.pending, func(req request) bool { return req.Xid == r.Xid })
	require.GreaterOrEqual(c.t, i, 0, "no request has the xid %d of the reply", r.Xid)
	if r.Zxid > 0 {
		require.GreaterOrEqual(c.t, r.Zxid, c.zxid, "zxids never decrease")
		c.zxid = r.Zxid
	}
	r.Op = c.pending[i].Op
	c.pending = slices.Delete(c.pending, i, i+1)
	if r.Err == 0 {
		d.record(&r)
	}
	d.end()
	if c.unreported > 0 {
		r.Events = slices.Clone(c.events[len(c.events)-c.unreported:])
		c.unreported = 0
	}
	return r
}

// must is like do, but fails the test if the request fails.
func (c *client) must(r request) result {
	c.t.Helper()
	res := c.do(r)
	require.Zero(c.t, res.Err, "the error code of operation %d", r.Op)
	return res
}

// fails sends a request, required to fail with this error code.
func (c *client) fails(code zktest.Code, r request) {
	c.t.Helper()
	require.Equal(c.t, code, c.do(r).Err, "the error code of operation %d: %q", r.Op, r.Body)
}

// newEvents returns the events received since the latest packet. The reply to the ping
// follows the events of all changes answered before, to any client.
func (c *client) newEvents() []event {
	c.t.Helper()
	return c.must(ping()).Events
}

// waitEnd waits until the server ends the connection, with no packet before the end.
func (c *client) waitEnd() {
	c.t.Helper()
	packet, err := c.packet()
	require.ErrorIs(c.t, err, errEnd, "got %q instead of the end of the connection", packet)
}

// errEnd says that the connection ended between two packets.
var errEnd = errors.New("the server ended the connection")

// packet returns the next packet, without the length. The only error is errEnd; on others
// the test fails.
func (c *client) packet() ([]byte, error) {
	c.t.Helper()
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
	var size [4]byte
	n, err := io.ReadFull(c.conn, size[:])
	if n == 0 && err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errEnd // also for a reset
	}
	require.NoError(c.t, err, "no packet within %v", ioTimeout)
	length := binary.BigEndian.Uint32(size[:])
	require.Less(c.t, length, uint32(1<<24), "the length of a packet")
	packet := make([]byte, length)
	_, err = io.ReadFull(c.conn, packet)
	require.NoError(c.t, err, "reading a packet of %d bytes", len(packet))
	return packet, nil
}

// fourLetter returns the reply to a four letter command.
func fourLetter(t testing.TB, addr, name string) string {
	t.Helper()
	c := dial(t, addr)
	c.write([]byte(name))
	require.NoError(t, c.conn.SetReadDeadline(time.Now().Add(ioTimeout)))
	answer, err := io.ReadAll(c.conn)
	require.NoError(t, err)
	return string(answer)
}

// poll waits until condition is true; what describes the condition. Unlike
// require.Eventually, poll calls condition in the goroutine of the test, as clients
// require.
func poll(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for begin := time.Now(); !condition(); time.Sleep(pollInterval) {
		require.Less(t, time.Since(begin), ioTimeout, "waiting until %s", what)
	}
}

// encoder encodes values by appending them.
type encoder []byte

func (e encoder) int(v int32) encoder  { return binary.BigEndian.AppendUint32(e, uint32(v)) }
func (e encoder) long(v int64) encoder { return binary.BigEndian.AppendUint64(e, uint64(v)) }

func (e encoder) bool(v bool) encoder {
	if v {
		return append(e, 1)
	}
	return append(e, 0)
}

func (e encoder) buffer(b []byte) encoder {
	if b == nil {
		return e.int(-1)
	}
	return append(e.int(int32(len(b))), b...)
}

func (e encoder) string(s string) encoder {
	if s == null {
		return e.int(-1)
	}
	return e.buffer([]byte(s))
}

func (e encoder) acls(acls []acl) encoder {
	if acls == nil {
		return e.int(-1)
	}
	e = e.int(int32(len(acls)))
	for _, a := range acls {
		e = e.int(a.Perms).string(a.Scheme).string(a.ID)
	}
	return e
}

func (e encoder) lists(lists [][]string) encoder {
	for _, l := range lists {
		e = e.int(int32(len(l)))
		for _, s := range l {
			e = e.string(s)
		}
	}
	return e
}

// decoder decodes values from the front of a packet. A packet too short fails the test.
type decoder struct {
	t    testing.TB
	rest []byte
}

func (d *decoder) take(n int) []byte {
	d.t.Helper()
	require.LessOrEqual(d.t, n, len(d.rest), "the packet is too short")
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) end() {
	d.t.Helper()
	require.Empty(d.t, d.rest, "the packet is too long")
}

func (d *decoder) int() int32  { return int32(binary.BigEndian.Uint32(d.take(4))) }
func (d *decoder) long() int64 { return int64(binary.BigEndian.Uint64(d.take(8))) }

func (d *decoder) buffer() []byte {
	n := d.int()
	if n == -1 {
		return nil
	}
	return d.take(int(n))
}

func (d *decoder) string() string {
	b := d.buffer()
	if b == nil {
		return null
	}
	return string(b)
}

// vector decodes a vector whose elements are decoded by one.
func vector[T any](d *decoder, one func() T) []T {
	n := d.int()
	if n == -1 {
		return nil
	}
	v := []T{}
	for range n {
		v = append(v, one())
	}
	return v
}

func (d *decoder) stat() zktest.Stat {
	return zktest.Stat{
		Czxid: d.long(), Mzxid: d.long(), Ctime: d.long(), Mtime: d.long(),
		Version: d.int(), Cversion: d.int(), Aversion: d.int(),
		EphemeralOwner: d.long(),
		DataLength:     d.int(), NumChildren: d.int(),
		Pzxid: d.long(),
	}
}

func (d *decoder) isEvent() bool {
	return len(d.rest) >= 4 && (&decoder{d.t, d.rest}).int() == xidEvent
}

func (d *decoder) event() event {
	d.t.Helper()
	require.EqualValues(d.t, xidEvent, d.int())
	zxid := d.long() // ZooKeeper 3.9 says which transaction an event is of
	require.True(d.t, zxid == -1 || zxid > 0, "the zxid of an event")
	require.Zero(d.t, d.int(), "the error of an event")
	e := event{Type: zktest.EventType(d.int())}
	require.EqualValues(d.t, 3, d.int(), "the state in an event")
	e.Path = d.string()
	d.end()
	return e
}

// record decodes the record of the operation r.Op.
func (d *decoder) record(r *result) {
	d.t.Helper()
	switch r.Op {
	case zktest.OpCreate, zktest.OpSync:
		r.Path = d.string()
	case zktest.OpCreate2, zktest.OpCreateContainer, zktest.OpCreateTTL:
		r.Path, r.Stat = d.string(), d.stat()
	case zktest.OpExists, zktest.OpSetData, zktest.OpSetACL:
		r.Stat = d.stat()
	case zktest.OpGetData:
		r.Data, r.Stat = d.buffer(), d.stat()
	case zktest.OpGetACL:
		r.ACL = vector(d, func() acl { return acl{d.int(), d.string(), d.string()} })
		r.Stat = d.stat()
	case zktest.OpGetChildren, zktest.OpGetEphemerals:
		r.Names = vector(d, d.string)
	case zktest.OpGetChildren2:
		r.Names, r.Stat = vector(d, d.string), d.stat()
	case zktest.OpGetAllChildrenNumber, zktest.OpAddWatch:
		r.Count = d.int()
	case zktest.OpSASL:
		r.Data = d.buffer()
	case zktest.OpWhoAmI:
		r.ACL = vector(d, func() acl { return acl{0, d.string(), d.string()} })
	case zktest.OpMulti, zktest.OpMultiRead:
		r.Ops = d.operations()
	}
}

// operations decodes the results in the reply to a multi.
func (d *decoder) operations() []result {
	d.t.Helper()
	ops := []result{}
	for {
		op := result{Op: zktest.Op(d.int())}
		done := d.take(1)[0]
		op.Err = zktest.Code(d.int())
		if done != 0 {
			require.Equal(d.t, result{Op: -1, Err: -1}, op, "the end of a multi")
			return ops
		}
		if op.Op == opError {
			require.EqualValues(d.t, op.Err, d.int(), "the two error codes of an operation")
		} else {
			require.Zero(d.t, op.Err, "the error code of an operation that succeeded")
			d.record(&op)
		}
		ops = append(ops, op)
	}
}
