package zookeeper

// This file encodes the requests, decodes the answers, and says what each error of a server
// means.

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"
)

// Operations, as the protocol numbers them.
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opSync            = 9
	opGetChildren     = 12
	opCheck           = 13
	opMulti           = 14
	opCreate2         = 15 // in an answer: a created container in a multi
	opCreateContainer = 19
	opError           = -1 // of a part of a multi, not carried out
)

// newRequest returns a request with room for size bytes or a little more: the fields of the
// operation, which follow. The xid and the length are not known yet.
func newRequest(op int32, size int) *request {
	q := &request{op: op, answer: minAnswer, buffer: buffers.Get().(*[]byte), done: make(chan struct{})}
	q.packet = appendInt(append(slices.Grow((*q.buffer)[:0], 12+size), make([]byte, 8)...), op)
	q.callers.Store(1)
	return q
}

// buffers are for packets, which are short-lived.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// copied gives away the packet when it has been copied into what is to be written.
func (q *request) copied() {
	*q.buffer, q.packet = q.packet, nil
	buffers.Put(q.buffer)
	q.buffer = nil
}

func createRequest(path string, data []byte, flags int32, acl []zk.ACL) *request {
	op := int32(opCreate)
	if flags == zk.FlagContainer {
		op = opCreateContainer
	}
	q := newRequest(op, createSize(path, data))
	q.writes = path
	q.packet = appendCreate(q.packet, path, data, flags, acl)
	return q
}

// createSize is the size of a create with one entry of ordinary length in the ACL.
func createSize(path string, data []byte) int { return len(path) + len(data) + 64 }

func deleteRequest(path string, version int32) *request {
	q := newRequest(opDelete, len(path)+8)
	q.packet = appendInt(appendString(q.packet, path), version)
	return q
}

func existsRequest(path string) *request {
	q := newRequest(opExists, len(path)+5)
	q.packet = append(appendString(q.packet, path), 0)
	return q
}

// getRequest reads a node. With watch, the read sets a watch if the node exists.
func getRequest(path string) *request {
	q := newRequest(opGetData, len(path)+5)
	q.packet = append(appendString(q.packet, path), 0)
	return q
}

// watch makes a request for a node or for its children set a watch: the last byte says so.
func (q *request) watch() { q.packet[len(q.packet)-1] = 1 }

func setRequest(path string, data []byte, version int32) *request {
	q := newRequest(opSetData, len(path)+len(data)+12)
	q.writes = path
	q.packet = appendInt(appendBytes(appendString(q.packet, path), data), version)
	return q
}

// childrenRequest lists a directory. The answer is expected to have the given length.
func childrenRequest(path string, answer int64) *request {
	q := newRequest(opGetChildren, len(path)+5)
	q.packet = append(appendString(q.packet, path), 0)
	q.answer = answer
	return q
}

func syncRequest(path string) *request {
	q := newRequest(opSync, len(path)+4)
	q.packet = appendString(q.packet, path)
	return q
}

// multiRequest is a transaction of the client's types for creates, deletes, changes of
// data and checks.
func multiRequest(ops ...any) *request {
	const opHeader = 9
	q := newRequest(opMulti, 0)
	begin := func(op int32, size int) {
		if cap(q.packet)-len(q.packet) < 2*opHeader+size {
			q.packet = append(make([]byte, 0, 2*cap(q.packet)+2*opHeader+size), q.packet...)
		}
		q.packet = appendInt(append(appendInt(q.packet, op), 0), -1)
	}
	for _, op := range ops {
		switch op := op.(type) {
		case *zk.CreateRequest:
			begin(opCreate, createSize(op.Path, op.Data))
			q.writes = cmp.Or(q.writes, op.Path)
			q.packet = appendCreate(q.packet, op.Path, op.Data, op.Flags, op.Acl)
		case *zk.DeleteRequest:
			begin(opDelete, len(op.Path)+8)
			q.packet = appendInt(appendString(q.packet, op.Path), op.Version)
		case *zk.SetDataRequest:
			begin(opSetData, len(op.Path)+len(op.Data)+12)
			q.writes = cmp.Or(q.writes, op.Path)
			q.packet = appendInt(appendBytes(appendString(q.packet, op.Path), op.Data), op.Version)
		case *zk.CheckVersionRequest:
			begin(opCheck, len(op.Path)+8)
			q.packet = appendInt(appendString(q.packet, op.Path), op.Version)
		default:
			panic(fmt.Sprintf("%T in a transaction", op))
		}
	}
	q.packet = appendInt(append(appendInt(q.packet, -1), 1), -1) // no more
	return q
}

func appendCreate(b []byte, path string, data []byte, flags int32, acl []zk.ACL) []byte {
	b = appendBytes(appendString(b, path), data)
	b = appendInt(b, int32(len(acl)))
	for _, a := range acl {
		b = appendString(appendString(appendInt(b, a.Perms), a.Scheme), a.ID)
	}
	return appendInt(b, flags)
}

func appendInt(b []byte, n int32) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }

func appendString(b []byte, s string) []byte { return append(appendInt(b, int32(len(s))), s...) }

func appendBytes(b, data []byte) []byte {
	if data == nil {
		return appendInt(b, -1)
	}
	return append(appendInt(b, int32(len(data))), data...)
}

// decode sets the answer of a successful request.
func (q *request) decode(body []byte) error {
	d := decoder{rest: body}
	switch q.op {
	case opCreate, opCreateContainer:
		q.paths = append(q.room[:0], d.string())
	case opExists, opSetData:
		q.stat = d.stat()
	case opGetData:
		q.data = d.bytes()
		q.stat = d.stat()
	case opGetChildren:
		n := d.int()
		if n < 0 || int(n) > len(d.rest)/4 {
			return errGarbled
		}
		q.children = make([]string, n)
		for i := range q.children {
			q.children[i] = d.string()
		}
		q.stat = d.stat()
	case opMulti:
		return q.decodeMulti(&d)
	}
	return d.err
}

// decodeMulti returns the error of the first failed part, if any, and sets q.failed.
func (q *request) decodeMulti(d *decoder) (err error) {
	for part := 0; d.err == nil; part++ {
		op, done, _ := d.int(), d.bool(), d.int()
		if done {
			break
		}
		switch op {
		case opCreate:
			q.paths = append(q.paths, d.string())
		case opCreate2:
			q.paths = append(q.paths, d.string())
			d.stat()
		case opSetData:
			d.stat()
		case opError:
			if code := d.int(); err == nil {
				if err = errorOf(code); err != nil {
					q.failed = part
				}
			}
		case opDelete, opCheck:
		default:
			return errGarbled
		}
	}
	if d.err != nil {
		return d.err
	}
	return err
}

var errGarbled = errors.New("the server's answer cannot be understood")

// decoder reads an answer. After an error all values are zero.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) next(n int) []byte {
	if n < 0 || n > len(d.rest) || d.err != nil {
		d.err = errGarbled
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) int() int32 {
	b := d.next(4)
	if b == nil {
		return 0
	}
	return int32(binary.BigEndian.Uint32(b))
}

func (d *decoder) long() int64 {
	b := d.next(8)
	if b == nil {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

func (d *decoder) bool() bool {
	b := d.next(1)
	return b != nil && b[0] != 0
}

func (d *decoder) string() string { return string(d.next(int(d.int()))) }

// bytes returns nil if the server has no data, not even empty data.
func (d *decoder) bytes() []byte {
	n := d.int()
	if n < 0 {
		return nil
	}
	return append([]byte{}, d.next(int(n))...)
}

// statLength is the length of a stat.
const statLength = 68

func (d *decoder) stat() zk.Stat {
	return zk.Stat{
		Czxid: d.long(), Mzxid: d.long(), Ctime: d.long(), Mtime: d.long(),
		Version: d.int(), Cversion: d.int(), Aversion: d.int(), EphemeralOwner: d.long(),
		DataLength: d.int(), NumChildren: d.int(), Pzxid: d.long(),
	}
}

// meaning is what an error says of the failed request.
type meaning int

const (
	unsure   meaning = iota // not an answer, or one about the session
	answered                // an answer, but the request may have been carried out
	refused                 // the server has changed nothing
	decided                 // the same by the leader's decision; other codes may come from the connected server
)

// codes are the codes of answers whose meaning is known; another code is an answer all the
// same. A server may itself answer "throttled", or "no right" (enableEagerACLCheck).
var codes = []struct {
	code int32
	err  error
	meaning
}{
	{-6, errUnimplemented, refused},
	{-8, zk.ErrBadArguments, refused},
	{-100, zk.ErrAPIError, answered},
	{-101, zk.ErrNoNode, decided},
	{-102, zk.ErrNoAuth, refused},
	{-103, zk.ErrBadVersion, decided},
	{-108, zk.ErrNoChildrenForEphemerals, decided},
	{-110, zk.ErrNodeExists, decided},
	{-111, zk.ErrNotEmpty, decided},
	{-112, zk.ErrSessionExpired, unsure},
	{-114, zk.ErrInvalidACL, refused},
	{-115, zk.ErrAuthFailed, refused},
	{-116, zk.ErrClosing, answered},
	{-117, zk.ErrNothing, answered},
	{-118, zk.ErrSessionMoved, unsure},
	{-119, errReadOnly, refused},
	{-120, errLocalSession, refused},
	{-123, zk.ErrReconfigDisabled, refused},
	{-124, errUnauthenticated, unsure},
	{-125, errQuota, refused},
	{-127, errThrottled, refused},
}

// errorOf returns the error for a code in an answer.
func errorOf(code int32) error {
	if code == 0 {
		return nil
	}
	for _, c := range codes {
		if c.code == code {
			return c.err
		}
	}
	return codeError(code)
}

// meaningOf returns what an error of a request says.
func meaningOf(err error) meaning {
	for _, c := range codes {
		if c.err == err {
			return c.meaning
		}
	}
	switch {
	case err == errTooLarge:
		return refused
	case err == errTooLong, err == errClosedEachTime:
		return answered
	}
	if _, unknown := err.(codeError); unknown {
		return answered
	}
	return unsure
}

// codeError is a code without an error in the client.
type codeError int32

const (
	errUnimplemented   codeError = -6
	errReadOnly        codeError = -119
	errLocalSession    codeError = -120
	errUnauthenticated codeError = -124
	errQuota           codeError = -125
	errThrottled       codeError = -127
)

// Error names the error as ZooKeeper does (KeeperException.Code).
func (e codeError) Error() string {
	name := map[codeError]string{
		-1: "system error", -2: "runtime inconsistency", -3: "data inconsistency", -5: "marshalling error",
		errUnimplemented: "unimplemented", -7: "operation timeout",
		-13: "no quorum of the new configuration", -14: "reconfiguration in progress",
		errReadOnly: "not read-only", errLocalSession: "ephemeral on a local session", -122: "request timeout",
		errUnauthenticated: "session closed: authentication required", errQuota: "quota exceeded", errThrottled: "throttled",
	}[e]
	return fmt.Sprintf("the server answered error %d (%s): its log may say why", int32(e), cmp.Or(name, "unknown"))
}
