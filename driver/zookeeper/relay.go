package zookeeper

// The client has one end of a net.Pipe for a connection, and a relay has the other. The
// relay passes the client's packets (handshake, end of the session) on to the server, on the
// connection of the session's own requests, and passes the answers back. The relay answers
// the client's pings by itself: the proofs of the lease keep the session, and show sooner that
// a server is silent (link.extendDeadline).

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// dial implements zk.Dialer: it connects to the server named by hosts.Next.
func (s *session) dial(_, _ string, _ time.Duration) (net.Conn, error) {
	if s.mustNotDial() {
		return nil, s.Err()
	}
	s.outage.begin(fmt.Errorf("%s has not answered yet", s.route.untried[0]))
	s.route.attempts++
	l, err := s.dialOnce(s.dialing)
	if err != nil {
		s.attemptFailed(err)
		return nil, err
	}
	s.connection.attach(l)
	var clients net.Conn
	l.client, clients = net.Pipe()
	s.relays.Go(l.relay) // ends when the connection breaks, or the client closes the pipe
	return clients, nil
}

// relay carries out the handshake, and then passes packets between the client and the
// server until either closes the connection, or the session is over.
func (l *link) relay() {
	s := l.session
	defer l.client.Close()
	if err := l.open(); err != nil {
		s.attemptFailed(err)
		return
	}
	defer l.disconnect()
	defer context.AfterFunc(s.dialing, l.disconnect)()
	s.relays.Go(l.passToServer) // ends when either connection is closed
	s.requests.useLink(l)
	s.isReady()
	var err error
	for err == nil {
		err = l.receive()
	}
	s.cfg.Logger.Debug("lockpool: the connection to ZooKeeper has ended", "server", l.to.String(), "cause", err)
	s.connectionEnded(l, err)
	s.watches.interrupt()
	s.requests.disconnected(l.closed, false)
}

var (
	ping       = []byte{0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11}                                 // length, xid -2, type
	pingAnswer = []byte{0, 0, 0, headLength, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // length, xid -2
)

// passToServer passes the client's packets on.
func (l *link) passToServer() {
	defer l.disconnect()
	for {
		packet, err := readPacket(l.client)
		isPing := bytes.Equal(packet, ping)
		if isPing {
			err = l.writeToClient(pingAnswer)
		}
		if err != nil {
			return
		}
		if isPing {
			continue
		}
		l.closing.Store(true) // the client sends nothing else
		r := l.session.requests
		r.mu.Lock()
		l.out = append(l.out, packet...)
		l.flush()
		r.mu.Unlock()
	}
}

// passToClient passes on the answer to a packet of the client.
func (l *link) passToClient(xid int32, length int) error {
	if length > maxOwnPacket {
		return fmt.Errorf("%s sent an answer of %d bytes to the end of the session", l.to, length)
	}
	packet, err := l.in.Peek(4 + length)
	if err != nil {
		return err
	}
	if xid > 0 { // only the end of the session has such a number
		l.session.setGone()
	}
	err = l.writeToClient(packet)
	_, _ = l.in.Discard(len(packet))
	return err
}

// writeToClient has the client read a packet. The client is given no more time than a server.
func (l *link) writeToClient(packet []byte) error {
	_ = l.client.SetWriteDeadline(time.Now().Add(l.timeout))
	_, err := l.client.Write(packet)
	return err
}

// readPacket reads a packet of the client.
func readPacket(client io.Reader) ([]byte, error) {
	packet := make([]byte, 4, 64)
	if _, err := io.ReadFull(client, packet); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(packet)
	if length > maxOwnPacket {
		return nil, fmt.Errorf("the client wrote a packet of %d bytes", length)
	}
	packet = append(packet, make([]byte, length)...)
	_, err := io.ReadFull(client, packet[4:])
	return packet, err
}
