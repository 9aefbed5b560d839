package zookeeper

// This file sends the requests of a session, bounds how many are pending, and takes their
// answers.

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockpool/lockpool/internal/clock"
)

// requests sends a session's requests to its server. The client (zk.Conn of go-zookeeper)
// has no part in this: its calls block without a context, and write each request
// separately. The client dials, and opens and closes the session.
//
// All answers, including those to the proofs of the lease, arrive one after the other on
// one connection. So requests bounds what is pending ahead of a proof, in bytes of expected
// answers. Because small answers also cost the server work, each counts for at least
// minAnswer. Only the proofs themselves bypass the bound. A request waits here while there
// is no room for its answer, or no connection.
type requests struct {
	clock   clock.Clock    // of the lease
	use     func()         // called before each request but proofs
	writers sync.WaitGroup // writing goroutines

	mu       sync.Mutex // guards all below, and link's own part (link.go)
	link     *link      // the connection of the established session; nil if there is none
	waiting  []*request // first come, first served
	room     int64      // bytes of answers
	lastXID  int32
	lastZxid int64 // of the last answer: no server behind this zxid may serve the session
	suspects suspects
	over     bool // nothing can be sent any more
}

const (
	// maxAnswers is what a network of 2 MB/s carries in an eighth of a second. A
	// request whose answer is expected to be longer is sent alone.
	maxAnswers = 256 << 10
	// minAnswer allows 64 requests at a time. A server busy with other clients answers as
	// many in an eighth of a second, and a server 50 ms away is sent 1,200 in a second.
	minAnswer = 4 << 10
	// maxSend is the size of the largest request in bytes.
	maxSend = 64 << 10
	// firstXID is the xid of the first request. The client numbers its own, which are
	// few, from 1.
	firstXID = 1 << 30
)

// request is one request to the server, and the answer.
type request struct {
	op     int32
	xid    int32
	answer int64          // the bytes counted for the answer; 0 for a proof
	packet []byte         // nil when it is on its way
	buffer *[]byte        // of packet
	size   int            // of packet
	atOnce bool           // fails rather than wait for another connection: what the request rests on may have changed by then
	writes string         // the node created or changed, the first of several
	at     time.Duration  // when it was sent, by expiry.now
	noted  func(*request) // if not nil, called with the answer before any later event is
	done   chan struct{}  // closed after that

	callers atomic.Int32 // not given up yet; several share a listing

	// The answer, set before noted is called.
	err      error
	paths    []string  // of the created nodes
	room     [1]string // for the first of them
	data     []byte
	stat     zk.Stat
	children []string
	failed   int // the part of a transaction to which the error belongs
}

var errTooLarge = errors.New("the request is too large")

// isSent reports whether a finished request was sent.
func (q *request) isSent() bool { return q.packet == nil }

// finish sets the outcome of a request. Only the goroutine that took the request out of
// requests.waiting or link.pending calls finish, once.
func (q *request) finish(err error) {
	q.err = err
	if q.noted != nil {
		q.noted(q)
	}
	close(q.done)
}

// start sends requests, together, as soon as there is a connection and room for their
// answers. start never waits. Each request ends with an answer, or with an error for which
// isUnsure is true: when the connection used breaks, when no connection will be made any
// more (or, for atOnce, there is none now), or when all callers give up the request before it
// is sent. The error is errClosedEachTime if such requests have broken several connections
// (suspect.go).
func (r *requests) start(all ...*request) {
	if slices.ContainsFunc(all, func(q *request) bool { return q.answer > 0 }) {
		r.use()
	}
	type failure struct {
		of  *request
		err error
	}
	var failed []failure
	r.mu.Lock()
	for _, q := range all {
		switch q.size = len(q.packet); {
		case r.over, q.atOnce && r.link == nil:
			failed = append(failed, failure{q, zk.ErrConnectionClosed})
			continue
		case q.size > maxSend:
			failed = append(failed, failure{q, errTooLarge})
			continue
		case r.suspects.judge(q, r.clock.AtLeast()):
			failed = append(failed, failure{q, errClosedEachTime})
			continue
		}
		binary.BigEndian.PutUint32(q.packet, uint32(q.size-4))
		if q.answer == 0 {
			r.waiting = slices.Insert(r.waiting, 0, q)
		} else {
			r.waiting = append(r.waiting, q)
		}
	}
	r.sendWaiting()
	r.mu.Unlock()
	for _, f := range failed {
		f.of.finish(f.err)
	}
}

// cancel is called, at most once, by each caller that gives up a request. The last cancel
// takes back a request not sent yet, and then returns true.
func (r *requests) cancel(q *request) bool {
	if q.callers.Add(-1) > 0 {
		return false
	}
	r.mu.Lock()
	i := slices.Index(r.waiting, q)
	if i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	}
	r.mu.Unlock()
	if i >= 0 {
		q.finish(context.Canceled)
	}
	return i >= 0
}

// sendWaiting sends as many waiting requests as have room. It is called with r.mu held, and
// releases r.mu while writing.
func (r *requests) sendWaiting() {
	l, n := r.link, 0
	if l == nil {
		return
	}
	for ; n < len(r.waiting) && r.waiting[n].answer <= r.room; n++ {
		q := r.waiting[n]
		r.room -= q.answer
		r.lastXID = max(r.lastXID+1, firstXID)     // also after the largest
		q.xid, q.at = r.lastXID, r.clock.AtLeast() // too early is safe
		binary.BigEndian.PutUint32(q.packet[4:], uint32(q.xid))
		l.pending = append(l.pending, q)
		l.unanswered += q.size
		l.out = append(l.out, q.packet...)
		q.copied()
	}
	r.waiting = slices.Delete(r.waiting, 0, n)
	l.flush()
}

// expectAnswer gives the server of an idle session no more time for an answer than the server
// of any other session.
func (r *requests) expectAnswer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link != nil {
		_ = r.link.conn.SetReadDeadline(time.Now().Add(r.link.maxSilence)) // an error shows in the next read
	}
}

// connected reports whether the session is established on a connection.
func (r *requests) connected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link != nil
}

// useLink is called when the session is established on a connection. After another
// connection, the server may be behind an event delivered there: events have no zxid, so
// the handshake does not tell. A write goes first, because a server answers nothing after a
// write on a connection before applying everything decided before the write.
func (r *requests) useLink(l *link) {
	r.mu.Lock()
	again := r.lastZxid > 0
	r.mu.Unlock()
	if again {
		l.barrier = changeNothing()
		l.barrier.answer = 0
		r.start(l.barrier)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.link = l
	r.sendWaiting()
}

// closesWithin is how long a server takes to close a connection, beside the round trip.
const closesWithin = 50 * time.Millisecond

// disconnected is called when no more answers come from the connection. closed reports whether
// the server has closed it, and over that no connection will be made any more.
func (r *requests) disconnected(closed, over bool) {
	r.mu.Lock()
	var failed []*request
	if closed = closed && r.link != nil; r.link != nil {
		failed, r.link.pending = r.link.pending, nil
	}
	guilty, now := map[*request]bool{}, r.clock.AtLeast()
	if closed {
		r.suspects.closed(failed, now, 2*r.link.took+closesWithin)
		for _, q := range failed {
			guilty[q] = r.suspects.judge(q, now)
		}
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(q *request) bool {
		guilty[q] = closed && r.suspects.judge(q, now)
		fails := guilty[q] || q.atOnce
		if fails {
			failed = append(failed, q)
		}
		return fails
	})
	r.link, r.room = nil, maxAnswers
	if over {
		failed = append(failed, r.waiting...)
		r.waiting, r.over = nil, true
	}
	r.mu.Unlock()
	for _, q := range failed {
		if guilty[q] {
			q.finish(errClosedEachTime)
		} else {
			q.finish(zk.ErrConnectionClosed)
		}
	}
}

// acquit clears all suspicion, because a request without an answer was carried out.
func (r *requests) acquit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.suspects.known)
}

// take removes the request whose answer on l has the xid, and returns it, or nil if no answer
// to that request can come now. Answers come in the order of the requests, but the connected
// server may refuse a request before passing it on (enableEagerACLCheck).
func (r *requests) take(l *link, xid int32, zxid int64, code int32) *request {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(l.pending, func(q *request) bool { return q.xid == xid })
	if i < 0 || i > 0 && meaningOf(errorOf(code)) != refused {
		return nil
	}
	if zxid > 0 {
		r.lastZxid = zxid
	}
	q := l.pending[i]
	l.pending = slices.Delete(l.pending, i, i+1)
	l.unanswered -= q.size
	r.suspects.answered(q)
	r.room += q.answer
	return q
}

// answered is called when everything received has been read.
func (r *requests) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) > 0 {
		r.sendWaiting()
	}
}

// lastSeen returns the zxid of the last answer.
func (r *requests) lastSeen() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastZxid
}

// send is start for one request, returned to the caller.
func (r *requests) send(q *request) *request {
	r.start(q)
	return q
}

// do sends a request and waits for the outcome.
func (r *requests) do(q *request) error {
	<-r.send(q).done
	return q.err
}

func (r *requests) Create(path string, data []byte, flags int32, acl []zk.ACL) error {
	return r.do(createRequest(path, data, flags, acl))
}

func (r *requests) Multi(ops ...any) error { return r.do(multiRequest(ops...)) }

func (r *requests) Delete(path string, version int32) error {
	return r.do(deleteRequest(path, version))
}

func (r *requests) Set(path string, data []byte, version int32) error {
	return r.do(setRequest(path, data, version))
}

// changeNothing returns a write that changes nothing. When the write is answered, every
// earlier write of the session is decided, also on earlier connections and with lost
// replies: reads show the outcome. A sync would not do: a leader without followers answers
// the syncs of its own clients while their writes hang (CommitProcessor.matchSyncs), and
// may commit those writes later.
func changeNothing() *request {
	q := multiRequest(&zk.CheckVersionRequest{Path: "/", Version: -1})
	q.noted = func(q *request) {
		if q.err == zk.ErrNoAuth { // on the root, agreed to by a majority
			q.err = nil
		}
	}
	return q
}

// decideWrites waits for the answer to changeNothing.
func (s *session) decideWrites() error { return s.requests.do(changeNothing()) }
