// Package txnlog reads the files of ZooKeeper 3.4 to 3.9: logs of all transactions, in order,
// and snapshots of all nodes. A file is read into memory.
package txnlog

// This file reads logs and snapshots.

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Header is the origin of a transaction.
type Header struct {
	Session int64 // that asked
	Cxid    int32 // the number of the request in the session, or 0 for a request of the server
	Zxid    int64 // the number of the transaction, with the epoch in the upper half
	Time    time.Time
}

// Txn is one transaction or, without a Zxid, a snapshot with the creations of all nodes.
type Txn struct {
	Header
	Ops  []Op // none of a failed transaction
	Ends bool // Session ends, and all ephemeral nodes of Session with it
}

// Op changes one node.
type Op struct {
	Header
	Kind      int32 // Create, Delete or SetData
	Path      string
	Data      []byte // a part of the file's memory
	Ephemeral bool   // of Create
	Version   int32  // of the data afterward
}

// The types of transactions (org.apache.zookeeper.ZooDefs.OpCode) that matter here.
const (
	Create                                               int32 = 1
	Delete                                               int32 = 2
	SetData                                              int32 = 5
	failed, closeSession, multi                                = -1, -11, 14
	create2, createContainer, deleteContainer, createTTL       = 15, 19, 20, 21
)

// ErrDamaged reports that the rest of a file cannot be read.
var ErrDamaged = errors.New("the rest of the file is lost")

// ReadLog calls each with the transactions of a log until each returns false. A log may end
// with a part of a transaction, because the server still writes or was killed. If anything
// else cannot be read, the error is [ErrDamaged].
func ReadLog(path string, each func(Txn) (more bool)) error {
	d, err := read(path, "ZKLG")
	if err != nil {
		return err
	}
	for last := int64(0); len(d.rest) > 0; {
		sum, record, end := d.int64(), d.buffer(), d.take(1)[0]
		good := !d.bad && end == 'B' && sum == int64(adler32.Checksum(record))
		if !good && (sum == 0 && len(record) == 0 || !d.bad && len(bytes.Trim(d.rest, "\x00")) == 0) {
			return nil // the server fills logs with zeros in advance
		}
		r := &decoder{rest: record}
		t := r.txn()
		if !good || r.bad {
			return fmt.Errorf("%s is damaged after transaction %#x: %w", filepath.Base(path), last, ErrDamaged)
		}
		if last = t.Zxid; !each(t) {
			return nil
		}
	}
	return nil
}

func (d *decoder) txn() (t Txn) {
	t.Header = Header{d.int64(), d.int32(), d.int64(), time.UnixMilli(d.int64())}
	switch kind := d.int32(); kind {
	case closeSession:
		t.Ends = true // ZooKeeper 3.6 and later name the nodes, all of them the session's
	case multi:
		for n := d.int32(); n > 0 && !d.bad; n-- {
			kind, part := d.int32(), &decoder{rest: d.buffer()}
			if kind == failed { // then the others are as well
				return Txn{Header: t.Header}
			}
			part.op(&t, kind)
			d.bad = d.bad || part.bad
		}
	default:
		d.op(&t, kind)
	}
	return t
}

// op reads a change of a node, if the type is one.
func (d *decoder) op(t *Txn, kind int32) {
	op := Op{Header: t.Header}
	switch kind {
	case Create, create2, createContainer, createTTL:
		op.Kind, op.Path, op.Data = Create, d.text(), d.buffer()
		d.skipACL()
		op.Ephemeral = kind != createContainer && kind != createTTL && d.take(1)[0] != 0
	case Delete, deleteContainer:
		op.Kind, op.Path = Delete, d.text()
	case SetData:
		op.Kind, op.Path, op.Data, op.Version = SetData, d.text(), d.buffer(), d.int32()
	default:
		return
	}
	t.Ops = append(t.Ops, op)
}

// ReadSnapshot reads a snapshot: the nodes created by transactions until last. The server
// goes on while writing a snapshot, which contains some of the changes meanwhile.
func ReadSnapshot(path string, last int64) (t Txn, err error) {
	d, err := read(path, "ZKSN")
	if err != nil {
		return t, err
	}
	d.take((8 + 4) * int(d.int32())) // sessions
	for n := d.int32(); n > 0 && !d.bad; n-- {
		d.int64()
		d.skipACL()
	}
	for path := d.text(); path != "/" && !d.bad; path = d.text() { // the root is the empty path
		op := Op{Kind: Create, Path: path, Data: d.buffer()}
		d.int64() // of the ACL
		op.Zxid = d.int64()
		d.int64()
		op.Time = time.UnixMilli(d.int64())
		d.int64()
		op.Version = d.int32()
		d.int64()
		if owner := d.int64(); owner != -1<<63 && uint64(owner)>>40 != 0xff0000 { // marks of a container, and of a TTL
			op.Session, op.Ephemeral = owner, owner != 0
		}
		if d.int64(); op.Zxid <= last {
			t.Ops = append(t.Ops, op)
		}
	}
	sum := adler32.Checksum(d.all[:len(d.all)-len(d.rest)])
	if d.int64() != int64(sum) || d.bad { // a killed server leaves a part
		return t, fmt.Errorf("%s is incomplete or damaged: %w", filepath.Base(path), ErrDamaged)
	}
	return t, nil
}

// decoder reads values of Jute, ZooKeeper's serialization. After a bad value all are zero.
type decoder struct {
	all, rest []byte
	bad       bool
}

// read reads a file, and decodes the header.
func read(path, magic string) (*decoder, error) {
	data, err := os.ReadFile(path)
	if r, failed := gzip.NewReader(bytes.NewReader(data)); failed == nil {
		data, _ = io.ReadAll(r) // the checksum finds a missing end
	}
	switch {
	case err != nil:
		return nil, err
	case filepath.Ext(path) == ".snappy":
		return nil, fmt.Errorf("%s is compressed with snappy, which cannot be read here: give the files of a server with snapshot.compression.method=gz, or another --from", filepath.Base(path))
	case len(data) >= 8 && string(data[:8]) != magic+"\x00\x00\x00\x02" && !bytes.Equal(data[:8], make([]byte, 8)):
		return nil, fmt.Errorf("%s is no file of ZooKeeper 3.4 to 3.9", filepath.Base(path))
	}
	return &decoder{all: data, rest: data[min(len(data), 16):]}, nil
}

func (d *decoder) take(n int) []byte {
	if d.bad = d.bad || n < 0 || n > len(d.rest); d.bad {
		return make([]byte, 12)
	}
	taken := d.rest[:n:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) int32() int32 { return int32(binary.BigEndian.Uint32(d.take(4))) }
func (d *decoder) int64() int64 { return int64(binary.BigEndian.Uint64(d.take(8))) }
func (d *decoder) text() string { return string(d.buffer()) }

func (d *decoder) buffer() []byte {
	n := d.int32()
	if n == -1 || d.bad { // Java's null
		return nil
	}
	return d.take(int(n))
}

func (d *decoder) skipACL() {
	for n := d.int32(); n > 0 && !d.bad; n-- {
		d.take(4)
		d.buffer()
		d.buffer()
	}
}
