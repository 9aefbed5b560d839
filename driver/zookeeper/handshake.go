package zookeeper

import (
	"bytes"
	"context"
	"crypto/tls"
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

	// minTimeout is the shortest session timeout with which locks can be held reliably.
	// Servers grant two ticks or more; the client panics with 0.
	minTimeout = 100 * time.Millisecond

	// headLength is that of a packet's head: xid, zxid, error.
	headLength = 16
)

// handshakeStage is how far the handshake of a link has come.
type handshakeStage int

const (
	stageUnsent    handshakeStage = iota
	stageRequested                // a new session has been requested
	stageSettled                  // a session is established, or no new one was requested
	stageUnwanted                 // the new session is no longer wanted
)

// beginHandshake is called before the client sends its handshake.
func (l *link) beginHandshake() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session.mustNotDial() { // abort was called before
		return net.ErrClosed
	}
	l.began, l.handshakeStage = l.session.expiry.now(), stageSettled
	if l.session.ID() == 0 {
		l.handshakeStage = stageRequested
	}
	return l.Conn.SetDeadline(time.Now().Add(l.timeout))
}

// handshake completes the handshake, whose answer the client then reads from
// l.response. It runs on the goroutine of the client's connect loop.
//
// It also authenticates. If the client knew the credentials, it would do so on each
// connection, and block forever if it failed to write them.
func (l *link) handshake() (err error) {
	s := l.session
	defer func() {
		if err != nil {
			s.attemptFailed(err)
		}
	}()
	response, err := l.readResponse()
	if err != nil {
		return err
	}
	timeout := time.Duration(int32(binary.BigEndian.Uint32(response[8:]))) * time.Millisecond
	id := responseID(response)
	l.offeredID = id
	if id == 0 && s.ID() == 0 {
		l.settleRequest()
		return fmt.Errorf("%s accepted the connection, but opened no session", l.to)
	}
	if id != 0 && timeout < minTimeout {
		return permanentError{fmt.Errorf("%s grants a session timeout of %s, which is too short to hold a lock: check its tickTime, minSessionTimeout and maxSessionTimeout", l.to, timeout)}
	}
	if id != 0 && s.auth != nil {
		if err := l.authenticate(); err != nil {
			return err
		}
	}
	if err := s.onHandshake(id, timeout, l.began); err != nil {
		return err
	}
	if l.settleRequest() {
		s.noteOpenDuration(s.expiry.now() - l.began)
	}
	s.connection.secret = func() []byte { return response[8:] }
	s.outage.end(l.to)
	s.lastGoodIP.Store(l.to.server, l.to.ip)
	l.response = response
	l.slack, l.maxSilence = timeout/32, timeout/4
	l.establishedAt = time.Now()
	l.established.Store(true)
	return l.Conn.SetDeadline(time.Time{})
}

// settleRequest ends the request for a new session, and reports whether there was
// one.
func (l *link) settleRequest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	requested := l.handshakeStage == stageRequested
	l.handshakeStage = stageSettled
	return requested
}

// responseID returns the session of which the answer to a handshake speaks, or 0.
func responseID(response []byte) int64 { return int64(binary.BigEndian.Uint64(response[12:])) }

// readResponse reads the answer to the handshake, with its length. On an error it
// reads nothing: closeUnwantedSession may read the answer after handshake has given
// up.
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

// explainReadError turns a read error during the handshake into one that says what the
// server did.
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

// explainForeignServer returns an error that says what kind of server seems to have
// answered in place of ZooKeeper.
func (l *link) explainForeignServer() error {
	const enough, soon = 48, 100 * time.Millisecond
	_ = l.Conn.SetReadDeadline(time.Now().Add(soon)) // the rest of its line arrives soon, if at all
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
	if _, err := l.Conn.Write(packet); err != nil {
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

// abort breaks the connection at once. If a new session has been requested, abort only
// makes the client call Close, which takes care of that session.
func (l *link) abort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.handshakeStage {
	case stageRequested:
		_ = l.Conn.SetReadDeadline(time.Unix(1, 0))
	case stageUnsent, stageSettled:
		l.disconnect()
	}
}

// disconnect closes the connection. (Closing a TLS connection would first try to
// send a close_notify alert.)
func (l *link) disconnect() {
	if secured, ok := l.Conn.(*tls.Conn); ok {
		secured.NetConn().Close()
		return
	}
	l.Conn.Close()
}

// Close implements net.Conn. A connection on which a new session was requested but not
// established stays open until that session can be closed: the server would keep it for
// its whole timeout, and every further attempt would add one.
func (l *link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.handshakeStage {
	case stageRequested:
		l.handshakeStage = stageUnwanted
		l.session.abandoned.Go(l.closeUnwantedSession) // ends after a session timeout, or soon after Connector.Close
		return nil
	case stageUnwanted:
		return nil
	}
	return l.Conn.Close()
}

// closeUnwantedSession closes the session that was requested as soon as the server
// opens it.
func (l *link) closeUnwantedSession() {
	defer l.disconnect()
	_ = l.Conn.SetDeadline(time.Now().Add(l.session.maxOpenTimeout()))
	defer context.AfterFunc(l.session.giveUp, l.disconnect)()
	if l.offeredID == 0 {
		response, err := l.readResponse()
		if err != nil || responseID(response) == 0 {
			return
		}
	}
	if _, err := l.Conn.Write(closePacket); err == nil {
		_ = l.readClosed()
	}
}
