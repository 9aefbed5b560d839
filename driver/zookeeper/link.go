package zookeeper

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockpool/lockpool/driver"
)

// link is one connection to a server. The client does not pass on what the server says
// about the session (its true timeout, that it has expired), nor when it sent the
// requests that the server answers, so the link parses the traffic as well.
type link struct {
	net.Conn
	session *Session
	in      *bufio.Reader // the client reads every reply in two pieces

	// Of the handshake (handshake.go).
	to            target        // the server
	timeout       time.Duration // how long the handshake may take
	began         time.Duration // when it began, by expiry.now
	offeredID     int64         // the session that the server named, or 0
	establishedAt time.Time     // when the handshake was complete
	established   atomic.Bool   // the handshake is complete
	timedOut      atomic.Bool   // the server has been silent for too long since then

	head [20]byte // of the packet that is being read: length, xid, zxid, error
	got  int      // bytes of head
	left int      // bytes of the packet after head

	substitute []byte // for the client to read in place of what the server sent

	mu             sync.Mutex
	sent           []sent // the requests not yet answered
	handshakeStage handshakeStage

	// The deadlines in force. Each is used by only one goroutine: the one that reads,
	// or the one that writes.
	readBy     time.Time
	writeBy    time.Time
	slack      time.Duration // how much too early a deadline may be
	maxSilence time.Duration // how long a server may be silent
}

// sent is a request on its way.
type sent struct {
	at  time.Duration // by expiry.now
	xid int32
	op  int32
}

// eventXID is the xid of events. The client numbers its requests from 1.
const eventXID = -1

// Operations, as the protocol numbers them.
const (
	opCreate          = 1
	opDelete          = 2
	opGetData         = 4
	opSync            = 9
	opGetChildren     = 12
	opMulti           = 14
	opCreateContainer = 19
)

func newLink(s *Session, conn net.Conn, to target) *link {
	return &link{Conn: conn, session: s, in: bufio.NewReader(conn), to: to, timeout: s.addressTimeout()}
}

// Write records when a request is sent. The client writes each request with one call.
//
// It also makes the getData of a node that must be watched set a watch. If the client
// did that (GetW), it would keep a channel for each watch until the node changes, and
// set all of them again after a reconnect, which nothing here needs and which races on
// its lastZxid with the goroutine that writes it.
func (l *link) Write(p []byte) (int, error) {
	if !l.established.Load() {
		if err := l.beginHandshake(); err != nil {
			return 0, err
		}
		n, err := l.Conn.Write(p)
		if err != nil {
			l.session.attemptFailed(l.explainReadError(err))
		}
		return n, err
	}
	r := sent{at: l.session.expiry.clock.AtLeast()} // too early is safe
	if len(p) >= 12 {
		r.xid = int32(binary.BigEndian.Uint32(p[4:]))
		r.op = int32(binary.BigEndian.Uint32(p[8:]))
		// The path follows, and one byte that says whether to watch.
		if r.op == opGetData && l.session.watches.has(string(p[16:16+binary.BigEndian.Uint32(p[12:])])) {
			p = slices.Clone(p)
			p[len(p)-1] = 1
		}
	}
	l.mu.Lock()
	l.sent = append(l.sent, r)
	l.mu.Unlock()
	if _, err := l.Conn.Write(p); err != nil {
		// The client would answer the request with this error, and again when it has lost
		// the connection. If it is being closed just then, there is a third answer, for
		// which the request's channel has no room, and the client would wait forever. So it
		// learns only from its next read.
		_ = l.Conn.Close()
	}
	return len(p), nil
}

func (l *link) Read(p []byte) (int, error) {
	if !l.established.Load() {
		if err := l.handshake(); err != nil {
			return 0, err
		}
	}
	if err := l.replaceOversized(); err != nil {
		l.timedOut.Store(isTimeout(err))
		return 0, err
	}
	if len(l.substitute) > 0 {
		n := copy(p, l.substitute)
		l.substitute = l.substitute[n:]
		return n, nil
	}
	n, err := l.in.Read(p)
	l.scanReplies(p[:n])
	return n, err
}

// scanReplies finds the packets' heads in the bytes that were read.
func (l *link) scanReplies(p []byte) {
	for len(p) > 0 {
		if l.left > 0 {
			n := min(l.left, len(p))
			l.left, p = l.left-n, p[n:]
			continue
		}
		n := copy(l.head[l.got:], p)
		l.got, p = l.got+n, p[n:]
		if l.got < len(l.head) {
			return
		}
		length := int(binary.BigEndian.Uint32(l.head[:]))
		l.got, l.left = 0, length+4-len(l.head)
		if xid := int32(binary.BigEndian.Uint32(l.head[4:])); xid != eventXID {
			l.onReply(xid, int32(binary.BigEndian.Uint32(l.head[16:])))
		}
	}
}

// removeSent removes the request that was sent with the xid, and returns it. It is
// almost always the first: answers come in the order of the requests, except to
// authentication.
func (l *link) removeSent(xid int32) (r sent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.sent, func(r sent) bool { return r.xid == xid }); i >= 0 {
		r = l.sent[i]
		l.sent = slices.Delete(l.sent, i, i+1)
	}
	return r
}

// onReply is called with the head of the answer to a request.
func (l *link) onReply(xid, code int32) {
	e := &l.session.expiry
	switch r := l.removeSent(xid); r.op {
	case opSync:
		if code == 0 {
			e.lease.recordProof(r.at, e.now, false)
		}
	case opCreate, opDelete, opMulti, opCreateContainer:
		if decidedByLeader(code) {
			e.lease.recordProof(r.at, e.now, true)
		}
	}
}

// replaceOversized gives the client an error in place of a listing that is longer than
// it accepts, and an empty node in place of one with that much data, which is not ours.
// Otherwise the client would drop the connection, and the outcome of every other
// pending request would be unknown.
func (l *link) replaceOversized() error {
	if l.got > 0 || l.left > 0 || len(l.substitute) > 0 {
		return nil // in the middle of a packet
	}
	head, err := l.in.Peek(4)
	if err != nil {
		return err
	}
	length := int(int32(binary.BigEndian.Uint32(head)))
	if length < headLength {
		return fmt.Errorf("%s sent a packet of %d bytes, which is not an answer from ZooKeeper", l.to, length)
	}
	if length <= l.session.cfg.MaxPacket {
		return nil
	}
	if head, err = l.in.Peek(len(l.head)); err != nil {
		return err
	}
	xid := int32(binary.BigEndian.Uint32(head[4:]))
	const statLength = 68 // of what follows the data
	switch l.sentOp(xid) {
	case opGetChildren:
		code := int32(codeTooLong)
		l.substitute = binary.BigEndian.AppendUint32(slices.Clone(head[:16]), uint32(code))
		_, err = l.in.Discard(4 + length)
	case opGetData:
		l.substitute = append(slices.Clone(head), make([]byte, 4+statLength)...) // no data
		if _, err = l.in.Discard(4 + length - statLength); err == nil {
			_, err = io.ReadFull(l.in, l.substitute[len(head)+4:])
		}
	default:
		return nil
	}
	l.removeSent(xid)
	binary.BigEndian.PutUint32(l.substitute, uint32(len(l.substitute)-4))
	return err
}

// sentOp returns the operation of the request that was sent with the xid, or 0.
func (l *link) sentOp(xid int32) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.sent, func(r sent) bool { return r.xid == xid }); i >= 0 {
		return l.sent[i].op
	}
	return 0
}

// decidedByLeader reports whether a write that ended with the code was decided by
// the leader. Other codes may come from the server that we are connected to, such
// as "throttled", or "no right" (enableEagerACLCheck).
func decidedByLeader(code int32) bool {
	const noNode, badVersion, noChildrenForEphemerals, nodeExists, notEmpty = -101, -103, -108, -110, -111
	switch code {
	case 0, noNode, badVersion, noChildrenForEphemerals, nodeExists, notEmpty:
		return true
	}
	return false
}

// SetReadDeadline shortens the client's deadlines. Those for the handshake are several
// session timeouts long, and are cleared in the middle of it (see beginHandshake); the
// one for an answer is two thirds of the timeout, by which time the lease has ended. A
// proof is sent every twelfth of the timeout (lease.go), so after a quarter without an
// answer it is time for another server.
func (l *link) SetReadDeadline(t time.Time) error {
	if !l.established.Load() {
		return nil
	}
	if soon := time.Now().Add(l.maxSilence); soon.Before(t) {
		t = soon
	}
	if !l.shouldSetDeadline(&l.readBy, t) {
		return nil
	}
	return l.Conn.SetReadDeadline(t)
}

// SetWriteDeadline skips most of the client's calls.
func (l *link) SetWriteDeadline(t time.Time) error {
	if !l.established.Load() || !l.shouldSetDeadline(&l.writeBy, t) {
		return nil
	}
	return l.Conn.SetWriteDeadline(t)
}

// shouldSetDeadline reports whether the deadline t is worth setting after the last one.
// The client sets one before every packet and clears it afterward: twice four timers
// for one lock. Clearing can be skipped, because a deadline is set before the next
// packet, and one that is slightly early does no harm.
func (l *link) shouldSetDeadline(last *time.Time, t time.Time) bool {
	if t.IsZero() || t.Sub(*last) < l.slack {
		return false
	}
	*last = t
	return true
}

// errReplaced is the client's error if the server's answer to the handshake names
// another session than ours.
var errReplaced = fmt.Errorf("%w: the server opened another session", driver.ErrExpired)
