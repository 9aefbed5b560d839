package zookeeper

// This file closes a session at the servers after its end in this process.

import (
	"context"
	"encoding/binary"
	"io"
	"time"
)

// After its end in this process, a session may live on at the servers, with all nodes: the
// lease has ended, or the session was closed while no server answered. Others would wait
// for the locks, this process's next session among them, until the servers expire the
// session: T after the last sign of life, or after the election of a leader. So Close
// connects again, without the client, and has the first answering server close the session.
// Nothing else is sent, and no call learns of this.

// closeAtServer returns nil when the servers have closed the session, or do not know it, and
// otherwise when ctx ends.
func (s *session) closeAtServer(ctx context.Context) error {
	select {
	case s.farewell <- struct{}{}:
		defer func() { <-s.farewell }()
	case <-s.gone.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	s.judgeLastLink()
	for s.id() != 0 && s.gone.Err() == nil {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.connection.isKeepers() {
			return errNotClosed
		}
		news := s.outage.untilAnswered()
		if left := s.expiry.untilExpired(); left > 0 && context.Cause(s.alive) != errClosed {
			select { // told holders count on this time after the end of the lease
			case <-time.After(left):
			case <-ctx.Done():
			}
			continue
		}
		if len(s.route.untried) == 0 {
			s.route.pauseBeforeRound(ctx, minBackoff, news.Done())
		}
		if err := s.closeOnce(ctx, news); err != nil {
			s.route.failed(err)
		}
	}
	return nil
}

// closeOnce asks the next server to close the session. After any other answer, closeOnce
// waits no longer than for an answer on the way.
func (s *session) closeOnce(ctx, news context.Context) error {
	const soon = 250 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(news, func() { time.AfterFunc(soon, cancel) })()
	l, err := s.dialOnce(ctx)
	if err != nil {
		return err
	}
	defer l.disconnect()
	defer context.AfterFunc(ctx, l.disconnect)()
	_ = l.conn.SetDeadline(time.Now().Add(l.timeout))
	hello := binary.BigEndian.AppendUint32(nil, 0)  // the version of the protocol
	hello = binary.BigEndian.AppendUint64(hello, 0) // any server will do, even if behind
	hello = append(hello, s.connection.secret()...)
	packet := binary.BigEndian.AppendUint32(nil, uint32(len(hello)))
	// The end follows at once: a resumed session lives another T.
	if _, err := l.conn.Write(append(append(packet, hello...), closePacket...)); err != nil {
		return l.explainReadError(err)
	}
	response, err := l.readResponse()
	if err == nil && responseID(response) == s.id() {
		err = l.readClosed()
	}
	if err == nil {
		s.setGone()
		s.outage.answered()
	}
	return err
}

// closePacket is the request to close a session.
var closePacket = []byte{0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5} // length, xid 1, type -11

// readClosed reads the answer to closePacket.
func (l *link) readClosed() error {
	var answer [4 + headLength]byte
	if _, err := io.ReadFull(l.in, answer[:]); err != nil {
		return l.explainReadError(err)
	}
	return nil
}
