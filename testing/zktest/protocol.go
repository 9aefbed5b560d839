package zktest

// This file has operations, codes, events, and the first packets.

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Op is the type of a request: ZooKeeper's number for the operation.
type Op int64

const (
	OpCreate               Op = 1
	OpDelete               Op = 2
	OpExists               Op = 3
	OpGetData              Op = 4
	OpSetData              Op = 5
	OpGetACL               Op = 6
	OpSetACL               Op = 7
	OpGetChildren          Op = 8
	OpSync                 Op = 9
	OpPing                 Op = 11
	OpGetChildren2         Op = 12 // also returns the Stat
	OpCheck                Op = 13 // for a multi; alone, only a failed check is answered
	OpMulti                Op = 14
	OpCreate2              Op = 15 // also returns the Stat
	OpReconfig             Op = 16
	OpCheckWatches         Op = 17
	OpRemoveWatches        Op = 18
	OpCreateContainer      Op = 19
	OpDeleteContainer      Op = 20 // not for clients
	OpCreateTTL            Op = 21
	OpMultiRead            Op = 22
	OpAuth                 Op = 100
	OpSetWatches           Op = 101
	OpSASL                 Op = 102
	OpGetEphemerals        Op = 103
	OpGetAllChildrenNumber Op = 104
	OpSetWatches2          Op = 105
	OpAddWatch             Op = 106
	OpWhoAmI               Op = 107
	OpCreateSession        Op = -10 // not for clients
	OpCloseSession         Op = -11

	// OpConnect is the first packet of a connection: a request for a new session, or to
	// reattach to a session. It has no operation number in the protocol.
	OpConnect Op = 1 << 40

	// OpEvent is a watch event about to be sent to a client.
	OpEvent Op = OpConnect + 1
)

// Operations often matched together.
var (
	// Creates holds all operations creating one node.
	Creates = []Op{OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL}
	// Lists holds the operations listing children.
	Lists = []Op{OpGetChildren, OpGetChildren2}
)

var opNames = map[Op]string{
	OpCreate: "create", OpDelete: "delete", OpExists: "exists", OpGetData: "getData", OpSetData: "setData",
	OpGetACL: "getACL", OpSetACL: "setACL", OpGetChildren: "getChildren", OpSync: "sync", OpPing: "ping",
	OpGetChildren2: "getChildren2", OpCheck: "check", OpMulti: "multi", OpCreate2: "create2",
	OpReconfig: "reconfig", OpCheckWatches: "checkWatches", OpRemoveWatches: "removeWatches",
	OpCreateContainer: "createContainer", OpDeleteContainer: "deleteContainer", OpCreateTTL: "createTTL",
	OpMultiRead: "multiRead", OpAuth: "auth", OpSetWatches: "setWatches", OpSASL: "sasl",
	OpGetEphemerals: "getEphemerals", OpGetAllChildrenNumber: "getAllChildrenNumber",
	OpSetWatches2: "setWatches2", OpAddWatch: "addWatch", OpWhoAmI: "whoAmI",
	OpCreateSession: "createSession", OpCloseSession: "closeSession", OpConnect: "connect", OpEvent: "event",
}

// String returns the operation's name in ZooKeeper's documentation.
func (op Op) String() string {
	if name, ok := opNames[op]; ok {
		return name
	}
	return fmt.Sprintf("op %d", int64(op))
}

// ParseOp returns the operation with the name, such as "create2": the reverse of
// [Op.String].
func ParseOp(name string) (Op, error) {
	for op, other := range opNames {
		if other == name {
			return op, nil
		}
	}
	return 0, fmt.Errorf("zktest: there is no operation %q: the operations are %s", name, strings.Join(slices.Sorted(maps.Values(opNames)), ", "))
}

// writes reports whether the request is a transaction, taking a zxid even on failure.
func (op Op) writes() bool {
	switch op {
	case OpCreate, OpDelete, OpSetData, OpSetACL, OpCheck, OpMulti, OpCreate2, OpReconfig,
		OpCreateContainer, OpDeleteContainer, OpCreateTTL, OpCloseSession:
		return true
	}
	return false
}

// Code is a result code, as in the header of a reply.
type Code int32

const (
	OK                      Code = 0
	ErrSystem               Code = -1
	ErrRuntimeInconsistency Code = -2 // of a part of a multi after the failed one
	ErrConnectionLoss       Code = -4
	ErrMarshalling          Code = -5
	ErrUnimplemented        Code = -6
	ErrBadArguments         Code = -8
	ErrNoNode               Code = -101
	ErrNoAuth               Code = -102
	ErrBadVersion           Code = -103
	ErrNoChildrenEphemeral  Code = -108
	ErrNodeExists           Code = -110
	ErrNotEmpty             Code = -111
	ErrSessionExpired       Code = -112
	ErrNotReadOnly          Code = -119
	ErrInvalidACL           Code = -114
	ErrAuthFailed           Code = -115
	ErrNoWatcher            Code = -121
	ErrReconfigDisabled     Code = -123
	ErrThrottled            Code = -127
)

var codeNames = map[Code]string{
	OK: "ok", ErrSystem: "system error", ErrRuntimeInconsistency: "runtime inconsistency",
	ErrConnectionLoss: "connection loss", ErrMarshalling: "marshalling error",
	ErrUnimplemented: "unimplemented", ErrBadArguments: "bad arguments", ErrNoNode: "no node",
	ErrNoAuth: "not authorized", ErrBadVersion: "bad version",
	ErrNoChildrenEphemeral: "no children for ephemerals", ErrNodeExists: "node exists",
	ErrNotEmpty: "not empty", ErrSessionExpired: "session expired", ErrNotReadOnly: "the server serves only reads", ErrInvalidACL: "invalid ACL",
	ErrAuthFailed: "authentication failed", ErrNoWatcher: "no watcher",
	ErrReconfigDisabled: "reconfig disabled", ErrThrottled: "throttled",
}

// Error returns the code's meaning and number.
func (c Code) Error() string {
	if name, ok := codeNames[c]; ok {
		return fmt.Sprintf("%s (%d)", name, int32(c))
	}
	return fmt.Sprintf("code %d", int32(c))
}

// EventType is the type of a watch event.
type EventType int32

const (
	NodeCreated         EventType = 1
	NodeDeleted         EventType = 2
	NodeDataChanged     EventType = 3
	NodeChildrenChanged EventType = 4
)

// String returns ZooKeeper's name for the event.
func (t EventType) String() string {
	switch t {
	case NodeCreated:
		return "NodeCreated"
	case NodeDeleted:
		return "NodeDeleted"
	case NodeDataChanged:
		return "NodeDataChanged"
	case NodeChildrenChanged:
		return "NodeChildrenChanged"
	}
	return fmt.Sprintf("event %d", int32(t))
}

// Special xids.
const (
	xidEvent = -1
	xidPing  = -2
)

// Request is a request, or a watch event, as seen by a rule.
type Request struct {
	Conn    int   // number of the connection, from 1 in the order they were accepted
	Member  int   // number of the client's member, from 1
	Session int64 // 0 for an OpConnect for a new session
	Xid     int32 // the client's number for the request
	Op      Op
	Paths   []string  // the path; for a multi, the paths of all parts; none for ping, auth and the like
	Event   EventType // of an OpEvent
}

// String returns the request in one line.
func (r Request) String() string {
	return fmt.Sprintf("%v %q of session 0x%x on connection %d", r.Op, r.Paths, r.Session, r.Conn)
}

// parseRequest parses a packet, without the length, other than the first of a connection.
// It reports false if the header is incomplete.
func parseRequest(packet []byte) (r Request, ok bool) {
	d := &decoder{rest: packet}
	r.Xid, r.Op = d.int(), Op(d.int())
	if d.malformed {
		return r, false
	}
	switch r.Op {
	case OpPing, OpAuth, OpSASL, OpSetWatches, OpSetWatches2, OpWhoAmI, OpCloseSession, OpReconfig:
	case OpMulti, OpMultiRead:
		parts, _ := decodeMulti(d)
		for _, part := range parts {
			r.Paths = append(r.Paths, part.path)
		}
	default:
		if path := d.string(); !d.malformed {
			r.Paths = []string{path}
		}
	}
	return r, true
}

// parseConnect parses the first packet of a connection.
func parseConnect(packet []byte) (c connectRequest, ok bool) {
	d := &decoder{rest: packet}
	d.int() // the protocol version, always 0
	c.lastZxid, c.timeout, c.session, c.password = d.long(), d.int(), d.long(), d.buffer()
	ok = !d.malformed
	c.hasReadOnly = len(d.rest) > 0
	c.readOnly = c.hasReadOnly && d.rest[0] != 0
	return c, ok
}

// connectRequest asks for a session.
type connectRequest struct {
	lastZxid    int64
	timeout     int32 // milliseconds
	session     int64 // 0 for a new one
	password    []byte
	hasReadOnly bool // the read-only byte is present, so the reply must have one
	readOnly    bool // the client accepts a read-only server
}

// connectReply is the reply to a connectRequest. The zero value says that the
// session has expired.
type connectReply struct {
	version  int32 // of the protocol
	timeout  int32
	session  int64
	password [16]byte
	readOnly bool
}

func (r connectReply) encode(hasReadOnly bool) []byte {
	e := newPacket()
	e.int(r.version)
	e.int(r.timeout)
	e.long(r.session)
	e.buffer(r.password[:])
	if hasReadOnly {
		e.bool(r.readOnly)
	}
	return e.packet()
}

// part is the record of one operation, alone or in a multi.
type part struct {
	op      Op
	path    string
	data    []byte
	acl     []acl
	flags   int32
	ttl     int64 // milliseconds
	version int32
	watch   bool
}

// decodePart decodes the record of an operation on one node.
func decodePart(d *decoder, op Op) part {
	p := part{op: op}
	switch op {
	case OpSetData, OpSetACL, OpCheck:
		p.path = d.string()
	default:
		p.path = d.path()
	}
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		p.data, p.acl, p.flags = d.buffer(), d.acl(), d.int()
		if op == OpCreateTTL {
			p.ttl = d.long()
		}
	case OpDelete, OpCheck:
		p.version = d.int()
	case OpSetData:
		p.data, p.version = d.buffer(), d.int()
	case OpSetACL:
		p.acl, p.version = d.acl(), d.int()
	case OpExists, OpGetData, OpGetChildren, OpGetChildren2:
		p.watch = d.bool()
	}
	return p
}

// decodeMulti decodes the parts of a multi. It reports false if the record is
// malformed or an operation is not allowed in a multi.
func decodeMulti(d *decoder) (parts []part, ok bool) {
	for {
		op, done := Op(d.int()), d.bool()
		d.int() // an error code, used in replies only
		if d.malformed || done {
			return parts, !d.malformed
		}
		if !slices.Contains(multiOps, op) {
			return parts, false
		}
		parts = append(parts, decodePart(d, op))
	}
}

var multiOps = []Op{OpCreate, OpDelete, OpSetData, OpCheck, OpCreate2, OpCreateContainer, OpCreateTTL, OpGetChildren, OpGetData}
