package zookeeper

// This file opens or continues a session on a new connection, and says what went wrong in a
// handshake.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	// minResponse and maxResponse bound the answer to a handshake: protocol version,
	// timeout in milliseconds, session ID, password, and a byte in newer versions.
	// Servers send 36 or 37 bytes; the client would believe any length.
	minResponse, maxResponse = 20, 256

	// minTimeout is the shortest session timeout for holding locks reliably. Servers grant
	// two ticks or more; the client panics with 0.
	minTimeout = 100 * time.Millisecond

	// headLength is the length of a packet's head: xid, zxid, error.
	headLength = 16
)

// open carries out the handshake begun by the client, checks the server's answer, and hands
// the answer to the client.
//
// A connection with a new session requested but not established stays open until the
// session can be closed: the server would keep the session for the whole timeout, and every
// further attempt would add a session.
func (l *link) open() (err error) {
	s := l.session
	hello, err := readPacket(l.client)
	if err == nil {
		err = l.checkHello(hello)
	}
	if err != nil {
		l.disconnect()
		return err
	}
	defer func() {
		switch {
		case err == nil:
		case l.requested:
			s.abandoned.Go(l.closeUnwantedSession) // ends after a session timeout, or soon after Connector.Close
		default:
			l.disconnect()
		}
	}()
	l.began, l.requested = s.expiry.now(), s.id() == 0
	_ = l.conn.SetDeadline(time.Now().Add(l.timeout))
	defer context.AfterFunc(s.dialing, func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err := l.conn.Write(hello); err != nil {
		return l.explainReadError(err)
	}
	if err := l.handshake(); err != nil {
		return err
	}
	l.established, l.establishedAt, l.took = true, time.Now(), s.expiry.now()-l.began
	_ = l.conn.SetDeadline(time.Time{})
	return nil
}

// checkHello returns an error if the client's handshake is for another session than ours,
// or may no longer be sent. The client has seen few answers, and was given a long timeout, so
// checkHello corrects what the handshake says of the last answer and of a new session.
func (l *link) checkHello(hello []byte) error {
	const lastZxid, timeout, sessionID = 8, 16, 20
	s := l.session
	switch {
	case len(hello) < sessionID+8 || int64(binary.BigEndian.Uint64(hello[sessionID:])) != s.id():
		s.end(errReplaced)
		return errReplaced
	case s.mustNotDial():
		return net.ErrClosed
	}
	binary.BigEndian.PutUint64(hello[lastZxid:], uint64(s.requests.lastSeen()))
	if s.id() == 0 {
		binary.BigEndian.PutUint32(hello[timeout:], uint32(s.cfg.SessionTimeout.Milliseconds()))
	}
	return nil
}

// handshake completes the handshake, after the client's part of it.
//
// Handshake also authenticates. If the client had the credentials, the client would
// authenticate on each connection, and block forever after a failed write.
func (l *link) handshake() error {
	s := l.session
	response, err := l.readResponse()
	if err != nil {
		return err
	}
	timeout := time.Duration(int32(binary.BigEndian.Uint32(response[8:]))) * time.Millisecond
	id := responseID(response)
	l.offeredID = id
	switch {
	case binary.BigEndian.Uint32(response[4:]) == rejectedByKeeper:
		l.requested = false
		return fmt.Errorf("%s has no leader", l.to)
	case id == 0 && s.id() == 0:
		l.requested = false
		return fmt.Errorf("%s accepted the connection, but opened no session", l.to)
	case id == 0:
		s.outage.end(l.to)
	case timeout < minTimeout:
		return permanentError{fmt.Errorf("%s grants a session timeout of %s, which is too short to hold a lock: check its tickTime, minSessionTimeout and maxSessionTimeout", l.to, timeout)}
	case s.auth != nil:
		err = l.authenticate()
	}
	if err == nil && l.requested {
		err = l.checkServed()
	}
	if err == nil && id != 0 {
		err = l.writeToClient(response) // before the session counts, because the client must know the session
	}
	if err != nil {
		return err
	}
	if err := s.onHandshake(id, timeout, l.began); err != nil {
		return err
	}
	if l.requested {
		s.recognizeKeeper(response)
		s.noteOpenDuration(s.expiry.now() - l.began)
		l.requested = false
	}
	l.slack, l.maxSilence, l.maxIdle = timeout/32, timeout/4, timeout*apart/100
	s.connection.secret = func() []byte { return response[8:] }
	s.outage.end(l.to)
	s.lastGoodIP.Store(l.to.server, l.to.ip)
	return nil
}

// responseID returns the session named by the answer to a handshake, or 0.
func responseID(response []byte) int64 { return int64(binary.BigEndian.Uint64(response[12:])) }

// readResponse reads the answer to the handshake, with its length. On an error nothing is
// read: closeUnwantedSession may read the answer after handshake has given up.
func (l *link) readResponse() ([]byte, error) {
	head, err := l.in.Peek(4)
	if err != nil {
		return nil, l.explainReadError(err)
	}
	length := binary.BigEndian.Uint32(head)
	if length < minResponse || length > maxResponse {
		return nil, l.explainForeignServer()
	}
	response, err := l.in.Peek(4 + int(length))
	if err != nil {
		return nil, l.explainReadError(err)
	}
	if password := int32(binary.BigEndian.Uint32(response[20:])); password > int32(length)-minResponse {
		return nil, permanentError{fmt.Errorf("%s is not a ZooKeeper server, judging by its answer %q", l.to, response)}
	}
	response = bytes.Clone(response)
	_, err = l.in.Discard(len(response))
	return response, err
}

// explainReadError says what the server did, given a read error during the handshake.
func (l *link) explainReadError(err error) error {
	switch {
	case isTimeout(err):
		return timeoutError{fmt.Errorf("%s accepted the connection, but did not answer within %s", l.to, l.timeout)}
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s closed the connection without an answer: it may not be serving yet, have too many connections from here (maxClientCnxns), or expect TLS", l.to)
	}
	err = fmt.Errorf("%s broke the connection during the handshake: %w", l.to, err)
	if isTLSRefusal(err) { // with TLS 1.3, a client's certificate is refused only now
		return tlsRefusal(err)
	}
	return err
}

// explainForeignServer returns an error naming the kind of server that seems to have
// answered in place of ZooKeeper.
func (l *link) explainForeignServer() error {
	const enough, soon = 48, 100 * time.Millisecond
	_ = l.conn.SetReadDeadline(time.Now().Add(soon)) // the rest of the line arrives soon, if at all
	answer, _ := l.in.Peek(enough)
	for _, known := range []struct{ begin, what string }{
		{"HTTP/", "HTTP; ZooKeeper's client port is usually 2181"},
		{"<", "HTTP; ZooKeeper's client port is usually 2181"},
		{"\x15\x03", "TLS; set Config.TLS, or use a port without TLS"},
		{"SSH-", "SSH; ZooKeeper's client port is usually 2181"},
		{"-ERR", "Redis; ZooKeeper's client port is usually 2181"},
		{"-NOAUTH", "Redis; ZooKeeper's client port is usually 2181"},
		{"-DENIED", "Redis; ZooKeeper's client port is usually 2181"},
	} {
		if bytes.HasPrefix(answer, []byte(known.begin)) {
			return permanentError{fmt.Errorf("%s is not a ZooKeeper server: its answer %q looks like %s", l.to, answer, known.what)}
		}
	}
	return permanentError{fmt.Errorf("%s is not a ZooKeeper server, judging by its answer %q: check host and port", l.to, answer)}
}

// authenticate sends the credentials and waits for the answer. Nothing else can arrive:
// there are no watches and no requests yet.
func (l *link) authenticate() error {
	const (
		xid    = -4 // the protocol's number for this request
		op     = 100
		scheme = "digest"
	)
	credentials := l.session.auth()
	packet := make([]byte, 4, 64+len(credentials))
	for _, n := range []int32{xid, op, 0, int32(len(scheme))} {
		packet = binary.BigEndian.AppendUint32(packet, uint32(n))
	}
	packet = append(packet, scheme...)
	packet = binary.BigEndian.AppendUint32(packet, uint32(len(credentials)))
	packet = append(packet, credentials...)
	binary.BigEndian.PutUint32(packet, uint32(len(packet)-4))
	user := l.session.cfg.Digest
	if _, err := l.conn.Write(packet); err != nil {
		return fmt.Errorf("authenticate %v at %s: %w", user, l.to, err)
	}
	var answer [4 + headLength]byte
	_, err := io.ReadFull(l.in, answer[:])
	if err != nil {
		return fmt.Errorf("authenticate %v: %w", user, l.explainReadError(err))
	}
	length, got := binary.BigEndian.Uint32(answer[:]), int32(binary.BigEndian.Uint32(answer[4:]))
	if length != headLength || got != xid {
		return fmt.Errorf("authenticate %v: %s sent an unexpected answer", user, l.to)
	}
	if code := int32(binary.BigEndian.Uint32(answer[16:])); code != 0 {
		return permanentError{fmt.Errorf("authenticate %v: %s refuses the credentials (error %d): check Config.Digest, and that the server offers digest authentication", user, l.to, code)}
	}
	return nil
}

// checkServed finds out whether the server serves clients with these credentials, or none: a
// server that demands others opens a session, and closes it at the first request.
func (l *link) checkServed() error {
	if _, err := l.conn.Write(ping); err != nil {
		return l.explainReadError(err)
	}
	var answer [4 + headLength]byte
	if _, err := io.ReadFull(l.in, answer[:]); err != nil {
		return l.explainReadError(err)
	}
	if code := int32(binary.BigEndian.Uint32(answer[16:])); code == int32(errUnauthenticated) {
		return permanentError{fmt.Errorf("%s serves only authenticated clients: set Config.Digest, if the servers accept digest "+
			"(enforce.auth.schemes), or a client certificate in Config.TLS, if they accept x509; SASL is not supported", l.to)}
	}
	return nil
}

// closeUnwantedSession closes the requested session as soon as the server has opened the
// session.
func (l *link) closeUnwantedSession() {
	defer l.disconnect()
	_ = l.conn.SetDeadline(time.Now().Add(l.session.maxOpenTimeout()))
	defer context.AfterFunc(l.session.giveUp, l.disconnect)()
	if l.offeredID == 0 {
		response, err := l.readResponse()
		if err != nil || responseID(response) == 0 {
			return
		}
	}
	if _, err := l.conn.Write(closePacket); err == nil {
		_ = l.readClosed()
	}
}
