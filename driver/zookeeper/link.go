package zookeeper

// This file has one connection to a server: reading answers, writing requests, and
// deadlines.

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/driver"
)

// link is one connection to a server. Two users share it: the client, by way of a relay
// (relay.go), and the session's requests (requests.go).
type link struct {
	conn    net.Conn
	client  net.Conn // the relay's end of the client's connection; nil without a client
	session *session
	in      *bufio.Reader

	// Of the handshake (handshake.go).
	to        target        // the server
	timeout   time.Duration // how long the handshake may take
	began     time.Duration // when the connection began, by expiry.now
	requested bool          // a new session was requested, and must be closed unless established
	offeredID int64         // the session named by the server, or 0
	closing   atomic.Bool   // the end of the session is being sent

	// Used only by the reading goroutine, and after its end.
	established   bool          // the handshake is complete
	establishedAt time.Time     // when the handshake was complete
	timedOut      bool          // the server has been silent for too long since then
	closed        bool          // the server, or the network, has closed the connection since then
	took          time.Duration // how long opening took
	readBy        time.Time     // the deadline in force
	slack         time.Duration // how much too early the deadline may be
	maxSilence    time.Duration // how long a server may be silent
	maxIdle       time.Duration // how much longer if the session is idle
	barrier       *request      // the first request; all reads depend on the barrier, if not nil

	// Guarded by requests.mu.
	pending    []*request // sent and not answered
	unanswered int        // their length
	out        []byte     // to be written
	spare      []byte     // for out
	writing    bool       // a goroutine writes, or has failed to
}

func newLink(s *session, conn net.Conn, to target) *link {
	l := &link{conn: conn, session: s, to: to, timeout: s.addressTimeout()}
	l.in = bufio.NewReader(arrivals{l})
	return l
}

// disconnect closes the connection. (Closing a TLS connection would first try to
// send a close_notify alert.)
func (l *link) disconnect() {
	if secured, ok := l.conn.(*tls.Conn); ok {
		secured.NetConn().Close()
		return
	}
	l.conn.Close()
}

// arrivals reads what has arrived on a link.
type arrivals struct{ *link }

// Read implements io.Reader. Read is called when everything received is used up, so that
// answers received together are followed by one write. Whenever anything arrives, the
// server has as much time again.
func (a arrivals) Read(p []byte) (int, error) {
	if !a.established { // the handshake has a deadline of its own
		return a.conn.Read(p)
	}
	a.session.requests.answered()
	if err := a.extendDeadline(); err != nil {
		return 0, err
	}
	n, err := a.conn.Read(p)
	if err != nil {
		a.timedOut = isTimeout(err)
		a.closed = !a.timedOut && !errors.Is(err, net.ErrClosed)
	}
	return n, err
}

// extendDeadline gives the server time for its next packet. A proof is sent every twelfth
// of the session timeout, or 0.28 of it apart on an idle session (lease.go), so a quarter more
// without an answer means that another server is needed. A slightly wrong deadline does no
// harm and saves a timer.
func (l *link) extendDeadline() error {
	silence := l.maxSilence
	if l.session.expiry.isIdle() {
		silence += l.maxIdle
	}
	by := time.Now().Add(silence)
	if by.Sub(l.readBy).Abs() < l.slack {
		return nil
	}
	l.readBy = by
	return l.conn.SetReadDeadline(by)
}

// maxUnblocked is how many bytes can be written without waiting, if the server has
// answered all before them: less than the buffers of any connection hold.
const maxUnblocked = 12 << 10

// flush writes what there is to write, unless another goroutine is writing and will write
// this as well. Callers must not wait for the network, so flush writes on their goroutine
// only what cannot block. It is called with requests.mu held, and releases the mutex while
// writing.
func (l *link) flush() {
	if l.writing || len(l.out) == 0 {
		return
	}
	l.writing = true
	const mostRounds = 8 // in which a caller writes for others
	for range mostRounds {
		if l.unanswered > maxUnblocked {
			break
		}
		if !l.writeOut() {
			return
		}
	}
	if l.session.requests.over { // and shutdown may no longer wait for the goroutine
		return
	}
	l.session.requests.writers.Go(func() { // ends when all is written or the connection is closed
		l.session.requests.mu.Lock()
		defer l.session.requests.mu.Unlock()
		for l.writeOut() {
		}
	})
}

// writeOut writes everything there is to write, with one call. If there is nothing, or the
// write fails, writeOut reports false and this goroutine no longer writes.
func (l *link) writeOut() bool {
	out := l.out
	if len(out) == 0 {
		l.writing = false
		return false
	}
	l.out = l.spare[:0]
	l.session.requests.mu.Unlock()
	_, err := l.conn.Write(out)
	if err != nil {
		l.disconnect() // the reading goroutine notices
	}
	l.session.requests.mu.Lock()
	l.spare = out
	return err == nil
}

// receive reads and handles the next packet: packets are handled in the order of arrival.
func (l *link) receive() error {
	head, err := l.in.Peek(4)
	if err != nil {
		return err
	}
	length := int(int32(binary.BigEndian.Uint32(head)))
	if length < headLength {
		return fmt.Errorf("%s sent a packet of %d bytes, which is not an answer from ZooKeeper", l.to, length)
	}
	if head, err = l.in.Peek(4 + headLength); err != nil {
		return err
	}
	xid := int32(binary.BigEndian.Uint32(head[4:]))
	switch {
	case xid == eventXID:
		_, _ = l.in.Discard(len(head))
		return l.readEvent(length - headLength)
	case xid < firstXID:
		return l.passToClient(xid, length)
	}
	zxid, code := int64(binary.BigEndian.Uint64(head[8:])), int32(binary.BigEndian.Uint32(head[16:]))
	_, _ = l.in.Discard(len(head))
	q := l.session.requests.take(l, xid, zxid, code)
	if q == nil { // also if they have all failed, because no more can be sent
		return fmt.Errorf("%s sent an answer to another request than the next one", l.to)
	}
	err, broken := l.readBody(q, code, length-headLength)
	if broken == nil {
		l.onReply(q, code)
	}
	if q.finish(err); broken == nil && q == l.barrier && q.err != nil { // so what follows may be outdated
		broken = fmt.Errorf("%s did not carry out a write that changes nothing: %w", l.to, q.err)
	}
	return broken
}

// eventXID takes the place of an xid in the head of an event.
const eventXID = -1

// readEvent reads the rest of an event.
func (l *link) readEvent(length int) error {
	if length > maxSend {
		return fmt.Errorf("%s sent an event of %d bytes: no path that long is watched", l.to, length)
	}
	err, broken := l.decode(length, func(body []byte) error {
		d := decoder{rest: body}
		event, _, path := zk.EventType(d.int()), d.int(), d.string()
		switch {
		case d.err != nil:
			return d.err
		case event == zk.EventNodeDeleted:
			l.session.fire(path, driver.Deleted)
			l.session.fireDirectory(path)
		case event == zk.EventNodeCreated, event == zk.EventNodeChildrenChanged:
			l.session.fireDirectory(path)
		case event == zk.EventNodeDataChanged:
			l.session.fire(path, driver.Changed)
		}
		return nil
	})
	return cmp.Or(broken, err)
}

// readBody reads the rest of an answer. broken is the error of the connection.
//
// An answer longer than accepted does not break the connection, because the outcome of
// every other request would be unknown. A listing of such a length is an error, and a node
// with so much data, surely not ours, counts as a node without data. The answer to a write
// says no more than the request, whose length is limited.
func (l *link) readBody(q *request, code int32, length int) (err, broken error) {
	const maxWritten = 2 * maxSend
	switch {
	case code != 0:
		_, broken = l.in.Discard(length)
		err = errorOf(code)
	case length <= l.session.cfg.MaxPacket-headLength, length <= maxWritten && q.op != opGetChildren && q.op != opGetData:
		err, broken = l.decode(length, q.decode)
	case q.op == opGetChildren:
		_, broken = l.in.Discard(length)
		err = errTooLong
	case q.op == opGetData:
		if _, broken = l.in.Discard(length - statLength); broken == nil {
			var stat []byte
			if stat, broken = l.in.Peek(statLength); broken == nil {
				q.stat = (&decoder{rest: stat}).stat()
				_, _ = l.in.Discard(statLength)
			}
		}
	default:
		broken = fmt.Errorf("%s sent an answer of %d bytes, which is more than any answer to such a request", l.to, length)
	}
	if broken != nil {
		err = zk.ErrConnectionClosed
	}
	return err, broken
}

// decode reads and decodes the rest of a packet.
func (l *link) decode(length int, decode func(body []byte) error) (err, broken error) {
	if length > l.in.Size() {
		body := make([]byte, length)
		if _, broken = io.ReadFull(l.in, body); broken != nil {
			return nil, broken
		}
		return decode(body), nil
	}
	body, broken := l.in.Peek(length)
	if broken != nil {
		return nil, broken
	}
	err = decode(body)
	_, _ = l.in.Discard(length)
	return err, nil
}

// onReply is called with the answer to a request.
func (l *link) onReply(r *request, code int32) {
	e := &l.session.expiry
	switch r.op {
	case opSync:
		if code == 0 {
			e.lease.recordProof(r.at, e.now, false)
		}
	case opCreate, opDelete, opMulti, opCreateContainer:
		if code == 0 || meaningOf(errorOf(code)) == decided {
			e.lease.recordProof(r.at, e.now, true)
		}
	}
}
