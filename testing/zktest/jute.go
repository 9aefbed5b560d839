package zktest

// This file has the encoding of the protocol.

import (
	"encoding/binary"
	"math"
)

// decoder decodes jute, ZooKeeper's encoding: big-endian, no padding, no tags. After the
// first missing field all values are zero, and malformed is true. Strings and buffers are
// copies: a small one does not keep a large packet in memory.
type decoder struct {
	rest      []byte
	malformed bool
}

func (d *decoder) take(n int) []byte {
	if d.malformed || n < 0 || n > len(d.rest) {
		d.malformed, d.rest = true, nil
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) bool() bool {
	b := d.take(1)
	return b != nil && b[0] != 0
}

func (d *decoder) int() int32 {
	if b := d.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (d *decoder) long() int64 {
	if b := d.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// buffer returns nil for a null buffer, as opposed to an empty one.
func (d *decoder) buffer() []byte {
	n := d.int()
	if n == -1 {
		return nil
	}
	b := d.take(int(n))
	if d.malformed {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// string returns "" for a null string: kazoo sends null for the empty string.
func (d *decoder) string() string {
	n := d.int()
	if n == -1 {
		return ""
	}
	return string(d.take(int(n)))
}

// path is string, but a null string is malformed: the real server fails on null.
func (d *decoder) path() string {
	b := d.buffer()
	if b == nil {
		d.malformed = true
	}
	return string(b)
}

// count decodes the length of a vector whose elements take at least size bytes each. A
// length beyond the packet is malformed.
func (d *decoder) count(size int) int {
	n := int(d.int())
	if n == -1 {
		return 0
	}
	if n < 0 || n > len(d.rest)/size {
		d.take(math.MaxInt)
		return 0
	}
	return n
}

func (d *decoder) strings() []string {
	list := make([]string, d.count(4))
	for i := range list {
		list[i] = d.string()
	}
	return list
}

func (d *decoder) acl() []acl {
	list := make([]acl, d.count(12))
	for i := range list {
		a := acl{perms: d.int(), identity: identity{scheme: d.string()}}
		id := d.buffer()
		a.id, a.null = string(id), id == nil
		list[i] = a
	}
	return list
}

// reconfig reports whether the record of OpReconfig is complete.
func (d *decoder) reconfig() bool {
	_, _, _, _ = d.string(), d.string(), d.string(), d.long()
	return !d.malformed
}

// encoder encodes jute.
type encoder []byte

// newPacket returns an encoder with room for the packet's length.
func newPacket() encoder { return make(encoder, 4, 64) }

// packet fills in the length and returns the bytes to send.
func (e encoder) packet() []byte {
	binary.BigEndian.PutUint32(e, uint32(len(e)-4))
	return e
}

func (e *encoder) bool(b bool) {
	if b {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

func (e *encoder) int(n int32)  { *e = binary.BigEndian.AppendUint32(*e, uint32(n)) }
func (e *encoder) long(n int64) { *e = binary.BigEndian.AppendUint64(*e, uint64(n)) }

func (e *encoder) buffer(b []byte) {
	if b == nil {
		e.int(-1)
		return
	}
	e.int(int32(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) string(s string) {
	e.int(int32(len(s)))
	*e = append(*e, s...)
}

func (e *encoder) strings(list []string) {
	e.int(int32(len(list)))
	for _, s := range list {
		e.string(s)
	}
}

func (e *encoder) acl(list []acl) {
	e.int(int32(len(list)))
	for _, a := range list {
		e.int(a.perms)
		e.string(a.scheme)
		e.string(a.id)
	}
}

func (e *encoder) stat(s Stat) {
	e.long(s.Czxid)
	e.long(s.Mzxid)
	e.long(s.Ctime)
	e.long(s.Mtime)
	e.int(s.Version)
	e.int(s.Cversion)
	e.int(s.Aversion)
	e.long(s.EphemeralOwner)
	e.int(s.DataLength)
	e.int(s.NumChildren)
	e.long(s.Pzxid)
}
